//! The description of this cluster, from which other clusters choose it.

use std::collections::{BTreeMap, HashMap};

use larder_api::cluster::{
    ClusterStatus, DATASETS_MAX, GpuRoom, HeldDataset, QUEUES_MAX, QueueRoom, Room, SHAPES_MAX, Shape,
};
use larder_api::quantity::words::show_part;
use larder_api::quantity::{amount, is_gpu};
use larder_api::queue::flavor::split;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::requests::amounts;

use super::choice::{Free, Held};
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::queues::quantity;

/// The node label with the model of its GPUs.
const MODEL_LABEL: &str = "nvidia.com/gpu.product";

/// Amounts of at least this many bytes are rounded to whole GiB.
const GIB: u64 = 1 << 30;

/// Describes this cluster. Without a heartbeat and conditions.
pub fn summary(view: &ClusterView<'_>) -> ClusterStatus {
    let rooms = view.rooms(&[]);
    let usable = rooms.iter().filter(|room| room.node.ready && !room.node.unschedulable && !room.node.meta.deleting);
    let (mut allocatable, mut free) = (Amounts::default(), Amounts::default());
    let mut models: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut nodes, mut of_nodes) = (0_u32, Vec::new());
    for room in usable {
        let left =
            |(resource, amount): (&str, u64)| (resource.to_owned(), amount.saturating_sub(room.used.get(resource)));
        let here: Amounts = room.allocatable.iter().map(left).collect();
        for (resource, amount) in room.allocatable.iter().filter(|(resource, _)| is_gpu(resource)) {
            let model = room.node.labels.get(MODEL_LABEL).cloned().unwrap_or_else(|| resource.to_owned());
            let (all, unused) = models.entry(model).or_default();
            (*all, *unused) = (all.saturating_add(amount), unused.saturating_add(here.get(resource)));
        }
        allocatable.add(&room.allocatable, 1);
        free.add(&here, 1);
        nodes += 1;
        of_nodes.push(here);
    }
    let resource = |(resource, all): (&str, u64)| {
        let room = Room { allocatable: quantity(resource, all), free: quantity(resource, free.get(resource)) };
        (resource.to_owned(), room)
    };
    ClusterStatus {
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        nodes,
        resources: allocatable.iter().take(64).map(resource).collect(),
        gpus: models
            .into_iter()
            .take(64)
            .map(|(model, (allocatable, free))| GpuRoom { model, allocatable, free })
            .collect(),
        shapes: shapes(&of_nodes),
        queues: queues(view),
        datasets: datasets(view),
        shown: Some(shown(&allocatable, &free)),
        ..ClusterStatus::default()
    }
}

/// Groups nodes with the same free room. If that makes too many groups, amounts are rounded down to powers of two, and
/// the nodes with the least are left out.
fn shapes(nodes: &[Amounts]) -> Vec<Shape> {
    let group = |round: fn(u64) -> u64| {
        let mut groups: BTreeMap<Vec<(String, u64)>, u32> = BTreeMap::new();
        for free in nodes {
            let alike = free.iter().map(|(resource, amount)| (resource.to_owned(), round(whole(resource, amount))));
            *groups.entry(alike.collect()).or_default() += 1;
        }
        groups
    };
    let mut groups = group(|amount| amount);
    if groups.len() > SHAPES_MAX {
        groups = group(|amount| if amount == 0 { 0 } else { 1 << amount.ilog2() });
    }
    let mut groups: Vec<(Vec<(String, u64)>, u32)> = groups.into_iter().collect();
    let of = |free: &[(String, u64)], is_one: fn(&str) -> bool| -> u64 {
        free.iter().filter(|(resource, _)| is_one(resource)).map(|(_, amount)| *amount).fold(0, u64::saturating_add)
    };
    groups.sort_by_key(|(free, _)| std::cmp::Reverse((of(free, is_gpu), of(free, |resource| resource == "cpu"))));
    groups.truncate(SHAPES_MAX);
    let written = |(resource, amount): (String, u64)| {
        let quantity = quantity(&resource, amount);
        (resource, quantity)
    };
    groups
        .into_iter()
        .map(|(free, nodes)| Shape { nodes, free: free.into_iter().take(64).map(written).collect() })
        .collect()
}

/// Whole CPUs and whole GiB, and tenths of few CPUs, of which pods may want most.
fn whole(resource: &str, amount: u64) -> u64 {
    let unit = match resource {
        "cpu" if amount < 8_000 => 100,
        "cpu" => 1_000,
        _ if amount >= GIB => GIB,
        _ => 1,
    };
    amount - amount % unit
}

fn queues(view: &ClusterView<'_>) -> Vec<QueueRoom> {
    let known = view.jobs.queues.iter().filter_map(|object| Some((object, object.queue.as_ref().ok()?)));
    let room = known.map(|(object, queue)| {
        let name = object.meta.key.name.clone();
        let used = view.jobs.queue_reports.get(&name).map(|report| &report.status.usage);
        let used = amounts(used.into_iter().flatten().map(|(resource, usage)| (resource, &usage.used)));
        // Flavors are the administrator's names for nodes here, and mean nothing elsewhere.
        let of_all_nodes = queue.quota.iter().filter(|(name, _)| split(name).1.is_none());
        let free = of_all_nodes.map(|(resource, quota)| {
            let left = quota.nominal.saturating_sub(used.get(resource));
            (resource.clone(), quantity(resource, left))
        });
        QueueRoom { free: free.collect(), name }
    });
    room.take(QUEUES_MAX).collect()
}

