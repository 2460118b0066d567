//! `larder stats`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_fs::Stats;
use larder_fs::mount::mounts;

use crate::args::StatsArgs;
use crate::output;
use larder_daemon_api::size::show_bytes;

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

/// Share of the bytes read that did not come from the origin, in percent.
fn hit_percent(stats: &Stats, before: Option<&Stats>) -> Option<f64> {
    let grown = |name| metric(stats, name).saturating_sub(before.map_or(0, |before| metric(before, name)));
    let local = grown("fs_read_bytes_store_total");
    let all = local + grown("fs_read_bytes_origin_total") + grown("fs_read_bytes_window_total");
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
