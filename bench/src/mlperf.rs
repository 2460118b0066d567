//! MLPerf Storage's training workloads over Larder, its peers and the disk itself, scaled to the machine. DLIO, the
//! engine of MLPerf Storage, makes their data and trains on a simulated accelerator.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round; [`Workload`] has the options of a
//! workload; `dlio` runs DLIO; `summary` parses its figures; `outcome` has all figures and their table.
//!
//! Invariant: the first epoch begins with a new mount and an empty local cache. Each epoch is a run of its own with an
//! order of its own, and the kernel's caches are dropped before it, so the page cache answers nothing of an earlier
//! one, as MLPerf Storage wants it. No figure is a submission to it.

mod dlio;
mod outcome;
mod summary;
mod workload;

use std::path::PathBuf;

use anyhow::Context;
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_s3_server::Distance;
use tokio::runtime::Handle;

use crate::side_by_side::{Progress, Rounds, Scratch, SystemInfo, chosen};
use crate::systems::{Corpus, Stop, System, TREE, child};
use dlio::Dlio;
pub use outcome::{MlperfConfig, MlperfOutcome, MlperfRow};
pub use summary::Summary;
pub use workload::{Scale, Workload};

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; an
/// error, such as a missing DLIO, stops the run.
pub fn run(config: &MlperfConfig, progress: &dyn Progress) -> anyhow::Result<MlperfOutcome> {
    let dlio = Dlio::find(config.dlio.as_deref())?;
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "mlperf-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = MlperfOutcome {
        config: config.clone(),
        systems: systems.iter().map(|system| SystemInfo::of(&**system)).collect(),
        left_out,
        rows: Vec::new(),
    };
    let epochs = u64::from(config.epochs) * u64::from(config.rounds);
    progress.steps((systems.len() * config.workloads.len()) as u64 * epochs);
    // A system belongs to one corpus, so each workload chooses its own.
    drop(systems);
    for &workload in &config.workloads {
        let set = Set { dlio: &dlio, workload, folder: folder.join(workload.name()), progress };
        set.measure(&mut outcome, runtime.handle(), &stop)?;
    }
    Ok(outcome)
}

/// One workload with its data.
struct Set<'a> {
    dlio: &'a Dlio,
    workload: Workload,
    folder: PathBuf,
    progress: &'a dyn Progress,
}

impl Set<'_> {
    fn measure(&self, outcome: &mut MlperfOutcome, runtime: &Handle, stop: &Stop) -> anyhow::Result<()> {
        let config = outcome.config.clone();
        self.progress.doing(&format!("making the data of {}", self.workload.name()));
        let options = self.workload.options(config.scale);
        self.dlio.generate(&options, &self.folder.join(TREE), &self.folder.join("dlio"))?;
        let (corpus, server) = Corpus::of_tree(&self.folder, config.seed, Distance::default(), runtime, stop)?;
        let (systems, _) = chosen(&config.binary, &config.only)?;
        let mut rounds = Rounds::prepare(systems, &corpus, self.progress, self.workload.name())?;
        for round in 0..config.rounds {
            rounds.round(round, |system| self.measure_system(outcome, system, &corpus, round))?;
        }
        outcome.left_out.extend(rounds.into_left_out());
        runtime.block_on(server.shutdown());
        // The next workload needs the disk space.
        let _ = std::fs::remove_dir_all(&self.folder);
        Ok(())
    }

    /// Measures one system in one round, and may leave it mounted.
    fn measure_system(
        &self,
        outcome: &mut MlperfOutcome,
        system: &mut dyn System,
        corpus: &Corpus,
        round: u32,
    ) -> anyhow::Result<()> {
        let options = self.workload.options(outcome.config.scale);
        let folder = system.mount(corpus).context("mount")?;
        for epoch in 0..outcome.config.epochs {
            corpus.stop.check()?;
            drop_kernel_caches()?;
            let processes = system.processes();
            let before = Usage::of(&processes).cpu_seconds;
            let seed = outcome.config.seed.wrapping_add(u64::from(round * outcome.config.epochs + epoch));
            let said = self.dlio.train(&options, &folder, &self.folder.join("dlio"), seed);
            let row = MlperfRow {
                workload: self.workload,
                system: system.name().to_owned(),
                epoch: epoch + 1,
                round,
                said: said.with_context(|| format!("epoch {}", epoch + 1))?,
                daemon_cpu_seconds: Usage::of(&processes).cpu_seconds - before,
            };
            self.progress.measured(&format!(
                "round {}: {} {} epoch {}: {:.1} % busy, {:.0} samples/s",
                round + 1,
                row.system,
                self.workload.name(),
                row.epoch,
                row.said.busy_percent,
                row.said.samples_per_second
            ));
            outcome.rows.push(row);
        }
        Ok(())
    }
}
