//! The flags of `larder bench controller`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench controller
  larder bench controller --nodes 100 --datasets 100 --rest 10     a short try
  larder bench controller --kubeconfig test.yaml --controller target/release/larder-controller --json controller.json

Use a cluster of the benchmark's own, with Larder's definitions (kubectl apply -k deploy/crds) and with
kwok, which makes the fake nodes ready. `tests/cluster/kwok.sh start DIR` starts one, and
`tests/cluster/cluster.sh exec DIR larder bench controller` runs the benchmark in it.
larder-controller runs as a process beside this one. The pods of its jobs, which import and warm, and
a larderd of each node are stood in for; no byte is fetched. A cluster that has Datasets or a
larder-controller already is refused. Everything is made in the namespace larder-bench or named so,
and removed in the end, after Ctrl-C too.")]
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
    /// The program to measure. Default: larder-controller beside this command.
    #[arg(long, value_name = "PATH")]
    pub(crate) controller: Option<PathBuf>,
    /// The cluster to use. Default: that of $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Write all figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
