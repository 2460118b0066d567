//! The settings of a run, its measurements, and the table.

use std::path::PathBuf;

use larder_epochs::figures::median;
use larder_epochs::table::figures_table;
use serde::Serialize;

use super::script::{Loader, Said};
use crate::side_by_side::{LeftOut, State, SystemInfo, footer};

/// The states that are measured.
pub(super) const STATES: [State; 2] = [State::Cold, State::Warm];

/// The system to which the others are compared.
const BASE: &str = "ext4";

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderConfig {
    /// Number of JPEGs.
    pub files: u32,
    /// How they are read.
    pub loader: Loader,
    /// The S3 server answers each request after this time.
    pub origin_delay_ms: u64,
    /// The bytes per second that it sends at most.
    pub origin_bytes_per_second: Option<u64>,
    /// Number of rounds.
    pub rounds: u32,
    /// The names of the systems to measure; all if empty.
    pub only: Vec<String>,
    /// Seed of files and orders.
    pub seed: u64,
    /// A Python with torch and Pillow; `None` searches for it.
    #[serde(skip)]
    pub python: Option<PathBuf>,
    /// An existing folder on the disk to measure. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderRow {
    /// The system.
    pub system: String,
    /// The state of the caches at its start.
    pub state: State,
    /// The round, from 0.
    pub round: u32,
    /// The figures of the loader.
    pub said: Said,
    /// Seconds of CPU of the daemon and of the metadata engine together.
    pub daemon_cpu_seconds: f64,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderOutcome {
    /// Its settings.
    pub config: LoaderConfig,
    /// Bytes of all JPEGs.
    pub bytes: u64,
    /// The systems, in the order of the table.
    pub systems: Vec<SystemInfo>,
    /// The systems that were not measured, or not in every round.
    pub left_out: Vec<LeftOut>,
    /// One row per epoch.
    pub rows: Vec<LoaderRow>,
}

impl LoaderOutcome {
    fn median_of(&self, system: &str, state: State, figure: impl Fn(&LoaderRow) -> f64) -> Option<f64> {
        median(self.rows.iter().filter(|row| row.system == system && row.state == state).map(figure))
    }

    /// The table that the benchmark prints: medians over the rounds, with ratios to the disk itself.
    pub fn table(&self) -> String {
        let heads = ["", "samples/s", "x", "empty s", "epoch s", "first s", "CPU s"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for state in STATES {
            for system in self.systems.iter().map(|system| system.name.as_str()) {
                let show = |digits: usize, figure: &dyn Fn(&LoaderRow) -> f64| {
                    let value = self.median_of(system, state, figure);
                    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                };
                let speed: &dyn Fn(&LoaderRow) -> f64 = &|row| row.said.samples_per_second();
                let Some(own) = self.median_of(system, state, speed) else { continue };
                let base = self.median_of(BASE, state, speed);
                table.push(vec![
                    format!("{}  {system}", state.name()),
                    show(0, speed),
                    base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}", own / base)),
                    show(2, &|row| row.said.empty_seconds),
                    show(2, &|row| row.said.seconds),
                    show(2, &|row| row.said.first_seconds),
                    show(2, &|row| row.daemon_cpu_seconds),
                ]);
            }
        }
        let LoaderConfig { files, loader: Loader { workers, batch, .. }, rounds, .. } = self.config;
        format!(
            "DataLoader with {workers} workers over {files} JPEGs ({:.0} MB) in batches of {batch}; medians of \
             {rounds} rounds; x: ratio to {BASE}; empty: seconds in which the loop waited for a batch after the \
             first\n\n{}\n{}",
            self.bytes as f64 / 1e6,
            figures_table(&table),
            footer(&self.systems, &self.left_out)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::Kind;

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_the_disk() {
        let row = |system: &str, round, seconds| LoaderRow {
            system: system.to_owned(),
            state: State::Cold,
            round,
            said: Said {
                samples: 110,
                first_samples: 10,
                seconds: 1.0 + seconds,
                first_seconds: 1.0,
                empty_seconds: 0.25,
                checksum: 7,
            },
            daemon_cpu_seconds: 0.5,
        };
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: Kind::Floor,
            version: String::new(),
            options: "unchanged".to_owned(),
        };
        let outcome = LoaderOutcome {
            config: LoaderConfig {
                files: 100,
                loader: Loader { workers: 2, batch: 10, accelerator: 0.0 },
                origin_delay_ms: 0,
                origin_bytes_per_second: None,
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                python: None,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            bytes: 11_000_000,
            systems: vec![system("ext4"), system("larder")],
            left_out: Vec::new(),
            rows: vec![row("ext4", 0, 1.0), row("larder", 0, 4.0), row("larder", 1, 2.0), row("larder", 2, 1.0)],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("cold  larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["cold", "larder", "50", "0.50", "0.25", "3.00", "1.00", "0.50"]);
    }
}
