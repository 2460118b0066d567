//! `larder-bench devices`

use larder_bench::devices::{DevicesConfig, DevicesPrograms, run as run_devices};

use super::measure::measure;
use super::program;
use crate::args::DevicesArgs;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let config = DevicesConfig { calls: args.calls, idle_seconds: args.idle, rounds: args.rounds.rounds };
    let programs = DevicesPrograms {
        larder_devices: program::find("--devices", "larder-devices", args.devices.as_deref())?,
        hook: program::find("--hook", "larder-rdma-limit", args.hook.as_deref())?,
        nvml: program::find("--nvml", "liblarder_fake_nvml.so", args.nvml.as_deref())?,
    };
    measure(&args.output, "steps", |steps| run_devices(&config, &programs, steps), |outcome| outcome.table())?;
    Ok(())
}
