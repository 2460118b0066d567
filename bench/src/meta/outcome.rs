//! The settings of a run, its measurements, and the tables.

use std::path::PathBuf;

use serde::Serialize;

use super::synthetic::SyntheticRow;
use super::walk::Rate;
use crate::side_by_side::{LeftOut, SystemInfo, footer};
use larder_epochs::figures::median;
use larder_epochs::table::figures_table;

/// Size of each file.
pub(super) const FILE_BYTES: u64 = 1024;

/// The system to which the others are compared.
const BASE: &str = "ext4";

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MetaConfig {
    /// Number of files, 200 per folder; 0 measures only synthetic manifests.
    pub files: u32,
    /// Numbers of files of the synthetic manifests.
    pub synthetic: Vec<u32>,
    /// Number of rounds.
    pub rounds: u32,
    /// The names of the systems to measure; all if empty.
    pub only: Vec<String>,
    /// Seed of files and orders.
    pub seed: u64,
    /// An existing folder on the disk to measure. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One system in one round.
#[derive(Clone, Debug, Serialize)]
pub struct MetaRow {
    pub system: String,
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the start of the daemon to its first answer to a look-up.
    pub mount_seconds: f64,
    /// Seconds of a walk that reads names and kinds only, as `find` does; nothing in the kernel's caches.
    pub find_seconds: f64,
    /// One look-up of each file, in random order by one thread; nothing in the kernel's caches.
    pub first_stat: Rate,
    /// Seconds of CPU of the daemon for 1,000 of those look-ups.
    pub first_stat_cpu_seconds_a_thousand: f64,
    /// Seconds of a walk that reads the attributes of each entry, as `ls -lR` does; nothing in the kernel's caches.
    pub list_seconds: f64,
    /// A second look-up of each file, by 16 threads.
    pub second_stat: Rate,
    /// Resident memory of daemon and metadata engine after all these steps.
    pub rss_bytes: u64,
    /// Peak resident memory of daemon and metadata engine.
    pub peak_rss_bytes: u64,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MetaOutcome {
    pub config: MetaConfig,
    /// The systems, in the order of the table.
    pub systems: Vec<SystemInfo>,
    /// The systems that were not measured, or not in every round.
    pub left_out: Vec<LeftOut>,
    /// One row per system and round.
    pub rows: Vec<MetaRow>,
    /// One row per synthetic manifest and round.
    pub synthetic: Vec<SyntheticRow>,
}

impl MetaOutcome {
    fn median_of(&self, system: &str, figure: impl Fn(&MetaRow) -> f64) -> Option<f64> {
        median(self.rows.iter().filter(|row| row.system == system).map(figure))
    }

    /// The tables that the benchmark prints: medians over the rounds, with ratios to the disk itself.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            text.push_str(&format!(
                "{} files of {FILE_BYTES} bytes, 200 to a folder; medians of {} rounds; x: ratio to {BASE}\n\n",
                self.config.files, self.config.rounds
            ));
            text.push_str(&figures_table(&self.system_rows()));
            text.push('\n');
            text.push_str(&footer(&self.systems, &self.left_out));
        }
        if !self.synthetic.is_empty() {
            text.push_str(
                "\nSynthetic manifests, whose files do not exist, mounted by larder; medians of the rounds\n\n",
            );
            text.push_str(&figures_table(&self.synthetic_rows()));
        }
        text
    }

    fn system_rows(&self) -> Vec<Vec<String>> {
        let heads = [
            "system",
            "mount s",
            "find s",
            "x",
            "first stat/s",
            "x",
            "p50 us",
            "p99 us",
            "CPU s/1000",
            "ls -l s",
            "x",
            "again/s",
            "x",
            "p99 us",
            "RSS MB",
        ];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        let names = self.systems.iter().map(|system| system.name.as_str());
        for name in names.filter(|name| self.rows.iter().any(|row| row.system == **name)) {
            let show = |digits: usize, figure: &dyn Fn(&MetaRow) -> f64| {
                self.median_of(name, figure).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let times = |figure: &dyn Fn(&MetaRow) -> f64| {
                let both = self.median_of(name, figure).zip(self.median_of(BASE, figure));
                both.map_or_else(|| "-".to_owned(), |(value, base)| format!("{:.2}", value / base))
            };
            table.push(vec![
                name.to_owned(),
                show(3, &|row| row.mount_seconds),
                show(2, &|row| row.find_seconds),
                times(&|row| row.find_seconds),
                show(0, &|row| row.first_stat.per_second),
                times(&|row| row.first_stat.per_second),
                show(1, &|row| row.first_stat.p50_us),
                show(1, &|row| row.first_stat.p99_us),
                show(3, &|row| row.first_stat_cpu_seconds_a_thousand),
                show(2, &|row| row.list_seconds),
                times(&|row| row.list_seconds),
                show(0, &|row| row.second_stat.per_second),
                times(&|row| row.second_stat.per_second),
                show(1, &|row| row.second_stat.p99_us),
                show(1, &|row| row.rss_bytes as f64 / 1e6),
            ]);
        }
        table
    }

    fn synthetic_rows(&self) -> Vec<Vec<String>> {
        let heads = ["files", "mount s", "RSS MB", "stat/s", "p50 us", "p99 us", "RSS MB then", "bytes per file"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for &files in &self.config.synthetic {
            let show = |digits: usize, figure: &dyn Fn(&SyntheticRow) -> f64| {
                let found = median(self.synthetic.iter().filter(|row| row.files == files).map(figure));
                found.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            table.push(vec![
                files.to_string(),
                show(3, &|row| row.mount_seconds),
                show(1, &|row| row.rss_bytes_mounted as f64 / 1e6),
                show(0, &|row| row.stat.per_second),
                show(1, &|row| row.stat.p50_us),
                show(1, &|row| row.stat.p99_us),
                show(1, &|row| row.rss_bytes as f64 / 1e6),
                show(1, &|row| row.manifest_bytes as f64 / f64::from(row.files)),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::Kind;

    fn rate(per_second: f64) -> Rate {
        Rate { per_second, p50_us: 7.0, p99_us: 13.0 }
    }

    fn row(system: &str, round: u32, find_seconds: f64, per_second: f64) -> MetaRow {
        MetaRow {
            system: system.to_owned(),
            round,
            mount_seconds: 0.01,
            find_seconds,
            first_stat: rate(per_second),
            first_stat_cpu_seconds_a_thousand: 0.001,
            list_seconds: 1.0,
            second_stat: rate(1e6),
            rss_bytes: 50_000_000,
            peak_rss_bytes: 60_000_000,
        }
    }

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_the_disk() {
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: Kind::Floor,
            version: String::new(),
            options: "unchanged".to_owned(),
        };
        let outcome = MetaOutcome {
            config: MetaConfig {
                files: 200_000,
                synthetic: vec![1_000_000],
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            systems: vec![system("ext4"), system("larder")],
            left_out: vec![LeftOut { name: "s3fs".to_owned(), why: "no s3fs".to_owned() }],
            rows: vec![
                row("ext4", 0, 0.2, 100_000.0),
                row("larder", 0, 0.9, 80_000.0),
                row("larder", 1, 0.4, 90_000.0),
                row("larder", 2, 0.3, 99_000.0),
            ],
            synthetic: vec![SyntheticRow {
                files: 1_000_000,
                round: 0,
                mount_seconds: 0.25,
                rss_bytes_mounted: 20_000_000,
                stat: rate(90_000.0),
                rss_bytes: 40_000_000,
                manifest_bytes: 76_000_000,
            }],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[..6], ["larder", "0.010", "0.40", "2.00", "90000", "0.90"]);
        let made_up = table.lines().find(|line| line.starts_with("1000000")).unwrap();
        let cells: Vec<&str> = made_up.split_whitespace().collect();
        assert_eq!(cells, ["1000000", "0.250", "20.0", "90000", "7.0", "13.0", "40.0", "76.0"]);
        assert!(table.contains("s3fs: left out: no s3fs"), "{table}");
    }
}
