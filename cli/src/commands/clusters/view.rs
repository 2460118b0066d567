//! The output of `larder cluster list` and `larder cluster describe`.

use std::fmt::Write;

use larder_api::cluster::{ClusterConditionKind, GpuRoom, HeldDataset, QueueRoom};
use larder_api::quantity::amount;
use larder_api::quantity::words::{show, show_part};
use larder_api::{Cluster, ClusterStatus};
use larder_dataset::size::show_bytes;
use larder_kube::ResourceExt;
use serde::Serialize;

use crate::output::{cell, table};

/// A cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterView {
    name: String,
    reachable: bool,
    /// Since when it is, or is not.
    since: Option<String>,
    why: String,
    version: Option<String>,
    latency_millis: Option<u32>,
    cost: u32,
    weight: u32,
    nodes: u32,
    free: String,
    resources: Vec<Room>,
    gpus: Vec<GpuRoom>,
    queues: Vec<QueueRoom>,
    datasets: Vec<HeldDataset>,
}

/// The room of a resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Room {
    resource: String,
    allocatable: u64,
    free: u64,
}

impl ClusterView {
    pub(super) fn of(cluster: &Cluster) -> Self {
        let status: ClusterStatus = cluster.status.clone().unwrap_or_default();
        let reachable = ClusterConditionKind::Reachable.find(&status.conditions);
        let room = |(resource, room): (&String, &larder_api::cluster::Room)| Room {
            resource: resource.clone(),
            allocatable: amount(resource, &room.allocatable).unwrap_or(0),
            free: amount(resource, &room.free).unwrap_or(0),
        };
        Self {
            name: cluster.name_any(),
            reachable: reachable.is_some_and(|condition| condition.status == "True"),
            since: reachable.map(|condition| condition.last_transition_time.0.to_string()),
            why: reachable.map(|condition| condition.message.clone()).unwrap_or_default(),
            version: status.version,
            latency_millis: status.latency_millis,
            cost: cluster.spec.cost.unwrap_or(1),
            weight: cluster.spec.weight.unwrap_or(1),
            nodes: status.nodes,
            free: status.shown.unwrap_or_default(),
            resources: status.resources.iter().map(room).collect(),
            gpus: status.gpus,
            queues: status.queues,
            datasets: status.datasets,
        }
    }

    fn answers(&self) -> &'static str {
        if self.reachable { "yes" } else { "no" }
    }
}

pub(super) fn all(views: &[ClusterView]) -> String {
    let row = |view: &ClusterView| {
        [
            cell(&view.name),
            view.answers().to_owned(),
            view.nodes.to_string(),
            cell(&view.free),
            view.latency_millis.map(|millis| format!("{millis} ms")).unwrap_or_default(),
            cell(&view.why),
        ]
    };
    let rows: Vec<_> = views.iter().map(row).collect();
    table(["NAME", "REACHABLE", "NODES", "FREE", "LATENCY", "WHY"], &rows)
}

pub(super) fn one(view: &ClusterView) -> String {
    let mut text = format!("cluster {}", cell(&view.name));
    if let Some(version) = &view.version {
        let _ = write!(text, ", Larder {}", cell(version));
    }
    let _ = writeln!(text, ", cost {}, weight {}", view.cost, view.weight);
    let since = view.since.as_deref().map(|since| format!(" since {since}")).unwrap_or_default();
    let why = if view.why.is_empty() { String::new() } else { format!(": {}", cell(&view.why)) };
    let _ = writeln!(text, "Reachable: {}{since}{why}\n", view.answers());
    let row = |room: &Room| [cell(&room.resource), show_part(&room.resource, room.free, room.allocatable)];
    let rows: Vec<_> = view.resources.iter().map(row).collect();
    text += &table(["RESOURCE", "FREE"], &rows);
    if !view.gpus.is_empty() {
        let row = |gpus: &GpuRoom| [cell(&gpus.model), format!("{} of {}", gpus.free, gpus.allocatable)];
        let rows: Vec<_> = view.gpus.iter().map(row).collect();
        text.push('\n');
        text += &table(["GPU", "FREE"], &rows);
    }
    if !view.queues.is_empty() {
        let row = |queue: &QueueRoom| {
            let free = queue.free.iter().filter_map(|(name, free)| Some(show(name, amount(name, free)?)));
            [cell(&queue.name), cell(&free.collect::<Vec<_>>().join(", "))]
        };
        let rows: Vec<_> = view.queues.iter().map(row).collect();
        text.push('\n');
        text += &table(["QUEUE", "UNUSED QUOTA"], &rows);
    }
    if !view.datasets.is_empty() {
        let row = |held: &HeldDataset| [cell(&held.name), show_bytes(held.bytes), format!("{} %", held.percent)];
        let rows: Vec<_> = view.datasets.iter().map(row).collect();
        text.push('\n');
        text += &table(["DATASET", "SIZE", "CACHED"], &rows);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view(status: Value) -> ClusterView {
        let object =
            json!({"metadata": {"name": "west"}, "spec": {"kubeconfig": {"secret": "west"}}, "status": status});
        ClusterView::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_cluster_says_what_is_free_what_it_holds_and_why_it_does_not_answer() {
        let west = view(json!({
            "nodes": 2, "shown": "3 of 8 GPUs", "latencyMillis": 40, "version": "0.9.0",
            "resources": {"nvidia.com/gpu": {"allocatable": "8", "free": "3"}},
            "gpus": [{"model": "H100", "allocatable": 8, "free": 3}],
            "queues": [{"name": "vision", "free": {"nvidia.com/gpu": "2"}}],
            "datasets": [{"name": "team-a/pets", "bytes": 1 << 30, "heldBytes": 1 << 29, "percent": 50}],
            "conditions": [{"type": "Reachable", "status": "False", "reason": "NoAnswer", "message": "connection reset",
                "lastTransitionTime": "2026-01-31T08:00:00Z"}],
        }));
        let listed = all(&[view(json!({})), west]);
        assert!(listed.contains("3 of 8 GPUs") && listed.contains("40 ms") && listed.contains("connection reset"));
        let west =
            view(json!({"datasets": [{"name": "team-a/pets", "bytes": 1 << 30, "heldBytes": 0, "percent": 50}]}));
        let text = one(&west);
        assert!(text.starts_with("cluster west, cost 1, weight 1\nReachable: no\n"), "{text}");
        assert!(text.contains("1.0 GiB") && text.contains("50 %"), "{text}");
    }
}
