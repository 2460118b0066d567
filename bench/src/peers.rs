//! Larder and its peers side by side: the same files, the same S3 server, the same reader, in turns.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round; a [`Measurement`] is one epoch of
//! one system; [`PeersOutcome`] holds all measurements with their settings. `machine` describes the computer, `table`
//! and `chart` show the results.
//!
//! Invariant: every byte of every epoch is checked. A system that returned a wrong byte is left out, with the reason.

mod chart;
mod machine;
mod outcome;
mod table;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use larder_s3_server::{Distance, S3Server};

use crate::ceiling;
use crate::reader::Reader;
use crate::side_by_side::{Progress, Rounds, Scratch, State, SystemInfo, chosen};
use crate::systems::{AnySystem, Corpus, CorpusOptions, Kind, Stop, System, child};
use larder_epochs::epochs::{Epoch, write_expected};
use larder_epochs::fuse_requests::Counting;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_epochs::tree;
pub use machine::Machine;
use outcome::FILES_OF_FEWER_READERS;
pub use outcome::{Measurement, PeersConfig, PeersOutcome, RAW};

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; an
/// error stops the run.
pub fn run(config: &PeersConfig, progress: &dyn Progress) -> anyhow::Result<PeersOutcome> {
    child::own_mounts()?;
    let (systems, missing) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "peers-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;

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
    let reader_folder = corpus.folder_of("reader")?;

    let mut lab = Lab {
        config,
        reader: Reader { binary: &config.binary, expected: &expected, work: &reader_folder, stop: &stop },
        corpus: &corpus,
        server: &server,
        progress,
        outcome: PeersOutcome {
            config: config.clone(),
            machine: Machine::of(&folder)?,
            bytes: corpus.bytes,
            objects_in_memory: corpus.in_memory,
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
    corpus: &'a Corpus,
    server: &'a S3Server,
    progress: &'a dyn Progress,
    outcome: PeersOutcome,
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
        self.outcome.systems.extend(systems.iter().map(|system| SystemInfo::of(&**system)));

        let mut rounds = Rounds::prepare(systems, self.corpus, self.progress, "")?;
        let epochs = rounds.running() * State::ALL.len() + 1;
        self.progress.steps(epochs as u64 * self.config.readers.len() as u64 * u64::from(self.config.rounds));
        for round in 0..self.config.rounds {
            self.measure_ceiling(round, runtime)?;
            rounds.round(round, |system| self.measure(system, round))?;
        }
        self.outcome.left_out.extend(rounds.into_left_out());
        Ok(())
    }

    fn measure_ceiling(&mut self, round: u32, runtime: &tokio::runtime::Handle) -> anyhow::Result<()> {
        for &readers in &self.config.readers {
            self.progress.doing(&format!("round {}: {RAW}", round + 1));
            self.corpus.stop.check()?;
            self.server.reset_counters();
            let seed = self.seed(round, readers);
            let read = ceiling::read_all(self.corpus, self.files_for(readers), readers, seed);
            let epoch = runtime.block_on(read).context("read the objects without a filesystem")?;
            self.note(RAW, State::Cold, readers, round, epoch, &Before::default(), &[]);
        }
        Ok(())
    }

    fn files_for(&self, readers: u32) -> u32 {
        let all = self.config.files;
        if self.config.readers.last() == Some(&readers) { all } else { all.min(FILES_OF_FEWER_READERS) }
    }

    /// Seed of the files' order. It differs between rounds and numbers of readers, and is the same for all systems.
    fn seed(&self, round: u32, readers: u32) -> u64 {
        self.config.seed.wrapping_mul(1000).wrapping_add(u64::from(round) * 97 + u64::from(readers))
    }

    /// Measures one system in one round, and may leave it mounted.
    fn measure(&mut self, system: &mut dyn System, round: u32) -> anyhow::Result<()> {
        let counts = self.config.readers.clone();
        let Some((&most, fewer)) = counts.split_last() else { return Ok(()) };
        for &readers in fewer {
            let folder = system.mount(self.corpus).context("mount")?;
            drop_kernel_caches()?;
            self.epoch(system, &folder, State::Cold, readers, round)?;
            system.unmount().context("unmount")?;
        }
        let folder = system.mount(self.corpus).context("mount")?;
        drop_kernel_caches()?;
        self.epoch(system, &folder, State::Cold, most, round)?;

        // Some systems do not cache a read that arrives while they are busy, so data is read twice before it counts as
        // warm.
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
        // Another order, so that no cache holds the files in the order in which they are read next.
        let seed = self.seed(round, readers) ^ (1 << 32);
        self.reader.read(folder, readers, self.config.files, seed).map(drop).context("read all files")
    }

    /// Measures one epoch. Its order differs between the states.
    fn epoch(
        &mut self,
        system: &dyn System,
        folder: &Path,
        state: State,
        readers: u32,
        round: u32,
    ) -> anyhow::Result<()> {
        let processes = system.processes();
        let fuse = if processes.is_empty() { None } else { self.counting(folder) };
        let seed = self.seed(round, readers) ^ ((state as u64) << 40);
        let before = Before { daemon: Usage::of(&processes), server: Some(own_usage()), fuse };
        self.server.reset_counters();
        let epoch = self.reader.read(folder, readers, self.files_for(readers), seed);
        let epoch = epoch.with_context(|| format!("{} epoch of {readers} readers", state.name()))?;
        self.note(system.name(), state, readers, round, epoch, &before, &processes);
        Ok(())
    }

    fn counting(&mut self, folder: &Path) -> Option<Counting> {
        Counting::of_mount(folder).inspect_err(|error| self.outcome.no_fuse_requests = Some(format!("{error:#}"))).ok()
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where everything about an epoch comes together")]
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

/// The counters at the start of an epoch.
#[derive(Default)]
struct Before {
    daemon: Usage,
    server: Option<Usage>,
    fuse: Option<Counting>,
}

/// The usage of this process: the S3 server's, because this process does nothing else during an epoch.
fn own_usage() -> Usage {
    Usage::of(&[std::process::id()])
}
