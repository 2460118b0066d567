//! The flags of `larder top` and `larder ui`.

use clap::Args;

use super::cluster::ClusterArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder top                       the mounts on this machine, each second; q ends it, s changes the order
  larder top --once                one table
  larder top --cluster             the caches of a cluster's nodes

HIT is the share of the bytes of the last 10 seconds that came from this cache; PASS is that of the last \
pass over the dataset, beside the promised one. WAITED is the share of the time in which readers waited.")]
pub(crate) struct TopArgs {
    /// Print one table instead of a screen. Output that is not a terminal gets a table each second.
    #[arg(long)]
    pub(crate) once: bool,
    /// Show the caches of a cluster's nodes instead of this machine's mounts. Required permission: `list` on
    /// nodecaches.larder.dev.
    #[arg(long)]
    pub(crate) cluster: bool,
    #[command(flatten)]
    pub(crate) of: ClusterArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder ui                        prints the page's address, which has a token
  larder ui --cluster --context training

The page is served on the loopback of this machine alone, by this command, until it is interrupted. It \
shows what the user who runs the command may see. From another machine, forward the port of --port: \
ssh -L 8800:127.0.0.1:8800 HOST.")]
pub(crate) struct UiArgs {
    /// Port on 127.0.0.1. Default: a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Show a cluster, too: its Datasets, queues, jobs and nodes.
    #[arg(long)]
    pub(crate) cluster: bool,
    #[command(flatten)]
    pub(crate) of: ClusterArgs,
}
