//! Larder and its peers side by side: the same files, the same S3 server, the same reader, in turns.
//!
//! The cast: [`run`] goes through all [`systems`](crate::systems) in every round; a [`Measurement`] is one epoch of one
//! of them with what it cost; [`Outcome`] holds them all, and what they were made with. `reader` is the process that
//! reads, `ceiling` reads the objects without any filesystem, `machine` says where this ran, `table` and `chart` show it.
//!
//! Invariant: every byte of every epoch is checked; a system that gave a wrong one is left out, with the reason.

mod ceiling;
mod chart;
mod machine;
mod reader;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Context;
use larder_s3_server::S3Server;
use serde::Serialize;

use crate::epochs::{Epoch, drop_kernel_caches, write_expected};
use crate::fuse_requests::{Counting, Requests};
pub use crate::peers::machine::Machine;
use crate::peers::reader::Reader;
use crate::side_by_side::{Scratch, chosen, info, turns};
use crate::systems::process::Usage;
use crate::systems::{AnySystem, Kind, Source, SourceOptions, Stop, System, child, mounts};
use crate::tree;

/// The name of the row that reads objects without a filesystem.
pub const RAW: &str = "object_store";

/// Files that are read where not the most readers read: fewer of them are slow, and a rate needs no more.
const FILES_OF_FEWER_READERS: u32 = 4000;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct PeersConfig {
    /// Files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Numbers of reader threads, ascending. The last one reads all files, the others 4000 of them.
    pub readers: Vec<u32>,
    /// How often all of it is done.
    pub rounds: u32,
    /// The names of the systems to measure; all if there are none.
    pub only: Vec<String>,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// An existing folder on the disk to measure; what is made there is removed in the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The command `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// What is where when an epoch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A new mount, an empty local cache, nothing in the kernel's caches.
    Cold,
    /// Everything in the local cache, nothing in the kernel's caches.
    Warm,
    /// All was read through this mount just before.
    Hot,
}

impl State {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Warm, Self::Hot];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Hot => "hot",
        }
    }
}

/// One epoch of one system, with what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// The system.
    pub system: String,
    /// What was where.
    pub state: State,
    /// Reader threads.
    pub readers: u32,
    /// The round, from 0.
    pub round: u32,
    /// What the reader saw, and its own CPU.
    pub epoch: Epoch,
    /// Seconds of CPU of the daemon, and of the metadata engine.
    pub daemon_cpu_seconds: f64,
    /// Seconds of CPU of the S3 server; none where its client is in the same process.
    pub s3_cpu_seconds: Option<f64>,
    /// Resident memory of daemon and metadata engine after it.
    pub rss_bytes: u64,
    /// The most it was since they started.
    pub peak_rss_bytes: u64,
    /// Requests of the kernel to the daemon; none where they cannot be counted.
    pub fuse: Option<Requests>,
    /// GETs that the S3 server got.
    pub gets: u64,
    /// Bytes that it sent for them.
    pub get_bytes: u64,
    /// HEADs.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
}

/// A system that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct SystemInfo {
    /// Its name.
    pub name: String,
    /// What it is compared as.
    pub kind: Kind,
    /// What its program says of itself.
    pub version: String,
    /// How it was set up.
    pub options: String,
}

/// A system that is missing in some or all rows, and why.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was asked for.
    pub config: PeersConfig,
    /// Where.
    pub machine: Machine,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// Whether the S3 server had the objects in memory.
    pub objects_in_memory: bool,
    /// The rows, in order.
    pub systems: Vec<SystemInfo>,
    /// Those that could not be measured, or not to the end.
    pub left_out: Vec<LeftOut>,
    /// Why FUSE requests were not counted, if they were not.
    pub no_fuse_requests: Option<String>,
    /// Every epoch of every round.
    pub measurements: Vec<Measurement>,
}

/// Hears how far a run is.
pub trait Progress {
    /// So many epochs will be measured.
    fn epochs(&self, count: u64);

    /// This is being done.
    fn doing(&self, what: &str);

