//! The flags of `larder explain`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use larder_controller_api::names::DatasetKey;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder explain dataset team-a/imagenet
  larder explain dataset team-a/imagenet --context training --json | jq -r .sentence")]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    pub(crate) what: Explained,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Explained {
    /// Say in one sentence why a Dataset is ready or not, what happens next, and what to do.
    Dataset(ExplainDatasetArgs),
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
    /// The kubeconfig file. Default: KUBECONFIG, ~/.kube/config, or the account of the pod.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
