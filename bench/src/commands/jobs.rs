//! `larder-bench jobs`

use std::process::ExitCode;

use anyhow::bail;
use larder_bench::jobs::{JobsConfig, Places, Scenario, Sizes, run as run_jobs};

use super::program;
use super::steps::Steps;
use crate::args::{JobsArgs, ScenarioFlag};
use larder::files::{check_folder, write_json};
use larder::output;

/// Pods of one node at most; a node has room for 110, of which some stay free.
const PODS_OF_A_NODE: u32 = 90;

pub(crate) fn run(args: &JobsArgs) -> anyhow::Result<ExitCode> {
    check_folder("--json", args.json.as_deref())?;
    let sizes = Sizes { jobs: args.jobs, gangs: args.gangs, gang_size: args.gang_size };
    if sizes.jobs == 0 && sizes.gangs == 0 {
        bail!("--jobs and --gangs are both 0: there is nothing to run");
    }
    if sizes.pods() > args.nodes * PODS_OF_A_NODE {
        bail!("--jobs and --gangs make {} pods: --nodes {} have room for fewer", sizes.pods(), args.nodes);
    }
    let JobsArgs { rounds, nodes, scale, loaded_gangs: gangs, .. } = *args;
    let config = JobsConfig { scenarios: scenarios(&args.only), rounds, nodes, sizes, scale, gangs };
    let program = program::controller(args.controller.as_deref())?;
    let places = Places { program, kubeconfig: args.kubeconfig.clone() };
    let view = Steps::new("{msg:36} {bar:30} {pos}/{len} steps [{elapsed}]");
    let outcome = run_jobs(&config, &places, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}

fn scenarios(only: &[ScenarioFlag]) -> Vec<Scenario> {
    let scenario = |flag: &ScenarioFlag| match flag {
        ScenarioFlag::Throughput => Scenario::Throughput,
        ScenarioFlag::Cohorts => Scenario::Cohorts,
        ScenarioFlag::Gangs => Scenario::Gangs,
        ScenarioFlag::Preempt => Scenario::Preempt,
        ScenarioFlag::Plan => Scenario::Plan,
    };
    if only.is_empty() { Scenario::ALL.to_vec() } else { only.iter().map(scenario).collect() }
}
