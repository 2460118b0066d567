//! The flags of `larder-bench controller`.

use clap::Args;

use super::shared::{ClusterArgs, OutputArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench controller
  larder-bench controller --nodes 100 --datasets 100 --rest 10     a short run
  larder-bench controller --kubeconfig test.yaml --json controller.json
  larder-bench controller --controller target/release/larder-controller

The benchmark needs its own cluster: Kubernetes 1.36, Larder's CRDs, and kwok, which marks the fake
nodes ready. As root, in Larder's repository (building Kubernetes and kwok requires Go):
  cargo build --release -p larder-bench -p larder-controller
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/kwok.sh start /tmp/kwok
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply -k $PWD/deploy/crds
  tests/cluster/cluster.sh exec /tmp/kwok kubectl wait --for=condition=Established crd --all
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench controller
  tests/cluster/cluster.sh stop /tmp/kwok
`cluster.sh exec` runs commands in /, so paths must be absolute. The cluster stops with the shell
that started it.

larder-controller runs as a separate process. The benchmark simulates its import and warm pods and
a larderd on each node; no data is fetched. A cluster that already has Datasets or a
larder-controller is refused. All objects are in the namespace larder-bench or have names that
begin with larder-bench; they are removed at the end, even after Ctrl-C.")]
pub(crate) struct ControllerArgs {
    /// Number of fake nodes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) nodes: u32,
    /// Number of Datasets.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) datasets: u32,
    /// Number of nodes that hold each Dataset (`spec.nodes.count`), at most --nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// Number of controller restarts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) restarts: u32,
    /// Seconds to measure the idle controller.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) rest: u64,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
