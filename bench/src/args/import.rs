//! The flags of `larder-bench import`.

use clap::Args;

use super::shared::{FolderArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench import
  larder-bench import --keys 10000000 --rounds 1 --folder /nvme --json import.json
  larder-bench import --keys 0 --folder-entries 2000000    only a file:// directory
  larder-bench import --keys 100000000 --rounds 1 --skip-one-call

An embedded server lists generated objects. The benchmark imports them with one LIST call at a time
and with 16, lists them without importing, and imports them again after replacing 1 % of them. It
mounts the manifest, and finally imports a directory of empty files. Each import is a separate
process whose memory is reported. The directory needs an inode per entry, and 200 bytes of disk per
key.")]
pub(crate) struct ImportsArgs {
    /// Number of generated objects; 0 skips them.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub(crate) keys: u64,
    /// Skip the import with one LIST call at a time, which takes longer than all other steps together.
    #[arg(long)]
    pub(crate) skip_one_call: bool,
    /// Milliseconds that the server takes to answer with a page of 1,000 keys.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) page_ms: u64,
    /// Number of empty files in the directory; 0 skips it.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub(crate) folder_entries: u64,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
