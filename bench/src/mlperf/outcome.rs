//! The settings of a run, its measurements, and the table.

use std::path::PathBuf;

use larder_epochs::figures::median;
use larder_epochs::table::figures_table;
use serde::Serialize;

use super::summary::Summary;
use super::workload::{Scale, Workload};
use crate::side_by_side::{LeftOut, SystemInfo, footer};

/// The system to which the others are compared.
const BASE: &str = "ext4";

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MlperfConfig {
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Their size and the accelerator's speed.
    pub scale: Scale,
    /// Epochs over one mount.
    pub epochs: u32,
    /// Number of rounds.
    pub rounds: u32,
    /// The names of the systems to measure; all if empty.
    pub only: Vec<String>,
    /// Seed of the orders.
    pub seed: u64,
    /// The program DLIO; `None` searches for it.
    #[serde(skip)]
    pub dlio: Option<PathBuf>,
    /// An existing folder on the disk to measure. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One epoch.
#[derive(Clone, Debug, Serialize)]
pub struct MlperfRow {
    /// The workload.
    pub workload: Workload,
    /// The system.
    pub system: String,
    /// The epoch over this mount, from 1.
    pub epoch: u32,
    /// The round, from 0.
    pub round: u32,
    /// The figures of DLIO.
    pub said: Summary,
    /// Seconds of CPU of the daemon and of the metadata engine together.
    pub daemon_cpu_seconds: f64,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MlperfOutcome {
    /// Its settings.
    pub config: MlperfConfig,
    /// The systems, in the order of the table.
    pub systems: Vec<SystemInfo>,
    /// The systems that were not measured, or not in every round.
    pub left_out: Vec<LeftOut>,
    /// One row per epoch.
    pub rows: Vec<MlperfRow>,
}

impl MlperfOutcome {
    fn median_of(
        &self,
        system: &str,
        workload: Workload,
        epoch: u32,
        figure: impl Fn(&MlperfRow) -> f64,
    ) -> Option<f64> {
        let rows = self.rows.iter();
        median(rows.filter(|row| row.system == system && row.workload == workload && row.epoch == epoch).map(figure))
    }

    /// The table that the benchmark prints: medians over the rounds, with ratios to the disk itself.
    pub fn table(&self) -> String {
        let heads = ["", "busy %", "x", "samples/s", "CPU s"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for &workload in &self.config.workloads {
            for epoch in 1..=self.config.epochs {
                for system in self.systems.iter().map(|system| system.name.as_str()) {
                    let show = |digits: usize, figure: &dyn Fn(&MlperfRow) -> f64| {
                        let value = self.median_of(system, workload, epoch, figure);
                        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                    };
                    let busy: &dyn Fn(&MlperfRow) -> f64 = &|row| row.said.busy_percent;
                    let Some(own) = self.median_of(system, workload, epoch, busy) else { continue };
                    let base = self.median_of(BASE, workload, epoch, busy);
                    table.push(vec![
                        format!("{:<13}  epoch {epoch}  {system}", workload.name()),
                        show(1, busy),
                        base.map_or_else(|| "-".to_owned(), |base| format!("{:.2}", own / base)),
                        show(0, &|row| row.said.samples_per_second),
                        show(2, &|row| row.daemon_cpu_seconds),
                    ]);
                }
            }
        }
        let MlperfConfig { scale: Scale { bytes, speed, threads }, rounds, .. } = self.config;
        format!(
            "DLIO 2.0.0 with the training workloads of MLPerf Storage, each of about {:.0} MB, {threads} readers, an \
             accelerator of {speed} H100; medians of {rounds} rounds; busy: utilisation of the accelerator; x: ratio \
             to {BASE}. This is no submission to MLPerf Storage.\n\n{}\n{}",
            bytes as f64 / 1e6,
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
        let row = |system: &str, round, busy_percent| MlperfRow {
            workload: Workload::Unet3d,
            system: system.to_owned(),
            epoch: 2,
            round,
            said: Summary { busy_percent, samples_per_second: 3.0 * busy_percent },
            daemon_cpu_seconds: 0.5,
        };
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: Kind::Floor,
            version: String::new(),
            options: "unchanged".to_owned(),
        };
        let outcome = MlperfOutcome {
            config: MlperfConfig {
                workloads: vec![Workload::Unet3d],
                scale: Scale { bytes: 1 << 30, speed: 0.1, threads: 2 },
                epochs: 2,
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                dlio: None,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            systems: vec![system("ext4"), system("larder")],
            left_out: Vec::new(),
            rows: vec![row("ext4", 0, 80.0), row("larder", 0, 10.0), row("larder", 1, 60.0), row("larder", 2, 70.0)],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("unet3d") && line.contains("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["unet3d", "epoch", "2", "larder", "60.0", "0.75", "180", "0.50"]);
    }
}
