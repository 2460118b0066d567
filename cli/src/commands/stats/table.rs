//! A mount's stats as text.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use larder::output;
use larder_cachenode::{CacheStats, Stats};
use larder_dataset::size::{show_bytes, show_duration};

use crate::mount_stats::is_foreign;

fn metric(stats: &Stats, name: &str) -> u64 {
    stats.metrics.get(name).copied().unwrap_or(0)
}

/// Percentage of the bytes read that came from the local store.
fn hit_percent(stats: &Stats, before: Option<&Stats>) -> Option<f64> {
    let grown = |name| metric(stats, name).saturating_sub(before.map_or(0, |before| metric(before, name)));
    let local = grown("fs_read_bytes_store_total");
    let others = ["fs_read_bytes_origin_total", "fs_read_bytes_window_total", "fs_read_bytes_peer_total"].map(grown);
    let all = local + others.iter().sum::<u64>();
    (all > 0).then(|| 100.0 * local as f64 / all as f64)
}

/// How the room differs from what the dataset could use, or from what is cached.
fn difference(cache: &CacheStats, dataset_bytes: u64) -> String {
    let mut text = String::new();
    if cache.wanted_bytes > cache.capacity_bytes {
        text += &format!("; needs {}, more than the cache can hold", show_bytes(cache.wanted_bytes));
    } else if dataset_bytes > cache.capacity_bytes {
        text += &format!("; the whole dataset has {}", show_bytes(dataset_bytes));
    }
    if cache.used_bytes > cache.capacity_bytes {
        text += "; blocks that were cached when it had more room stay";
    }
    text
}

/// All mounts of this machine, one line each.
pub(super) fn overview(mounts: &[(&Path, anyhow::Result<Stats>)]) -> String {
    let rows = mounts.iter().map(|(dir, stats)| {
        let dir = dir.display().to_string();
        let stats = match stats {
            Ok(stats) => stats,
            Err(error) => {
                let state = if is_foreign(error) { "not yours" } else { "dead" };
                return [dir, String::new(), String::new(), String::new(), String::new(), state.to_owned()];
            }
        };
        let cache = &stats.cache;
        let state = match (&cache.degraded, &cache.shortage) {
            (Some(_), _) => "degraded",
            (None, Some(_)) => "does not fit",
            (None, None) => "ok",
        };
        [
            dir,
            stats.dataset.origin.clone(),
            show_bytes(stats.dataset.bytes),
            show_bytes(cache.used_bytes),
            hit_percent(stats, None).map_or("-".to_owned(), |percent| format!("{percent:.1} %")),
            state.to_owned(),
        ]
    });
    output::table(["MOUNT", "ORIGIN", "SIZE", "CACHED", "HITS", "STATE"], &rows.collect::<Vec<_>>())
}

/// The state of a mount. The hit ratio covers the time since `before`, or since the start of the mount.
pub(super) fn table(dir: &Path, stats: &Stats, before: Option<&Stats>) -> String {
    let mut text = String::new();
    let cache = &stats.cache;
    let since = if before.is_some() { " since the last refresh" } else { "" };
    let hits = match hit_percent(stats, before) {
        Some(percent) => format!("{percent:.1} % of the bytes read{since} came from this cache; the rest was fetched"),
        None => format!("- (nothing was read{since})"),
    };
    let mut row = |name: &str, value: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10}{value}");
    };
    row("mount", format_args!("{}", dir.display()));
    row("dataset", format_args!("{} ({})", stats.dataset.name, stats.dataset.origin));
    row("files", format_args!("{} ({})", stats.dataset.files, show_bytes(stats.dataset.bytes)));
    let made = if stats.dataset.packed { "packed" } else { "listed" };
    let age = show_duration(Duration::from_secs(stats.listing.age_seconds));
    // Older processes do not report the age.
    let age = if stats.listing.unix_seconds == 0 { String::new() } else { format!(", {made} {age} ago") };
    row("snapshot", format_args!("{}{age}", stats.dataset.snapshot.get(..12).unwrap_or_default()));
    let listing = &stats.listing;
    for note in listing.refresh_failed.iter().chain(&listing.stale).chain(&listing.other_snapshots) {
        row("", format_args!("{note}"));
    }
    // Blocks that were cached before the room shrank stay.
    let share = (100.0 * cache.used_bytes as f64 / cache.capacity_bytes.max(1) as f64).min(100.0);
    row(
        "cache",
        format_args!(
            "{} of {} ({share:.1} %), policy {}{}{}",
            show_bytes(cache.used_bytes),
            show_bytes(cache.capacity_bytes),
            cache.policy,
            difference(cache, stats.dataset.bytes),
            cache.degraded.as_deref().map(|why| format!(", DEGRADED: {why}")).unwrap_or_default()
        ),
    );
    if let Some(shortage) = &cache.shortage {
        row("", format_args!("{shortage}"));
    }
    row("hits", format_args!("{hits}"));
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
        let (hedges, won) = (metric(stats, "fs_peer_hedges_total"), metric(stats, "fs_peer_hedges_won_total"));
        let (read, given) = (show_bytes(read), show_bytes(given));
        row(
            "peers",
            format_args!(
                "{read} read from other nodes, {given} sent to them, {failures} requests failed, {hedges} slow ones \
                 were repeated at a second node, which was faster {won} times"
            ),
        );
    }
    let blocks = ["in_time", "late", "wasted", "in_page_cache"];
    let blocks = blocks.map(|kind| metric(stats, &format!("fs_plan_blocks_{kind}_total")));
    if blocks.iter().sum::<u64>() + metric(stats, "fs_plans") > 0 {
        let [in_time, late, wasted, in_page_cache] = blocks;
        let stalled = stats.stalls.plan_seconds;
        row(
            "plans",
            format_args!(
                "{} open; of planned blocks {in_time} were here in time, {late} were late (readers waited {stalled:.1} \
                 s), {wasted} were wasted, {in_page_cache} were in the page cache",
                metric(stats, "fs_plans")
            ),
        );
    }
    if let Some(warm) = &stats.warm {
        let state = if warm.running {
            "running"
        } else if warm.full {
            "ended, cache full"
        } else if warm.unkept_because.is_some() {
            "ended early"
        } else {
            "ended"
        };
        let unkept = warm.unkept_because.as_deref();
        row(
            "warm",
            format_args!(
                "{state}: {} of {} blocks, {} failed{}{}",
                warm.blocks_kept,
                warm.blocks_total,
                warm.blocks_failed,
                unkept.map(|why| format!(", {} not kept: {why}", warm.blocks_unkept)).unwrap_or_default(),
                match warm.lines_unknown {
                    0 => String::new(),
                    lines => format!(", {lines} lines of the list match no file"),
                }
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
