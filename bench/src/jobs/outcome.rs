//! The settings of a run, everything that it measured, and the table.

use serde::Serialize;

use super::cohorts::{self, CohortsRow};
use super::gangs::{self, GangsRow};
use super::plan::{self, PlanRow};
use super::preempt::{self, PreemptRow};
use super::throughput::{self, Sizes, ThroughputRow};
use crate::side_by_side::LeftOut;
use larder_epochs::figures::goals_table;

/// What is measured, in this order.
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
    /// What is measured.
    pub scenarios: Vec<Scenario>,
    /// How often.
    pub rounds: u32,
    /// Fake nodes.
    pub nodes: u32,
    /// The jobs of the first scenario.
    pub sizes: Sizes,
    /// The part of the jobs of Kueue's own scenario.
    pub scale: f64,
    /// The gangs of the scenario about them.
    pub gangs: u32,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobsOutcome {
    /// The settings.
    pub config: JobsConfig,
    /// Peers that are missing, and why.
    pub left_out: Vec<LeftOut>,
    /// The machine's load before, of one, five and fifteen minutes.
    pub load: [f64; 3],
    /// And after.
    pub load_after: [f64; 3],
    /// Many jobs at once.
    pub throughput: Vec<ThroughputRow>,
    /// Kueue's own scenario.
    pub cohorts: Vec<CohortsRow>,
    /// Gangs at 90 % load.
    pub gangs: Vec<GangsRow>,
    /// 50 of 100.
    pub preempt: Vec<PreemptRow>,
    /// The plan.
    pub plan: Vec<PlanRow>,
}

impl JobsOutcome {
    /// The figures beside their goals, and more about them.
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
