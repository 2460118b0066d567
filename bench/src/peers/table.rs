//! The figures as text: a table for each state, then the systems and the method.

use std::fmt::Write;

use super::outcome::{FILES_OF_FEWER_READERS, Measurement, PeersOutcome, RAW};
use crate::side_by_side::{State, footer};
use crate::systems::Kind;
use larder_dataset::size::show_bytes;
use larder_epochs::figures::{Spread, median};
use larder_epochs::fuse_requests::show_rates;
use larder_epochs::table::{figures_table, text_table};

fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) && digit != '-' {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn ratio(value: f64, base: Option<f64>) -> String {
    base.filter(|&base| base > 0.0).map_or_else(|| "-".to_owned(), |base| format!("{:.2}", value / base))
}

impl PeersOutcome {
    /// A table for each state, FUSE requests by kind, the systems and the method.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for state in State::ALL {
            let _ = writeln!(text, "{}\n{}", self.heading(state), figures_table(&self.state_rows(state)));
        }
        self.write_fuse(&mut text);
        let _ = write!(text, "Systems\n{}", footer(&self.systems, &self.left_out));
        self.write_method(&mut text);
        text
    }

    fn heading(&self, state: State) -> String {
        let what = match state {
            State::Cold => "a new mount, an empty local cache, the kernel's caches dropped",
            State::Warm => "everything in the local cache, the kernel's caches dropped",
            State::Hot => "everything was read through this mount just before",
        };
        format!("{}: {what}", state.name().to_uppercase())
    }

    fn state_rows(&self, state: State) -> Vec<Vec<String>> {
        let most = self.most_readers();
        let mut head = vec![String::new()];
        head.extend(self.config.readers.iter().map(|readers| format!("files/s, {readers} readers")));
        let figures = [
            "MB/s",
            "x ext4",
            "x shipped",
            "x tuned",
            "p50 ms",
            "p99 ms",
            "reader CPU",
            "daemon CPU",
            "FUSE/file",
            "GET/file",
            "HEAD/file",
            "LIST/file",
            "RSS MB",
            "peak MB",
        ];
        head.extend(figures.map(str::to_owned));
        let floor = self.spread("ext4", state, most, |one| one.epoch.files_per_second).map(|spread| spread.median);
        let (shipped, tuned) = (self.best(&[Kind::Shipped], state), self.best(&[Kind::Tuned], state));
        let mut rows = vec![head];
        for system in &self.systems {
            let median = |figure: &dyn Fn(&Measurement) -> f64| {
                self.spread(&system.name, state, most, figure).map(|spread| spread.median)
            };
            let Some(rate) = median(&|one| one.epoch.files_per_second) else { continue };
            let mut row = vec![system.name.clone()];
            row.extend(self.config.readers.iter().map(|&readers| {
                let spread = self.spread(&system.name, state, readers, |one| one.epoch.files_per_second);
                spread.map_or_else(
                    || "-".to_owned(),
                    |Spread { median, min, max }| match self.config.rounds {
                        1 => grouped(median),
                        _ => format!("{} ({}..{})", grouped(median), grouped(min), grouped(max)),
                    },
                )
            }));
            let shown = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let a_thousand = |seconds: f64, one: &Measurement| 1e3 * seconds / one.epoch.files as f64;
            let a_file = |count: u64, one: &Measurement| count as f64 / one.epoch.files as f64;
            let has_daemon = system.kind != Kind::Floor;
            let has_s3 = has_daemon || system.name == RAW;
            let of_daemon = |value: Option<f64>| value.filter(|_| has_daemon);
            let of_s3 = |value: Option<f64>| value.filter(|_| has_s3);
            let fuse = Spread::of(
                self.of(&system.name, state, most).filter_map(|one| Some(a_file(one.fuse.as_ref()?.total, one))),
            );
            row.push(shown(median(&|one| one.epoch.mb_per_second), 0));
            row.extend([floor, shipped, tuned].map(|base| ratio(rate, base)));
            row.push(shown(median(&|one| one.epoch.p50_ms), 2));
            row.push(shown(median(&|one| one.epoch.p99_ms), 2));
            row.push(shown(median(&|one| a_thousand(one.epoch.cpu_seconds, one)), 3));
            row.push(shown(of_daemon(median(&|one| a_thousand(one.daemon_cpu_seconds, one))), 3));
            row.push(shown(fuse.map(|spread| spread.median), 2));
            row.push(shown(of_s3(median(&|one| a_file(one.gets, one))), 2));
            row.push(shown(of_s3(median(&|one| a_file(one.heads, one))), 2));
            row.push(shown(of_s3(median(&|one| a_file(one.lists, one))), 2));
            row.push(shown(of_daemon(median(&|one| one.rss_bytes as f64 / 1e6)), 0));
            row.push(shown(of_daemon(median(&|one| one.peak_rss_bytes as f64 / 1e6)), 0));
            rows.push(row);
        }
        rows
    }

    fn write_fuse(&self, text: &mut String) {
        if let Some(why) = &self.no_fuse_requests {
            let _ = writeln!(text, "FUSE requests were not counted: {why}\n");
            return;
        }
        let most = self.most_readers();
        let mut rows = Vec::new();
        for (state, system) in State::ALL.iter().flat_map(|&state| self.systems.iter().map(move |one| (state, one))) {
            let counted: Vec<_> =
                self.of(&system.name, state, most).filter_map(|one| Some((one, one.fuse.as_ref()?))).collect();
            let Some((_, first)) = counted.first() else { continue };
            let rates = first.kinds.keys().filter_map(|&kind| {
                let each = counted.iter().map(|(one, fuse)| fuse.kinds[kind] as f64 / one.epoch.files as f64);
                Some((kind, median(each)?))
            });
            rows.push([state.name().to_owned(), system.name.clone(), show_rates(rates).trim_start().to_owned()]);
        }
        if !rows.is_empty() {
            let head = ["", "", "requests"];
            let _ = writeln!(text, "FUSE requests per file, {most} readers, 0.01 or more\n{}", text_table(head, &rows));
        }
    }

    fn write_method(&self, text: &mut String) {
        let machine = &self.machine;
        let _ = writeln!(
            text,
            "\nMachine: {}, {} cores, {:.1} GB of memory, Linux {}, {}.",
            machine.cpu,
            machine.cores,
            machine.memory_bytes as f64 / 1e9,
            machine.kernel,
            machine.filesystem
        );
        let most = self.most_readers();
        let place = if self.objects_in_memory { "memory" } else { "files" };
        let rate = self.config.origin_bytes_per_second.map(|rate| format!(", at most {} per second", show_bytes(rate)));
        let (delay, rate) = (self.config.origin_delay_ms, rate.unwrap_or_default());
        let _ = writeln!(
            text,
            "Method: {} files, {:.1} MB, log-normal sizes; an S3 server on loopback serves them from {place}, after \
             {delay} ms{rate}, without TLS and without verifying the signatures of plain GETs. {} round(s); the \
             systems take turns, and each round starts with another one. {most} readers read all files, fewer \
             readers read {}. A reader opens the next file of a shuffled order, reads it to its end with a 1 MiB \
             buffer, closes it, and checks its length and CRC32C (the latency covers open, read, checksum and \
             close). Warm follows a cold epoch and an untimed one; hot follows another untimed one. Files/s: median \
             (least..greatest) of the rounds; all other columns: median, {most} readers. x: files/s against ext4, \
             the fastest peer as shipped, the fastest tuned one. CPU: seconds for 1,000 files; the daemon's includes \
             its metadata engine. FUSE: all requests but FORGET and INTERRUPT, counted by the kernel for this mount. \
             RSS: sum over the daemon's processes; peak since the mount.",
            self.config.files,
            self.bytes as f64 / 1e6,
            self.config.rounds,
            self.config.files.min(FILES_OF_FEWER_READERS),
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::peers::machine::Machine;
    use crate::peers::outcome::PeersConfig;
    use crate::side_by_side::{LeftOut, SystemInfo};
    use larder_epochs::epochs::Epoch;
    use larder_epochs::fuse_requests::Requests;

    pub(in crate::peers) fn outcome() -> PeersOutcome {
        let system = |name: &str, kind| SystemInfo {
            name: name.to_owned(),
            kind,
            version: format!("{name} 1.0"),
            options: "unchanged".to_owned(),
        };
        let mut measurements = Vec::new();
        for (name, rate) in [("ext4", 1000.0), ("larder", 800.0), ("s3fs", 100.0), ("rclone tuned", 400.0)] {
            for state in State::ALL {
                for (round, factor) in [(0, 1.0), (1, 3.0), (2, 1.5)] {
                    measurements.push(Measurement {
                        system: name.to_owned(),
                        state,
                        readers: 16,
                        round,
                        epoch: Epoch::new(
                            vec![std::time::Duration::from_millis(2); 100],
                            100,
                            100.0 / rate / factor,
                            0.2,
                        ),
                        daemon_cpu_seconds: 0.1,
                        s3_cpu_seconds: Some(0.0),
                        rss_bytes: 50_000_000,
                        peak_rss_bytes: 60_000_000,
                        fuse: (name != "ext4")
                            .then(|| Requests { kinds: [("read", 150), ("open", 0)].into(), total: 250 }),
                        gets: 100,
                        get_bytes: 100,
                        heads: 200,
                        lists: 0,
                    });
                }
            }
        }
        PeersOutcome {
            config: PeersConfig {
                files: 100,
                mean_size: 1,
                readers: vec![16],
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                origin_delay_ms: 40,
                origin_bytes_per_second: Some(1 << 30),
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            machine: Machine::of(std::path::Path::new("/")).unwrap(),
            bytes: 100,
            objects_in_memory: true,
            systems: vec![
                system("ext4", Kind::Floor),
                system("larder", Kind::Larder),
                system("s3fs", Kind::Shipped),
                system("rclone tuned", Kind::Tuned),
            ],
            left_out: vec![LeftOut { name: "juicefs".to_owned(), why: "no juicefs on PATH".to_owned() }],
            no_fuse_requests: None,
            measurements,
        }
    }

    #[test]
    fn numbers_are_grouped_and_a_ratio_needs_a_base() {
        let numbers = [0.0, 999.4, 1000.0, 1_234_567.0];
        assert_eq!(numbers.map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let ratios = [ratio(3.0, Some(2.0)), ratio(3.0, None), ratio(1.0, Some(0.0))];
        assert_eq!(ratios, ["1.50", "-", "-"]);
    }

    #[test]
    fn rows_have_medians_spreads_ratios_and_counts_a_file() {
        let rows = outcome().state_rows(State::Warm);
        let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap().join(" | ");
        assert_eq!(
            row("larder"),
            "larder | 1,200 (800..2,400) | 0 | 0.80 | 8.00 | 2.00 | 2.00 | 2.00 | 2.000 | 1.000 | 2.50 | 1.00 | 2.00 | \
             0.00 | 50 | 60"
        );
        assert!(row("ext4").ends_with("| - | - | - | - | - | - | -"), "no daemon, no S3: {}", row("ext4"));
        let text = outcome().table();
        for words in [
            "COLD:",
            "WARM:",
            "HOT:",
            "read 1.50",
            "left out: no juicefs on PATH",
            "(s3fs 1.0)",
            "Method: 100",
            "after 40 ms, at most 1.0 GiB per second",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("open 0"), "{text}");
    }
}
