//! The flags of the commands that check and report.

use std::path::PathBuf;

use clap::Args;

use super::origin::OriginArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder verify /data/train                     read every file of a mount and check it
  larder verify s3://bucket/imagenet            is every object still the one that was imported?
  larder verify s3://bucket/packed --deep       read every byte and check its checksum")]
pub(crate) struct VerifyArgs {
    /// A mount point, a URL or a manifest file.
    pub(crate) target: String,
    /// Read every byte at the origin.
    #[arg(long)]
    pub(crate) deep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder stats                     all mounts on this machine
  larder stats /data/train --watch
  larder stats /data/train --json | jq .metrics
  larder stats /data/train --cluster       the nodes that share their caches with this node")]
pub(crate) struct StatsArgs {
    /// A mount point. Default: all mounts on this machine.
    pub(crate) dir: Option<PathBuf>,
    /// Print every second, with the hit ratio since the last time.
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print one JSON document for each mount.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show how much of each mounted dataset every node of the cluster has cached.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) cluster: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder doctor                    does `larder mount` work on this machine?
  larder doctor --node             does the CSI driver work on this node? (as root)")]
pub(crate) struct DoctorArgs {
    /// Check this machine as a Kubernetes node, for larder-csi and larderd instead of `larder mount`.
    #[arg(long)]
    pub(crate) node: bool,
    /// The kubelet's folder.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", requires = "node")]
    pub(crate) kubelet_dir: PathBuf,
    /// The cache folder to check. Default with --node: /var/lib/larder/cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
