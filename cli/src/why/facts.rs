//! The facts below the sentence about a mount.

use std::time::Duration;

use larder_cachenode::{Cause, Pass, Stats};
use larder_dataset::size::{show_bytes, show_duration};

use super::rules::{asked_bytes, awaited, count, decisive, milliseconds, percent, seconds, time, waited};

/// The passes that are shown.
const PASSES: usize = 5;

/// The batches of a job. From them follows the share of the time in which accelerators can compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Batches {
    /// Files of a batch.
    pub(crate) files: u32,
    /// The time in which a batch is computed.
    pub(crate) compute: Duration,
}

/// The accelerators' utilisation in a pass, as MLPerf Storage defines it: the time in which they compute over that of
/// the pass.
pub(crate) fn utilisation(stats: &Stats, pass: &Pass, batches: Batches) -> f64 {
    let computing = f64::from(stats.dataset.files) / f64::from(batches.files) * batches.compute.as_secs_f64();
    if pass.seconds > 0.0 { (computing / pass.seconds).min(1.0) } else { 0.0 }
}

/// Name and value of each fact, in the order in which they are shown. Some have several lines of the same name.
pub(crate) fn facts(stats: &Stats, batches: Option<Batches>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let passes = &stats.passes;
    for pass in &passes[passes.len().saturating_sub(PASSES)..] {
        facts.push(("pass", about_pass(pass)));
    }
    if let Some(pass) = decisive(passes).map(|at| &passes[at]) {
        for cause in Cause::ALL.into_iter().filter(|cause| waited(pass, *cause) > 0.0) {
            facts.push(("waited", format!("{} for {}", seconds(waited(pass, cause)), awaited(cause))));
        }
        let complete = passes.iter().rev().find(|pass| pass.complete);
        if let (Some(batches), Some(pass)) = (batches, complete) {
            let used = percent(utilisation(stats, pass, batches));
            facts.push(("compute", format!("accelerators were used for {used} of pass {}", pass.number)));
        }
    }
    if stats.stalls.reads_waiting > 0 {
        let oldest = seconds(stats.stalls.oldest_wait_seconds);
        facts.push(("waiting", format!("{} now, the oldest for {oldest}", count(stats.stalls.reads_waiting, "read"))));
    }
    for tier in ["store", "window", "peer", "origin"] {
        let Some(times) = stats.reads.get(tier).filter(|times| times.count > 0) else { continue };
        let shown = |time: Option<f64>| time.map_or("> 60 s".to_owned(), milliseconds);
        let (half, most) = (shown(times.p50_seconds), shown(times.p99_seconds));
        facts.push(("reads", format!("{} from {}: half within {half}, 99 % within {most}", times.count, name(tier))));
    }
    let cache = &stats.cache;
    facts.push((
        "cache",
        format!(
            "{} of {} are cached, the dataset has {}, policy {}",
            show_bytes(cache.used_bytes),
            show_bytes(cache.capacity_bytes),
            show_bytes(stats.dataset.bytes),
            cache.policy
        ),
    ));
    facts.extend(cache.degraded.iter().map(|why| ("cache", format!("admits nothing: {why}"))));
    facts.extend(cache.shortage.iter().map(|why| ("cache", why.clone())));
    let age = show_duration(Duration::from_secs(stats.listing.age_seconds));
    facts.push(("listing", format!("{age} old, of {}", stats.dataset.origin)));
    let listing = &stats.listing;
    let notes = listing.refresh_failed.iter().chain(&listing.stale).chain(&listing.other_snapshots);
    facts.extend(notes.map(|note| ("listing", note.clone())));
    facts
}

fn name(tier: &str) -> &str {
    match tier {
        "store" => "the cache's disk",
        "window" => "memory",
        "peer" => "other nodes",
        _ => "the origin",
    }
}

fn about_pass(pass: &Pass) -> String {
    let hit = pass.hit_ratio.map_or("-".to_owned(), percent);
    let running = if pass.complete {
        String::new()
    } else {
        format!(", running: {}", percent(asked_bytes(pass) as f64 / pass.dataset_bytes.max(1) as f64))
    };
    format!(
        "{}: hit {hit}, promised {}; waited {} of {}; since {}{running}",
        pass.number,
        percent(pass.promised_ratio),
        seconds(pass.stall_seconds),
        seconds(pass.seconds),
        time(pass.started_unix_seconds)
    )
}
