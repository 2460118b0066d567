//! The flags of `larder cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder cache ls
  larder cache ls --json | jq '.[] | select(.pinned)'
  larder cache rm imagenet
  larder cache pin imagenet --cache-dir /nvme/larder

On a Kubernetes node, the controller decides what the cache keeps: declare a Dataset instead of a pin, \
and annotate it with larder.dev/clean instead of `rm`.")]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List the datasets in the cache, mounted or not.
    #[command(alias = "list")]
    Ls(CacheListArgs),
    /// Drop what is cached of a dataset that is not mounted.
    #[command(alias = "remove")]
    Rm(CacheNameArgs),
    /// Keep a dataset's room in the cache also while it is not mounted, so that no other dataset gets it.
    Pin(CacheNameArgs),
    /// End a pin. The blocks stay until other datasets need their room.
    Unpin(CacheNameArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CacheListArgs {
    #[command(flatten)]
    pub(crate) place: CachePlace,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CacheNameArgs {
    /// The dataset's name, or the first digits of its id.
    #[arg(value_name = "NAME|ID")]
    pub(crate) dataset: String,
    #[command(flatten)]
    pub(crate) place: CachePlace,
}

/// The cache that a command is about.
#[derive(Debug, Args)]
pub(crate) struct CachePlace {
    /// The cache directory. Default: that of the larderd.service of this machine for root, otherwise
    /// ~/.cache/larder/store.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// The directory of larderd's socket, if it is not the cache directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}
