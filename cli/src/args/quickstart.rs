//! The flags of `larder quickstart`.

use std::path::PathBuf;

use clap::Args;
use larder_dataset::size::parse_bytes;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder quickstart
  larder quickstart --files 200 --epochs 3                  a quick run
  larder quickstart --keep /tmp/larder --json result.json   keep the data and the figures")]
pub(crate) struct QuickstartArgs {
    /// Number of files in the dataset.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub(crate) files: u32,
    /// Mean file size. Sizes are between 16 KB and 5 MB.
    #[arg(long, value_name = "SIZE", default_value = "111KB", value_parser = parse_bytes)]
    pub(crate) mean_size: u64,
    /// Number of epochs per policy and cache size.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) epochs: u32,
    /// Number of reader threads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) readers: u32,
    /// Seed of the files and the shuffles.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Use this directory for data, cache and mounts instead of a temporary one, and keep it.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Write the plot to this file.
    #[arg(long, value_name = "FILE.svg", default_value = "quickstart.svg")]
    pub(crate) plot: PathBuf,
    /// Also write all figures to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
