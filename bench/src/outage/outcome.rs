//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::node::NodePrograms;
use larder_epochs::epochs::Epoch;
use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OutageConfig {
    /// Number of uncached files that the kernel is advised to read.
    pub hanging: u32,
    /// Number of cached files.
    pub cached: u32,
    /// Size of each file.
    pub file_bytes: u64,
    /// Number of threads that read cached files.
    pub readers: u32,
    /// Number of rounds.
    pub rounds: u32,
    /// Seed of bytes and orders.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The programs of the node.
    #[serde(skip)]
    pub programs: NodePrograms,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct OutageRow {
    /// The round, from 0.
    pub round: u32,
    /// Number of files that the kernel has begun to read, and that the origin does not answer.
    pub hanging: u32,
    /// An epoch of cached files while nothing else is read.
    pub alone: Epoch,
    /// The same while the others hang.
    pub in_outage: Epoch,
}

impl fmt::Display for OutageRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hanging, alone, in_outage, .. } = self;
        let [alone, beside] = [alone, in_outage].map(|epoch| epoch.p99_ms);
        write!(f, "cached reads: p99 {alone:.2} ms alone, {beside:.2} ms while {hanging} others hang")
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OutageOutcome {
    pub config: OutageConfig,
    /// One row per round.
    pub rows: Vec<OutageRow>,
}

impl OutageOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let OutageConfig { hanging, cached, file_bytes, readers, rounds, .. } = self.config;
        let heads = ["cached reads", "reads that hang", "p50 ms", "p99 ms", "files/s"];
        let alone: Vec<(u32, &Epoch)> = self.rows.iter().map(|row| (0, &row.alone)).collect();
        let in_outage: Vec<(u32, &Epoch)> = self.rows.iter().map(|row| (row.hanging, &row.in_outage)).collect();
        let table = [heads.map(str::to_owned).to_vec(), line("alone", &alone), line("in an outage", &in_outage)];
        format!(
            "{cached} cached files and {hanging} others of {file_bytes} bytes, {readers} readers of the cached ones; \
             {rounds} rounds: median (least..greatest)\n\
             In an outage, the origin answers nothing, and the kernel was advised to read all the others. p50, p99: \
             to open, read and check a file\n\n{}",
            figures_table(&table)
        )
    }
}

/// A line of the table: epochs, each with the number of reads that hang meanwhile.
fn line(name: &str, epochs: &[(u32, &Epoch)]) -> Vec<String> {
    let show = |digits: usize, figure: fn(&(u32, &Epoch)) -> f64| {
        Spread::of(epochs.iter().map(figure)).map_or_else(|| "-".to_owned(), |spread| spread.shown(digits))
    };
    vec![
        name.to_owned(),
        show(0, |(hanging, _)| f64::from(*hanging)),
        show(2, |(_, epoch)| epoch.p50_ms),
        show(2, |(_, epoch)| epoch.p99_ms),
        show(0, |(_, epoch)| epoch.files_per_second),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_compares_with_the_same_reads_alone() {
        let config = OutageConfig {
            hanging: 1100,
            cached: 10,
            file_bytes: 100_000,
            readers: 4,
            rounds: 1,
            seed: 1,
            folder: PathBuf::new(),
            programs: NodePrograms::default(),
        };
        let epoch = |ms| Epoch::new(vec![Duration::from_millis(ms); 10], 1_000_000, 2.0, 0.1);
        let rows = vec![OutageRow { round: 0, hanging: 1024, alone: epoch(2), in_outage: epoch(3) }];
        let table = OutageOutcome { config, rows }.table();
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("alone").contains("2.00 (2.00..2.00)"), "{table}");
        let outage = line("in an outage");
        assert!(outage.contains("1024 (1024..1024)") && outage.contains("3.00 (3.00..3.00)"), "{table}");
    }
}
