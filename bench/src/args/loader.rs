//! The flags of `larder-bench loader`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_dataset::size::{parse_duration, parse_rate};

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench loader                              see bench/install-peers --loaders
  larder-bench loader --only ext4,larder --origin-delay 15ms
  larder-bench loader --accelerator 150            how long does it wait?
  larder-bench loader --python ~/venv/bin/python   another torch

Makes JPEGs and reads them with torch's DataLoader, which decodes them. Cold is a new mount with an
empty cache; warm is the next epoch of the same mount. The kernel's caches are dropped before each.
All systems must give the same samples in the same order. If that Python has the package larder too,
Larder is also read with a plan.")]
pub(crate) struct LoaderArgs {
    /// A Python that has torch and Pillow. Default: that of bench/install-peers --loaders, else python3.
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Number of JPEGs.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) files: u32,
    /// Worker processes of the loader; 0 loads in the process of the training loop.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=256))]
    pub(crate) workers: u32,
    /// Samples in a batch.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) batch: u32,
    /// Samples a second that the simulated accelerator takes; 0 takes them as they come.
    #[arg(long, value_name = "SAMPLES/s", default_value_t = 0.0, value_parser = parse_accelerator)]
    pub(crate) accelerator: f64,
    /// The S3 server answers each request after this time, as one that is far away.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) origin_delay: Option<Duration>,
    /// The S3 server sends at most this many bytes per second, over all connections.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    pub(crate) origin_rate: Option<u64>,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<3>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_accelerator(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate: &f64| (0.0..=1e9).contains(rate)).ok_or_else(|| "must be 0 or more".to_owned())
}
