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

The fake machine has 16 GPUs and 16 HCAs: files and device nodes in a temporary directory, and a
fake NVML. The benchmark first chooses 8 of the 16 GPUs within its own process. It then runs
larder-devices with a fake kubelet and a fake NRI runtime, calls it over their sockets, and measures
it idle. There is no API server. The hook is run the way a container runtime runs it.
k8s-rdma-shared-dev-plugin, if installed (bench/install-peers), runs on the same machine in its own
namespaces; on a kernel without RDMA netlink it is made to believe that the kernel is old.

As root, in Larder's repository:
  cargo build --release -p larder-bench -p larder-devices -p larder-rdma-limit -p larder-fake-nvml
  target/release/larder-bench devices")]
pub(crate) struct DevicesArgs {
    /// Number of calls of each kind per round.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) calls: u32,
    /// Seconds to measure each idle process. Device lists are resent every minute.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) idle: u64,
    /// The larder-devices to measure. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) devices: Option<PathBuf>,
    /// The container hook to measure. Default: the larder-rdma-limit beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) hook: Option<PathBuf>,
    /// The fake NVML. Default: the liblarder_fake_nvml.so beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
