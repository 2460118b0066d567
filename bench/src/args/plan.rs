//! The flags of `larder-bench plan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration};

use super::shared::{FolderArgs, OutputArgs, RoundsArgs, SeedArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench plan
  larder-bench plan --files 20000 --rounds 5 --json plan.json --plot plan.svg

Reads all files through new mounts: by 1 and by 16 readers, with `larder plan` beside them and
without, and with everything cached; by a reader that takes 0.8 x of what it could have; while the
origin is silent; beside a plan that nobody reads; and with half of the dataset cached, at 200 MB/s.
--folder needs space for twice the dataset. The mounts are visible only to this program and its
children, and nothing is left behind.")]
pub(crate) struct PlanArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 6000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = parse_duration)]
    pub(crate) origin_delay: Duration,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) seed: SeedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Also read with 0 to 100 % of the dataset cached, and write a plot of the time lost to waiting to this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}
