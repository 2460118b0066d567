//! An S3 server with a mount of its objects, and readers of the mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use larder_epochs::epochs::{Epoch, ReadOptions, Target, read_first};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::order::shuffled;
use larder_epochs::process::Usage;
use larder_epochs::tree::MadeFile;
use larder_s3_server::S3Server;
use serde_json::Value;
use tokio::runtime::Handle;

use super::outcome::{MANY, PlanRow, SILENCE, Work};
use crate::mount_stats;
use crate::silence::Silence;
use crate::systems::child::Child;
use crate::systems::{AnySystem, Corpus, larder_with_flags};

/// How long the statistics of a mount keep their content, and a little more.
const STATS_AGE: Duration = Duration::from_millis(60);

/// The most epochs that fill a cache.
const FILLING_EPOCHS: u32 = 2;

/// How long the fetches of a mount may take to end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// An S3 server, and Larder over its objects.
pub(super) struct Site<'a> {
    pub(super) corpus: Corpus,
    pub(super) server: S3Server,
    pub(super) larder: AnySystem,
    /// The command `larder`.
    pub(super) binary: &'a Path,
    /// The runtime of the server, which has so many threads.
    pub(super) runtime: &'a Handle,
    pub(super) server_threads: usize,
}

/// A mount with an empty cache.
pub(super) struct Mounted<'a> {
    corpus: &'a Corpus,
    server: &'a S3Server,
    binary: &'a Path,
    runtime: &'a Handle,
    server_threads: usize,
    folder: PathBuf,
    processes: Vec<u32>,
    work: PathBuf,
    targets: Vec<Target>,
}

/// An epoch to be read.
#[derive(Clone, Copy)]
pub(super) struct Reads {
    pub(super) work: Work,
    pub(super) round: u32,
    pub(super) readers: u32,
    /// The first so many files of the order.
    pub(super) files: usize,
    /// Seed of the order.
    pub(super) seed: u64,
    /// The most files per second.
    pub(super) pace: Option<f64>,
}

impl Site<'_> {
    /// Imports the objects.
    pub(super) fn prepare(&mut self) -> anyhow::Result<()> {
        self.larder.prepare(&self.corpus).context("import the dataset")
    }

    /// The flags of the next mounts.
    pub(super) fn set_flags(&mut self, flags: Vec<String>) {
        self.larder = larder_with_flags(self.binary, flags);
    }

    /// Has a new mount read.
    pub(super) fn mounted<T>(&mut self, read: impl FnOnce(&Mounted<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let folder = self.larder.mount(&self.corpus).context("mount")?;
        let target = |file: &MadeFile| Target {
            path: folder.join(&file.path),
            size: Some(file.size),
            crc32c: Some(file.crc32c),
        };
        let mounted = Mounted {
            corpus: &self.corpus,
            server: &self.server,
            binary: self.binary,
            runtime: self.runtime,
            server_threads: self.server_threads,
            processes: self.larder.processes(),
            work: self.corpus.folder_of("plan")?,
            targets: self.corpus.files.iter().map(target).collect(),
            folder,
        };
        let read = read(&mounted);
        let unmounted = self.larder.unmount();
        self.corpus.stop.check()?;
        let read = read?;
        unmounted.context("unmount")?;
        Ok(read)
    }
}

