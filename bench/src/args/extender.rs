//! The flags of `larder-bench extender`.

use std::path::PathBuf;

use clap::Args;
use larder_bench::extender::Scenario;

use super::shared::{ClusterArgs, OnlyArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench extender --only answers                 needs no cluster
  larder-bench extender --only answers --known-nodes 500 --asks 200 --rounds 1
  larder-bench extender --only throughput,wake --nodes 200 --pods 200 --wakes 4 --rounds 1
  larder-bench extender --only shares --crowd 300 --holders 5,30 --json extender.json

All but answers needs a cluster of the benchmark's own: Kubernetes 1.36, Larder's definitions, and
kwok, which makes the fake nodes ready and runs their pods. As root, in Larder's repository (with
Go, of which Kubernetes and kwok are built):
  cargo build --release -p larder-bench -p larder-controller -p larder-scheduler-ext
  tests/cluster/cluster.sh install
  tests/cluster/kwok.sh install
  tests/cluster/kwok.sh start /tmp/kwok $$ pods
  tests/cluster/cluster.sh exec /tmp/kwok kubectl apply --server-side -k $PWD/deploy/crds
  tests/cluster/cluster.sh exec /tmp/kwok $PWD/target/release/larder-bench extender
Commands in the cluster start in the folder /, so they need absolute paths. The cluster ends with
the shell that started it.

For answers, this command runs itself once more: a process that serves as larder-scheduler-ext
does, so that its memory is its own. Its client asks about a pod when it is due, as if
kube-scheduler placed pods at an even rate, and a time counts from then. In the cluster,
kube-scheduler, larder-scheduler-ext and larder-controller run as processes beside the benchmark,
and only while it is their turn. A cluster with nodes, Datasets, TrainingJobs, Queues or a
larder-controller of its own is refused. All objects are in the namespace larder-bench, or their
names begin with larder-bench; they are removed in the end, after Ctrl-C too.")]
pub(crate) struct ExtenderArgs {
    #[command(flatten)]
    pub(crate) only: OnlyArgs<Scenario>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    /// Number of nodes that the extender knows (answers), with a fifth as many datasets and ten times as many pods.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=20_000))]
    pub(crate) known_nodes: u32,
    /// Requests a second (answers); two for each pod, filter and prioritize.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// Number of pods that are asked about, of each kind in each round (answers).
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) asks: u32,
    /// Number of fake nodes (throughput, wake).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) nodes: u32,
    /// Number of pods in each turn (throughput).
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    pub(crate) pods: u32,
    /// Number of pods that are woken (wake).
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) wakes: u8,
    /// Number of fake nodes (shares).
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(crate) crowd: u32,
    /// Numbers of nodes that hold the data, in turns (shares).
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "10,50,500",
        value_parser = clap::value_parser!(u32).range(1..=5_000)
    )]
    pub(crate) holders: Vec<u32>,
    /// Number of pods in each turn (shares).
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) crowd_pods: u32,
    /// The extender to start in the cluster. Default: larder-scheduler-ext beside this command.
    #[arg(long, value_name = "PATH")]
    pub(crate) extender: Option<PathBuf>,
    /// The scheduler to start in the cluster. Default: that of the PATH.
    #[arg(long, value_name = "PATH", default_value = "kube-scheduler")]
    pub(crate) kube_scheduler: PathBuf,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Serve about a cluster of this size (JSON); used by the command itself.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<String>,
}
