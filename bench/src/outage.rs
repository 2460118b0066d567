//! Cached reads while the origin does not answer, and as many reads of uncached files wait for it.
//!
//! The cast: [`run`] measures an epoch of cached files alone and then during an outage, on a new [node](crate::node) in
//! every round; `advice` makes the reads that hang; `outcome` has the figures and their table.
//!
//! Invariants: every byte of a cached file is checked. An epoch in an outage during which the origin answered a GET is
//! an error, not a figure. The kernel's caches are dropped before each epoch, so larderd answers every read.

mod advice;
mod outcome;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::node::{Node, Origin, OriginOptions, fill};
use crate::reader::Reader;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Stop, child};
use advice::Advice;
use larder_epochs::epochs::write_expected;
use larder_epochs::kernel_caches::drop_kernel_caches;
pub use outcome::{OutageConfig, OutageOutcome, OutageRow};

/// The reads that hang do so for longer than any epoch of the reader may take.
const READ_DEADLINE: &str = "--read-deadline=24h";

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &OutageConfig, progress: &dyn Progress) -> anyhow::Result<OutageOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "outage-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    progress.steps(u64::from(config.rounds));
    progress.doing("making the dataset");
    let options = OriginOptions {
        datasets: 1,
        files: config.cached + config.hanging,
        file_bytes: config.file_bytes,
        seed: config.seed,
        delay: Duration::ZERO,
        threads: 1,
    };
    let origin = Origin::start(&options, &stop)?;
    let mut outcome = OutageOutcome { config: config.clone(), rows: Vec::new() };
    for round in 0..config.rounds {
        stop.check()?;
        let home = folder.join(format!("round-{round}"));
        let node = Node::start(&config.programs, &home, &origin, &[READ_DEADLINE.to_owned()], &stop)?;
        node.publish(&runtime, &origin.names(), progress)?;
        let row = measure(config, &origin, &node, &home, round, &stop, progress)?;
        progress.measured(&format!("round {}: {row}", round + 1));
        outcome.rows.push(row);
        drop(node);
        std::fs::remove_dir_all(&home).with_context(|| format!("remove {}", home.display()))?;
    }
    Ok(outcome)
}

fn measure(
    config: &OutageConfig,
    origin: &Origin,
    node: &Node,
    work: &Path,
    round: u32,
    stop: &Stop,
    progress: &dyn Progress,
) -> anyhow::Result<OutageRow> {
    let files = origin.datasets().first().context("a run without a dataset")?;
    let (cached, hanging) = files.split_at(config.cached as usize);
    let expected = work.join("expected");
    write_expected(&expected, cached)?;
    let reader = Reader { binary: &config.programs.larder, expected: &expected, work, stop };
    let epoch = |seed| reader.read(&node.volumes(), config.readers, config.cached, seed);
    progress.doing("filling the cache");
    fill(node, origin, &reader, config.cached)?;

    progress.doing("cached reads alone");
    drop_kernel_caches()?;
    let alone = epoch(config.seed)?;

    progress.doing("cached reads in an outage");
    drop_kernel_caches()?;
    let _outage = origin.stop_answering();
    let paths = hanging.iter().map(|file| node.volumes().join(&file.path)).collect();
    let hanging = Advice::give(paths)?.taken(config.hanging)?;
    let beside =
        || epoch(config.seed.wrapping_add(1)).with_context(|| format!("cached reads while {hanging} others hang"));
    let (in_outage, gets) = origin.counting_gets(beside)?;
    ensure!(gets == 0, "the origin answered {gets} GETs in its outage");
    Ok(OutageRow { round, hanging, alone, in_outage })
}
