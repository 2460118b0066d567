//! The share of a dataset's pods that land on nodes that have it, with few such nodes among many.

use std::fmt;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use larder_api::TrainingJob;
use larder_kube::Api;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::data::{Data, ROOM};
use super::scheduler::{Programs, Scheduler, Setting};
use crate::jobs::cluster::{clear, create, create_one};
use crate::jobs::pods::Observer;
use crate::jobs::turn::{Ground, System, Turn, Wish};
use crate::kubernetes::objects::{self, NAMESPACE};
use larder_epochs::figures::{Goal, Spread, machine_load};
use larder_epochs::table::figures_table;

const SEED: u64 = 5;
/// The goal: the share on holders with the extender when all nodes are scored.
const LEAST: f64 = 0.98;
/// The timeout of a turn.
const LONGEST: Duration = Duration::from_secs(1800);

/// A way to steer pods to their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// No steering: kube-scheduler alone.
    Default,
    /// Preferred node affinity.
    Affinity,
    /// The extender, with a tenth of the nodes scored.
    ExtenderOfTenth,
    /// The extender, with all nodes scored.
    ExtenderOfAll,
    /// A TrainingJob, whose nodes Larder's controller plans.
    TrainingJob,
}

impl Way {
    pub(super) const ALL: [Self; 5] =
        [Self::Default, Self::Affinity, Self::ExtenderOfTenth, Self::ExtenderOfAll, Self::TrainingJob];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Default => "default scheduler",
            Self::Affinity => "preferred affinity alone",
            Self::ExtenderOfTenth => "extender, 10 % of nodes scored",
            Self::ExtenderOfAll => "extender, 100 % of nodes scored",
            Self::TrainingJob => "TrainingJob",
        }
    }

    /// The settings of the benchmark's scheduler; `None` if the pods use the cluster's scheduler.
    fn setting(self) -> Option<Setting> {
        let setting = |percent, extended| Some(Setting { percent, extended });
        match self {
            Self::Default | Self::Affinity => setting(None, false),
            Self::ExtenderOfTenth => setting(Some(10), true),
            Self::ExtenderOfAll => setting(Some(100), true),
            Self::TrainingJob => None,
        }
    }
}

/// The numbers of nodes, holders and pods.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crowd {
    /// Number of fake nodes.
    pub nodes: u32,
    /// Numbers of nodes that hold the data, measured one after another.
    pub holders: Vec<u32>,
    /// Number of pods in each turn.
    pub pods: u32,
}

impl Crowd {
    /// Number of pods that fit on this many nodes.
    pub fn room(nodes: u32) -> u32 {
        nodes * ROOM
    }
}

/// One turn.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SharesRow {
    pub round: u32,
    /// How the pods were steered.
    pub way: Way,
    /// Number of nodes that held the data.
    pub holders: u32,
    /// The machine's one-minute load average before the turn.
    pub load: f64,
    /// The fraction of the pods that landed on holders.
    pub on_holders: f64,
}

impl fmt::Display for SharesRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, holders, on_holders, .. } = self;
        write!(f, "{holders} holders, {}: {:.1} % of the pods", way.name(), on_holders * 100.0)
    }
}

/// A dataset and its holders.
pub(super) struct HeldData {
    data: Data,
    holders: Vec<String>,
}

/// Creates a dataset for each number of holders. No node holds two datasets.
pub(super) async fn make(ground: Ground<'_>, crowd: &Crowd) -> anyhow::Result<Vec<HeldData>> {
    let mut nodes: Vec<String> = (0..crowd.nodes).map(objects::node).collect();
    nodes.shuffle(&mut StdRng::seed_from_u64(SEED));
    let mut made = Vec::new();
    for (number, holders) in (1..).zip(&crowd.holders) {
        let at = nodes.len().checked_sub(*holders as usize);
        ensure!(at.is_some(), "--holders exceeds --crowd");
        let holders = nodes.split_off(at.unwrap_or_default());
        let data = Data::new(format!("held-{number}"), number);
        data.make(ground.client).await?;
        data.hold_on(ground.client, &holders).await?;
        made.push(HeldData { data, holders });
    }
    Ok(made)
}

/// Measures one way with each number of holders.
pub(super) async fn measure(
    ground: Ground<'_>,
    programs: &Programs,
    way: Way,
    (round, pods): (u32, u32),
    all: &[HeldData],
    mut said: impl FnMut(SharesRow),
) -> anyhow::Result<()> {
    let Some(setting) = way.setting() else {
        for held in all {
            said(of_job(ground, round, pods, held).await?);
        }
        return Ok(());
    };
    let mut scheduler = Scheduler::start(ground.places, programs, setting, ground.stop).await?;
    for held in all {
        let load = machine_load()[0];
        let observer = Observer::start(ground.client);
        let pod = |nth| {
            let name = format!("pod-{nth:05}");
            let pod = if way == Way::Affinity { held.data.steered_pod(name)? } else { held.data.pod(name) };
            Ok((Duration::ZERO, pod))
        };
        let manifests: anyhow::Result<Vec<_>> = (0..pods).map(pod).collect();
        create(&Api::<Pod>::namespaced(ground.client.clone(), NAMESPACE), manifests?).await?;
        let all_bound = |seen: &crate::jobs::pods::Pods| seen.bound() >= pods as usize;
        scheduler.until(ground.stop, &observer, "all pods are bound", LONGEST, all_bound).await?;
        let row = SharesRow { load, ..held.row(&observer, round, way) };
        said(row);
        drop(observer);
        clear(ground.client).await?;
    }
    scheduler.stop();
    Ok(())
}

