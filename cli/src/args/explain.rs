//! The flags of `larder explain`.

use clap::{Args, Subcommand};
use larder_controller_api::names::DatasetKey;

use super::cluster::{ClusterArgs, JobName, NamespaceArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain job team-a/resnet
  larder explain job resnet --context training --json | jq -r .sentence")]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) what: Explained,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Explained {
    /// Say in one sentence why a Dataset is ready or not, what happens next, and what to do.
    Dataset(ExplainDatasetArgs),
    /// Say in one sentence what a TrainingJob waits for, how it runs or how it ended, and what to do.
    Job(ExplainJobArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain dataset team-a/imagenet --context training --json | jq -r .sentence

It reads the Dataset and nothing else, with the rights of the kubeconfig (`get` on datasets.larder.dev).")]
pub(crate) struct ExplainDatasetArgs {
    /// The Dataset.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) dataset: DatasetKey,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain job resnet
  larder explain job team-a/resnet --context training --json | jq -r .sentence

It reads the TrainingJob (`get` on trainingjobs.larder.dev). With the rights to `list` the
TrainingJobs of all namespaces, queues.larder.dev and priorityclasses.scheduling.k8s.io, it also
says what the queue lacks, which jobs are before it and which one ends next.")]
pub(crate) struct ExplainJobArgs {
    /// The TrainingJob, NAME or NAMESPACE/NAME.
    #[arg(value_name = "JOB")]
    pub(crate) job: JobName,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
