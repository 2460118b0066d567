//! Reads with a plan, beside the same reads without one: how fast they are, how much the readers wait, and their cost.
//!
//! The cast: [`run`] does each [`Work`] once in every round; `site` is an S3 server with a mount of its objects, and
//! reads them, with `larder plan` beside the readers; `outcome` has the figures, their goals and their table.
//!
//! Invariants: every byte is checked. The kernel's caches are dropped before each measurement, unless its subject is the
//! page cache, and each has another order, so that no epoch repeats an earlier one. A plan begins together with its
//! readers: the time in which it is handed over counts. Only where the origin falls silent is the plan ahead when the
//! readers begin.

mod outcome;
mod site;

use std::time::Duration;

use anyhow::Context;
use larder_epochs::order::epoch_seed;
use larder_epochs::tree;
use larder_s3_server::Distance;

use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Corpus, CorpusOptions, Stop, child, larder_with_flags};
use outcome::{MANY, SHARES, SILENT_BYTES_PER_SECOND, SLOW_BYTES_PER_SECOND};
pub use outcome::{PlanConfig, PlanOutcome, PlanRow, ShareRow, Work};
use site::{Reads, Site};

/// Number of threads of the S3 servers.
const SERVER_THREADS: usize = 2;

/// The share of the files that one reader reads without a plan, where each takes the origin's delay.
const PART_OF_ONE: usize = 16;

/// The rate of a paced reader, beside the fastest.
const PACE: f64 = 0.8;

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &PlanConfig, progress: &dyn Progress) -> anyhow::Result<PlanOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "plan-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVER_THREADS)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let shares = if config.with_shares { SHARES.len() } else { 0 };
    progress.steps((Work::ALL.len() + shares) as u64 * u64::from(config.rounds));
    progress.doing("making the dataset");
    let distance = Distance { delay: Duration::from_millis(config.origin_delay_ms), ..Distance::default() };
    let options = CorpusOptions {
        sizes: tree::sizes(config.files, config.mean_size, config.seed),
        seed: config.seed,
        folder: folder.clone(),
        distance,
    };
    let (corpus, server) = Corpus::make(&options, runtime.handle(), &stop, |_, _| {})?;
    let bytes = corpus.bytes;
    let slow = Distance { bytes_per_second: Some(SLOW_BYTES_PER_SECOND), ..distance };
    let (mut slow_corpus, slow_server) = Corpus::of_tree(&folder, config.seed, slow, runtime.handle(), &stop)?;
    slow_corpus.work = folder.join("slow");
    let site = |corpus, server, flags| Site {
        corpus,
        server,
        larder: larder_with_flags(&config.binary, flags),
        binary: &config.binary,
        runtime: runtime.handle(),
        server_threads: SERVER_THREADS,
    };
    let mut far = site(corpus, server, Vec::new());
    let mut slow = site(slow_corpus, slow_server, vec![format!("--cache-size={}", bytes / 2)]);
    progress.doing("importing");
    far.prepare()?;
    slow.prepare()?;
    let mut outcome = PlanOutcome { config: config.clone(), bytes, rows: Vec::new(), shares: Vec::new() };
    for round in 0..config.rounds {
        stop.check()?;
        let mut note = |row: PlanRow| {
            progress.measured(&format!("round {}: {row}", round + 1));
            outcome.rows.push(row);
            row
        };
        measure(config, round, &mut far, &mut slow, progress, &mut note)?;
        if config.with_shares {
            outcome.shares.extend(measure_shares(config, round, &mut far, progress)?);
        }
    }
    runtime.block_on(far.server.shutdown());
    runtime.block_on(slow.server.shutdown());
    Ok(outcome)
}

/// Does all work once. `note` takes each row, and returns it.
fn measure(
    config: &PlanConfig,
    round: u32,
    far: &mut Site<'_>,
    slow: &mut Site<'_>,
    progress: &dyn Progress,
    note: &mut dyn FnMut(PlanRow) -> PlanRow,
) -> anyhow::Result<()> {
    let files = config.files as usize;
    // A seed of its own for each, and for those that fill a cache.
    let seed = |nth: u32| epoch_seed(config.seed, round * (Work::ALL.len() as u32 + 1) + nth);
    let filling = seed(Work::ALL.len() as u32);
    let reads = |work: Work| {
        progress.doing(work.name());
        Reads { work, round, readers: work.readers(), files, seed: seed(work as u32), pace: None }
    };
    note(far.mounted(|mount| mount.read(&Reads { files: files.div_ceil(PART_OF_ONE), ..reads(Work::One) }))?);
    let mut planned_and_warm = |planned, warm| {
        far.mounted(|mount| {
            let planned = note(mount.read(&reads(planned))?);
            mount.fill(filling, true)?;
            note(mount.read(&reads(warm))?);
            Ok(planned)
        })
    };
    let one = planned_and_warm(Work::OnePlanned, Work::OneWarm)?;
    let many = planned_and_warm(Work::ManyPlanned, Work::ManyWarm)?;
    note(far.mounted(|mount| mount.read(&reads(Work::Many)))?);

    let pace = PACE * one.files_per_second();
    note(far.mounted(|mount| mount.read(&Reads { pace: Some(pace), ..reads(Work::Paced) }))?);

    let mean_size = many.bytes as f64 / many.files as f64;
    let pace = (SILENT_BYTES_PER_SECOND / mean_size).min(PACE * many.files_per_second());
    note(far.mounted(|mount| mount.read(&Reads { pace: Some(pace), ..reads(Work::Silent) }))?);

    note(far.mounted(|mount| mount.read(&Reads { files: files.div_ceil(2), ..reads(Work::Beside) }))?);

    note(slow.mounted(|mount| {
        progress.doing("filling half of the cache");
        mount.fill(filling, true)?;
        mount.read(&reads(Work::HalfCached))
    })?);

    far.set_flags(vec!["--cache-size=0".to_owned()]);
    note(far.mounted(|mount| {
        progress.doing("filling the page cache");
        mount.fill(filling, false)?;
        mount.read(&reads(Work::Hot))
    })?);
    far.set_flags(Vec::new());
    Ok(())
}

/// Reads an epoch without a plan and one with a plan, with each share of the dataset cached.
fn measure_shares(
    config: &PlanConfig,
    round: u32,
    far: &mut Site<'_>,
    progress: &dyn Progress,
) -> anyhow::Result<Vec<ShareRow>> {
    let mut rows = Vec::new();
    for cached_percent in SHARES {
        progress.doing(&format!("{cached_percent} % cached"));
        far.set_flags(vec![format!("--cache-size={}", far.corpus.bytes * cached_percent / 100)]);
        // A seed of its own for each epoch.
        let seed = |nth: u32| epoch_seed(config.seed ^ 1, round * SHARES.len() as u32 * 3 + nth);
        let first = rows.len() as u32 * 3;
        let row = far.mounted(|mount| {
            mount.fill(seed(first), true)?;
            let read = |work: Work, nth: u32| {
                let (readers, files) = (MANY, config.files as usize);
                mount.read(&Reads { work, round, readers, files, seed: seed(first + nth), pace: None })
            };
            let (unplanned, planned) = (read(Work::Many, 1)?, read(Work::ManyPlanned, 2)?);
            Ok(ShareRow { cached_percent, unplanned, planned })
        })?;
        let [unplanned, planned] = [&row.unplanned, &row.planned].map(|row| row.seconds);
        let round = round + 1;
        progress.measured(&format!("round {round}: {cached_percent} % cached: {unplanned:.1} s, plan {planned:.1} s"));
        rows.push(row);
    }
    far.set_flags(Vec::new());
    Ok(rows)
}
