//! The flags of `larder-bench sync`.

use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration};

use super::shared::{FolderArgs, OutputArgs, RoundsArgs, SeedArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench sync
  larder-bench sync --files 100000 --transfers 128 --json sync.json
  larder-bench sync --files 200 --mean-size 4MB --origin-delay 40ms

Copies all objects of one embedded S3 server to another one, which is new and empty each time: with
the object_store crate, which checks nothing, with `rclone sync` if it is installed, and with
`larder sync`. Then rclone and Larder copy again, when nothing is missing. Each copy is read and
compared. The objects and one copy of them must fit into a third of the memory.")]
pub(crate) struct SyncArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(16..=10_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Number of objects that each program copies at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) transfers: u32,
    /// Both S3 servers answer each request after this time.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    pub(crate) origin_delay: Duration,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) seed: SeedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