    /// An epoch was measured; `line` says how it went.
    fn measured(&self, line: &str);
}

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; errors
/// are what stops the run.
pub fn run(config: &PeersConfig, progress: &dyn Progress) -> anyhow::Result<Outcome> {
    child::own_mounts()?;
    let (systems, missing) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "peers-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;

    progress.doing("making the dataset");
    let options = SourceOptions {
        sizes: tree::sizes(config.files, config.mean_size, config.seed),
        seed: config.seed,
        folder: folder.clone(),
    };
    let (source, server) = Source::make(&options, runtime.handle(), &stop, |_| {})?;
    let expected = source.work.join("expected");
    write_expected(&expected, &source.files)?;

    let mut lab = Lab {
        config,
        reader: Reader { binary: &config.binary, expected: &expected, source: &source },
        source: &source,
        server: &server,
        progress,
        outcome: Outcome {
            config: config.clone(),
            machine: Machine::of(&folder)?,
            bytes: source.bytes,
            objects_in_memory: source.in_memory,
            systems: Vec::new(),
            left_out: missing,
            no_fuse_requests: None,
            measurements: Vec::new(),
        },
    };
    lab.run(systems, runtime.handle())?;
    let outcome = lab.outcome;
    runtime.block_on(server.shutdown());
    Ok(outcome)
}

struct Lab<'a> {
    config: &'a PeersConfig,
    reader: Reader<'a>,
    source: &'a Source,
    server: &'a S3Server,
    progress: &'a dyn Progress,
    outcome: Outcome,
}

