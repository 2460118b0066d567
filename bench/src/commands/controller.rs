//! `larder-bench controller`

use anyhow::bail;
use larder_bench::controller::{ControllerConfig, Places, run as run_controller};

use super::measure::measure;
use super::program;
use crate::args::ControllerArgs;

pub(crate) fn run(args: &ControllerArgs) -> anyhow::Result<()> {
    if args.count > args.nodes {
        bail!("--count {} exceeds --nodes {}", args.count, args.nodes);
    }
    let program = program::controller(args.cluster.controller.as_deref())?;
    let config = ControllerConfig {
        nodes: args.nodes,
        datasets: args.datasets,
        count: args.count,
        restarts: args.restarts,
        rest_seconds: args.rest,
    };
    let places = Places { program, kubeconfig: args.cluster.kubeconfig.clone() };
    measure(&args.output, "steps", |steps| run_controller(&config, &places, steps), |outcome| outcome.table())?;
    Ok(())
}
