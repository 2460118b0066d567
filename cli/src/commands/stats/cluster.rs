//! `larder stats --cluster`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use larder_cachenode::Stats;
use larder_daemon_api::v1;
use larder_dataset::size::show_bytes;
use tokio::runtime::Runtime;

use crate::mount_stats::read;
use crate::{daemon, output, source};

/// The reason for a node that answers but reports no share. A node does not say which reason applies, because only
/// nodes with its token may know what it has cached.
const NOT_SHARED: &str = "not shared with this node: not mounted there, a different token, or placement local";

/// Prints how much each node has cached of the datasets mounted at `dirs`, as reported by the nodes' daemons.
pub(super) fn run(dirs: &[PathBuf], as_json: bool) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    let mut code = ExitCode::SUCCESS;
    for dir in dirs {
        match nodes_of(dir, &runtime) {
            Ok((stats, nodes)) if as_json => output::json(&json(dir, &stats, &nodes))?,
            Ok((stats, nodes)) => output::text(&table(dir, &stats, &nodes))?,
            // One dead mount must not hide the others.
            Err(error) => {
                code = ExitCode::FAILURE;
                output::error(&error);
            }
        }
    }
    Ok(code)
}

/// The stats of a mount, and each node's share of its dataset.
fn nodes_of(dir: &Path, runtime: &Runtime) -> anyhow::Result<(Stats, Vec<v1::NodeInfo>)> {
    let stats = read(dir)?;
    let socket = stats.process.socket.as_ref().with_context(|| {
        format!("the process that serves {} has no socket, so it does not share its cache", dir.display())
    })?;
    let mut nodes = runtime.block_on(daemon::nodes(socket)).with_context(|| dir.display().to_string())?;
    for node in &mut nodes {
        node.datasets.retain(|dataset| dataset.snapshot == stats.dataset.cache());
    }
    Ok((stats, nodes))
}

fn json(dir: &Path, stats: &Stats, nodes: &[v1::NodeInfo]) -> serde_json::Value {
    let node = |node: &v1::NodeInfo| {
        let cached = node.datasets.first();
        serde_json::json!({
            "name": node.name,
            "address": node.address,
            "weight": node.weight,
            "zone": node.zone,
            "error": (!node.error.is_empty()).then_some(&node.error),
            "blocks": cached.map(|cached| cached.blocks),
            "bytes": cached.map(|cached| cached.bytes),
            "capacity_bytes": cached.map(|cached| cached.capacity_bytes),
            "counters": node.counters,
        })
    };
    let nodes: Vec<_> = nodes.iter().map(node).collect();
    serde_json::json!({"mount": dir, "snapshot": stats.dataset.snapshot, "bytes": stats.dataset.bytes, "nodes": nodes})
}

/// A node's line. `percent` converts bytes to a percentage of the dataset.
fn row(node: &v1::NodeInfo, percent: impl Fn(u64) -> f64) -> String {
    let count = |name: &str| show_bytes(node.counters.get(name).copied().unwrap_or(0));
    let (cached, share) = match node.datasets.first() {
        Some(cached) => (show_bytes(cached.bytes), format!("{:.1}", percent(cached.bytes))),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let traffic = format!("{:>12} {:>12}", count("read_bytes"), count("served_bytes"));
    let rest = match (node.error.as_str(), node.datasets.is_empty()) {
        ("", false) => traffic,
        ("", true) => format!("{traffic}  {NOT_SHARED}"),
        (error, _) => error.to_owned(),
    };
    format!("{:<24} {:<22} {:<10} {cached:>12} {share:>7} {rest}\n", node.name, node.address, node.zone)
}

fn table(dir: &Path, stats: &Stats, nodes: &[v1::NodeInfo]) -> String {
    let percent = |bytes: u64| 100.0 * bytes as f64 / stats.dataset.bytes.max(1) as f64;
    let mut text = format!(
        "{} ({}, {}) at {}\n{:<24} {:<22} {:<10} {:>12} {:>7} {:>12} {:>12}\n",
        stats.dataset.name,
        stats.dataset.origin,
        show_bytes(stats.dataset.bytes),
        dir.display(),
        "node",
        "address",
        "zone",
        "cached",
        "%",
        "node read",
        "node served"
    );
    let mut total = 0;
    for node in nodes {
        total += node.datasets.first().map_or(0, |cached| cached.bytes);
        text += &row(node, percent);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:<58} {:>12} {:>7.1}\n", "all", show_bytes(total), percent(total));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_share_has_a_reason() {
        let node = v1::NodeInfo { name: "a".to_owned(), ..v1::NodeInfo::default() };
        let without = row(&node, |_| 0.0);
        assert!(without.contains("not mounted there, a different token"), "{without}");
        let down = row(&v1::NodeInfo { error: "it is down".to_owned(), ..node.clone() }, |_| 0.0);
        assert!(down.ends_with("it is down\n") && !down.contains(NOT_SHARED), "{down}");
        let cached = v1::CachedDataset { bytes: 5, ..v1::CachedDataset::default() };
        let with = row(&v1::NodeInfo { datasets: vec![cached], ..node }, |bytes| bytes as f64);
        assert!(with.contains("5.0") && !with.contains(NOT_SHARED), "{with}");
    }
}
