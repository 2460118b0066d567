//! The flags of the commands that check and report.

use std::path::PathBuf;

use clap::Args;
use larder_cachenode::process::parse_percent;

use super::cluster::ClusterArgs;
use super::origin::OriginArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder verify /data/train                     read every file of a mount and check it
  larder verify s3://bucket/imagenet            check that no object has changed since the import
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
  larder stats /data/train --json | jq .stats.metrics
  larder stats /data/train --cluster       the nodes that share their caches with this node
  larder stats --history                   the passes of all mounts, also of those that have ended

`hits` counts the bytes that the kernel read from Larder, its read-ahead included. Reads that the page
cache answers are not counted. Sizes are in KiB, MiB, GiB and TiB.")]
pub(crate) struct StatsArgs {
    /// A mount point. Default: all mounts on this machine.
    pub(crate) dir: Option<PathBuf>,
    /// Refresh every second, with the hit ratio since the last refresh.
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print one JSON document for each mount.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show how much of each mounted dataset every node of the cluster has cached, and how many bytes each node has
    /// read from other nodes and served to them since it started.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) cluster: bool,
    /// Show the passes over datasets that have ended, also of mounts that are gone: hits beside the promise, and for
    /// how long readers waited for what. They are kept in ~/.cache/larder, and those of
    /// larderd.service in /var/lib/larder/home.
    #[arg(long, conflicts_with_all = ["watch", "cluster", "dir"])]
    pub(crate) history: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder doctor                    check that `larder mount` works on this machine
  larder doctor --node             check the CSI driver, GPUs and RDMA on this node (as root)")]
pub(crate) struct DoctorArgs {
    /// Check this machine as a Kubernetes node that runs larder-csi, larderd and larder-devices.
    #[arg(long)]
    pub(crate) node: bool,
    /// The kubelet's directory.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", requires = "node")]
    pub(crate) kubelet_dir: PathBuf,
    /// The cache directory to check. Default with --node: /var/lib/larder/cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Share of the disk that the cache leaves free, as configured for larderd. Default with --node: 20%, otherwise
    /// 0%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) keep_free: Option<u8>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder version                   this command
  larder version --all             this machine's mounts and the cluster's programs, too

With --all, the exit code is 1 if the versions are too far apart to work together (docs/VERSIONS.md). Versions of \
a cluster are the tags of its images.")]
pub(crate) struct VersionArgs {
    /// Show the programs that serve this machine's mounts, and the programs and definitions of the cluster.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl exec -n larder-system ds/larder-devices -- larder devices
      the devices of one node; to choose the node, name its larder-devices pod
  larder devices --json | jq '.devices[] | select(.fault)'
      devices that are out of service")]
pub(crate) struct DevicesArgs {
    /// The --admin-address of larder-devices, which answers only within its own pod.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9470")]
    pub(crate) address: String,
    /// Print the report as JSON, as it is served.
    #[arg(long)]
    pub(crate) json: bool,
}
