//! The scheduler extender at scale: how soon it answers, how much it slows kube-scheduler down, and where pods land.
//!
//! The cast: [`run`] has the steps. `answers` sends requests about a simulated cluster over one persistent `connection`
//! to a server process (`serving`). `throughput`, `wake` and `shares` need a cluster of fake nodes: `scheduler` runs
//! the benchmark's own kube-scheduler with the extender beside it, and `data` writes what the controller and the
//! larderds would write. `outcome` has all figures, their goals and the table.
//!
//! Invariants: a cluster that other users use is rejected before any object is created. Objects are removed after each
//! turn, also after an error or Ctrl-C; the next run first removes the objects of a killed run.

mod answers;
mod connection;
mod data;
mod outcome;
mod scheduler;
mod serving;
mod shares;
mod throughput;
mod wake;

use std::path::PathBuf;

use anyhow::Context;
use larder_kube::Client;

use crate::jobs::cluster;
use crate::jobs::turn::Ground;
use crate::kubernetes::{Places, connect, datasets, objects, wait};
use crate::side_by_side::Progress;
use crate::systems::Stop;
pub use answers::{Answers, AnswersRow, Asked, InProcessRow, Load, ServerRow};
use data::Data;
use larder_epochs::figures::machine_load;
pub use outcome::{ExtenderConfig, ExtenderOutcome, Scenario};
pub use scheduler::Programs;
pub use serving::{Known, serve};
pub use shares::{Crowd, SharesRow, Way};
pub use throughput::{Asks, BindsRow};
pub use wake::WakeRow;

/// Nodes that hold the data of the pods of `throughput`.
const HOLDERS: u32 = 50;
/// The number of the dataset of `throughput`, and its name.
const NUMBER: u8 = 90;
const NAME: &str = "read";

/// The programs to run and the cluster to use.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `larder-bench` itself, which serves as `larder-bench extender --serve`.
    pub larder: PathBuf,
    /// The kube-scheduler and the extender to run.
    pub programs: Programs,
    /// The larder-controller to run, and the cluster.
    pub places: Places,
}

/// Measures everything. Must be called on the main thread. Errors stop the run.
pub fn run(config: &ExtenderConfig, tools: &Tools, progress: &dyn Progress) -> anyhow::Result<ExtenderOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = ExtenderOutcome { config: config.clone(), load: machine_load(), ..ExtenderOutcome::default() };
    progress.steps(steps(config));
    if config.scenarios.contains(&Scenario::Answers) {
        for round in 1..=config.rounds {
            progress.doing(&format!("round {round}: answers"));
            outcome.answers.round(round, &tools.larder, config.load, &stop, |line| progress.measured(line))?;
        }
    }
    if config.scenarios.iter().any(|scenario| *scenario != Scenario::Answers) {
        runtime.block_on(on_a_cluster(tools, progress, &stop, &mut outcome))?;
    }
    outcome.load_after = machine_load();
    Ok(outcome)
}

fn steps(config: &ExtenderConfig) -> u64 {
    let rounds = u64::from(config.rounds);
    let of = |scenario: &Scenario| match scenario {
        Scenario::Answers => 4 * rounds,
        Scenario::Throughput => Asks::ALL.len() as u64 * rounds,
        Scenario::Wake => config.wakes.into(),
        Scenario::Shares => rounds * (Way::ALL.len() * config.crowd.holders.len()) as u64,
    };
    config.scenarios.iter().map(of).sum()
}

async fn on_a_cluster(
    tools: &Tools,
    progress: &dyn Progress,
    stop: &Stop,
    outcome: &mut ExtenderOutcome,
) -> anyhow::Result<()> {
    let client = &connect(&tools.places).await?;
    cluster::refuse_a_cluster_in_use(client).await?;
    datasets::refuse_others(client).await?;
    progress.doing("removing the objects of an earlier run");
    remove(client).await?;
    let measured = measure(Ground { client, places: &tools.places, stop }, &tools.programs, progress, outcome).await;
    progress.doing("removing everything");
    match (measured, remove(client).await) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
        (Err(error), Err(left)) => {
            Err(error.context(format!("some objects could not be removed; run this again to remove them: {left:#}")))
        }
    }
}

/// Removes the objects of the benchmark and the objects that its controller created for them.
async fn remove(client: &Client) -> anyhow::Result<()> {
    cluster::clear(client).await?;
    datasets::delete(client).await?;
    cluster::remove(client).await?;
    datasets::delete_volumes(client).await?;
    datasets::delete_caches(client).await
}

async fn measure(
    ground: Ground<'_>,
    programs: &Programs,
    progress: &dyn Progress,
    outcome: &mut ExtenderOutcome,
) -> anyhow::Result<()> {
    let config = outcome.config.clone();
    objects::make_namespace(ground.client).await?;
    cluster::make_classes(ground.client).await?;
    let has = |scenario| config.scenarios.contains(&scenario);
    let mut nodes = 0;
    if has(Scenario::Throughput) || has(Scenario::Wake) {
        nodes = make_nodes(ground, progress, nodes, config.nodes).await?;
    }
    if has(Scenario::Throughput) {
        let data = Data::new(NAME.to_owned(), NUMBER);
        let holders: Vec<String> = (0..HOLDERS.min(config.nodes)).map(objects::node).collect();
        data.make(ground.client).await?;
        data.hold_on(ground.client, &holders).await?;
        for round in 1..=config.rounds {
            // None always comes first.
            for nth in 0..Asks::ALL.len() {
                let asks = Asks::ALL[(nth + round as usize) % Asks::ALL.len()];
                progress.doing(&format!("round {round}: pods per second"));
                let size = (round, config.nodes, config.pods);
                let row = throughput::measure(ground, programs, asks, size, (&data, &holders)).await?;
                progress.measured(&row.to_string());
                outcome.throughput.push(row);
            }
        }
    }
    if has(Scenario::Wake) {
        progress.doing("waking pods");
        let woken = |row: WakeRow| {
            progress.measured(&row.to_string());
            outcome.wake.push(row);
        };
        wake::measure(ground, programs, config.wakes, woken).await?;
    }
    if has(Scenario::Shares) {
        make_nodes(ground, progress, nodes, config.crowd.nodes).await?;
        let all = shares::make(ground, &config.crowd).await?;
        for round in 1..=config.rounds {
            for way in Way::ALL {
                progress.doing(&format!("round {round}: {}", way.name()));
                let shared = |row: SharesRow| {
                    progress.measured(&row.to_string());
                    outcome.shares.push(row);
                };
                shares::measure(ground, programs, way, (round, config.crowd.pods), &all, shared).await?;
            }
        }
    }
    Ok(())
}

/// Creates nodes until there are `count`, and returns their number.
async fn make_nodes(ground: Ground<'_>, progress: &dyn Progress, there: u32, count: u32) -> anyhow::Result<u32> {
    progress.doing("creating the nodes");
    objects::make_nodes(ground.client, there..count).await?;
    wait::for_nodes(ground.client, ground.stop, count).await?;
    Ok(there.max(count))
}
