//! PyTorch's DataLoader over Larder, its peers and the disk itself: JPEGs that are read in a shuffled order, decoded
//! and collected into batches by worker processes. Larder is read without a plan, and with the Python package's.
//!
//! The cast: [`run`] takes all [`systems`](crate::systems) in turns, in every round; `script` runs
//! `bench/python/loader.py`; `outcome` has all figures and their table.
//!
//! Invariant: every system gives the same samples in the same order, or the run fails. *Cold* is a new mount with an
//! empty local cache; *warm* is the next epoch of the same mount, in another order. The kernel's caches are dropped
//! before each.

mod outcome;
mod script;

use std::time::Duration;

use anyhow::{Context, ensure};
use larder_epochs::kernel_caches::drop_kernel_caches;
use larder_epochs::process::Usage;
use larder_s3_server::Distance;

use crate::side_by_side::{LeftOut, Progress, Rounds, Scratch, SystemInfo, chosen};
use crate::systems::{Corpus, Kind, Stop, System, TREE, child, find_python};
use outcome::STATES;
pub use outcome::{LoaderConfig, LoaderOutcome, LoaderRow};
use script::Script;
pub use script::{Loader, Said};

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on.
pub fn run(config: &LoaderConfig, progress: &dyn Progress) -> anyhow::Result<LoaderOutcome> {
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "loader-")?;
    let script = Script::write(config.python.clone().unwrap_or_else(find_python), &folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    progress.doing("making the JPEGs");
    script.make(&folder.join(TREE), config.files, config.seed)?;
    let delay = Duration::from_millis(config.origin_delay_ms);
    let distance = Distance { delay, bytes_per_second: config.origin_bytes_per_second, ..Distance::default() };
    let (corpus, server) = Corpus::of_tree(&folder, config.seed, distance, runtime.handle(), &stop)?;
    script.write_list(&corpus)?;
    let mut outcome = LoaderOutcome {
        config: config.clone(),
        bytes: corpus.bytes,
        systems: systems.iter().flat_map(|system| infos(&**system, &script)).collect(),
        left_out,
        rows: Vec::new(),
    };
    if let Some(why) = script.without_plans() {
        outcome.left_out.push(LeftOut { name: "plans".to_owned(), why: why.to_owned() });
    }
    progress.steps((outcome.systems.len() * STATES.len()) as u64 * u64::from(config.rounds));
    let mut rounds = Rounds::prepare(systems, &corpus, progress, "")?;
    for round in 0..config.rounds {
        rounds.round(round, |system| measure(&mut outcome, &script, system, &corpus, round, progress))?;
    }
    outcome.left_out.extend(rounds.into_left_out());
    runtime.block_on(server.shutdown());
    Ok(outcome)
}

/// Whether a system is read without a plan, and whether also with one.
fn ways(system: &dyn System, script: &Script) -> &'static [bool] {
    let takes_plans = system.kind() == Kind::Larder && script.without_plans().is_none();
    if takes_plans { &[false, true] } else { &[false] }
}

/// The name of a system in the table.
fn name_of(system: &dyn System, is_planned: bool) -> String {
    if is_planned { format!("{}, plan", system.name()) } else { system.name().to_owned() }
}

/// A system as the table shows it.
fn infos(system: &dyn System, script: &Script) -> Vec<SystemInfo> {
    let info = |&is_planned: &bool| {
        let mut info = SystemInfo { name: name_of(system, is_planned), ..SystemInfo::of(system) };
        if is_planned {
            info.options = format!("{}, read with `larder.torch.planned`", info.options);
        }
        info
    };
    ways(system, script).iter().map(info).collect()
}

/// Measures one system in one round, and may leave it mounted.
fn measure(
    outcome: &mut LoaderOutcome,
    script: &Script,
    system: &mut dyn System,
    corpus: &Corpus,
    round: u32,
    progress: &dyn Progress,
) -> anyhow::Result<()> {
    for &is_planned in ways(system, script) {
        // Each begins with an empty cache.
        system.unmount()?;
        let folder = system.mount(corpus).context("mount")?;
        let name = name_of(system, is_planned);
        for (epoch, state) in (0..).zip(STATES) {
            corpus.stop.check()?;
            drop_kernel_caches()?;
            let processes = system.processes();
            let before = Usage::of(&processes).cpu_seconds;
            let seed = outcome.config.seed.wrapping_add(u64::from(round) * STATES.len() as u64 + epoch);
            let said = script
                .read(&folder, outcome.config.loader, seed, is_planned)
                .with_context(|| format!("{name}: {} epoch", state.name()))?;
            let daemon_cpu_seconds = Usage::of(&processes).cpu_seconds - before;
            ensure!(said.samples == u64::from(outcome.config.files), "{} of the files were read", said.samples);
            if let Some(other) = outcome.rows.iter().find(|row| (row.state, row.round) == (state, round)) {
                ensure!(other.said.checksum == said.checksum, "WRONG SAMPLES: they are not those of {}", other.system);
            }
            let row = LoaderRow { system: name.clone(), state, round, said, daemon_cpu_seconds };
            progress.measured(&format!(
                "round {}: {} {}: {:.0} samples/s, empty for {:.1} of {:.1} s",
                round + 1,
                row.system,
                state.name(),
                row.said.samples_per_second(),
                row.said.empty_seconds,
                row.said.seconds
            ));
            outcome.rows.push(row);
        }
    }
    Ok(())
}
