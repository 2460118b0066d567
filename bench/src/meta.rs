//! Names and attributes: the speed of walks and file look-ups, and the memory that a daemon uses for them.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round, over a tree of small files;
//! `synthetic` mounts manifests of millions of files that do not exist, which only Larder can do; `walk` does what
//! `find`, `ls -l` and a training job's first epoch do; `outcome` has the figures and their tables.
//!
//! Invariant: every walk and every pass of look-ups finds every file with the right size; anything else is an error,
//! not a figure.

mod outcome;
mod synthetic;
mod walk;

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use larder_s3_server::Distance;

use crate::side_by_side::{Progress, Rounds, Scratch, SystemInfo, chosen};
use crate::systems::{AnySystem, Corpus, CorpusOptions, Stop, System, child};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::order::shuffled;
use larder_epochs::process::Usage;
use outcome::FILE_BYTES;
pub use outcome::{MetaConfig, MetaOutcome, MetaRow};
pub use synthetic::SyntheticRow;
pub use walk::Rate;

/// Number of threads in the second pass of look-ups.
const THREADS: usize = 16;

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; an
/// error stops the run.
pub fn run(config: &MetaConfig, progress: &dyn Progress) -> anyhow::Result<MetaOutcome> {
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "meta-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome =
        MetaOutcome { config: config.clone(), systems: Vec::new(), left_out, rows: Vec::new(), synthetic: Vec::new() };
    let systems = if config.files == 0 { Vec::new() } else { systems };
    let steps = systems.len() + config.synthetic.len();
    progress.steps(steps as u64 * u64::from(config.rounds));
    if !systems.is_empty() {
        progress.doing("making the dataset");
        let options = CorpusOptions {
            sizes: vec![FILE_BYTES; config.files as usize],
            seed: config.seed,
            folder: folder.join("small"),
            distance: Distance::default(),
        };
        let (corpus, server) = Corpus::make(&options, runtime.handle(), &stop, |_, _| {})?;
        outcome.systems = systems.iter().map(|system| SystemInfo::of(&**system)).collect();
        measure_all(&mut outcome, systems, &corpus, progress)?;
        runtime.block_on(server.shutdown());
    }
    for &files in &config.synthetic {
        progress.doing(&format!("synthetic manifest of {files} files"));
        let made = synthetic::Made::new(&folder.join(format!("manifest-{files}")), files)?;
        for round in 0..config.rounds {
            stop.check()?;
            let row = made.measure(&config.binary, round, config.seed, &stop);
            let row = row.with_context(|| format!("synthetic manifest of {files} files"))?;
            progress.measured(&format!(
                "synthetic manifest of {files} files: mounted in {:.2} s, {:.0} stat/s, {:.0} MB",
                row.mount_seconds,
                row.stat.per_second,
                row.rss_bytes as f64 / 1e6
            ));
            outcome.synthetic.push(row);
        }
    }
    Ok(outcome)
}

fn measure_all(
    outcome: &mut MetaOutcome,
    systems: Vec<AnySystem>,
    corpus: &Corpus,
    progress: &dyn Progress,
) -> anyhow::Result<()> {
    let mut rounds = Rounds::prepare(systems, corpus, progress, "")?;
    for round in 0..outcome.config.rounds {
        rounds.round(round, |system| {
            let row = measure(system, corpus, round, outcome.config.seed)?;
            progress.measured(&format!(
                "round {}: {}: find {:.2} s, first stat {:.0}/s",
                round + 1,
                row.system,
                row.find_seconds,
                row.first_stat.per_second
            ));
            outcome.rows.push(row);
            Ok(())
        })?;
    }
    outcome.left_out.extend(rounds.into_left_out());
    Ok(())
}

/// Measures one system in one round, and may leave it mounted.
fn measure(system: &mut dyn System, corpus: &Corpus, round: u32, seed: u64) -> anyhow::Result<MetaRow> {
    drop_kernel_caches()?;
    let paths: Vec<&Path> = corpus.files.iter().map(|file| file.path.as_path()).collect();
    let first = paths.first().context("a dataset without files")?;
    let started = Instant::now();
    let folder = system.mount(corpus).context("mount")?;
    std::fs::symlink_metadata(folder.join(first)).with_context(|| format!("look at {}", first.display()))?;
    let mount_seconds = started.elapsed().as_secs_f64();
    let processes = system.processes();

    drop_kernel_caches()?;
    let find_seconds = walk::find(&folder, paths.len())?;

    drop_kernel_caches()?;
    let count = u32::try_from(paths.len()).context("count the files")?;
    let order = |nth: u64| shuffled(count, seed.wrapping_mul(1000).wrapping_add(2 * u64::from(round) + nth));
    let before = Usage::of(&processes);
    let first_stat = walk::stat(&folder, &paths, &order(0), 1, FILE_BYTES)?;
    let cpu_seconds = Usage::of(&processes).cpu_seconds - before.cpu_seconds;

    drop_kernel_caches()?;
    let list_seconds = walk::list(&folder, paths.len(), FILE_BYTES)?;

    let second_stat = walk::stat(&folder, &paths, &order(1), THREADS, FILE_BYTES)?;
    let usage = Usage::of(&processes);
    Ok(MetaRow {
        system: system.name().to_owned(),
        round,
        mount_seconds,
        find_seconds,
        first_stat,
        first_stat_cpu_seconds_a_thousand: cpu_seconds * 1000.0 / paths.len() as f64,
        list_seconds,
        second_stat,
        rss_bytes: usage.rss_bytes,
        peak_rss_bytes: usage.peak_rss_bytes,
    })
}
