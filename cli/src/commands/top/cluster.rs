//! `larder top --cluster`

use std::process::ExitCode;
use std::time::Duration;

use larder_api::NodeCache;
use larder_api::node_cache::CacheConditionKind;
use larder_dataset::size::show_bytes;
use larder_kube::ResourceExt;

use super::screen::{Order, Size};
use super::show::show;
use crate::args::TopArgs;
use crate::cluster::{Asked, Cluster, NODE_CACHE, typed};
use crate::output::{cell, count, table};
use crate::source;

/// How often the objects are listed. Nodes report about as often.
const EVERY: Duration = Duration::from_secs(5);

pub(super) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let cluster = runtime.block_on(Cluster::of(&args.of))?;
    let mut last: Option<Vec<NodeCache>> = None;
    show(args.once, EVERY, || {
        let mut caches: Vec<NodeCache> = Vec::new();
        let asked = Asked::all(NODE_CACHE, None);
        let listed = cluster.list(&asked, None, |object| caches.extend(typed::<NodeCache>(object).ok()));
        let listed = runtime.block_on(listed).map_err(|error| cluster.in_words(error, &asked));
        let trouble = if let Err(error) = listed {
            // An outage of the API server does not end the screen.
            let Some(last) = &last else { return Err(error) };
            caches.clone_from(last);
            Some(error.to_string())
        } else {
            last = Some(caches.clone());
            None
        };
        Ok(move |order: Order, size: Size| screen(&caches, trouble.as_deref(), order, size))
    })
}

/// The fullest caches first, or those with the most mounts, or by name. `trouble`: why they are old.
fn screen(caches: &[NodeCache], trouble: Option<&str>, order: Order, size: Size) -> String {
    let mut sorted: Vec<&NodeCache> = caches.iter().collect();
    let free = |cache: &NodeCache| cache.status.as_ref().map_or(0, |status| status.free_bytes);
    let mounts = |cache: &NodeCache| {
        cache.status.iter().flat_map(|status| &status.snapshots).map(|snapshot| u64::from(snapshot.mounts)).sum::<u64>()
    };
    let order = match order {
        Order::Waited => {
            sorted.sort_by_key(|cache| (free(cache), cache.name_any()));
            "free room"
        }
        Order::Read => {
            sorted.sort_by_key(|cache| (u64::MAX - mounts(cache), cache.name_any()));
            "mounts"
        }
        Order::Name => {
            sorted.sort_by_key(|cache| cache.name_any());
            "name"
        }
    };
    let room = size.rows.saturating_sub(4).max(1);
    let row = |cache: &&NodeCache| {
        let status = cache.status.clone().unwrap_or_default();
        let ready = CacheConditionKind::Ready.find(&status.conditions);
        let why = ready.map_or("not reported", |ready| ready.reason.as_str());
        [
            cell(&cache.name_any()),
            show_bytes(status.capacity_bytes),
            show_bytes(status.promised_bytes),
            show_bytes(status.free_bytes),
            status.snapshots.len().to_string(),
            mounts(cache).to_string(),
            cell(why),
        ]
    };
    let rows: Vec<_> = sorted.iter().take(room).map(row).collect();
    let trouble = trouble.map(|trouble| format!("old: {}", cell(trouble))).unwrap_or_default();
    let head = format!("larder: {}, by {order} (s: order, q: quit)\n{trouble}\n", count(caches.len() as u64, "node"));
    let text = head + &table(["NODE", "CAPACITY", "PROMISED", "FREE", "DATASETS", "MOUNTS", "CACHE"], &rows);
    text.lines().map(|line| line.chars().take(size.columns).collect::<String>() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_nodes_are_ordered_and_cut_to_the_screen() {
        let cache = |name: &str, free: u64, mounts: u32| -> NodeCache {
            serde_json::from_value(json!({
                "apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": name}, "spec": {},
                "status": {
                    "capacityBytes": 4u64 << 40, "promisedBytes": 1u64 << 40, "freeBytes": free,
                    "snapshots": [{"snapshot": "ab".repeat(32), "bytes": 1, "mounts": mounts}],
                    "conditions": [{
                        "type": "Ready", "status": "True", "reason": "PromisesKept", "message": "",
                        "lastTransitionTime": "2026-01-31T08:00:00Z",
                    }],
                },
            }))
            .unwrap()
        };
        let caches = [cache("n1", 3 << 40, 1), cache("n2", 1 << 40, 2), cache("n3", 2 << 40, 0)];
        let first = |order| {
            let text = screen(&caches, None, order, Size::ENDLESS);
            text.lines().nth(3).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!([Order::Waited, Order::Read, Order::Name].map(first), ["n2", "n2", "n1"]);
        let text = screen(&caches, None, Order::Name, Size::ENDLESS);
        assert!(text.contains("n1    4.0 TiB   1.0 TiB   3.0 TiB  1         1       PromisesKept"), "{text}");
        let old = screen(&caches, Some("no answer\u{1b}[2J"), Order::Name, Size::ENDLESS);
        assert!(old.lines().nth(1) == Some("old: no answer [2J") && old.contains("n1    4.0 TiB"), "{old}");
        let small = screen(&caches, None, Order::Name, Size { rows: 6, columns: 20 });
        assert_eq!(small.lines().count(), 5, "{small}");
        assert!(small.lines().all(|line| line.chars().count() <= 20), "{small}");
    }
}
