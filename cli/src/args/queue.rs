//! The flags of `larder queue`.

use clap::Args;

use super::cluster::{ClusterArgs, NamespaceArgs, plain_name};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder queue                      all queues
  larder queue vision               its quota, and its jobs in the order in which they wait
  larder queue vision --json | jq '.[0].waiting[].why'

It needs the right to `list` queues.larder.dev. Jobs are those of all namespaces that you may
list, or else of one: that of --namespace or of the context.")]
pub(crate) struct QueueArgs {
    /// A Queue. Default: all.
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
