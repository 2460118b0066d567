//! `larder stats`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_fs::Stats;
use larder_fs::mount::mounts;

use larder_daemon_api::size::show_bytes;
use larder_daemon_api::v1;

use crate::args::StatsArgs;
use crate::{daemon, output, source};

/// Reads the stats of the mount that `dir` is in the root of.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Stats> {
    let path = dir.join(".larder/stats.json");
    let text = std::fs::read(&path)
        .with_context(|| format!("read {} (is {} the root of a Larder mount?)", path.display(), dir.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
}

pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let dirs: Vec<PathBuf> = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None => mounts().into_iter().map(|mount| mount.path).collect(),
    };
    if dirs.is_empty() {
        bail!("no dataset is mounted here (`larder mount SRC DIR` mounts one)");
    }
    if args.cluster {
        return cluster(&dirs, args.json);
    }
    let mut before: Vec<Option<Stats>> = vec![None; dirs.len()];
    loop {
        let mut failed = false;
        for (dir, before) in dirs.iter().zip(&mut before) {
            match read(dir) {
                Ok(stats) if args.json => {
                    output::json(&serde_json::json!({"mount": dir, "stats": stats}))?;
                }
                Ok(stats) => {
                    print!("{}", table(dir, &stats, before.as_ref()));
                    *before = Some(stats);
                }
                // One dead mount must not hide the others.
                Err(error) => {
                    failed = true;
                    eprintln!("error: {error:#}");
                }
            }
        }
        if !args.watch {
            return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn metric(stats: &Stats, name: &str) -> u64 {
    stats.metrics.get(name).copied().unwrap_or(0)
}

/// What each node has of the datasets mounted at `dirs`: asked of the daemons that serve them.
fn cluster(dirs: &[PathBuf], json: bool) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    for dir in dirs {
        let stats = read(dir)?;
        let socket = stats.process.socket.as_ref().with_context(|| {
            format!("{} is served by a process that has no socket, and shares with nobody", dir.display())
        })?;
        let mut nodes = runtime.block_on(daemon::nodes(socket))?;
        for node in &mut nodes {
            node.datasets.retain(|dataset| dataset.snapshot == stats.dataset.snapshot);
        }
        if json {
            output::json(&cluster_json(dir, &stats, &nodes))?;
        } else {
            print!("{}", cluster_table(dir, &stats, &nodes));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cluster_json(dir: &Path, stats: &Stats, nodes: &[v1::NodeInfo]) -> serde_json::Value {
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

fn cluster_table(dir: &Path, stats: &Stats, nodes: &[v1::NodeInfo]) -> String {
    use std::fmt::Write;
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
        "read",
        "given"
    );
    let mut total = 0;
    for node in nodes {
        let count = |name: &str| show_bytes(node.counters.get(name).copied().unwrap_or(0));
        let (cached, share) = match node.datasets.first() {
            Some(cached) => (show_bytes(cached.bytes), format!("{:.1}", percent(cached.bytes))),
            None => ("-".to_owned(), "-".to_owned()),
        };
        total += node.datasets.first().map_or(0, |cached| cached.bytes);
        // Writing to a String cannot fail.
        let _ = write!(text, "{:<24} {:<22} {:<10} {cached:>12} {share:>7}", node.name, node.address, node.zone);
        let _ = match node.error.as_str() {
            "" => writeln!(text, " {:>12} {:>12}", count("read_bytes"), count("served_bytes")),
            error => writeln!(text, " {error}"),
        };
    }
    let _ = writeln!(text, "{:<58} {:>12} {:>7.1}\n", "all", show_bytes(total), percent(total));
    text
}

/// Share of the bytes read that did not come from the origin, in percent.
fn hit_percent(stats: &Stats, before: Option<&Stats>) -> Option<f64> {
    let grown = |name| metric(stats, name).saturating_sub(before.map_or(0, |before| metric(before, name)));
    let local = grown("fs_read_bytes_store_total");
    let others = ["fs_read_bytes_origin_total", "fs_read_bytes_window_total", "fs_read_bytes_peer_total"].map(grown);
    let all = local + others.iter().sum::<u64>();
    (all > 0).then(|| 100.0 * local as f64 / all as f64)
}

fn table(dir: &Path, stats: &Stats, before: Option<&Stats>) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let cache = &stats.cache;
    let hits = hit_percent(stats, before).map_or("-".to_owned(), |percent| format!("{percent:.1} %"));
    let mut row = |name: &str, value: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10}{value}");
    };
    row("mount", format_args!("{}", dir.display()));
    row("dataset", format_args!("{} ({})", stats.dataset.name, stats.dataset.origin));
    row("files", format_args!("{} ({})", stats.dataset.files, show_bytes(stats.dataset.bytes)));
    let share = 100.0 * cache.used_bytes as f64 / cache.capacity_bytes.max(1) as f64;
    row(
        "cache",
        format_args!(
            "{} of {} ({share:.1} %), policy {}{}",
            show_bytes(cache.used_bytes),
            show_bytes(cache.capacity_bytes),
            cache.policy,
            cache.degraded.as_deref().map(|why| format!(", DEGRADED: {why}")).unwrap_or_default()
        ),
    );
    row(
        "hits",
        format_args!(
            "{hits} of the bytes that the kernel asked for{}",
            if before.is_some() { " since the last line" } else { "" }
        ),
    );
    row(
        "origin",
        format_args!(
            "{} GETs, {}, {} errors",
            metric(stats, "fs_origin_gets_total"),
            show_bytes(metric(stats, "fs_origin_bytes_total")),
            metric(stats, "fs_origin_errors_total")
        ),
    );
    let (read, given) = (metric(stats, "fs_read_bytes_peer_total"), metric(stats, "fs_peer_served_bytes_total"));
    if read + given > 0 {
        let failures = metric(stats, "fs_peer_errors_total");
        let (read, given) = (show_bytes(read), show_bytes(given));
        row("peers", format_args!("{read} read from other nodes, {given} given to them, {failures} failures"));
    }
    if let Some(warm) = stats.warm {
        let state = if warm.running {
            "running"
        } else if warm.full {
            "ended, cache full"
        } else {
            "ended"
        };
        row(
            "warm",
            format_args!(
                "{state}: {} of {} blocks, {} failed",
                warm.blocks_kept, warm.blocks_total, warm.blocks_failed
            ),
        );
    }
    row(
        "process",
        format_args!(
            "{}, {} resident, up {} s",
            stats.process.pid,
            show_bytes(stats.process.rss_bytes),
            stats.process.uptime_seconds
        ),
    );
    text.push('\n');
    text
}
