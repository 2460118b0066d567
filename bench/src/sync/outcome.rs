//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SyncConfig {
    /// Number of files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Number of objects that each tool copies at a time.
    pub transfers: u32,
    /// The shortest time that the S3 servers take for an answer, in milliseconds.
    pub delay_ms: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// Seed of files and orders.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// A program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// A GET and a PUT for each object, without any check.
    ObjectStore,
    /// `rclone sync`.
    Rclone,
    /// `larder sync`.
    Larder,
}

impl Tool {
    pub(super) const ALL: [Self; 3] = [Self::ObjectStore, Self::Rclone, Self::Larder];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ObjectStore => "object_store",
            Self::Rclone => "rclone sync",
            Self::Larder => "larder sync",
        }
    }
}

/// One copy of all files.
#[derive(Clone, Debug, Serialize)]
pub struct SyncRow {
    pub tool: Tool,
    /// The round, from 0.
    pub round: u32,
    pub files: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Requests that both S3 servers received.
    pub requests: u64,
    /// Seconds of a second run, when nothing is missing; `None` where there is none.
    pub again_seconds: Option<f64>,
    /// The requests of the second run.
    pub again_requests: Option<u64>,
}

impl SyncRow {
    fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

impl fmt::Display for SyncRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} MB/s", self.tool.name(), self.megabytes_per_second())
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SyncOutcome {
    pub config: SyncConfig,
    /// Size of the dataset.
    pub bytes: u64,
    /// True if rclone is installed.
    pub rclone: bool,
    /// One row per copy.
    pub rows: Vec<SyncRow>,
}

impl SyncOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let SyncConfig { files, transfers, delay_ms, rounds, .. } = self.config;
        let heads = ["", "MB/s", "x object_store", "requests per file", "again, s", "again, requests per file"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for tool in Tool::ALL {
            let rows = || self.rows.iter().filter(move |row| row.tool == tool);
            if rows().next().is_none() {
                continue;
            }
            let shown = |digits: usize, spread: Option<Spread>| {
                spread.map_or_else(|| "-".to_owned(), |spread| spread.shown(digits))
            };
            let again = |row: &SyncRow| Some(row.again_requests? as f64 / row.files as f64);
            table.push(vec![
                tool.name().to_owned(),
                shown(0, Spread::of(rows().map(SyncRow::megabytes_per_second))),
                shown(2, Spread::of(rows().filter_map(|row| self.ratio(row)))),
                shown(2, Spread::of(rows().map(|row| row.requests as f64 / row.files as f64))),
                shown(2, Spread::of(rows().filter_map(|row| row.again_seconds))),
                shown(3, Spread::of(rows().filter_map(again))),
            ]);
        }
        let without = if self.rclone { "" } else { "\nrclone is not on PATH (bench/install-peers installs it)" };
        format!(
            "{files} files, {:.1} MB, from one S3 server to another, {delay_ms} ms to each answer of both; {transfers} \
             objects at a time; {rounds} rounds: median (least..greatest)\n\
             object_store checks nothing. again: a second run, when nothing is missing{without}\n\n{}",
            self.bytes as f64 / 1e6,
            figures_table(&table)
        )
    }

    /// Throughput, times that of `object_store` in the same round.
    fn ratio(&self, row: &SyncRow) -> Option<f64> {
        let is_base = |base: &&SyncRow| base.tool == Tool::ObjectStore && base.round == row.round;
        let base = self.rows.iter().find(is_base).filter(|_| row.tool != Tool::ObjectStore)?;
        Some(row.megabytes_per_second() / base.megabytes_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round_and_a_missing_tool_is_named() {
        let config = SyncConfig {
            files: 100,
            mean_size: 1_000_000,
            transfers: 8,
            delay_ms: 5,
            rounds: 2,
            seed: 1,
            folder: PathBuf::new(),
            binary: PathBuf::new(),
        };
        let row = |tool: Tool, round: u32, seconds: f64| SyncRow {
            tool,
            round,
            files: 100,
            bytes: 100_000_000,
            seconds,
            requests: 200,
            again_seconds: (tool == Tool::Larder).then_some(0.5),
            again_requests: (tool == Tool::Larder).then_some(10),
        };
        let rows = vec![
            row(Tool::ObjectStore, 0, 1.0),
            row(Tool::Larder, 0, 2.0),
            row(Tool::ObjectStore, 1, 3.0),
            row(Tool::Larder, 1, 4.0),
        ];
        let table = SyncOutcome { config, bytes: 100_000_000, rclone: false, rows }.table();
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let larder = line("larder sync");
        assert!(larder.contains("38 (25..50)") && larder.contains("0.62 (0.50..0.75)"), "{table}");
        assert!(larder.ends_with("0.100 (0.100..0.100)"), "{table}");
        assert!(line("object_store  ").ends_with('-') && table.contains("rclone is not on PATH"), "{table}");
    }
}
