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
pub struct MemoryConfig {
    /// Number of datasets that are read at once.
    pub datasets: u32,
    /// Number of files of each dataset.
    pub files: u32,
    /// Size of each file.
    pub file_bytes: u64,
    /// Number of threads that read.
    pub readers: u32,
    /// larderd's `--threads`.
    pub threads: u32,
    /// The shortest time that the S3 server takes for an answer, in milliseconds.
    pub origin_delay_ms: u64,
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

/// Memory of larderd without data in flight, and the buffers of one of its threads. Together with half as much again as
/// its memory target, they are what docs/kubernetes/operations.md says that it needs.
const BASE_BYTES: u64 = 512 << 20;
const THREAD_BYTES: u64 = (22 << 20) / 10;

/// The most threads that serve mounts.
const THREADS_MOST: u64 = 512;

impl MemoryConfig {
    /// The most resident memory that a larderd with this target should have.
    fn most_bytes(&self, target_bytes: u64) -> u64 {
        let threads = (4 * u64::from(self.threads)).min(THREADS_MOST);
        BASE_BYTES + threads * THREAD_BYTES + target_bytes * 3 / 2
    }
}

/// One cold epoch over all files of some datasets.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    pub datasets: u32,
    /// The round, from 0.
    pub round: u32,
    pub epoch: Epoch,
    /// Resident memory of larderd before the epoch, with all datasets mounted.
    pub idle_rss_bytes: u64,
    /// Its largest sample during the epoch.
    pub sampled_rss_bytes: u64,
    /// Its peak since the start of larderd, as the kernel reports it.
    pub peak_rss_bytes: u64,
    /// The `--memory-target` of larderd, or its default.
    pub target_bytes: u64,
    /// Seconds of CPU of larderd during the epoch.
    pub cpu_seconds: f64,
}

impl fmt::Display for MemoryRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sampled, rate) = (self.sampled_rss_bytes as f64 / 1e6, self.epoch.mb_per_second);
        write!(f, "{} datasets: {sampled:.0} MB of memory, {rate:.0} MB/s read", self.datasets)
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryOutcome {
    pub config: MemoryConfig,
    /// One row per epoch.
    pub rows: Vec<MemoryRow>,
}

impl MemoryOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let MemoryConfig { datasets, files, file_bytes, readers, threads, origin_delay_ms, rounds, .. } = self.config;
        let heads = [
            "datasets",
            "RSS MB before",
            "RSS MB, sampled",
            "x one",
            "RSS MB, peak",
            "target MB",
            "most MB",
            "read MB/s",
            "files/s",
            "CPU s",
        ];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        let mut numbers: Vec<u32> = self.rows.iter().map(|row| row.datasets).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for &number in &numbers {
            let show = |digits: usize, figure: fn(&MemoryRow) -> f64| {
                self.spread(number, figure).map_or_else(|| "-".to_owned(), |spread| spread.shown(digits))
            };
            let median = |number| self.spread(number, |row| row.sampled_rss_bytes as f64).map(|spread| spread.median);
            let target = self.rows.iter().find(|row| row.datasets == number).map_or(0, |row| row.target_bytes);
            let ratio = median(number).zip(median(1)).map(|(this, one)| format!("{:.2}", this / one));
            table.push(vec![
                number.to_string(),
                show(0, |row| row.idle_rss_bytes as f64 / 1e6),
                show(0, |row| row.sampled_rss_bytes as f64 / 1e6),
                ratio.unwrap_or_else(|| "-".to_owned()),
                show(0, |row| row.peak_rss_bytes as f64 / 1e6),
                format!("{:.0}", target as f64 / 1e6),
                format!("{:.0}", self.config.most_bytes(target) as f64 / 1e6),
                show(0, |row| row.epoch.mb_per_second),
                show(0, |row| row.epoch.files_per_second),
                show(2, |row| row.cpu_seconds),
            ]);
        }
        format!(
            "{datasets} datasets of {files} files of {file_bytes} bytes, read cold at once by {readers} readers, and \
             one of them alone, at an S3 server with {origin_delay_ms} ms to each answer; larderd --threads {threads}; \
             {rounds} rounds: median (least..greatest)\n\
             RSS of larderd: before the epoch, the largest sample during it, and the peak since its start; target: \
             its --memory-target; most: what it may need with that, by its threads and its size without data in \
             flight\n\n{}",
            figures_table(&table)
        )
    }

    fn spread(&self, datasets: u32, figure: fn(&MemoryRow) -> f64) -> Option<Spread> {
        Spread::of(self.rows.iter().filter(|row| row.datasets == datasets).map(figure))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_compares_with_one_dataset() {
        let config = MemoryConfig {
            datasets: 24,
            files: 2,
            file_bytes: 4 << 20,
            readers: 64,
            threads: 64,
            origin_delay_ms: 40,
            rounds: 1,
            seed: 1,
            folder: PathBuf::new(),
            programs: NodePrograms::default(),
        };
        let row = |datasets: u32, sampled_rss_bytes: u64| MemoryRow {
            datasets,
            round: 0,
            epoch: Epoch::new(vec![Duration::from_millis(1)], 8_000_000, 2.0, 0.1),
            idle_rss_bytes: 30_000_000,
            sampled_rss_bytes,
            peak_rss_bytes: sampled_rss_bytes + 1_000_000,
            target_bytes: 256 << 20,
            cpu_seconds: 0.5,
        };
        let rows = vec![row(1, 100_000_000), row(24, 300_000_000)];
        let table = MemoryOutcome { config, rows }.table();
        let line = table.lines().find(|line| line.starts_with("24  ")).unwrap();
        for words in ["300 (300..300)", " 3.00 ", "301 (301..301)", " 268 ", " 1530 ", "4 (4..4)"] {
            assert!(line.contains(words), "{words}: {table}");
        }
    }
}
