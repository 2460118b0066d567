//! The flags of `larder import` and `larder pack`, which make snapshots.

use std::path::PathBuf;

use clap::Args;
use larder_dataset::size::parse_bytes;

use super::origin::OriginArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder import s3://bucket/imagenet
  larder import s3://bucket/imagenet --to s3://bucket/imagenet/.larder/manifest    for every node
  larder import file:///datasets/coco --to coco.manifest

An interrupted import, even one ended by kill -9, resumes where it stopped when you run it again.")]
pub(crate) struct ImportArgs {
    /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder; or the URL of a manifest, which
    /// is stored again at --to and lists nothing.
    pub(crate) src: String,
    /// Name of the dataset. Default: the last part of SRC.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Write the manifest to this file or URL; may be repeated for URLs. `{snapshot}` in it stands for the snapshot's
    /// id. Default: the place where `larder mount SRC` finds it on this machine.
    #[arg(long, value_name = "FILE|URL")]
    pub(crate) to: Vec<String>,
    /// If there is a manifest at this URL, use that one and list nothing.
    #[arg(long, value_name = "URL")]
    pub(crate) unless_published: Option<String>,
    /// Write a short report as JSON to this file, also when the import fails: what a pod leaves at
    /// /dev/termination-log. With it, a place that the credentials may not write to is reported and is no failure.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The files that jobs read first: a list of paths, folders and patterns, as `larder warm --from` takes it, in a
    /// regular file. It is kept beside the manifest, and a plain `larder warm` begins with it. Later imports keep it
    /// until there is another one.
    #[arg(long, value_name = "FILE")]
    pub(crate) order: Option<PathBuf>,
    /// Start over, even if an unfinished import has listed files already.
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
    /// URL to write the packs and their manifest to.
    pub(crate) dst: String,
    /// Approximate size of a pack.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    pub(crate) pack_size: u64,
    /// Start over, even if an unfinished run has packed files already.
    #[arg(long)]
    pub(crate) restart: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) origin: OriginArgs,
}
