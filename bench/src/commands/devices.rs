//! `larder-bench devices`

use std::process::ExitCode;

use larder_bench::devices::{DevicesConfig, DevicesPrograms, run as run_devices};

use super::program;
use super::steps::Steps;
use crate::args::DevicesArgs;
use larder::files::{check_folder, write_json};
use larder::output;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    check_folder("--json", args.json.as_deref())?;
    let config = DevicesConfig { calls: args.calls, idle_seconds: args.idle, rounds: args.rounds };
    let programs = DevicesPrograms {
        larder_devices: program::find("--devices", "larder-devices", args.devices.as_deref())?,
        hook: program::find("--hook", "larder-rdma-limit", args.hook.as_deref())?,
        nvml: program::find("--nvml", "liblarder_made_up_nvml.so", args.nvml.as_deref())?,
    };
    let view = Steps::new("{msg:60} {bar:30} {pos}/{len} steps [{elapsed}]");
    let outcome = run_devices(&config, &programs, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
