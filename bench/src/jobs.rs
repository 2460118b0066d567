//! Training jobs at scale, on a real API server with fake nodes: Larder beside its peers, in turns in one run.
//!
//! The cast: [`run`] has the steps; `cluster` creates and removes the objects; `work` is a job, as an object for each
//! system; `turn` is a system's turn with its queues and jobs; `pods` records when pods are bound, run and are deleted;
//! `api_writes` counts the writes of all clients; `throughput`, `cohorts`, `gangs`, `preempt` and `plan` are the
//! scenarios, each with its figures and goals; `outcome` has all of them and the table. kwok runs the pods
//! (tests/cluster/kwok.sh).
//!
//! Invariants: a cluster that other users use is rejected before any object is created. Objects are removed after each
//! turn, also after an error or Ctrl-C; the next run first removes the objects of a killed run.

mod api_writes;
pub(crate) mod cluster;
mod cohorts;
mod gangs;
mod outcome;
mod plan;
pub(crate) mod pods;
mod preempt;
mod throughput;
pub(crate) mod turn;
pub(crate) mod work;

use anyhow::Context;

pub use crate::kubernetes::Places;
use crate::kubernetes::connect;
use crate::kubernetes::{objects, wait};
use crate::side_by_side::{LeftOut, Progress};
use crate::systems::Stop;
pub use cohorts::{ClassWait, CohortsRow};
pub use gangs::GangsRow;
use larder_epochs::figures::machine_load;
pub use outcome::{JobsConfig, JobsOutcome, Scenario};
pub use plan::PlanRow;
pub use preempt::PreemptRow;
pub use throughput::{Sizes, ThroughputRow};
use turn::Ground;
pub use turn::System;

/// Measures everything. Must be called on the main thread. Errors stop the run.
pub fn run(config: &JobsConfig, places: &Places, progress: &dyn Progress) -> anyhow::Result<JobsOutcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = JobsOutcome { config: config.clone(), load: machine_load(), ..JobsOutcome::default() };
    progress.steps(steps(config));
    if config.scenarios.contains(&Scenario::Plan) {
        progress.doing("planning");
        outcome.plan = plan::measure()?;
        for row in &outcome.plan {
            progress.measured(&format!("plan: {:.1} ms", row.median_ms));
        }
    }
    if config.scenarios.iter().any(|scenario| *scenario != Scenario::Plan) {
        runtime.block_on(on_a_cluster(places, progress, &stop, &mut outcome))?;
    }
    outcome.load_after = machine_load();
    Ok(outcome)
}

fn steps(config: &JobsConfig) -> u64 {
    let of = |scenario: &Scenario| match scenario {
        Scenario::Plan => 3,
        Scenario::Throughput => 3 * u64::from(config.rounds),
        Scenario::Gangs => 3 * u64::from(config.rounds),
        Scenario::Cohorts => 2 * u64::from(config.rounds),
        Scenario::Preempt => u64::from(config.rounds),
    };
    config.scenarios.iter().map(of).sum()
}

async fn on_a_cluster(
    places: &Places,
    progress: &dyn Progress,
    stop: &Stop,
    outcome: &mut JobsOutcome,
) -> anyhow::Result<()> {
    let client = &connect(places).await?;
    cluster::refuse_a_cluster_in_use(client).await?;
    progress.doing("removing the objects of an earlier run");
    cluster::remove(client).await?;
    let measured = measure(Ground { client, places, stop }, progress, outcome).await;
    progress.doing("removing everything");
    match (measured, cluster::remove(client).await) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
        (Err(error), Err(left)) => {
            Err(error.context(format!("some objects could not be removed; run this again to remove them: {left:#}")))
        }
    }
}

async fn measure(ground: Ground<'_>, progress: &dyn Progress, outcome: &mut JobsOutcome) -> anyhow::Result<()> {
    let config = outcome.config.clone();
    progress.doing("creating the nodes");
    objects::make_namespace(ground.client).await?;
    cluster::make_classes(ground.client).await?;
    objects::make_nodes(ground.client, 0..config.nodes).await?;
    wait::for_nodes(ground.client, ground.stop, config.nodes).await?;
    let mut systems = vec![System::Direct, System::Larder];
    for (system, kind, how) in [
        (System::Kueue, cluster::kueue("ClusterQueue", "clusterqueues"), "tests/cluster/kueue.sh start DIR jobs"),
        (System::Coscheduling, cluster::pod_groups(), "tests/cluster/peers.sh start DIR"),
    ] {
        if cluster::serves(ground.client, &kind).await? {
            systems.push(system);
            continue;
        }
        let why = format!("not installed in the cluster: run tests/cluster/peers.sh install, then {how}");
        let name = system.name().to_owned();
        progress.measured(&format!("WITHOUT {name}: {why}"));
        outcome.left_out.push(LeftOut { name, why });
    }
    let of = |wanted: &'static [System]| systems.iter().copied().filter(|system| wanted.contains(system));
    for _ in 0..config.rounds {
        if config.scenarios.contains(&Scenario::Throughput) {
            for system in of(&[System::Direct, System::Larder, System::Kueue]) {
                progress.doing(&format!("many jobs: {}", system.name()));
                let row = throughput::measure(ground, system, config.sizes).await?;
                progress.measured(&row.to_string());
                outcome.throughput.push(row);
            }
        }
        if config.scenarios.contains(&Scenario::Cohorts) {
            for system in of(&[System::Larder, System::Kueue]) {
                progress.doing(&format!("30 queues: {}", system.name()));
                let row = cohorts::measure(ground, system, config.scale).await?;
                progress.measured(&row.to_string());
                outcome.cohorts.push(row);
            }
        }
        if config.scenarios.contains(&Scenario::Gangs) {
            for system in of(&[System::Direct, System::Larder, System::Coscheduling]) {
                progress.doing(&format!("gangs: {}", system.name()));
                let row = gangs::measure(ground, system, config.gangs).await?;
                progress.measured(&row.to_string());
                outcome.gangs.push(row);
            }
        }
        if config.scenarios.contains(&Scenario::Preempt) {
            progress.doing("50 of 100");
            let row = preempt::measure(ground).await?;
            progress.measured(&row.to_string());
            outcome.preempt.push(row);
        }
    }
    Ok(())
}
