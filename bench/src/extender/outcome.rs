//! The settings of a run, everything that it measured, and the table.

use serde::Serialize;

use super::answers::{self, Answers, Load};
use super::shares::{self, Crowd, SharesRow};
use super::throughput::{self, BindsRow};
use super::wake::{self, WakeRow};
use larder_epochs::figures::goals_table;

/// What is measured, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// Response times, index size and memory in a large simulated cluster; needs no cluster.
    Answers,
    /// Pods per second of kube-scheduler, with the extender and without it.
    Throughput,
    /// From the label of a node that has the data to the binding of a pod that waits for it.
    Wake,
    /// The share of pods that land on the few nodes that hold their data.
    Shares,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExtenderConfig {
    /// A part of the measurement.
    pub scenarios: Vec<Scenario>,
    /// How often.
    pub rounds: u32,
    /// The requests of `answers`.
    pub load: Load,
    /// Fake nodes, but for the shares.
    pub nodes: u32,
    /// Pods of a turn of kube-scheduler.
    pub pods: u32,
    /// Pods that are woken.
    pub wakes: u8,
    /// The scenario about shares.
    pub crowd: Crowd,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExtenderOutcome {
    /// The settings.
    pub config: ExtenderConfig,
    /// The machine's load before, of one, five and fifteen minutes.
    pub load: [f64; 3],
    /// And after.
    pub load_after: [f64; 3],
    /// The time of answers.
    pub answers: Answers,
    /// Pods a second.
    pub throughput: Vec<BindsRow>,
    /// Pods that waited.
    pub wake: Vec<WakeRow>,
    /// The part of pods on holders.
    pub shares: Vec<SharesRow>,
}

impl ExtenderOutcome {
    /// The figures beside their goals, and more about them.
    pub fn table(&self) -> String {
        let ExtenderConfig { rounds, load, nodes, crowd, .. } = &self.config;
        let mut text = format!("The scheduler's extender, {rounds} rounds\n\n");
        let goals = [
            answers::goals(&self.answers, *load),
            throughput::goals(&self.throughput),
            wake::goals(&self.wake),
            shares::goals(&self.shares, crowd),
        ];
        text += &goals_table(&goals.concat());
        for (is_empty, table) in [
            (self.answers.rows.is_empty(), answers::table(&self.answers, *load)),
            (self.throughput.is_empty(), throughput::table(&self.throughput, *nodes)),
            (self.wake.is_empty(), wake::table(&self.wake)),
            (self.shares.is_empty(), shares::table(&self.shares, crowd)),
        ] {
            if !is_empty {
                text += &format!("\n{table}");
            }
        }
        text + &format!("\nMachine load: {:.1} before, {:.1} after.\n", self.load[0], self.load_after[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_shown() {
        let row = WakeRow { rest_seconds: 1.0, load: 0.5, bound_seconds: 0.25 };
        let table = ExtenderOutcome { wake: vec![row], ..ExtenderOutcome::default() }.table();
        assert!(table.contains("0.25 (p50 0.25, longest 0.25)  <= 5  met\n"), "{table}");
        assert!(table.contains("waited before s") && table.ends_with("\nMachine load: 0.0 before, 0.0 after.\n"));
        for other in ["Filter, then prioritize", "percentageOfNodesToScore", "holders"] {
            assert!(!table.contains(other), "{other}: {table}");
        }
    }
}
