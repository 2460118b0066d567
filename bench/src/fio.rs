//! fio over Larder, its peers and the disk itself: parts of one large file, and many small files, cold and warm. The
//! large file is a model, whose tensors are also loaded by loaders of weights.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round; `jobs` are the job files of
//! `bench/fio`; `program` runs fio; `output` parses its JSON; `model` makes the large file a model; `loaders` load it;
//! `busy` keeps CPUs busy meanwhile; `outcome` has all figures and their table.
//!
//! Invariant: *cold* is a new mount with an empty local cache; *warm* has everything in the local cache. The kernel's
//! caches are dropped before each run, and no offset is read twice, so the page cache answers nothing but read-ahead.

mod busy;
mod jobs;
mod loaders;
mod model;
mod outcome;
mod output;
mod program;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use larder_s3_server::{Distance, S3Server};
use tokio::runtime::Handle;

use crate::ceiling;
use crate::side_by_side::{LeftOut, Progress, Rounds, Scratch, State, SystemInfo, chosen};
use crate::systems::{Corpus, CorpusOptions, Kind, Stop, System, child};
use busy::Busy;
use jobs::{Jobs, LARGE, SMALL, SMALL_MEAN, bytes_to_read};
use larder_epochs::fuse_requests::Counting;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_epochs::tree;
use loaders::Loaders;
use outcome::RAW;
pub use outcome::{FioConfig, FioOutcome, FioRow};
pub use output::FioResult;
use program::Fio;

/// Bytes of the buffer with which a cache is filled.
const FILL_BUFFER_BYTES: usize = 1 << 20;

/// The ranged GETs of `object_store`: their size, and how many are in flight.
const RAW_RANGE_BYTES: u64 = 8 << 20;
const RAW_GETS: u32 = 16;

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; an
/// error, such as a missing fio, stops the run.
pub fn run(config: &FioConfig, progress: &dyn Progress) -> anyhow::Result<FioOutcome> {
    let fio = Fio::find()?;
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "fio-")?;
    let (loaders, missing_loaders) = Loaders::find(&folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = FioOutcome {
        config: config.clone(),
        fio: fio.version.clone(),
        systems: systems.iter().map(|system| SystemInfo::of(&**system)).collect(),
        left_out,
        no_fuse_requests: None,
        rows: Vec::new(),
    };
    outcome.left_out.extend(missing_loaders);
    outcome.systems.push(SystemInfo {
        name: RAW.to_owned(),
        kind: Kind::Floor,
        version: String::new(),
        options: format!("{RAW_GETS} GETs of {} MiB at a time, without a filesystem", RAW_RANGE_BYTES >> 20),
    });
    let large = [LARGE.patterns, &loaders.names[..]].concat();
    let mut sets = vec![(LARGE, large, vec![config.size])];
    if config.files > 0 {
        sets.push((SMALL, SMALL.patterns.to_vec(), tree::sizes(config.files, SMALL_MEAN, config.seed)));
    }
    let patterns: usize = sets.iter().map(|(_, patterns, _)| patterns.len()).sum();
    progress.steps((systems.len() * patterns * 2 + 1) as u64 * u64::from(config.rounds));
    // A system belongs to one corpus, so each set chooses its own.
    drop(systems);
    for (jobs, patterns, sizes) in sets {
        let set = Set { fio: &fio, loaders: &loaders, jobs: &jobs, patterns, folder: folder.join(jobs.name), progress };
        set.measure(&mut outcome, sizes, runtime.handle(), &stop)?;
    }
    Ok(outcome)
}

/// One set of files with its job file.
struct Set<'a> {
    fio: &'a Fio,
    loaders: &'a Loaders,
    jobs: &'a Jobs,
    /// The sections of the job file, then the loaders.
    patterns: Vec<&'static str>,
    folder: PathBuf,
    progress: &'a dyn Progress,
}

/// The files of a set, and the server that has them.
struct Data {
    corpus: Corpus,
    server: S3Server,
}

