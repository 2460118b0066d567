//! The settings of a run, its measurements, and the table.

use std::path::PathBuf;

use serde::Serialize;

use super::jobs::{LARGE, SMALL, SMALL_MEAN};
use super::loaders::LOADERS;
use super::output::FioResult;
use crate::side_by_side::{LeftOut, State, SystemInfo, footer};
use larder_epochs::figures::median;
use larder_epochs::table::figures_table;

/// The system to which the others are compared.
const BASE: &str = "ext4";

/// The rows of the S3 server itself, to which cold runs are compared, too.
pub(super) const RAW: &str = "object_store";

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FioConfig {
    /// Bytes of the large file; at least 4 MiB.
    pub size: u64,
    /// Number of small files; 0 skips them.
    pub files: u32,
    /// Maximum duration of one run of fio.
    pub seconds: u32,
    /// Number of threads that keep CPUs busy during a run.
    pub busy: u32,
    /// How long each answer of the S3 server takes at least.
    pub origin_delay_ms: u64,
    /// How many bytes per second each connection of the S3 server has; `None`: any number.
    pub origin_connection_bytes_per_second: Option<u64>,
    /// Number of rounds.
    pub rounds: u32,
    /// The names of the systems to measure; all if empty.
    pub only: Vec<String>,
    /// Seed of files, offsets and orders.
    pub seed: u64,
    /// An existing folder on the disk to measure. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One run of fio or of a loader.
#[derive(Clone, Debug, Serialize)]
pub struct FioRow {
    pub system: String,
    /// The section of the job file, or the loader.
    pub pattern: String,
    /// The state of the caches at its start.
    pub state: State,
    /// The round, from 0.
    pub round: u32,
    /// The figures that it reports.
    pub said: FioResult,
    /// Seconds of CPU of the daemon and of the metadata engine together.
    pub daemon_cpu_seconds: f64,
    /// Bytes that the S3 server sent.
    pub origin_bytes: u64,
    /// Requests that the kernel sent to the mount; `None` if they could not be counted.
    pub fuse_requests: Option<u64>,
}

impl FioRow {
    fn requests_per_mb(&self) -> Option<f64> {
        Some(self.fuse_requests? as f64 * 1e6 / self.said.bytes as f64)
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FioOutcome {
    pub config: FioConfig,
    /// The version that fio reports.
    pub fio: String,
    /// The systems, in the order of the table.
    pub systems: Vec<SystemInfo>,
    /// The systems that were not measured, or not in every round.
    pub left_out: Vec<LeftOut>,
    /// Why requests to mounts were not counted, if so.
    pub no_fuse_requests: Option<String>,
    /// One row per run.
    pub rows: Vec<FioRow>,
}

impl FioOutcome {
    fn rows_of<'a>(&'a self, system: &'a str, pattern: &'a str, state: State) -> impl Iterator<Item = &'a FioRow> {
        self.rows.iter().filter(move |row| row.system == system && row.pattern == pattern && row.state == state)
    }

    fn median_of(&self, system: &str, pattern: &str, state: State, figure: impl Fn(&FioRow) -> f64) -> Option<f64> {
        median(self.rows_of(system, pattern, state).map(figure))
    }

    /// The table that the benchmark prints: medians over the rounds, with ratios to the disk itself and, for cold
    /// runs over the large file, to the S3 server.
    pub fn table(&self) -> String {
        let heads = ["", "MB/s", "x", "x GETs", "IOPS", "p50 us", "p99 us", "CPU s/GB", "fetched", "FUSE/MB"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        let speed: &dyn Fn(&FioRow) -> f64 = &|row| row.said.mb_per_second;
        let gets = self.median_of(RAW, "stream", State::Cold, speed);
        for pattern in LARGE.patterns.iter().chain(&LOADERS).chain(SMALL.patterns) {
            let gets = gets.filter(|_| !SMALL.patterns.contains(pattern));
            for state in [State::Cold, State::Warm] {
                for system in self.systems.iter().map(|system| system.name.as_str()) {
                    let of = |name: &str, figure: &dyn Fn(&FioRow) -> f64| self.median_of(name, pattern, state, figure);
                    let show = |digits: usize, figure: &dyn Fn(&FioRow) -> f64| {
                        of(system, figure).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                    };
                    let Some(own) = of(system, speed) else { continue };
                    table.push(vec![
                        format!("{pattern:<20}  {}  {system}", state.name()),
                        show(1, speed),
                        of(BASE, speed).map_or_else(|| "-".to_owned(), |base| format!("{:.2}", own / base)),
                        gets.filter(|_| state == State::Cold)
                            .map_or_else(|| "-".to_owned(), |gets| format!("{:.2}", own / gets)),
                        show(0, &|row| row.said.iops),
                        show(0, &|row| row.said.p50_us),
                        show(0, &|row| row.said.p99_us),
                        show(2, &|row| row.daemon_cpu_seconds * 1e9 / row.said.bytes as f64),
                        show(2, &|row| row.origin_bytes as f64 / row.said.bytes as f64),
                        median(self.rows_of(system, pattern, state).filter_map(FioRow::requests_per_mb))
                            .map_or_else(|| "-".to_owned(), |requests| format!("{requests:.2}")),
                    ]);
                }
            }
        }
        let uncounted = self.no_fuse_requests.as_ref();
        let uncounted = uncounted.map_or_else(String::new, |why| format!("FUSE requests were not counted: {why}\n"));
        format!(
            "{}: one file of {:.0} MB and {} small files of {} KB; medians of {} rounds; x: ratio to {BASE}; \
             x GETs: to {RAW}; fetched: bytes of the S3 server for each byte read; {} CPUs kept busy; the server \
             answers after {} ms and sends {} over a connection\n\n{}\n{}",
            self.fio,
            self.config.size as f64 / 1e6,
            self.config.files,
            SMALL_MEAN / 1000,
            self.config.rounds,
            self.config.busy,
            self.config.origin_delay_ms,
            self.config
                .origin_connection_bytes_per_second
                .map_or_else(|| "any number of bytes/s".to_owned(), |rate| format!("{:.0} MB/s", rate as f64 / 1e6)),
            figures_table(&table),
            footer(&self.systems, &self.left_out)
        ) + &uncounted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_the_disk() {
        let row = |system: &str, round, mb_per_second| FioRow {
            system: system.to_owned(),
            pattern: "randread-4k".to_owned(),
            state: State::Warm,
            round,
            said: FioResult { bytes: 1_000_000_000, mb_per_second, iops: 100.0, p50_us: 9.0, p99_us: 99.0 },
            daemon_cpu_seconds: 0.5,
            origin_bytes: 3_000_000_000,
            fuse_requests: (system == "larder").then_some(2_000),
        };
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: crate::systems::Kind::Floor,
            version: String::new(),
            options: "unchanged".to_owned(),
        };
        let outcome = FioOutcome {
            config: FioConfig {
                size: 1 << 30,
                files: 10,
                seconds: 60,
                busy: 0,
                origin_delay_ms: 15,
                origin_connection_bytes_per_second: Some(60_000_000),
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            fio: "fio-3.33".to_owned(),
            systems: vec![system("ext4"), system("larder"), system(RAW)],
            left_out: Vec::new(),
            no_fuse_requests: Some("no tracefs".to_owned()),
            rows: vec![
                row("ext4", 0, 80.0),
                row("larder", 0, 10.0),
                row("larder", 1, 60.0),
                row("larder", 2, 70.0),
                FioRow { pattern: "stream".to_owned(), state: State::Cold, ..row(RAW, 0, 200.0) },
                FioRow { pattern: "sparse".to_owned(), state: State::Cold, ..row("larder", 0, 50.0) },
            ],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("randread-4k") && line.contains("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[1..], ["warm", "larder", "60.0", "0.75", "-", "100", "9", "99", "0.50", "3.00", "2.00"]);
        let line = table.lines().find(|line| line.starts_with("sparse") && line.contains("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[1..6], ["cold", "larder", "50.0", "-", "0.25"]);
        assert!(table.contains("FUSE requests were not counted: no tracefs"), "{table}");
        let line = table.lines().find(|line| line.starts_with("randread-4k") && line.contains("ext4")).unwrap();
        assert!(line.ends_with('-'), "{line}");
        assert!(table.contains("answers after 15 ms and sends 60 MB/s over a connection"), "{table}");
    }
}
