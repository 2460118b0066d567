//! The flags of `larder-bench outage`.

use clap::Args;

use super::shared::{FolderArgs, NodeArgs, OutputArgs, RoundsArgs, SeedArgs, parse_small_file};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench outage
  larder-bench outage --hanging 4000 --readers 16 --rounds 5 --json outage.json

A part of a dataset is read into the cache and then timed alone. Then the S3 server stops answering,
posix_fadvise(WILLNEED) makes the kernel read the other files, and the cached part is timed again
while these reads hang. Each round starts with an empty cache. The mounts are visible only to this
program and its children, and nothing is left behind.")]
pub(crate) struct OutageArgs {
    /// Number of uncached files whose reads hang.
    #[arg(long, default_value_t = 1100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) hanging: u32,
    /// Number of cached files, each of which is timed once in a round.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) cached: u32,
    /// Size of each file, at most 1MiB, which the kernel reads ahead at once.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_small_file)]
    pub(crate) file_size: u64,
    /// Number of threads that read cached files.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) seed: SeedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