/// One run of fio or of a loader that is still to be done.
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
        let options = CorpusOptions {
            sizes,
            seed: config.seed,
            folder: self.folder.clone(),
            distance: Distance {
                delay: Duration::from_millis(config.origin_delay_ms),
                connection_bytes_per_second: config.origin_connection_bytes_per_second,
                ..Distance::default()
            },
        };
        let is_large = self.jobs.name == LARGE.name;
        let mut made_model = Ok(());
        let (corpus, server) = Corpus::make(&options, runtime, stop, |path, file| {
            if is_large {
                made_model = model::write_header(path, file.size);
            }
        })?;
        made_model?;
        let data = Data { corpus, server };
        let jobs = self.folder.join(self.jobs.name);
        std::fs::write(&jobs, self.jobs.text).with_context(|| format!("write {}", jobs.display()))?;
        let (systems, _) = chosen(&config.binary, &config.only)?;
        let mut rounds = Rounds::prepare(systems, &data.corpus, self.progress, self.jobs.name)?;
        for round in 0..config.rounds {
            if is_large {
                outcome.rows.push(self.measure_raw(&data, runtime, round)?);
            }
            rounds.round(round, |system| self.measure_system(outcome, system, &data, round))?;
        }
        outcome.left_out.extend(rounds.into_left_out());
        runtime.block_on(data.server.shutdown());
        // The next set needs the disk space.
        let _ = std::fs::remove_dir_all(&self.folder);
        Ok(())
    }

    /// GETs the large file without a filesystem.
    fn measure_raw(&self, data: &Data, runtime: &Handle, round: u32) -> anyhow::Result<FioRow> {
        data.server.reset_counters();
        let read = ceiling::read_ranges(&data.corpus, RAW_RANGE_BYTES, RAW_GETS);
        let said: FioResult = runtime.block_on(read).context(RAW)?.into();
        self.progress.measured(&format!("round {}: {RAW}: {:.0} MB/s", round + 1, said.mb_per_second));
        Ok(FioRow {
            system: RAW.to_owned(),
            pattern: "stream".to_owned(),
            state: State::Cold,
            round,
            said,
            daemon_cpu_seconds: 0.0,
            origin_bytes: data.server.counters().get_bytes,
            fuse_requests: None,
        })
    }

    /// Measures one system in one round, and may leave it mounted.
    fn measure_system(
        &self,
        outcome: &mut FioOutcome,
        system: &mut dyn System,
        data: &Data,
        round: u32,
    ) -> anyhow::Result<()> {
        let corpus = &data.corpus;
        for pattern in &self.patterns {
            let folder = system.mount(corpus).context("mount")?;
            let step = Step { folder: &folder, pattern, state: State::Cold, round };
            self.run_step(outcome, system, data, step)?;
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
        for pattern in &self.patterns {
            let step = Step { folder: &folder, pattern, state: State::Warm, round };
            self.run_step(outcome, system, data, step)?;
        }
        Ok(())
    }

    fn run_step(
        &self,
        outcome: &mut FioOutcome,
        system: &dyn System,
        data: &Data,
        step: Step<'_>,
    ) -> anyhow::Result<()> {
        let Step { folder, pattern, state, round } = step;
        let corpus = &data.corpus;
        corpus.stop.check()?;
        drop_kernel_caches()?;
        data.server.reset_counters();
        let fuse = Counting::of_mount(folder);
        let fuse = fuse.inspect_err(|error| outcome.no_fuse_requests = Some(format!("{error:#}"))).ok();
        let processes = system.processes();
        let before = Usage::of(&processes).cpu_seconds;
        let config = &outcome.config;
        let busy = Busy::start(config.busy);
        let first = corpus.files.first().context("a dataset without files")?;
        let file = folder.join(&first.path);
        let [small, large, a_job] = bytes_to_read(config.size);
        let variables: [(_, OsString); 7] = [
            ("TREE", folder.into()),
            ("FILE", file.as_os_str().to_owned()),
            ("SEED", config.seed.wrapping_add(u64::from(round)).to_string().into()),
            ("MOST_SECONDS", config.seconds.to_string().into()),
            ("READ_4K", small.to_string().into()),
            ("READ_128K", large.to_string().into()),
            ("READ_128K_A_JOB", a_job.to_string().into()),
        ];
        let run = || format!("{} {pattern}", state.name());
        let said = if self.loaders.names.contains(&pattern) {
            match self.loaders.run(pattern, &file, first.size) {
                Ok(said) => said,
                // A loader that cannot read a system is no reason to leave out the system's other rows.
                Err(error) => {
                    let name = format!("{}, {}", system.name(), run());
                    outcome.left_out.push(LeftOut { name, why: format!("{error:#}") });
                    return Ok(());
                }
            }
        } else {
            let json = self.folder.join("fio.json");
            self.fio.run(&self.folder.join(self.jobs.name), pattern, variables, &json).with_context(run)?
        };
        drop(busy);
        let row = FioRow {
            system: system.name().to_owned(),
            pattern: pattern.to_owned(),
            state,
            round,
            said,
            daemon_cpu_seconds: Usage::of(&processes).cpu_seconds - before,
            origin_bytes: data.server.counters().get_bytes,
            fuse_requests: fuse.and_then(|counting| Some(counting.read().ok()?.total)),
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
