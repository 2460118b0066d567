//! `larder-bench jobs`

use anyhow::bail;
use larder_bench::jobs::{JobsConfig, Places, Sizes, run as run_jobs};

use super::measure::measure;
use super::program;
use crate::args::JobsArgs;

/// The most pods per node. A node has room for 110; some of the room stays free.
const PODS_OF_A_NODE: u32 = 90;

pub(crate) fn run(args: &JobsArgs) -> anyhow::Result<()> {
    let sizes = Sizes { jobs: args.jobs, gangs: args.gangs, gang_size: args.gang_size };
    if sizes.jobs == 0 && sizes.gangs == 0 {
        bail!("--jobs and --gangs are both 0: nothing to run");
    }
    if sizes.pods() > args.nodes * PODS_OF_A_NODE {
        bail!("--jobs and --gangs make {} pods, more than fit on --nodes {}", sizes.pods(), args.nodes);
    }
    let JobsArgs { nodes, scale, loaded_gangs: gangs, .. } = *args;
    let config = JobsConfig { scenarios: args.only.chosen(), rounds: args.rounds.rounds, nodes, sizes, scale, gangs };
    let program = program::controller(args.cluster.controller.as_deref())?;
    let places = Places { program, kubeconfig: args.cluster.kubeconfig.clone() };
    measure(&args.output, "steps", |steps| run_jobs(&config, &places, steps), |outcome| outcome.table())?;
    Ok(())
}
