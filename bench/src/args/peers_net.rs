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
  larder-bench peers-net --only raw-tls,peer-tls --record-size 4MiB --lanes 4

Every server is a separate process on this machine. Raw TCP uses a connection and a thread per
reader. With raw-tcp neither end inspects the data; with raw-summed both ends compute its checksum,
as peers do. raw-tls uses the TLS library of peers, with their version, ciphers and certificates.
Without raw-tcp or raw-tls the table lacks the ratios to it.")]
pub(crate) struct PeersNetArgs {
    /// Sizes of a single read, up to 4MiB.
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
    /// Number of connections to a peer. Default: that of larderd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) lanes: Option<u32>,
    /// Duration of each measurement, in seconds.
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
    /// Serve with these settings (JSON); used by the benchmark itself.
    #[arg(long, hide = true)]
    pub(crate) serve: Option<String>,
}

/// Parses the size of a record, at most the size of a block.
fn parse_record_size(text: &str) -> Result<u32, String> {
    match parse_bytes(text)? {
        bytes if (1..=4 << 20).contains(&bytes) => Ok(bytes as u32),
        _ => Err("must be between 1 byte and 4MiB".to_owned()),
    }
}
