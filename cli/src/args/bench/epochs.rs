//! The flags of `larder bench epochs`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Which kernel caches to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drop {
    /// Drop nothing: later epochs are read from the page cache.
    None,
    /// Drop each file's pages after reading it, so that every epoch is read from the cache disk or the origin.
    Pages,
    /// Drop all of the kernel's caches before each epoch (needs root).
    All,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench epochs /data/train --epochs 3 --readers 16
  larder bench epochs /data/train --drop pages --plot epochs.svg --json epochs.json

MB/s are 10^6 bytes per second.")]
pub(crate) struct EpochsArgs {
    /// A mount point, or any other directory for comparison.
    pub(crate) dir: PathBuf,
    /// Number of epochs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: u32,
    /// Reader threads.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// Which kernel caches to drop.
    #[arg(long, value_enum, default_value_t = Drop::None)]
    pub(crate) drop: Drop,
    /// Read only the first N files of each epoch's order.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Read the files on this list instead of all files in DIR, and verify them. Each line is SIZE CRC32C PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) expect: Option<PathBuf>,
    /// Seed of the shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
