//! The flags of `larder-bench far-origin`.

use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration, parse_rate};

use super::shared::{FolderArgs, OutputArgs, RoundsArgs, SeedArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench far-origin
  larder-bench far-origin --files 100000 --gets 1024 --origin-rate 1GiB/s --json far.json
  larder-bench far-origin --readers 256 --origin-delay 15ms

Reads all files once through a new mount, and warms another new mount. The object_store crate GETs
the same objects from the same S3 server, with as many GETs in flight as Larder may have. All four
take turns in each round. --folder needs space for twice the dataset. The mounts are visible only to
this program and its children, and nothing is left behind.")]
pub(crate) struct FarOriginArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(16..=10_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Number of threads that read in the cold epoch. Each has one read in flight.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// Maximum number of GETs in flight of Larder (its --origin-concurrency), and of object_store beside the warm-up.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) gets: u32,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = parse_duration)]
    pub(crate) origin_delay: Duration,
    /// The S3 server sends at most this many bytes per second, over all connections.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) origin_rate: Option<u64>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) seed: SeedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
