//! The flags of `larder-bench memory`.

use std::time::Duration;

use clap::Args;
use larder_dataset::size::parse_duration;

use super::shared::{FolderArgs, NodeArgs, OutputArgs, RoundsArgs, SeedArgs, parse_one_block};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench memory
  larder-bench memory --readers 256 --origin-delay 40ms --json memory.json
  larder-bench memory --file-size 111KB --files 500         small files

All files of all datasets are read once, in random order, from an empty cache, while the resident
memory of larderd is sampled; the same readers also read one dataset alone. larderd takes its other
settings from the environment. The S3 server is part of this program and holds the datasets in
memory. The mounts are visible only to this program and its children, and nothing is left behind.")]
pub(crate) struct MemoryArgs {
    /// Number of datasets that are read at once.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) datasets: u32,
    /// Number of files in each dataset.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) files: u32,
    /// Size of each file, at most 4MiB, which one GET fetches.
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = parse_one_block)]
    pub(crate) file_size: u64,
    /// Number of threads that read.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// The --threads of larderd.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) origin_delay: Option<Duration>,
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
