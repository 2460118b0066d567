//! The flags of `larder import`, `larder pack` and `larder sync`, which make snapshots and copy them.

use std::path::PathBuf;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_rate};

use super::mount::RefreshFlag;
use super::origin::OriginArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder import s3://bucket/imagenet
  larder import s3://bucket/imagenet --to s3://bucket/imagenet/.larder/manifest    for every node
  larder import file:///datasets/coco --to coco.manifest

An interrupted import, even one killed with kill -9, resumes where it stopped when you run it again.")]
pub(crate) struct ImportArgs {
    /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory; or the URL of a manifest,
    /// which is copied to --to without listing anything.
    pub(crate) src: String,
    /// Name of the dataset. Default: the last part of SRC.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Write the manifest to this file or URL; may be repeated for URLs. `{snapshot}` is replaced by the snapshot's id.
    /// Default: where `larder mount SRC` finds it on this machine.
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) to: Vec<String>,
    /// If a manifest exists at this URL, use it instead of listing.
    #[arg(long, value_name = "URL")]
    pub(crate) unless_published: Option<String>,
    /// Write a short JSON report to this file, even if the import fails, for a pod's /dev/termination-log. With this
    /// flag, a --to that the credentials may not write to is reported but is not a failure.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Fail if --origin-credentials-dir is empty, for a pod whose Secret does not exist yet.
    #[arg(long, requires = "origin_credentials_dir")]
    pub(crate) require_credentials: bool,
    /// The files that jobs read first: a regular file with paths, directories and patterns, as for `larder warm
    /// --from`. The list is stored beside the manifest, and `larder warm` begins with it. Later imports keep it until
    /// it is replaced.
    #[arg(long, value_name = "FILE")]
    pub(crate) order: Option<PathBuf>,
    /// Show objects whose names end in .rclonelink, which rclone makes of symbolic links, as links. Each costs a
    /// request. The links of a directory need no flag. Later refreshes show links too if this listing has any.
    #[arg(long)]
    pub(crate) links: bool,
    /// Start over, discarding the listing of an unfinished import.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder pack s3://bucket/imagenet s3://bucket/imagenet-packed
  larder mount s3://bucket/imagenet-packed /data/train")]
pub(crate) struct PackArgs {
    /// The dataset to pack: a URL or a manifest file.
    pub(crate) src: String,
    /// The URL to write the packs and their manifest to.
    pub(crate) dst: String,
    /// Approximate size of a pack.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    pub(crate) pack_size: u64,
    /// Start over, discarding the packs of an unfinished run.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder sync s3://bucket/imagenet gs://bucket-eu/imagenet
  larder sync s3://bucket/imagenet s3://mirror/imagenet --endpoint http://ceph:8000 \\
      --to-endpoint http://minio:9000 --to-credentials-dir /run/secrets/minio
  larder sync s3://bucket/imagenet file:///mnt/disk/imagenet --dry-run

An interrupted copy, even one killed with kill -9, continues where it stopped when you run it again. DST gets the
manifest of a mirror last: the same files, and the snapshot of SRC that they are copies of.")]
pub(crate) struct SyncArgs {
    /// The dataset to copy: a URL or a manifest file.
    pub(crate) src: String,
    /// The URL of the mirror: a prefix of its own.
    pub(crate) dst: String,
    /// Show what would be copied and removed, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Maximum bytes per second to copy, such as 200MiB/s. Default: no limit.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) max_rate: Option<u64>,
    /// Remove the objects of DST that the snapshot does not have, once its manifest is stored. Without this flag
    /// nothing is removed.
    #[arg(long)]
    pub(crate) delete: bool,
    /// Copy the files into packs of about 64 MiB, as `larder pack` does.
    #[arg(long, conflicts_with_all = ["dry_run", "max_rate", "delete"])]
    pub(crate) pack: bool,
    /// List SRC again first: always, or if the last listing is older than this (--refresh=24h), as for `larder mount`.
    #[arg(
        long,
        value_name = "AGE|always|never|best-effort",
        num_args = 0..=1,
        require_equals = true,
        default_value = "never",
        default_missing_value = "always"
    )]
    pub(crate) refresh: RefreshFlag,
    /// The server of DST. Default: --endpoint, if both are of one kind of store or SRC is a directory.
    #[arg(long, value_name = "URL", help_heading = "Origin")]
    pub(crate) to_endpoint: Option<String>,
    /// The S3 region of DST. Default: --region, if both are of one kind of store or SRC is a directory.
    #[arg(long, value_name = "REGION", help_heading = "Origin")]
    pub(crate) to_region: Option<String>,
    /// Directory of the credentials for DST, as for --origin-credentials-dir. Default: those of SRC.
    #[arg(long, value_name = "DIR", help_heading = "Origin")]
    pub(crate) to_credentials_dir: Option<PathBuf>,
    /// Use the files of --to-credentials-dir whose names begin with this, such as eu. for eu.AWS_ACCESS_KEY_ID. If
    /// there are none, the credentials are those of SRC.
    #[arg(long, value_name = "PREFIX", requires = "to_credentials_dir", help_heading = "Origin")]
    pub(crate) to_credentials_prefix: Option<String>,
    /// Write a short JSON report to this file, even if the copy fails, for a pod's /dev/termination-log.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}
