//! The settings of a run, its measurements, and the table.

use serde::Serialize;

use super::answers::{self, Answers, Load};
use super::shares::{self, Crowd, SharesRow};
use super::throughput::{self, BindsRow};
use super::wake::{self, WakeRow};
use larder_epochs::figures::goals_table;

/// The scenarios, in the order in which they run.
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
    /// The scenarios to run.
    pub scenarios: Vec<Scenario>,
    /// Number of rounds.
    pub rounds: u32,
    /// The requests of `answers`.
    pub load: Load,
    /// Number of fake nodes of `throughput` and `wake`.
    pub nodes: u32,
    /// Number of pods in each turn of `throughput`.
    pub pods: u32,
    /// Number of pods of `wake`.
    pub wakes: u8,
    /// The sizes of `shares`.
    pub crowd: Crowd,
}

/// The measurements of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExtenderOutcome {
    pub config: ExtenderConfig,
    /// The machine's load averages over 1, 5 and 15 minutes, before the run.
    pub load: [f64; 3],
    /// The same after the run.
    pub load_after: [f64; 3],
    /// The rows of `answers`.
    pub answers: Answers,
    /// The rows of `throughput`.
    pub throughput: Vec<BindsRow>,
    /// The rows of `wake`.
    pub wake: Vec<WakeRow>,
    /// The rows of `shares`.
    pub shares: Vec<SharesRow>,
}

impl ExtenderOutcome {
    /// The tables that the benchmark prints: the figures with their goals, then the rows of each scenario.
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
