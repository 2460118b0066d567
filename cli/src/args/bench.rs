//! The flags of `larder bench`, one struct a benchmark.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Read all files of a folder, in a new order each epoch, and time it.
    Epochs(EpochsArgs),
}

/// What is dropped before each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drop {
    /// Nothing: later epochs come from the kernel's page cache.
    None,
    /// The pages of each file once it is read, so that every epoch comes from the cache disk or the origin.
    Pages,
    /// All the kernel's caches (as root).
    All,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder bench epochs /data/train --epochs 3 --readers 16
  larder bench epochs /data/train --drop pages --plot epochs.svg --json epochs.json")]
pub(crate) struct EpochsArgs {
    /// A mount, or any other folder to compare with.
    pub(crate) dir: PathBuf,
    /// Epochs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: u32,
    /// Reader threads.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// What to drop before each epoch.
    #[arg(long, value_enum, default_value_t = Drop::None)]
    pub(crate) drop: Drop,
    /// Seed of the shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Where to draw a plot.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
