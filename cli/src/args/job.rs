//! The flags of `larder job`.

mod quick;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cluster::{ClusterArgs, NamespaceArgs, ObjectName, plain_name};
pub(crate) use quick::{Mounted, QuickArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job submit train.yaml --wait
  larder job list -A --queue vision
  larder job logs resnet -f
  larder job cancel resnet
  larder job convert tfjob.yaml > train.yaml")]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) what: JobCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Submit training jobs, from manifests or from flags.
    Submit(SubmitArgs),
    /// List training jobs: where each is, and why.
    List(ListArgs),
    /// Print what the pods of a job have written.
    Logs(LogsArgs),
    /// End jobs: delete them with their pods, or suspend them.
    Cancel(CancelArgs),
    /// Let suspended jobs go on.
    Resume(ResumeArgs),
    /// Print Kubeflow's TFJobs, PyTorchJobs and MPIJobs as TrainingJobs.
    Convert(ConvertArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job submit train.yaml           TrainingJobs, or TFJobs, PyTorchJobs, MPIJobs of Kubeflow
  larder job submit train.yaml --wait && echo done
  kustomize build . | larder job submit -
  larder job submit --name a --type pytorch --image i --replicas 4 --gpus 8 -- torchrun train.py
  larder job submit --name b --image i --dataset imagenet:/data --queue vision -- python train.py
  larder job submit --name hello --image busybox --dry-run -- echo hello

A job that is there already is changed where its spec can be; submitting it twice does nothing.
One that has ended does not start again: cancel it first, or give it another name. With --wait,
the command follows the jobs to their end and exits with 0 if all have succeeded, else with 1.
Ctrl-C ends the command and not the jobs. It needs the right to `patch` trainingjobs.larder.dev,
for new jobs `create` as well; with --wait `get` and `watch`.")]
pub(crate) struct SubmitArgs {
    /// Manifests, YAML or JSON, of one or several jobs; - for standard input.
    #[arg(value_name = "FILE", required_unless_present = "name")]
    pub(crate) files: Vec<PathBuf>,
    /// Follow the jobs to their end.
    #[arg(long, short, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// Have the cluster check the jobs, print their manifests, and submit nothing.
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
  larder job list -n team-a --queue vision
  larder job list -A --json | jq -r '.[] | select(.phase == \"Queued\") | .job'

WHY is one word; `larder explain job NAME` has the sentence. It needs the right to `list`
trainingjobs.larder.dev.")]
pub(crate) struct ListArgs {
    /// The jobs of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// The jobs of one queue.
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
  larder job logs resnet                        the launcher, else the first pod
  larder job logs resnet -f                     follow it, also into the pod that replaces it
  larder job logs resnet --role worker --index 3
  larder job logs resnet --all --tail 20        all pods, each line behind ROLE-INDEX
  larder job logs resnet --previous             the pod before the present one, if it is kept

On a terminal, control characters and colours are left out; a pipe gets every byte. It needs the
rights to `get` trainingjobs.larder.dev, to `list` pods and to `get` pods/log.")]
pub(crate) struct LogsArgs {
    /// The TrainingJob, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB")]
    pub(crate) job: ObjectName,
    /// The role of the pod. Default: launcher, or else the first role of the job.
    #[arg(long, value_name = "ROLE", conflicts_with = "all", value_parser = plain_name)]
    pub(crate) role: Option<String>,
    /// The index of the pod in its role.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "all")]
    pub(crate) index: u32,
    /// All pods of the job, each line behind ROLE-INDEX.
    #[arg(long)]
    pub(crate) all: bool,
    /// Go on until the job has ended, through pods that replace others.
    #[arg(long, short, conflicts_with = "previous")]
    pub(crate) follow: bool,
    /// The pod before the present one of its index. It is there if it ended and spec.keepPods keeps it.
    #[arg(long)]
    pub(crate) previous: bool,
    /// The last lines of each pod, or `all`.
    #[arg(long, value_name = "LINES", default_value = "1000", value_parser = tail)]
    pub(crate) tail: Tail,
    /// The container. Default: the first one of the pod.
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

/// How many of the last lines; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail(pub(crate) Option<u32>);

fn tail(text: &str) -> Result<Tail, String> {
    if text == "all" {
        return Ok(Tail(None));
    }
    text.parse().map(|lines| Tail(Some(lines))).map_err(|_| "is not a number of lines, nor `all`".to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job cancel resnet
  larder job cancel team-a/resnet team-a/bert --wait
  larder job cancel resnet --json | tee resnet.json
  larder job cancel resnet --suspend       end its pods, keep the job; `larder job resume` goes on

It deletes the TrainingJob: its pods are ended, and it is gone, with their logs, once the last of
them is (foreground deletion). A line, or with --json the whole object, says how far it was. With
--suspend the TrainingJob and its status stay, and its quota is free for others. It needs the
rights to `get` and `delete` trainingjobs.larder.dev, or to `patch` them with --suspend; with
--wait `watch`.")]
pub(crate) struct CancelArgs {
    /// TrainingJobs, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB", required = true)]
    pub(crate) jobs: Vec<ObjectName>,
    /// Set spec.suspend: end the pods, and keep the job.
    #[arg(long)]
    pub(crate) suspend: bool,
    /// Wait until the jobs are gone, or with --suspend until they are suspended.
    #[arg(long, short)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print the jobs as they were, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder job resume resnet

It waits in its queue again, and begins from its last checkpoint if its program has one. It needs
the right to `patch` trainingjobs.larder.dev.")]
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

What has no counterpart is named on standard error. It uses no cluster.")]
pub(crate) struct ConvertArgs {
    /// Manifests, YAML or JSON, of one or several jobs; - for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Print JSON, with the warnings.
    #[arg(long)]
    pub(crate) json: bool,
}
