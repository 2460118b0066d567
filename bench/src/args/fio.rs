//! The flags of `larder-bench fio`.

use clap::Args;
use larder_dataset::size::parse_bytes;

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench fio                                          see bench/install-peers
  larder-bench fio --only ext4,larder --rounds 1 --size 256MiB --files 1000
  larder-bench fio --files 0 --json fio.json                only the large file

The jobs are those of bench/fio: one large file, read in pieces of 1 MiB and at random offsets in
pieces of 4 KiB and 128 KiB; then many small files in random order. Cold is a new mount with an
empty cache; warm has everything in the cache. The kernel's caches are dropped before each run,
and no offset is read twice.")]
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
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<3>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Bytes of a file that four jobs divide into quarters of whole pieces.
fn parse_large_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 4 << 20 => Ok(bytes),
        _ => Err("give at least 4MiB".to_owned()),
    }
}
