//! The flags of the commands that show what a job does, and what a manifest would change.

use std::path::PathBuf;

use clap::Args;

use crate::args::cluster::{ClusterArgs, NamespaceArgs, ObjectName};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job top                           all jobs of the namespace that have pods
  larder job top resnet                    its pods
  larder job top -A --json | jq -r '.[] | select(.gpus > 0 and .cpuMillicores < 500) | .job'

Percentages are parts of what the pods request. The cluster needs metrics-server, as for `kubectl \
top`. A job that is in another cluster is read there, with the context of your kubeconfig that has \
the name of the Cluster. Required permissions: `list` on pods and pods.metrics.k8s.io, and for one \
job `get` on trainingjobs.larder.dev.")]
pub(crate) struct TopArgs {
    /// The TrainingJob whose pods are shown, NAME or NAMESPACE/NAME. Default: one line for each job.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<ObjectName>,
    /// Show the jobs of all namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "job"])]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job events resnet
  larder job events resnet --json | jq -r '.[] | select(.type == \"Warning\") | .message'

The oldest event is first. A cluster keeps events for an hour, unless its administrator has changed \
that. The events of a job that is in another cluster are read there, too, with the context of your \
kubeconfig that has the name of the Cluster. Required permissions: `get` on trainingjobs.larder.dev \
and `list` on events.")]
pub(crate) struct EventsArgs {
    /// The TrainingJob, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB")]
    pub(crate) job: ObjectName,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job diff train.yaml
  kustomize build . | larder job diff - && echo 'nothing would change'

The cluster applies the manifests in a dry run, so the difference includes defaults and policies. As \
with `kubectl diff`, the exit code is 0 without a difference, 1 with differences, and 2 if the \
comparison failed. It needs the program diff. Required permissions: `get` and `patch` on \
trainingjobs.larder.dev, and `create` for new jobs.")]
pub(crate) struct DiffArgs {
    /// YAML or JSON manifests of one or more jobs; - reads standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
}
