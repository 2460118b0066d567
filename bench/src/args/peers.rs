//! The flags of `larder-bench peers`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration, parse_rate};

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench peers                                        about an hour; see bench/install-peers
  larder-bench peers --files 2000 --rounds 1                a quick run
  larder-bench peers --only larder --readers 64 --origin-delay 40ms --origin-rate 1GiB/s
  larder-bench peers --only ext4,larder,juicefs --json peers.json --plot peers.svg

All systems serve the same files from the same S3 server, which is part of this process. The same
reader reads them with 1, 4 and 16 threads: cold, from the local cache, and from the page cache.
Peers are searched for on PATH and in the directory of bench/install-peers. --folder needs space for
four times the dataset: the files and every cache. The mounts are visible only to this program and
its children, and nothing is left behind.")]
pub(crate) struct PeersArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(16..=10_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Numbers of reader threads. The largest number reads all files, the others read 4000.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) readers: Vec<u32>,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) origin_delay: Option<Duration>,
    /// The S3 server sends at most this many bytes per second, over all connections.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) origin_rate: Option<u64>,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<5>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
