//! The flags of `larder-bench spread`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration, parse_rate};

use super::shared::{FolderArgs, OutputArgs, RoundsArgs, SeedArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench spread
  larder-bench spread --nodes 8 --size 4GiB --origin-rate 200MiB/s --json spread.json

Each node is a larderd with an empty cache and a mount with --placement partitioned; the nodes
authenticate each other by TLS. All are on this machine and share its cores: choose an --origin-rate
that one node reaches easily, or the cores are what is measured. The mounts are visible only to this
program and its children, and nothing is left behind.")]
pub(crate) struct SpreadArgs {
    /// Number of nodes that read the file at once, beside one node.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) nodes: u32,
    /// Size of the file.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_file_size)]
    pub(crate) size: u64,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = parse_duration)]
    pub(crate) origin_delay: Duration,
    /// The S3 server sends at most this many bytes per second, over all connections.
    #[arg(long, value_name = "SIZE/s", default_value = "100MiB/s", value_parser = parse_rate)]
    pub(crate) origin_rate: u64,
    /// The larderd to run. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) larderd: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) seed: SeedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("must be at least 1 byte".to_owned()),
        bytes => Ok(bytes),
    }
}
