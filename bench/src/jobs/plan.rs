//! The time to plan a large gang. Planning does no I/O, so the scenario needs no cluster.

use std::borrow::Cow;
use std::time::Instant;

use anyhow::ensure;
use larder_controller::jobs::plan::{Cluster, Gang, NodeRoom, Want, place};
use larder_controller::objects::Node;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use serde::Serialize;

use larder_epochs::figures::{Goal, Spread};

const GPU: &str = "nvidia.com/gpu";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const NODES: u64 = 5_000;
const PODS: u32 = 1_000;

/// The number of times that each plan is made.
const TIMES: usize = 21;

/// The goal: milliseconds per plan.
const GOAL_MS: f64 = 50.0;

/// The times of one plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanRow {
    /// The node label whose values are topology domains; empty for a plan without domains.
    pub topology_key: String,
    /// The median.
    pub median_ms: f64,
    /// The minimum.
    pub min_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

/// Plans 1,000 pods in four roles on 5,000 nodes, half of whose GPUs are in use and some of which have the data.
pub(super) fn measure() -> anyhow::Result<Vec<PlanRow>> {
    let nodes: Vec<Node> = (0..NODES).map(node).collect();
    let rooms: Vec<NodeRoom<'_>> = (0..).zip(&nodes).map(room).collect();
    ["", ZONE, HOSTNAME].into_iter().map(|topology_key| plan(&rooms, topology_key)).collect()
}

fn plan(rooms: &[NodeRoom<'_>], topology_key: &str) -> anyhow::Result<PlanRow> {
    let gang = gang(topology_key);
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let started = Instant::now();
        let mut cluster = Cluster::new(rooms);
        let planned = place(&mut cluster, &gang);
        times.push(started.elapsed().as_secs_f64() * 1e3);
        let pods = planned.map_or(0, |planned| planned.roles.iter().map(Vec::len).sum());
        ensure!(pods == PODS as usize, "the plan has {pods} of {PODS} pods");
    }
    let Spread { median, min, max } = Spread::of(times).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
    Ok(PlanRow { topology_key: topology_key.to_owned(), median_ms: median, min_ms: min, max_ms: max })
}

fn node(at: u64) -> Node {
    let (name, zone) = (format!("node-{at:05}"), format!("zone-{}", at % 50));
    let labels = [(ZONE, zone.as_str()), (HOSTNAME, &name), ("kind", "gpu")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let mut node = Node { labels, ready: true, ..Node::default() };
    node.meta.key = Key::cluster(&name);
    node
}

fn room((at, node): (u64, &Node)) -> NodeRoom<'_> {
    let all = [(GPU, 8), ("cpu", 96_000), ("memory", 1 << 40), ("ephemeral-storage", 1 << 42), ("pods", 110)];
    let used = [(GPU, at % 8), ("cpu", at % 8 * 8_000), ("memory", (at % 8) << 36), ("pods", at % 20)];
    NodeRoom {
        node,
        allocatable: Cow::Owned(all.into_iter().collect()),
        used: Cow::Owned(used.into_iter().collect()),
        held: if at % 7 == 0 { [(Key::new("team", "pets"), at << 20)].into() } else { Default::default() },
    }
}

fn gang(topology_key: &str) -> Gang {
    let want = |name: &str, gpus: u64, cpus: u64, required: u32| {
        let requests: Amounts = [(GPU, gpus), ("cpu", cpus * 1_000)].into_iter().collect();
        Want { name: name.to_owned(), requests, required, ..Want::default() }
    };
    let mut worker = want("worker", 1, 8, PODS - 100);
    worker.places.labels.insert("kind".to_owned(), "gpu".to_owned());
    Gang {
        roles: vec![want("chief", 1, 8, 1), want("ps", 0, 16, 90), worker, want("evaluator", 1, 4, 9)],
        datasets: vec![(Key::new("team", "pets"), 1 << 32), (Key::new("team", "coco"), 1 << 32)],
        topology_key: topology_key.to_owned(),
        ..Gang::default()
    }
}

pub(super) fn goals(rows: &[PlanRow]) -> Vec<Goal> {
    let goal = |row: &PlanRow| {
        let key = if row.topology_key.is_empty() { "no topology key" } else { &row.topology_key };
        Goal {
            figure: format!("plan of {PODS} pods on {NODES} nodes, ms ({key})"),
            measured: format!("{:.1} ({:.1}..{:.1})", row.median_ms, row.min_ms, row.max_ms),
            goal: format!("<= {GOAL_MS}"),
            is_met: row.median_ms <= GOAL_MS,
        }
    };
    rows.iter().map(goal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planning_time_is_shown_with_its_goal() {
        let row = |median_ms| PlanRow { topology_key: ZONE.to_owned(), median_ms, min_ms: 1.0, max_ms: 90.0 };
        let goals = goals(&[row(50.0), row(50.1)]);
        assert_eq!(goals[0].measured, "50.0 (1.0..90.0)");
        assert_eq!([goals[0].is_met, goals[1].is_met], [true, false]);
    }

    #[test]
    fn every_pod_of_the_gang_finds_a_node() {
        let nodes: Vec<Node> = (0..400).map(node).collect();
        let rooms: Vec<NodeRoom<'_>> = (0..).zip(&nodes).map(room).collect();
        assert_eq!(plan(&rooms, ZONE).unwrap().topology_key, ZONE);
    }
}
