//! `larder-bench controller`

use std::process::ExitCode;

use anyhow::bail;
use larder_bench::controller::{ControllerConfig, Places, run as run_controller};

use super::program;
use super::steps::Steps;
use crate::args::ControllerArgs;
use larder::files::{check_folder, write_json};
use larder::output;

pub(crate) fn run(args: &ControllerArgs) -> anyhow::Result<ExitCode> {
    check_folder("--json", args.json.as_deref())?;
    if args.count > args.nodes {
        bail!("--count {} is more than --nodes {}", args.count, args.nodes);
    }
    let program = program::controller(args.controller.as_deref())?;
    let config = ControllerConfig {
        nodes: args.nodes,
        datasets: args.datasets,
        count: args.count,
        restarts: args.restarts,
        rest_seconds: args.rest,
    };
    let places = Places { program, kubeconfig: args.kubeconfig.clone() };
    let view = Steps::new("{msg:36} {bar:30} {pos}/{len} steps [{elapsed}]");
    let outcome = run_controller(&config, &places, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
