//! The flags of `larder-bench restart`.

use clap::Args;

use super::shared::{FolderArgs, NodeArgs, OutputArgs, RoundsArgs, SeedArgs, parse_small_file};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench restart                                      some minutes, most of them to publish
  larder-bench restart --mounts 100 --rounds 5 --json restart.json

larder-csi publishes a small dataset for each mount, and all files are read into larderd's cache.
Then larderd is killed with kill -9 and started again, while a reader waits at each mount. The time
counts from the start of larderd. The mounts are visible only to this program and its children, and
nothing is left behind.")]
pub(crate) struct RestartArgs {
    /// Number of mounts, each with its own dataset. Each needs a thread of this program.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) mounts: u32,
    /// Number of files in each dataset.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) files: u32,
    /// Size of each file.
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = parse_small_file)]
    pub(crate) file_size: u64,
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
