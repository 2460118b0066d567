//! The flags of `larder-bench import`.

use clap::Args;

use super::shared::{FolderArgs, OutputArgs, RoundsArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench import
  larder-bench import --keys 10000000 --rounds 1 --folder /nvme --json import.json
  larder-bench import --keys 0 --folder-entries 2000000    only a file:// folder
  larder-bench import --keys 100000000 --rounds 1 --skip-one-call

An embedded server lists made-up objects. They are imported with one LIST call at a time and with
16, only listed, and imported again after 1 % of them were replaced; the manifest is mounted; then
a folder of empty files is imported. Each import is a process of its own, whose memory is told.
The folder needs an inode for each entry, and 200 bytes of disk for each key.")]
pub(crate) struct ImportsArgs {
    /// Number of made-up objects; 0 measures none.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub(crate) keys: u64,
    /// Leave out the import with one LIST call at a time, which takes longer than all the others together.
    #[arg(long)]
    pub(crate) skip_one_call: bool,
    /// Milliseconds in which the server answers with a page of 1,000 keys.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) page_ms: u64,
    /// Number of empty files of the folder; 0 measures none.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub(crate) folder_entries: u64,
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<3>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
