//! The flags of `larder-bench peers`.

use std::path::PathBuf;

use clap::Args;
use larder_dataset::size::parse_bytes;

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench peers                                        about an hour; see bench/install-peers
  larder-bench peers --files 2000 --rounds 1                a quick run
  larder-bench peers --only ext4,larder,juicefs --json peers.json --plot peers.svg

All systems serve the same files from the same S3 server, which is part of this process. The same
reader reads them with 1, 4 and 16 threads: cold, from the local cache, and from the page cache.
Peers are searched for on PATH and in the folder of bench/install-peers. Nothing is left behind:
only this command and its children see the mounts.")]
pub(crate) struct PeersArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(16..=10_000_000))]
    pub(crate) files: u32,
    /// Mean file size; sizes lie between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Numbers of reader threads. The largest number reads all files, the others 4000.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) readers: Vec<u32>,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<5>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
