//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use larder_dataset::size::show_bytes;
use serde::Serialize;

use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadConfig {
    /// Number of nodes that read at once.
    pub nodes: u32,
    /// Bytes of the file.
    pub size: u64,
    /// The shortest time that the S3 server takes for an answer, in milliseconds.
    pub origin_delay_ms: u64,
    /// The most bytes that it sends per second.
    pub origin_bytes_per_second: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// Seed of the file.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub larder: PathBuf,
    /// The executable of `larderd`.
    #[serde(skip)]
    pub larderd: PathBuf,
}

/// One read of the file by a number of nodes at once.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadRow {
    pub nodes: u32,
    /// The round, from 0.
    pub round: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// Until the last node had read it.
    pub seconds: f64,
    /// Bytes that the S3 server sent.
    pub origin_bytes: u64,
}

impl SpreadRow {
    fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    fn copies(&self) -> f64 {
        self.origin_bytes as f64 / self.bytes as f64
    }
}

impl fmt::Display for SpreadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, seconds, .. } = self;
        write!(f, "{nodes} nodes: {seconds:.2} s, the origin sent it {:.2} times", self.copies())
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SpreadOutcome {
    pub config: SpreadConfig,
    /// One row per read.
    pub rows: Vec<SpreadRow>,
}

impl SpreadOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let SpreadConfig { size, origin_delay_ms, origin_bytes_per_second, rounds, .. } = self.config;
        let heads = ["nodes", "seconds", "x one node", "MB/s for each", "origin bytes / file"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for nodes in [1, self.config.nodes] {
            let rows = || self.rows.iter().filter(move |row| row.nodes == nodes);
            let shown = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |spread| spread.shown(2));
            table.push(vec![
                nodes.to_string(),
                shown(Spread::of(rows().map(|row| row.seconds))),
                shown(Spread::of(rows().filter_map(|row| self.ratio(row)))),
                shown(Spread::of(rows().map(SpreadRow::mb_per_second))),
                shown(Spread::of(rows().map(SpreadRow::copies))),
            ]);
        }
        format!(
            "One file of {:.1} MB, read in order by each node at once, from an S3 server with {origin_delay_ms} ms to \
             each answer and at most {}/s; {rounds} rounds: median (least..greatest); x: seconds, by round\n\n{}",
            size as f64 / 1e6,
            show_bytes(origin_bytes_per_second),
            figures_table(&table)
        )
    }

    /// The time of the row, times that of one node in the same round.
    fn ratio(&self, row: &SpreadRow) -> Option<f64> {
        let one = self.rows.iter().find(|one| one.nodes == 1 && one.round == row.round)?;
        Some(row.seconds / one.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_nodes_are_compared_with_one_of_the_same_round() {
        let config = SpreadConfig {
            nodes: 4,
            size: 1_000_000_000,
            origin_delay_ms: 15,
            origin_bytes_per_second: 100 << 20,
            rounds: 2,
            seed: 1,
            folder: PathBuf::new(),
            larder: PathBuf::new(),
            larderd: PathBuf::new(),
        };
        let row = |nodes, round, seconds, origin_bytes| SpreadRow {
            nodes,
            round,
            bytes: 1_000_000_000,
            seconds,
            origin_bytes,
        };
        let rows = vec![
            row(1, 0, 10.0, 1_000_000_000),
            row(4, 0, 12.0, 1_000_000_000),
            row(1, 1, 20.0, 1_000_000_000),
            row(4, 1, 22.0, 1_500_000_000),
        ];
        let table = SpreadOutcome { config, rows }.table();
        let line = table.lines().find(|line| line.starts_with('4')).unwrap();
        for cell in ["17.00 (12.00..22.00)", "1.15 (1.10..1.20)", "1.25 (1.00..1.50)"] {
            assert!(line.contains(cell), "{cell}: {table}");
        }
        assert!(table.contains("15 ms to each answer and at most 100.0 MiB/s"), "{table}");
    }
}
