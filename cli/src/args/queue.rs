//! The flags of `larder queue`.

use clap::Args;

use super::cluster::{ClusterArgs, NamespaceArgs, plain_name};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder queue                      all queues
  larder queue vision               its quota, and its waiting jobs in order
  larder queue vision --json | jq '.[0].waiting[].why'

Required permission: `list` on queues.larder.dev. Jobs are shown for all namespaces if you may list \
them, otherwise for the namespace of --namespace or of the context.")]
pub(crate) struct QueueArgs {
    /// The Queue. Default: all queues.
    #[arg(value_name = "NAME", value_parser = plain_name)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
