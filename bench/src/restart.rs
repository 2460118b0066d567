//! Restarts of larderd: the time without service for a node with many mounts.
//!
//! The cast: [`run`] publishes many small datasets on a [node](crate::node), kills larderd in every round and starts it
//! again; `reading` has one reader for each mount; `outcome` has the figures and their table.
//!
//! Invariant: every mount has a reader of its own, and each byte that it gets is checked. The kernel's caches are
//! dropped before larderd is killed, so larderd answers every read.

mod outcome;
mod reading;

use std::time::{Duration, Instant};

use anyhow::Context;

use crate::node::{Node, Origin, OriginOptions, fill};
use crate::reader::Reader;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Stop, child};
use larder_epochs::epochs::{Target, write_expected};
use larder_epochs::figures::Latencies;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::threads_of;
pub use outcome::{RestartConfig, RestartOutcome, RestartRow};

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &RestartConfig, progress: &dyn Progress) -> anyhow::Result<RestartOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "restart-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    progress.steps(u64::from(config.rounds));
    progress.doing("making the datasets");
    let options = OriginOptions {
        datasets: config.mounts,
        files: config.files,
        file_bytes: config.file_bytes,
        seed: config.seed,
        delay: Duration::ZERO,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let origin = Origin::start(&options, &stop)?;
    let mut node = Node::start(&config.programs, &folder.join("node"), &origin, &[], &stop)?;
    node.publish(&runtime, &origin.names(), progress)?;

    progress.doing("filling the cache");
    let expected = folder.join("expected");
    write_expected(&expected, &origin.datasets().concat())?;
    let reader = Reader { binary: &config.programs.larder, expected: &expected, work: &folder, stop: &stop };
    fill(&node, &origin, &reader, config.mounts * config.files)?;

    let first_files = origin.datasets().iter().filter_map(|files| files.first());
    let targets: Vec<Target> = first_files
        .map(|file| Target { path: node.volumes().join(&file.path), size: Some(file.size), crc32c: Some(file.crc32c) })
        .collect();
    let mut outcome = RestartOutcome { config: config.clone(), rows: Vec::new() };
    for round in 0..config.rounds {
        stop.check()?;
        progress.doing("restarting larderd");
        drop_kernel_caches()?;
        node.kill_larderd();
        let started = Instant::now();
        node.start_larderd()?;
        let (times, gets) = origin.counting_gets(|| reading::read_each(&targets, started, &mut node, &stop))?;
        let larderd = node.larderd()?;
        let row = RestartRow {
            round,
            first_seconds: times.iter().min().copied().unwrap_or_default().as_secs_f64(),
            mounts: Latencies::of(times.into_iter()),
            gets,
            rss_bytes: node.usage()?.rss_bytes,
            threads: threads_of(larderd),
        };
        progress.measured(&format!("round {}: {row}", round + 1));
        outcome.rows.push(row);
    }
    Ok(outcome)
}
