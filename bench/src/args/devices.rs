//! The flags of `larder-bench devices`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench devices
  larder-bench devices --calls 200 --idle 10 --rounds 1
  larder-bench devices --rounds 5 --json devices.json

The machine has 16 fake GPUs and 16 fake HCAs: files and device nodes in a temporary directory, and
a library in place of NVIDIA's. 8 of the 16 GPUs are chosen within this process. Then
larder-devices runs beside stand-ins for the kubelet and for the container runtime's NRI, is asked
over their sockets, and left alone. There is no API server. The hook runs as a runtime runs it.
k8s-rdma-shared-dev-plugin, if it is installed (bench/install-peers), runs on the same machine, in
namespaces of its own; on a kernel without rdma netlink it is told that the kernel is old.

As root, in Larder's repository:
  cargo build --release -p larder-bench -p larder-devices -p larder-rdma-limit -p larder-fake-nvml
  target/release/larder-bench devices")]
pub(crate) struct DevicesArgs {
    /// Number of calls of each kind in each round.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) calls: u32,
    /// Seconds for which each process is left alone. Lists are sent again every minute.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) idle: u64,
    /// The program to measure. Default: larder-devices beside this command.
    #[arg(long, value_name = "PATH")]
    pub(crate) devices: Option<PathBuf>,
    /// The hook of containers to measure. Default: larder-rdma-limit beside this command.
    #[arg(long, value_name = "PATH")]
    pub(crate) hook: Option<PathBuf>,
    /// The fake NVML library. Default: liblarder_fake_nvml.so beside this command.
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
