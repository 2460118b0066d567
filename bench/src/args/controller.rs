//! The flags of `larder-bench controller`.

use clap::Args;

use super::shared::{ClusterArgs, OutputArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench controller
  larder-bench controller --nodes 100 --datasets 100 --rest 10     a short try
  larder-bench controller --kubeconfig test.yaml --json controller.json
  larder-bench controller --controller target/release/larder-controller

The benchmark needs a cluster of its own: Kubernetes 1.36, Larder's definitions, and kwok, which
makes the fake nodes ready. As root, in Larder's repository (Kubernetes and kwok are built with Go):
  cargo build --release -p larder-bench -p larder-controller
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/kwok.sh start /tmp/kwok
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply -k $PWD/deploy/crds
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench controller
  tests/cluster/cluster.sh stop /tmp/kwok
Commands in the cluster start in the folder /, so they need absolute paths. The cluster ends with
the shell that started it.

larder-controller runs as a process beside the benchmark. The pods of its jobs, which import and
warm, and a larderd of each node are stood in for; no byte is fetched. A cluster that already has
Datasets or a larder-controller is refused. All objects are in the namespace larder-bench, or their
names begin with larder-bench; they are removed in the end, after Ctrl-C too.")]
pub(crate) struct ControllerArgs {
    /// Number of fake nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: u32,
    /// Number of Datasets.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) datasets: u32,
    /// Nodes that hold each Dataset (`spec.nodes.count`), at most --nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// How often the controller is restarted.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) restarts: u32,
    /// Seconds for which the controller is watched at rest.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) rest: u64,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
