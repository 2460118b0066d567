//! The flags of `larder-bench meta`.

use clap::Args;

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench meta                                         about 20 minutes with all peers
  larder-bench meta --only ext4,larder --rounds 1           a quick run
  larder-bench meta --files 0 --synthetic 10000000          only a synthetic manifest
  larder-bench meta --synthetic 0 --json meta.json

Files have 1 KiB, 200 to a folder. In each system, one thread walks the names (find), looks up
each file once in random order, and walks the tree again with the attributes of each file
(ls -l); the kernel's caches are dropped before each step. Then 16 threads look up each file
again. Only larder mounts the synthetic manifests, whose files do not exist; making one takes
200 MB of memory per million files.")]
pub(crate) struct MetaArgs {
    /// Number of files; 0 measures only synthetic manifests.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub(crate) files: u32,
    /// Numbers of files of the synthetic manifests; 0 measures none.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1000000,10000000",
        value_parser = clap::value_parser!(u32).range(0..=100_000_000)
    )]
    pub(crate) synthetic: Vec<u32>,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<5>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
