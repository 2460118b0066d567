//! The flags of `larder-bench extender`.

use std::path::PathBuf;

use clap::Args;
use larder_bench::extender::Scenario;

use super::shared::{ClusterArgs, OnlyArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench extender --only answers                 without a cluster
  larder-bench extender --only answers --known-nodes 500 --asks 200 --rounds 1
  larder-bench extender --only throughput,wake --nodes 200 --pods 200 --wakes 4 --rounds 1
  larder-bench extender --only shares --crowd 300 --holders 5,30 --json extender.json

All scenarios except answers need their own cluster: Kubernetes 1.36, Larder's CRDs, and kwok, which
marks the fake nodes ready and simulates their pods. As root, in Larder's repository (building
Kubernetes and kwok requires Go):
  cargo build --release -p larder-bench -p larder-controller -p larder-scheduler-ext
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/kwok.sh start /tmp/kwok $$ pods
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply --server-side -k $PWD/deploy/crds
  tests/cluster/cluster.sh exec /tmp/kwok kubectl wait --for=condition=Established crd --all
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench extender
`cluster.sh exec` runs commands in /, so paths must be absolute. The cluster stops with the shell
that started it.

For answers, this program starts a second copy of itself that serves like larder-scheduler-ext, so
that its memory can be measured alone. Requests are sent at a constant rate, as if kube-scheduler
placed pods evenly, and response times count from the moment a request is due. In the cluster,
kube-scheduler, larder-scheduler-ext and larder-controller run as separate processes, and only while
they are measured. A cluster that already has nodes, Datasets, TrainingJobs, Queues or a
larder-controller is refused. All objects are in the namespace larder-bench or have names that begin
with larder-bench; they are removed at the end, even after Ctrl-C.")]
pub(crate) struct ExtenderArgs {
    #[command(flatten)]
    pub(crate) only: OnlyArgs<Scenario>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    /// Number of nodes in the simulated cluster (answers), with a fifth as many datasets and ten times as many pods.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    pub(crate) known_nodes: u32,
    /// Requests per second (answers); each pod takes two, filter and prioritize.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// Number of pods of each kind per round (answers).
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) asks: u32,
    /// Number of fake nodes (throughput, wake).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) nodes: u32,
    /// Number of pods per run (throughput).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    pub(crate) pods: u32,
    /// Number of pods to wake (wake, in place of --rounds).
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) wakes: u8,
    /// Number of fake nodes (shares).
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) crowd: u32,
    /// Numbers of nodes that hold the data, measured one after another (shares).
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "10,50,500",
        value_parser = clap::value_parser!(u32).range(1..=5_000)
    )]
    pub(crate) holders: Vec<u32>,
    /// Number of pods per run (shares).
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) crowd_pods: u32,
    /// The larder-scheduler-ext to run. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) extender: Option<PathBuf>,
    /// The kube-scheduler to run. Default: the one on PATH.
    #[arg(long, value_name = "PATH", default_value = "kube-scheduler")]
    pub(crate) kube_scheduler: PathBuf,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Serve a simulated cluster of this size (JSON); used by the benchmark itself.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<String>,
}