fn datasets(view: &ClusterView<'_>) -> Vec<HeldDataset> {
    // By snapshot and owner: the bytes on all nodes, and the most on one.
    let mut on_nodes: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
    for here in view.caches.iter().filter_map(|cache| cache.status.as_ref()).flat_map(|status| &status.snapshots) {
        let (all, most) = on_nodes.entry((&*here.snapshot, &*here.owner)).or_default();
        (*all, *most) = (all.saturating_add(here.bytes), here.bytes.max(*most));
    }
    let held = view.datasets.iter().filter_map(|object| {
        let key = &object.meta.key;
        let (snapshot, bytes) = (view.snapshot(key)?, view.bytes(key));
        let (all, most) = on_nodes.get(&(snapshot, object.cache_owner())).copied().unwrap_or_default();
        // Nodes that share their caches hold parts, and others hold copies.
        let shares = object.dataset.spec.cache.placement.as_deref().is_some_and(|placement| placement != "local");
        let held_bytes = bytes.min(if shares { all } else { most });
        let percent = (u128::from(held_bytes) * 100).checked_div(u128::from(bytes)).unwrap_or(100);
        let percent = u32::try_from(percent).unwrap_or(100);
        Some(HeldDataset { name: key.to_string(), bytes, held_bytes, percent })
    });
    held.take(DATASETS_MAX).collect()
}

/// The column FREE.
fn shown(allocatable: &Amounts, free: &Amounts) -> String {
    let gpu = allocatable.iter().map(|(resource, _)| resource).find(|resource| is_gpu(resource));
    let resource = gpu.unwrap_or("cpu");
    show_part(resource, free.get(resource), allocatable.get(resource)).chars().take(64).collect()
}

/// The free room in a description.
pub fn free(status: &ClusterStatus) -> Free {
    Free::new(status.shapes.iter().map(|shape| (shape.nodes, amounts(&shape.free))))
}

/// The datasets in a description.
pub fn held(status: &ClusterStatus) -> BTreeMap<String, Held> {
    let held = |dataset: &HeldDataset| (dataset.name.clone(), Held { bytes: dataset.bytes, held: dataset.held_bytes });
    status.datasets.iter().map(held).collect()
}

/// The unused part of a resource of a queue here; `None`: it is not limited.
pub fn unused(view: &ClusterView<'_>, queue: &str, resource: &str) -> Option<u64> {
    let quota = view.jobs.queues.get(&Key::cluster(queue))?.queue.as_ref().ok()?.quota.get(resource)?;
    let usage = view.jobs.queue_reports.get(queue).and_then(|report| report.status.usage.get(resource));
    let used = usage.and_then(|usage| amount(resource, &usage.used)).unwrap_or(0);
    Some(quota.nominal.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    fn node(gpus: u64, cpu: u64) -> Amounts {
        [("nvidia.com/gpu", gpus), ("cpu", cpu), ("memory", 7 * GIB + 5)].into_iter().collect()
    }

    #[test]
    fn nodes_that_are_alike_are_one_shape_and_many_shapes_are_rounded_down_to_few() {
        let alike = shapes(&[node(4, 8_900), node(4, 8_100), node(1, 8_000)]);
        let written = |free: &BTreeMap<String, Quantity>| -> Vec<String> {
            free.iter().map(|(resource, amount)| format!("{resource} {}", amount.0)).collect()
        };
        let all: Vec<(u32, Vec<String>)> = alike.iter().map(|shape| (shape.nodes, written(&shape.free))).collect();
        let memory = (7 * GIB).to_string();
        let of = |gpus: u32| vec!["cpu 8".to_owned(), format!("memory {memory}"), format!("nvidia.com/gpu {gpus}")];
        assert_eq!(all, [(2, of(4)), (1, of(1))]);
        assert_eq!([1_230, 90].map(|millis| whole("cpu", millis)), [1_200, 0]);
        // A thousand different nodes.
        let many: Vec<Amounts> = (1..=1000).map(|cpu| node(8, cpu * 1_000)).collect();
        let few = shapes(&many);
        assert!(few.len() <= SHAPES_MAX, "{}", few.len());
        assert_eq!(few.iter().map(|shape| shape.nodes).sum::<u32>(), 1000);
        let cpus = |shape: &Shape| u64::from(shape.nodes) * amounts(&shape.free).get("cpu");
        let (rounded, real): (u64, u64) = (few.iter().map(cpus).sum(), many.iter().map(|free| free.get("cpu")).sum());
        assert!(rounded <= real && 2 * rounded >= real, "{rounded} {real}");
        // A node may claim anything.
        let huge: Amounts = ["nvidia.com/gpu", "amd.com/gpu"].map(|gpu| (gpu, u64::MAX)).into_iter().collect();
        assert_eq!(shapes(&[huge]).len(), 1);
    }
}
