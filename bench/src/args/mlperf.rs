//! The flags of `larder-bench mlperf`.

use std::path::PathBuf;

use clap::Args;
use larder_bench::mlperf::Workload;
use larder_dataset::size::parse_bytes;

use super::shared::{OutputArgs, SideBySideArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  larder-bench mlperf                                       see bench/install-dlio
  larder-bench mlperf --workloads resnet50-jpeg --only ext4,larder,juicefs
  larder-bench mlperf --size 100GiB --speed 1 --threads 32  a large machine

Runs DLIO, the engine of MLPerf Storage, with its training workloads. The first epoch begins with an
empty cache. The kernel's caches are dropped before each epoch, so the data need not be larger than
the memory. The figures are no submission to MLPerf Storage. --folder needs space for four times
--size.")]
pub(crate) struct MlperfArgs {
    /// The program dlio_benchmark of DLIO 2.0.0. Default: the one on PATH or of bench/install-dlio.
    #[arg(long, value_name = "PATH")]
    pub(crate) dlio: Option<PathBuf>,
    /// Run only these workloads.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_enum,
        default_value = "resnet50-jpeg,resnet50,unet3d,cosmoflow"
    )]
    pub(crate) workloads: Vec<Workload>,
    /// About the bytes of each workload's data; at least two batches.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    pub(crate) size: u64,
    /// Speed of the simulated accelerator; 1 is an H100.
    #[arg(long, value_name = "H100s", default_value_t = 0.1, value_parser = parse_speed)]
    pub(crate) speed: f64,
    /// Threads or processes that read. Default: one for each processor, at most 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// Epochs over one mount.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) epochs: u32,
    #[command(flatten)]
    pub(crate) systems: SideBySideArgs<1>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|speed: &f64| (0.001..=1000.0).contains(speed))
        .ok_or_else(|| "must be between 0.001 and 1000".to_owned())
}
