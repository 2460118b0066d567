//! A cold epoch and a warm-up with an origin that seems far away, and the `object_store` crate beside them.
//!
//! The cast: [`run`] takes the four kinds of [`Work`] in turns, in every round; `warming` warms a mount; `outcome` has
//! the figures and their table.
//!
//! Invariants: `object_store` has as many GETs in flight as Larder may have, at the same server, for the same objects.
//! Every byte is checked: of an epoch and of `object_store` while it is timed, of a warm-up in an epoch after it. A
//! warm-up that left a file to the origin is an error, not a figure.

mod outcome;
mod warming;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use larder_s3_server::{Distance, S3Server};
use tokio::runtime::Runtime;

use crate::ceiling;
use crate::reader::Reader;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::{AnySystem, Corpus, CorpusOptions, Stop, child, larder_with_flags};
use larder_epochs::epochs::write_expected;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_epochs::tree;
pub use outcome::{FarOriginConfig, FarOriginOutcome, FarOriginRow, Work};

/// Number of threads that check the bytes of a warm-up.
const CHECKERS: u32 = 16;

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &FarOriginConfig, progress: &dyn Progress) -> anyhow::Result<FarOriginOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "far-origin-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    progress.steps(Work::ALL.len() as u64 * u64::from(config.rounds));
    progress.doing("making the dataset");
    let options = CorpusOptions {
        sizes: tree::sizes(config.files, config.mean_size, config.seed),
        seed: config.seed,
        folder: folder.clone(),
        distance: Distance {
            delay: Duration::from_millis(config.origin_delay_ms),
            bytes_per_second: config.origin_bytes_per_second,
            ..Distance::default()
        },
    };
    let (corpus, server) = Corpus::make(&options, runtime.handle(), &stop, |_, _| {})?;
    let expected = corpus.work.join("expected");
    write_expected(&expected, &corpus.files)?;
    let work = corpus.folder_of("reader")?;
    let mut larder = larder_with_flags(&config.binary, vec![format!("--origin-concurrency={}", config.gets)]);
    progress.doing("importing");
    larder.prepare(&corpus).context("import the dataset")?;
    let reader = Reader { binary: &config.binary, expected: &expected, work: &work, stop: &stop };
    let mut lab = Lab { config, corpus: &corpus, server: &server, runtime: &runtime, reader, larder };
    let mut outcome = FarOriginOutcome { config: config.clone(), bytes: corpus.bytes, rows: Vec::new() };
    for round in 0..config.rounds {
        let mut turns = Work::ALL;
        turns.rotate_left(round as usize % Work::ALL.len());
        for work in turns {
            stop.check()?;
            progress.doing(work.name());
            let row = lab.measure(work, round).with_context(|| work.name())?;
            progress.measured(&format!("round {}: {row}", round + 1));
            outcome.rows.push(row);
        }
    }
    drop(lab);
    runtime.block_on(server.shutdown());
    Ok(outcome)
}

struct Lab<'a> {
    config: &'a FarOriginConfig,
    corpus: &'a Corpus,
    server: &'a S3Server,
    runtime: &'a Runtime,
    reader: Reader<'a>,
    larder: AnySystem,
}

impl Lab<'_> {
    fn measure(&mut self, work: Work, round: u32) -> anyhow::Result<FarOriginRow> {
        // The same order for Larder and for `object_store`.
        let seed = self.config.seed.wrapping_mul(1000).wrapping_add(u64::from(round));
        let FarOriginConfig { readers, gets, .. } = *self.config;
        match work {
            Work::RawCold => self.object_store(work, readers, round, seed),
            Work::RawWarmUp => self.object_store(work, gets, round, seed),
            Work::Cold | Work::WarmUp => {
                let folder = self.larder.mount(self.corpus).context("mount")?;
                let row = self.mounted(work, &folder, round, seed);
                let unmounted = self.larder.unmount();
                self.corpus.stop.check()?;
                let row = row?;
                unmounted.context("unmount")?;
                Ok(row)
            }
        }
    }

    /// GETs all objects, this many at a time.
    fn object_store(&self, work: Work, gets_in_flight: u32, round: u32, seed: u64) -> anyhow::Result<FarOriginRow> {
        self.server.reset_counters();
        let read = ceiling::read_all(self.corpus, self.config.files, gets_in_flight, seed);
        let epoch = self.runtime.block_on(read)?;
        let gets = self.server.counters().gets;
        Ok(FarOriginRow { work, round, files: epoch.files, seconds: epoch.seconds, gets, daemon_cpu_seconds: None })
    }

    /// Reads or warms all files of a new mount at `folder`.
    fn mounted(&self, work: Work, folder: &Path, round: u32, seed: u64) -> anyhow::Result<FarOriginRow> {
        let FarOriginConfig { files, readers, .. } = *self.config;
        drop_kernel_caches()?;
        let processes = self.larder.processes();
        let before = Usage::of(&processes).cpu_seconds;
        self.server.reset_counters();
        let seconds = match work {
            Work::WarmUp => warming::warm(&self.config.binary, folder, self.reader.work, files, &self.corpus.stop)?,
            _ => self.reader.read(folder, readers, files, seed)?.seconds,
        };
        let daemon_cpu_seconds = Some(Usage::of(&processes).cpu_seconds - before);
        let gets = self.server.counters().gets;
        if work == Work::WarmUp {
            self.reader.read(folder, CHECKERS, files, seed).context("read the warm files")?;
            let again = self.server.counters().gets - gets;
            ensure!(again == 0, "{again} files were not cached by the warm-up");
        }
        Ok(FarOriginRow { work, round, files: files.into(), seconds, gets, daemon_cpu_seconds })
    }
}