impl Mounted<'_> {
    /// Reads an epoch, with its plan if the work has one.
    pub(super) fn read(&self, reads: &Reads) -> anyhow::Result<PlanRow> {
        let Reads { work, round, .. } = *reads;
        let measured = || -> anyhow::Result<PlanRow> {
            self.corpus.stop.check()?;
            if work != Work::Hot {
                drop_kernel_caches()?;
            }
            let order = shuffled(self.targets.len() as u32, reads.seed);
            let (read, rest) = order.split_at(reads.files);
            // A plan of files that nobody reads.
            let _other = (work == Work::Beside).then(|| self.plan("other", rest)).transpose()?;
            if work == Work::Beside {
                self.settle_planned()?;
            }
            let (before, cpu_before) = (self.stats()?, Usage::of(&self.processes).cpu_seconds);
            self.server.reset_counters();
            let mut plan = work.is_planned().then(|| self.plan("plan", read)).transpose()?;
            if work == Work::Silent {
                self.settle_planned()?;
            }
            let epoch = self.epoch(reads)?;
            let daemon_cpu_seconds = Usage::of(&self.processes).cpu_seconds - cpu_before;
            let (after, counters) = (self.stats()?, self.server.counters());
            if let Some(plan) = &mut plan
                && let Some(status) = plan.ended()?
                && !status.success()
            {
                bail!("larder plan ended with {status}: {}", plan.last_words());
            }
            let grown = |name: &str| {
                let of = |stats: &Value| {
                    stats["metrics"][name].as_u64().with_context(|| format!("the stats have no {name}"))
                };
                Ok::<u64, anyhow::Error>(of(&after)?.saturating_sub(of(&before)?))
            };
            let stalled = |stats: &Value| {
                stats["stalls"]["plan_seconds"].as_f64().context("the stats do not say how long planned reads waited")
            };
            Ok(PlanRow {
                work,
                round,
                files: epoch.files,
                bytes: epoch.bytes,
                seconds: epoch.seconds,
                p99_ms: epoch.p99_ms,
                gets: counters.gets,
                get_bytes: counters.get_bytes,
                daemon_cpu_seconds,
                in_time: grown("fs_plan_blocks_in_time_total")?,
                stalled_seconds: stalled(&after)? - stalled(&before)?,
                wasted_bytes: grown("fs_plan_wasted_bytes_total")?,
            })
        };
        measured().with_context(|| work.name())
    }

    /// Fills the cache as far as it may be filled. A block that arrives while the disk is busy may not be kept, so some
    /// may need several reads. The kernel's page cache is filled, too, unless each file's pages are dropped.
    pub(super) fn fill(&self, seed: u64, drop_pages: bool) -> anyhow::Result<()> {
        let options = ReadOptions { readers: MANY as usize, drop_pages, files_per_second: None, seed };
        for _ in 0..FILLING_EPOCHS {
            self.wait_until("its fetches end", |metrics| metrics["fs_fetches_running"] == 0)?;
            self.server.reset_counters();
            read_first(&self.targets, usize::MAX, &Mutex::default(), options, &ProgressBar::hidden())?;
            if self.server.counters().gets == 0 {
                break;
            }
        }
        self.wait_until("its fetches end", |metrics| metrics["fs_fetches_running"] == 0)
    }

    /// Waits until the plans are as far ahead as they may be.
    fn settle_planned(&self) -> anyhow::Result<()> {
        let mut held = Value::Null;
        self.wait_until("the plan is ahead", |metrics| {
            let is_same = metrics["fs_plan_bytes"] == held && held != 0;
            held = metrics["fs_plan_bytes"].clone();
            is_same && metrics["fs_fetches_running"] == 0
        })
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> anyhow::Result<()> {
        let started = Instant::now();
        while !is_so(&self.stats()?["metrics"]) {
            self.corpus.stop.check()?;
            ensure!(started.elapsed() < SETTLE_TIMEOUT, "waited in vain until {what}");
        }
        Ok(())
    }

    fn stats(&self) -> anyhow::Result<Value> {
        std::thread::sleep(STATS_AGE);
        mount_stats::read(&self.folder)
    }

    /// Plans these files, by their numbers, for as long as the process lives.
    fn plan(&self, name: &str, files: &[u32]) -> anyhow::Result<Child> {
        let list = self.work.join(name);
        let paths = files.iter().map(|&file| &self.corpus.files[file as usize].path);
        let lines: String = paths.map(|path| format!("{}\n", path.display())).collect();
        std::fs::write(&list, lines).with_context(|| format!("write {}", list.display()))?;
        let mut command = Command::new(self.binary);
        command.arg("plan").arg(&self.folder).arg("--from").arg(&list).env("RUST_BACKTRACE", "0");
        Child::spawn("larder plan", &mut command, &list.with_extension("log"))
    }

    fn epoch(&self, reads: &Reads) -> anyhow::Result<Epoch> {
        let Reads { readers, files, seed, pace, work, .. } = *reads;
        let options = ReadOptions { readers: readers as usize, drop_pages: false, files_per_second: pace, seed };
        std::thread::scope(|scope| {
            if work == Work::Silent {
                scope.spawn(|| {
                    let _silence = Silence::of(self.runtime, self.server_threads);
                    std::thread::sleep(SILENCE);
                });
            }
            read_first(&self.targets, files, &Mutex::default(), options, &ProgressBar::hidden())
        })
    }
}