async fn of_job(ground: Ground<'_>, round: u32, pods: u32, held: &HeldData) -> anyhow::Result<SharesRow> {
    let queue = Wish::ample([("cpu", (pods * 100, 0))].into());
    let mut turn = Turn::begin(ground, System::Larder, &[queue]).await?;
    let load = machine_load()[0];
    let jobs: Api<TrainingJob> = Api::namespaced(ground.client.clone(), NAMESPACE);
    let made = create_one(&jobs, held.data.training_job("job".to_owned(), pods)).await;
    let bound = match made {
        Ok(_) => turn.until("all pods are bound", LONGEST, |seen| seen.bound() >= pods as usize).await,
        Err(error) => Err(error),
    };
    let row = SharesRow { load, ..held.row(&turn.observer, round, Way::TrainingJob) };
    let ended = turn.end().await;
    bound?;
    ended?;
    Ok(row)
}

impl HeldData {
    fn row(&self, observer: &Observer, round: u32, way: Way) -> SharesRow {
        let seen = observer.pods();
        let bound: Vec<&String> = seen.all().filter_map(|pod| pod.node.as_ref()).collect();
        let there = bound.iter().filter(|node| self.holders.contains(node)).count();
        let on_holders = there as f64 / bound.len().max(1) as f64;
        SharesRow { round, way, holders: self.holders.len() as u32, load: 0.0, on_holders }
    }
}

/// The shares of one way and one number of holders, in percent.
fn shares(rows: &[SharesRow], way: Way, holders: u32) -> Option<Spread> {
    let mine = rows.iter().filter(|row| row.way == way && row.holders == holders);
    Spread::of(mine.map(|row| row.on_holders * 100.0))
}

pub(super) fn goals(rows: &[SharesRow], crowd: &Crowd) -> Vec<Goal> {
    let goal = |holders: &u32| {
        let Spread { median, min, max } = shares(rows, Way::ExtenderOfAll, *holders)?;
        Some(Goal {
            figure: format!("extender, 100 % of nodes scored: on {holders} holders, %"),
            measured: format!("{median:.1} ({min:.1}..{max:.1})"),
            goal: format!(">= {}", LEAST * 100.0),
            is_met: min >= LEAST * 100.0,
        })
    };
    crowd.holders.iter().filter_map(goal).collect()
}

/// The shares by way and number of holders.
pub(super) fn table(rows: &[SharesRow], crowd: &Crowd) -> String {
    let Crowd { nodes, holders, pods } = crowd;
    let text = format!("Percentage of {pods} pods that land on holders of their data, on {nodes} nodes\n");
    let head = holders.iter().map(|holders| format!("{holders} holders"));
    let mut table = vec![std::iter::once(String::new()).chain(head).collect::<Vec<_>>()];
    for way in Way::ALL {
        let cell = |holders: &u32| match shares(rows, way, *holders) {
            Some(Spread { median, min, max }) => format!("{median:.1} ({min:.1}..{max:.1})"),
            None => String::new(),
        };
        table.push(std::iter::once(way.name().to_owned()).chain(holders.iter().map(cell)).collect());
    }
    text + &figures_table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_round_counts_and_each_variant_has_a_row() {
        let crowd = Crowd { nodes: 5_000, holders: vec![10, 50], pods: 200 };
        let row = |way, holders, on_holders| SharesRow { round: 1, way, holders, load: 0.0, on_holders };
        let rows = [
            row(Way::ExtenderOfAll, 10, 1.0),
            row(Way::ExtenderOfAll, 10, 0.97),
            row(Way::ExtenderOfAll, 50, 0.98),
            row(Way::Default, 10, 0.002),
        ];
        let goals = goals(&rows, &crowd);
        assert_eq!(goals.iter().map(|goal| goal.is_met).collect::<Vec<_>>(), [false, true]);
        let table = table(&rows, &crowd);
        assert!(table.contains("on 5000 nodes\n"), "{table}");
        let line = |way: Way| table.lines().find(|line| line.starts_with(way.name())).unwrap();
        assert!(line(Way::Default).ends_with("0.2 (0.2..0.2)"), "{table}");
        assert!(line(Way::ExtenderOfAll).contains("98.5 (97.0..100.0)"), "{table}");
        assert_eq!(line(Way::TrainingJob), "TrainingJob");
    }

    #[test]
    fn only_training_jobs_run_without_the_benchmarks_scheduler() {
        let without: Vec<Way> = Way::ALL.into_iter().filter(|way| way.setting().is_none()).collect();
        assert_eq!(without, [Way::TrainingJob]);
        assert_eq!(Way::Default.setting(), Way::Affinity.setting());
        assert_eq!(Crowd::room(10), 480);
    }
}
