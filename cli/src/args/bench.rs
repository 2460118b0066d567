//! The flags of `larder bench`.

mod epochs;
mod sim;

use std::ffi::OsString;

use clap::{Args, Subcommand};

pub(crate) use epochs::{Drop, EpochsArgs};
pub(crate) use sim::{PlacementFlag, SimArgs};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) benchmark: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time epochs over a directory: read every file, in a new random order each epoch.
    Epochs(EpochsArgs),
    /// Simulate caching policies over shuffled epochs: hit ratios for any size of dataset, cache and cluster.
    Sim(SimArgs),
    /// A benchmark of larder-bench.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}
