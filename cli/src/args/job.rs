//! The flags of `larder job`.

mod look;
mod quick;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cluster::{ClusterArgs, NamespaceArgs, ObjectName, plain_name};
pub(crate) use look::{DiffArgs, EventsArgs, TopArgs};
pub(crate) use quick::{Mounted, QuickArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job submit train.yaml --wait
  larder job list -A --queue vision
  larder job logs resnet -f
  larder job top resnet
  larder job cancel resnet
  larder job convert tfjob.yaml > train.yaml

Where a program `kubectl-larder` is in the PATH, such as a link to larder, `kubectl larder job` is the \
same command.")]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) what: JobCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Submit training jobs, from manifests or from flags.
    #[command(visible_alias = "apply")]
    Submit(SubmitArgs),
    /// Show what submitting manifests would change.
    Diff(DiffArgs),
    /// List training jobs with their phase and its reason.
    #[command(visible_alias = "get")]
    List(ListArgs),
    /// Show the CPUs and the memory that jobs use.
    Top(TopArgs),
    /// List the events of a job and of its pods.
    Events(EventsArgs),
    /// Print the logs of a job's pods.
    Logs(LogsArgs),
    /// Cancel jobs: delete them and their pods, or suspend them.
    #[command(visible_alias = "delete")]
    Cancel(CancelArgs),
    /// Resume suspended jobs.
    Resume(ResumeArgs),
    /// Convert Kubeflow's TFJobs, PyTorchJobs and MPIJobs to TrainingJobs.
    Convert(ConvertArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job submit train.yaml           TrainingJobs, or Kubeflow's TFJobs, PyTorchJobs and MPIJobs
  larder job submit train.yaml --wait && echo done
  kustomize build . | larder job submit -
  larder job submit --name a --type pytorch --image i --gpus 8 --queue vision -- torchrun train.py
  larder job submit --name b --image i --dataset imagenet:/data --queue vision -- python train.py
  larder job submit --name hello --image busybox --queue vision --dry-run -- echo hello

Resubmitting updates the mutable fields of an existing job; an unchanged job is left alone. A job \
that has ended does not start again: cancel it first, or use another name. With --wait, the command \
follows the jobs until they end and exits with 0 if all of them succeeded, otherwise with 1. Ctrl-C \
stops the command, not the jobs. Required permissions: `patch` on trainingjobs.larder.dev, `create` \
for new jobs, and with --wait `get` and `watch`.")]
pub(crate) struct SubmitArgs {
    /// YAML or JSON manifests of one or more jobs; - reads standard input.
    #[arg(value_name = "FILE", required_unless_present = "name")]
    pub(crate) files: Vec<PathBuf>,
    /// Wait until the jobs have ended, and report their progress.
    #[arg(long, short, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// Validate the jobs in the cluster and print their manifests, without submitting them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) quick: QuickArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job list
  larder job list resnet bert
  larder job list -n team-a --queue vision
  larder job list -A --json | jq -r '.[] | select(.phase == \"Queued\") | .job'

WHY is a single word; `larder explain job NAME` gives the full explanation. Required permission:
`list` on trainingjobs.larder.dev, or `get` for jobs by name.")]
pub(crate) struct ListArgs {
    /// List only these TrainingJobs, NAME or NAMESPACE/NAME. One that does not exist is an error.
    #[arg(value_name = "JOB", conflicts_with = "queue")]
    pub(crate) jobs: Vec<ObjectName>,
    /// List the jobs of all namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "jobs"])]
    pub(crate) all_namespaces: bool,
    /// List only the jobs of this queue.
    #[arg(long, value_name = "NAME", value_parser = plain_name)]
    pub(crate) queue: Option<String>,
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
  larder job logs resnet                        the launcher, or else the first pod
  larder job logs resnet -f                     follow, across replacement pods
  larder job logs resnet --role worker --index 3
  larder job logs resnet --all --tail 20        all pods, each line prefixed with ROLE-INDEX
  larder job logs resnet --previous             the previous pod, if it was retained

Control characters and colours are removed on a terminal and kept in a pipe. A job that is in \
another cluster is read there, with the context of your kubeconfig that has the name of the Cluster. \
Required permissions:
`get` on trainingjobs.larder.dev, `list` on pods and `get` on pods/log.")]
pub(crate) struct LogsArgs {
    /// The TrainingJob, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB")]
    pub(crate) job: ObjectName,
    /// The role of the pod. Default: launcher, or else the job's first role.
    #[arg(long, value_name = "ROLE", conflicts_with = "all", value_parser = plain_name)]
    pub(crate) role: Option<String>,
    /// The index of the pod in its role.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "all")]
    pub(crate) index: u32,
    /// Show all pods, prefixing each line with ROLE-INDEX.
    #[arg(long)]
    pub(crate) all: bool,
    /// Follow until the job ends, across replacement pods.
    #[arg(long, short, conflicts_with = "previous")]
    pub(crate) follow: bool,
    /// Show the previous pod of this index, if spec.keepPods retained it.
    #[arg(long)]
    pub(crate) previous: bool,
    /// Number of lines to show from the end of each log, or `all`.
    #[arg(long, value_name = "LINES", default_value = "1000", value_parser = tail)]
    pub(crate) tail: Tail,
    /// The container. Default: the pod's first container.
    #[arg(long, value_name = "NAME", value_parser = plain_name)]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print a JSON object for each line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The number of lines from the end; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail(pub(crate) Option<u32>);

fn tail(text: &str) -> Result<Tail, String> {
    if text == "all" {
        return Ok(Tail(None));
    }
    text.parse().map(|lines| Tail(Some(lines))).map_err(|_| "expected a number of lines or `all`".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job cancel resnet
  larder job cancel team-a/resnet team-a/bert --wait
  larder job cancel resnet --json | tee resnet.json
  larder job cancel resnet --suspend       stop its pods and keep the job, for `larder job resume`

The TrainingJob is deleted in the foreground: it is gone, with the logs of its pods, when its last \
pod is gone. The output says how far each job got; with --json it is the whole object. With --suspend \
the TrainingJob and its status are kept, and its quota is released. Required permissions: `get` and \
`delete` on trainingjobs.larder.dev, with --suspend `get` and `patch`, and with --wait `watch`.")]
pub(crate) struct CancelArgs {
    /// TrainingJobs, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB", required = true)]
    pub(crate) jobs: Vec<ObjectName>,
    /// Set spec.suspend: stop the pods and keep the job.
    #[arg(long)]
    pub(crate) suspend: bool,
    /// Wait until the jobs are deleted, or suspended with --suspend.
    #[arg(long, short)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print the jobs as they were before, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job resume resnet

The job goes back to its queue. When it starts, its program continues from its last checkpoint, if it \
writes checkpoints. Required permission: `patch` on trainingjobs.larder.dev.")]
pub(crate) struct ResumeArgs {
    /// TrainingJobs, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB", required = true)]
    pub(crate) jobs: Vec<ObjectName>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job convert tfjob.yaml > train.yaml
  kubectl get pytorchjobs -n team-a -o yaml | larder job convert -

Fields without a counterpart are reported on standard error. No cluster is needed.")]
pub(crate) struct ConvertArgs {
    /// YAML or JSON manifests of one or more jobs; - reads standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON, including the warnings.
    #[arg(long)]
    pub(crate) json: bool,
}
