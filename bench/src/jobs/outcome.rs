//! The settings of a run, its measurements, and the table.

use serde::Serialize;

use super::cohorts::{self, CohortsRow};
use super::gangs::{self, GangsRow};
use super::plan::{self, PlanRow};
use super::preempt::{self, PreemptRow};
use super::throughput::{self, Sizes, ThroughputRow};
use crate::side_by_side::LeftOut;
use larder_epochs::figures::goals_table;

/// The scenarios, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// Many jobs and gangs at once: jobs per minute until the last pod is bound, and API writes.
    Throughput,
    /// Kueue's own benchmark: 15,000 jobs of three sizes in 30 queues of 5 cohorts.
    Cohorts,
    /// Gangs that request 90 % of 100 nodes, compared with the coscheduling plugin.
    Gangs,
    /// A production job of 50 pods preempts half of an elastic job of 100.
    Preempt,
    /// Planning 1,000 pods on 5,000 nodes; needs no cluster.
    Plan,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobsConfig {
    /// The scenarios to run.
    pub scenarios: Vec<Scenario>,
    /// Number of rounds.
    pub rounds: u32,
    /// Number of fake nodes.
    pub nodes: u32,
    /// The jobs of `throughput`.
    pub sizes: Sizes,
    /// The fraction of the jobs of `cohorts` to run.
    pub scale: f64,
    /// Number of gangs of `gangs`.
    pub gangs: u32,
}

/// The measurements of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobsOutcome {
    pub config: JobsConfig,
    /// The peers that are not installed in the cluster, with the reason.
    pub left_out: Vec<LeftOut>,
    /// The machine's load averages over 1, 5 and 15 minutes, before the run.
    pub load: [f64; 3],
    /// The same after the run.
    pub load_after: [f64; 3],
    /// The rows of `throughput`.
    pub throughput: Vec<ThroughputRow>,
    /// The rows of `cohorts`.
    pub cohorts: Vec<CohortsRow>,
    /// The rows of `gangs`.
    pub gangs: Vec<GangsRow>,
    /// The rows of `preempt`.
    pub preempt: Vec<PreemptRow>,
    /// The rows of `plan`.
    pub plan: Vec<PlanRow>,
}

impl JobsOutcome {
    /// The tables that the benchmark prints: the figures with their goals, then the rows of each scenario.
    pub fn table(&self) -> String {
        let JobsConfig { rounds, nodes, sizes, .. } = self.config;
        let mut text = format!("Training jobs on {nodes} fake nodes, {rounds} rounds\n\n");
        let goals =
            [throughput::goals(&self.throughput, sizes), preempt::goals(&self.preempt), plan::goals(&self.plan)];
        text += &goals_table(&goals.concat());
        if !self.throughput.is_empty() {
            text += "\n";
            text += &throughput::table(&self.throughput, sizes);
        }
        if !self.cohorts.is_empty() {
            text += "\n";
            text += &cohorts::table(&self.cohorts);
        }
        if !self.gangs.is_empty() {
            text += "\n";
            text += &gangs::table(&self.gangs);
        }
        text += &format!("\nMachine load: {:.1} before, {:.1} after.\n", self.load[0], self.load_after[0]);
        for LeftOut { name, why } in &self.left_out {
            text += &format!("WITHOUT {name}: {why}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_peer_is_reported_in_the_table() {
        let left_out = vec![LeftOut { name: "Kueue".into(), why: "not installed".into() }];
        let table = JobsOutcome { left_out, ..JobsOutcome::default() }.table();
        assert!(table.ends_with("\nWITHOUT Kueue: not installed\n"), "{table}");
    }
}
