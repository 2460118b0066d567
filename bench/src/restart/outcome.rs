//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::node::NodePrograms;
use larder_epochs::figures::{Latencies, Spread};
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RestartConfig {
    /// Number of mounts, each of a dataset of its own.
    pub mounts: u32,
    /// Number of files of each dataset.
    pub files: u32,
    /// Size of each file.
    pub file_bytes: u64,
    /// Number of restarts.
    pub rounds: u32,
    /// Seed of the files' bytes.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The programs of the node.
    #[serde(skip)]
    pub programs: NodePrograms,
}

/// One restart.
#[derive(Clone, Debug, Serialize)]
pub struct RestartRow {
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the start of larderd until a mount has answered a read.
    pub first_seconds: f64,
    /// Seconds from the start of larderd until each mount has answered one.
    pub mounts: Latencies,
    /// GETs meanwhile. All files are cached.
    pub gets: u64,
    /// Resident memory of larderd after it.
    pub rss_bytes: u64,
    /// Threads of larderd after it.
    pub threads: usize,
}

impl fmt::Display for RestartRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "first read after {:.2} s, all mounts after {:.2} s", self.first_seconds, self.mounts.max)
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RestartOutcome {
    pub config: RestartConfig,
    /// One row per restart.
    pub rows: Vec<RestartRow>,
}

impl RestartOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let RestartConfig { mounts, files, file_bytes, rounds, .. } = self.config;
        let mut rows = vec![vec![String::new(), format!("{mounts} mounts")]];
        let mut add = |figure: &str, digits: usize, value: &dyn Fn(&RestartRow) -> f64| {
            if let Some(spread) = Spread::of(self.rows.iter().map(value)) {
                rows.push(vec![figure.to_owned(), spread.shown(digits)]);
            }
        };
        add("first cached read, s", 2, &|row| row.first_seconds);
        add("half of the mounts, s", 2, &|row| row.mounts.p50);
        add("99 of 100 mounts, s", 2, &|row| row.mounts.p99);
        add("all mounts, s", 2, &|row| row.mounts.max);
        add("GETs", 0, &|row| row.gets as f64);
        add("threads of larderd", 0, &|row| row.threads as f64);
        add("RSS of larderd, MB", 0, &|row| row.rss_bytes as f64 / 1e6);
        format!(
            "{mounts} mounts of a dataset each, with {files} cached files of {file_bytes} bytes; {rounds} restarts \
             after kill -9: median (least..greatest)\n\
             Seconds from the start of larderd until that many mounts have answered a read; one reader waits at each \
             mount\n\n{}",
            figures_table(&rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_has_the_first_read_and_the_last_mount() {
        let config = RestartConfig {
            mounts: 3,
            files: 2,
            file_bytes: 16_384,
            rounds: 3,
            seed: 1,
            folder: PathBuf::new(),
            programs: NodePrograms::default(),
        };
        let row = |round: u32| RestartRow {
            round,
            first_seconds: 0.25,
            mounts: Latencies::of((1..=3).map(|mount| Duration::from_secs(mount + u64::from(round)))),
            gets: 0,
            rss_bytes: 50_000_000,
            threads: 20,
        };
        let table = RestartOutcome { config, rows: (0..3).map(row).collect() }.table();
        let line = |figure: &str| table.lines().find(|line| line.starts_with(figure)).unwrap().to_owned();
        assert!(line("first cached read").ends_with("0.25 (0.25..0.25)"), "{table}");
        assert!(line("all mounts").ends_with("4.00 (3.00..5.00)"), "{table}");
        assert!(line("GETs").ends_with("0 (0..0)"), "{table}");
    }
}