impl Lab<'_> {
    fn run(&mut self, systems: Vec<AnySystem>, runtime: &tokio::runtime::Handle) -> anyhow::Result<()> {
        self.outcome.systems.push(SystemInfo {
            name: RAW.to_owned(),
            kind: Kind::Floor,
            version: String::new(),
            options: "the crate of that name: a GET for each object, no mount; its CPU is that of client and S3 server"
                .to_owned(),
        });
        self.outcome.systems.extend(systems.iter().map(|system| info(&**system)));

        let mut running: Vec<Option<AnySystem>> = Vec::new();
        for mut system in systems {
            self.progress.doing(&format!("{}: prepare", system.name()));
            let prepared = system.prepare(self.source).with_context(|| format!("prepare {}", system.name()));
            self.source.stop.check()?;
            running.push(match prepared {
                Ok(()) => Some(system),
                Err(error) => {
                    self.leave_out(system.name(), &error);
                    None
                }
            });
        }
        let epochs = running.iter().flatten().count() * State::ALL.len() + 1;
        self.progress.epochs(epochs as u64 * self.config.readers.len() as u64 * u64::from(self.config.rounds));

        for round in 0..self.config.rounds {
            for &readers in &self.config.readers {
                self.progress.doing(&format!("round {}: {RAW}", round + 1));
                self.source.stop.check()?;
                self.server.reset_counters();
                let seed = self.seed(round, readers);
                let read = ceiling::read_all(self.source, self.files_for(readers), readers, seed);
                let epoch = runtime.block_on(read).context("read the objects without a filesystem")?;
                self.note(RAW, State::Cold, readers, round, epoch, &Before::default(), &[]);
            }
            for nth in turns(running.len(), round) {
                let Some(mut system) = running[nth].take() else { continue };
                self.progress.doing(&format!("round {}: {}", round + 1, system.name()));
                let measured = self.measure(&mut *system, round);
                let unmounted = system.unmount();
                self.source.stop.check()?;
                match measured.and(unmounted) {
                    Ok(()) => running[nth] = Some(system),
                    Err(error) => {
                        let error = error.context(format!("round {}", round + 1));
                        self.leave_out(system.name(), &error);
                    }
                }
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, name: &str, error: &anyhow::Error) {
        let why = format!("{error:#}");
        self.progress.measured(&format!("{name}: left out: {why}"));
        self.outcome.left_out.push(LeftOut { name: name.to_owned(), why });
    }

    fn files_for(&self, readers: u32) -> u32 {
        let all = self.config.files;
        if self.config.readers.last() == Some(&readers) { all } else { all.min(FILES_OF_FEWER_READERS) }
    }

    /// The order of the files: another one in each round and for each number of readers, the same for all systems.
    fn seed(&self, round: u32, readers: u32) -> u64 {
        self.config.seed.wrapping_mul(1000).wrapping_add(u64::from(round) * 97 + u64::from(readers))
    }

    /// All of one system in one round. It may be left mounted.
    fn measure(&mut self, system: &mut dyn System, round: u32) -> anyhow::Result<()> {
        let counts = self.config.readers.clone();
        let Some((&most, fewer)) = counts.split_last() else { return Ok(()) };
        for &readers in fewer {
            let folder = system.mount(self.source).context("mount")?;
            drop_kernel_caches()?;
            self.epoch(system, &folder, State::Cold, readers, round)?;
            system.unmount().context("unmount")?;
        }
        let folder = system.mount(self.source).context("mount")?;
        drop_kernel_caches()?;
        self.epoch(system, &folder, State::Cold, most, round)?;

        // Some keep nothing of what they are asked for while they are busy: what is warm has been read twice.
        drop_kernel_caches()?;
        self.untimed(&folder, most, round)?;
        for &readers in counts.iter().rev() {
            drop_kernel_caches()?;
            self.epoch(system, &folder, State::Warm, readers, round)?;
        }
        self.untimed(&folder, most, round)?;
        for &readers in counts.iter().rev() {
            self.epoch(system, &folder, State::Hot, readers, round)?;
        }
        Ok(())
    }

    fn untimed(&self, folder: &Path, readers: u32, round: u32) -> anyhow::Result<()> {
        // An order of its own, not to leave the files in a cache in the order in which they are read next.
        let seed = self.seed(round, readers) ^ (1 << 32);
        self.reader.read(folder, readers, self.config.files, seed).map(drop).context("read all files")
    }

    /// One measured epoch. The order differs between the states.
    fn epoch(
        &mut self,
        system: &dyn System,
        folder: &Path,
        state: State,
        readers: u32,
        round: u32,
    ) -> anyhow::Result<()> {
        let processes = system.processes();
        let fuse = if processes.is_empty() { None } else { self.counting(folder)? };
        let seed = self.seed(round, readers) ^ ((state as u64) << 40);
        let before = Before { daemon: Usage::of(&processes), server: Some(own_usage()), fuse };
        self.server.reset_counters();
        let epoch = self.reader.read(folder, readers, self.files_for(readers), seed);
        let epoch = epoch.with_context(|| format!("{} epoch of {readers} readers", state.name()))?;
        self.note(system.name(), state, readers, round, epoch, &before, &processes);
        Ok(())
    }

    fn counting(&mut self, folder: &Path) -> anyhow::Result<Option<Counting>> {
        let mount = mounts::holding(folder)?.with_context(|| format!("find the mount of {}", folder.display()))?;
        match Counting::of_device(mount.device) {
            Ok(counting) => Ok(Some(counting)),
            Err(error) => {
                self.outcome.no_fuse_requests = Some(format!("{error:#}"));
                Ok(None)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one place where all that belongs to an epoch comes together")]
    fn note(
        &mut self,
        system: &str,
        state: State,
        readers: u32,
        round: u32,
        epoch: Epoch,
        before: &Before,
        processes: &[u32],
    ) {
        let (daemon, s3) = (Usage::of(processes), self.server.counters());
        let line = format!(
            "round {} {system:<14} {:<4} {readers:>3} readers {:>8.0} files/s {:>7.0} MB/s  p50 {:.2} ms  p99 {:.2} ms",
            round + 1,
            state.name(),
            epoch.files_per_second,
            epoch.mb_per_second,
            epoch.p50_ms,
            epoch.p99_ms
        );
        self.outcome.measurements.push(Measurement {
            system: system.to_owned(),
            state,
            readers,
            round,
            epoch,
            daemon_cpu_seconds: daemon.cpu_seconds - before.daemon.cpu_seconds,
            s3_cpu_seconds: before.server.map(|server| own_usage().cpu_seconds - server.cpu_seconds),
            rss_bytes: daemon.rss_bytes,
            peak_rss_bytes: daemon.peak_rss_bytes,
            fuse: before.fuse.as_ref().and_then(|counting| counting.read().ok()),
            gets: s3.gets,
            get_bytes: s3.get_bytes,
            heads: s3.heads,
            lists: s3.lists,
        });
        self.progress.measured(&line);
    }
}

/// What was counted already when an epoch began.
#[derive(Default)]
struct Before {
    daemon: Usage,
    server: Option<Usage>,
    fuse: Option<Counting>,
}

/// Of this process, which is the S3 server and waits otherwise.
fn own_usage() -> Usage {
    Usage::of(&[std::process::id()])
}
