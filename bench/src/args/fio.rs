//! The flags of `larder-bench fio`.

use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration, parse_rate};

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench fio                                          see bench/install-peers
  larder-bench fio --only ext4,larder --rounds 1 --size 256MiB --files 1000
  larder-bench fio --files 0 --json fio.json                only the large file
  larder-bench fio --files 0 --origin-delay 15ms --origin-connection-rate 60MB/s

The fio jobs are in bench/fio: one large file, read sequentially and at random; then many small
files in random order. The large file is a model in the safetensors format, whose tensors are also
loaded by three loaders, and an eighth of each as by one of eight ranks. The loaders of PyPI need
bench/install-peers --loaders; a missing one is listed below the table. Cold is a new mount with an
empty cache; warm has all data in the cache. The kernel's caches are dropped before each run, and no
offset is read twice. object_store GETs the large file without a filesystem, 16 ranges at a time.")]
pub(crate) struct FioArgs {
    /// Size of the large file.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_large_size)]
    pub(crate) size: u64,
    /// Number of small files, with a mean size of 111 KB; 0 skips them.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) files: u32,
    /// Stop a run after this many seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,
    /// Keep this many CPUs busy during each run, as loaders do that decode what they read.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) busy: u32,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) origin_delay: Option<Duration>,
    /// The S3 server sends at most this many bytes per second over each connection.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) origin_connection_rate: Option<u64>,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<3>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Parses the size of a file that four jobs share, each reading whole blocks of its quarter.
fn parse_large_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 4 << 20 => Ok(bytes),
        _ => Err("must be at least 4MiB".to_owned()),
    }
}
