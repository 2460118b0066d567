//! The flags of `larder-bench peers-net`.

use clap::Args;
use larder_bench::peers_net::ServerKind;
use larder_dataset::size::parse_bytes;

use super::shared::{FolderArgs, OnlyArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench peers-net
  larder-bench peers-net --record-size 111KB --readers 1,16,64 --seconds 10 --json net.json
  larder-bench peers-net --only raw-tcp,peer --record-size 4MiB

Every server is a separate process on this machine. Raw TCP has a connection and a thread for
each reader. Its bytes are not inspected, or (raw-summed) both ends compute their checksum, as
peers do.")]
pub(crate) struct PeersNetArgs {
    /// Sizes of one read, up to 4MiB.
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "111KB,1MiB,4MiB",
        value_parser = parse_record_size
    )]
    pub(crate) record_size: Vec<u32>,
    /// Numbers of concurrent reads.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,16",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub(crate) readers: Vec<u32>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    #[command(flatten)]
    pub(crate) only: OnlyArgs<ServerKind>,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<5>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Serve with these settings (JSON); used by the command itself.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<String>,
}

/// Bytes of a record, at most those of a block.
fn parse_record_size(text: &str) -> Result<u32, String> {
    match parse_bytes(text)? {
        bytes if (1..=4 << 20).contains(&bytes) => Ok(bytes as u32),
        _ => Err("give 1 byte to 4MiB".to_owned()),
    }
}
