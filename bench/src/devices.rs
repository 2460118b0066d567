//! `larder-devices` on a fake machine: the cost of choosing devices, of allocating them, and of being idle.
//!
//! The cast: [`run`] has the steps; `hardware` creates the machine; `choices` computes preferred devices within this
//! process; `kubelet` and `nri` are fakes of the kubelet and of the container runtime, and `daemon` runs the program
//! beside them, calls it and measures it while idle; `mellanox` runs k8s-rdma-shared-dev-plugin on the same machine;
//! `hook` runs the container hook; `outcome` has all figures and the table.
//!
//! Invariant: both programs read the same files, get the same calls, and are idle for the same time.

mod choices;
mod config;
mod daemon;
mod hardware;
mod hook;
mod kubelet;
mod mellanox;
mod nri;
mod outcome;

use std::path::PathBuf;

use anyhow::Context;

use crate::side_by_side::{LeftOut, Progress};
use crate::systems::{Stop, find_program};
pub use choices::ChoiceRow;
pub use config::DevicesConfig;
use daemon::Shape;
pub use daemon::{CallRow, DaemonRow};
use hardware::Hardware;
pub use hook::HookRow;
use larder_epochs::figures::machine_load;
pub use outcome::DevicesOutcome;

/// The executables to measure.
#[derive(Clone, Debug)]
pub struct DevicesPrograms {
    /// `larder-devices`.
    pub larder_devices: PathBuf,
    /// `larder-rdma-limit`.
    pub hook: PathBuf,
    /// The library of the fake NVML.
    pub nvml: PathBuf,
}

/// Measures everything. Must be called on the main thread. Errors stop the run.
pub fn run(
    config: &DevicesConfig,
    programs: &DevicesPrograms,
    progress: &dyn Progress,
) -> anyhow::Result<DevicesOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = DevicesOutcome { config: config.clone(), load: machine_load(), ..DevicesOutcome::default() };
    let peer = find_program(mellanox::PROGRAM);
    if peer.is_none() {
        let why = format!("no {} on PATH (bench/install-peers installs it)", mellanox::PROGRAM);
        outcome.left_out.push(LeftOut { name: mellanox::NAME.to_owned(), why });
    }
    progress.steps(u64::from(config.rounds) * (4 + if peer.is_some() { 3 } else { 2 }));
    for round in 1..=config.rounds {
        progress.doing("choosing GPUs");
        for row in choices::measure(round, config.calls)? {
            progress.measured(&row.to_string());
            outcome.choices.push(row);
        }
        progress.doing("the hook");
        let row = hook::measure(round, &programs.hook, config.calls)?;
        progress.measured(&row.to_string());
        outcome.hooks.push(row);
        for shape in [Shape::GpusAndHcas, Shape::ConfigList] {
            progress.doing(&format!("{}: {}", daemon::LARDER, shape.name()));
            let hardware = Hardware::new(&programs.nvml)?;
            let start = |kubelet: &kubelet::Kubelet| daemon::start(&programs.larder_devices, &hardware, kubelet, shape);
            let row = daemon::measure(&runtime, &stop, config, (round, daemon::LARDER, shape), &hardware, start)?;
            progress.measured(&row.to_string());
            outcome.daemons.push(row);
        }
        if let Some(program) = peer.as_ref().filter(|_| outcome.left_out.is_empty()) {
            progress.doing(&format!("{}: {}", mellanox::NAME, Shape::ConfigList.name()));
            let hardware = Hardware::new(&programs.nvml)?;
            let start = |kubelet: &kubelet::Kubelet| mellanox::start(program, &hardware, kubelet);
            let is = (round, mellanox::NAME, Shape::ConfigList);
            match daemon::measure(&runtime, &stop, config, is, &hardware, start) {
                Ok(row) => {
                    progress.measured(&row.to_string());
                    outcome.daemons.push(row);
                }
                Err(error) => {
                    stop.check()?;
                    let why = format!("{error:#}");
                    progress.measured(&format!("WITHOUT {}: {why}", mellanox::NAME));
                    outcome.left_out.push(LeftOut { name: mellanox::NAME.to_owned(), why });
                }
            }
        }
    }
    outcome.load_after = machine_load();
    Ok(outcome)
}
