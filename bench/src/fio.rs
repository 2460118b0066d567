//! fio over Larder, its peers and the disk itself: parts of one large file, and many small files, cold and warm.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round; `jobs` are the job files of
//! `bench/fio`; `program` runs fio; `output` parses its JSON; `outcome` has all figures and their table.
//!
//! Invariant: *cold* is a new mount with an empty local cache; *warm* has everything in the local cache. The kernel's
//! caches are dropped before each run, and no offset is read twice, so the page cache answers nothing but read-ahead.

mod jobs;
mod outcome;
mod output;
mod program;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use larder_s3_server::Distance;
use tokio::runtime::Handle;

use crate::side_by_side::{Progress, Rounds, Scratch, State, SystemInfo, chosen};
use crate::systems::{Corpus, CorpusOptions, Stop, System, child};
use jobs::{Jobs, LARGE, SMALL, SMALL_MEAN, bytes_to_read};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_epochs::tree;
pub use outcome::{FioConfig, FioOutcome, FioRow};
pub use output::FioResult;
use program::Fio;

/// Bytes of the buffer with which a cache is filled.
const FILL_BUFFER_BYTES: usize = 1 << 20;

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; an
/// error, such as a missing fio, stops the run.
pub fn run(config: &FioConfig, progress: &dyn Progress) -> anyhow::Result<FioOutcome> {
    let fio = Fio::find()?;
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "fio-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = FioOutcome {
        config: config.clone(),
        fio: fio.version.clone(),
        systems: systems.iter().map(|system| SystemInfo::of(&**system)).collect(),
        left_out,
        rows: Vec::new(),
    };
    let mut sets = vec![(LARGE, vec![config.size])];
    if config.files > 0 {
        sets.push((SMALL, tree::sizes(config.files, SMALL_MEAN, config.seed)));
    }
    let patterns: usize = sets.iter().map(|(jobs, _)| jobs.patterns.len()).sum();
    progress.steps((systems.len() * patterns * 2) as u64 * u64::from(config.rounds));
    // A system belongs to one corpus, so each set chooses its own.
    drop(systems);
    for (jobs, sizes) in sets {
        let set = Set { fio: &fio, jobs: &jobs, folder: folder.join(jobs.name), progress };
        set.measure(&mut outcome, sizes, runtime.handle(), &stop)?;
    }
    Ok(outcome)
}

/// One set of files with its job file.
struct Set<'a> {
    fio: &'a Fio,
    jobs: &'a Jobs,
    folder: PathBuf,
    progress: &'a dyn Progress,
}

/// One run of fio that is still to be done.
#[derive(Clone, Copy)]
struct Step<'a> {
    folder: &'a Path,
    pattern: &'a str,
    state: State,
    round: u32,
}

impl Set<'_> {
    fn measure(&self, outcome: &mut FioOutcome, sizes: Vec<u64>, runtime: &Handle, stop: &Stop) -> anyhow::Result<()> {
        let config = outcome.config.clone();
        self.progress.doing("making the dataset");
        let options =
            CorpusOptions { sizes, seed: config.seed, folder: self.folder.clone(), distance: Distance::default() };
        let (corpus, server) = Corpus::make(&options, runtime, stop, |_| {})?;
        let jobs = self.folder.join(self.jobs.name);
        std::fs::write(&jobs, self.jobs.text).with_context(|| format!("write {}", jobs.display()))?;
        let (systems, _) = chosen(&config.binary, &config.only)?;
        let mut rounds = Rounds::prepare(systems, &corpus, self.progress, self.jobs.name)?;
        for round in 0..config.rounds {
            rounds.round(round, |system| self.measure_system(outcome, system, &corpus, round))?;
        }
        outcome.left_out.extend(rounds.into_left_out());
        runtime.block_on(server.shutdown());
        // The next set needs the disk space.
        let _ = std::fs::remove_dir_all(&self.folder);
        Ok(())
    }

    /// Measures one system in one round, and may leave it mounted.
    fn measure_system(
        &self,
        outcome: &mut FioOutcome,
        system: &mut dyn System,
        corpus: &Corpus,
        round: u32,
    ) -> anyhow::Result<()> {
        for pattern in self.jobs.patterns {
            let folder = system.mount(corpus).context("mount")?;
            let step = Step { folder: &folder, pattern, state: State::Cold, round };
            self.run_step(outcome, system, corpus, step)?;
            system.unmount().context("unmount")?;
        }
        let folder = system.mount(corpus).context("mount")?;
        // Some systems do not cache a read that arrives while they are busy, so data is read twice before it counts as
        // warm.
        for _ in 0..2 {
            drop_kernel_caches()?;
            for file in &corpus.files {
                read_all(&folder.join(&file.path), file.size)?;
                corpus.stop.check()?;
            }
        }
        for pattern in self.jobs.patterns {
            let step = Step { folder: &folder, pattern, state: State::Warm, round };
            self.run_step(outcome, system, corpus, step)?;
        }
        Ok(())
    }

    fn run_step(
        &self,
        outcome: &mut FioOutcome,
        system: &dyn System,
        corpus: &Corpus,
        step: Step<'_>,
    ) -> anyhow::Result<()> {
        let Step { folder, pattern, state, round } = step;
        corpus.stop.check()?;
        drop_kernel_caches()?;
        let processes = system.processes();
        let before = Usage::of(&processes).cpu_seconds;
        let config = &outcome.config;
        let first = corpus.files.first().context("a dataset without files")?;
        let [small, large, a_job] = bytes_to_read(config.size);
        let variables: [(_, OsString); 7] = [
            ("TREE", folder.into()),
            ("FILE", folder.join(&first.path).into()),
            ("SEED", config.seed.wrapping_add(u64::from(round)).to_string().into()),
            ("MOST_SECONDS", config.seconds.to_string().into()),
            ("READ_4K", small.to_string().into()),
            ("READ_128K", large.to_string().into()),
            ("READ_128K_A_JOB", a_job.to_string().into()),
        ];
        let said = self.fio.run(&self.folder.join(self.jobs.name), pattern, variables, &self.folder.join("fio.json"));
        let said = said.with_context(|| format!("{} {pattern}", state.name()))?;
        let row = FioRow {
            system: system.name().to_owned(),
            pattern: pattern.to_owned(),
            state,
            round,
            said,
            daemon_cpu_seconds: Usage::of(&processes).cpu_seconds - before,
        };
        self.progress.measured(&format!(
            "round {}: {} {} {pattern}: {:.0} MB/s, {:.0} IOPS",
            round + 1,
            row.system,
            state.name(),
            row.said.mb_per_second,
            row.said.iops
        ));
        outcome.rows.push(row);
        Ok(())
    }
}

fn read_all(path: &Path, size: u64) -> anyhow::Result<()> {
    let context = || format!("read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let (mut buffer, mut found) = (vec![0; FILL_BUFFER_BYTES], 0);
    loop {
        let read = file.read(&mut buffer).with_context(context)?;
        if read == 0 {
            break;
        }
        found += read as u64;
    }
    ensure!(found == size, "{} has {found} bytes instead of {size}", path.display());
    Ok(())
}
