//! The flags that several benchmarks share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use larder_dataset::size::parse_bytes;

/// The number of rounds; `ROUNDS` is the benchmark's default.
#[derive(Debug, Args)]
pub(crate) struct RoundsArgs<const ROUNDS: u32> {
    /// Number of rounds; each round measures everything once.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// A directory on the disk to measure. Default: a directory in ~/.cache/larder.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write the figures of every round to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SeedArgs {
    /// Seed of everything random: file contents and orders.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
}

/// The programs of a benchmark that runs a node.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The larderd to run. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) larderd: Option<PathBuf>,
    /// The larder-csi to run. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) csi: Option<PathBuf>,
}

/// Parses the size of a file that the kernel reads ahead at once.
pub(super) fn parse_small_file(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if (1..=1 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("must be between 1 byte and 1MiB".to_owned()),
    }
}

/// Parses the size of a file that is a single block.
pub(super) fn parse_one_block(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if (1..=4 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("must be between 1 byte and 4MiB".to_owned()),
    }
}

/// The part of a benchmark to run.
#[derive(Debug, Args)]
pub(crate) struct OnlyArgs<T: ValueEnum + Clone + Send + Sync + 'static> {
    /// Run only these, separated by commas. Default: all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<T>,
}

impl<T: ValueEnum + Clone + Send + Sync + 'static> OnlyArgs<T> {
    /// The chosen parts; all parts if the user chose none.
    pub(crate) fn chosen(&self) -> Vec<T> {
        if self.only.is_empty() { T::value_variants().to_vec() } else { self.only.clone() }
    }
}

/// The flags of a comparison of filesystems.
#[derive(Debug, Args)]
pub(crate) struct SideBySideArgs<const ROUNDS: u32> {
    #[command(flatten)]
    pub(crate) rounds: RoundsArgs<ROUNDS>,
    /// Measure only these systems: ext4, larder, "larder packed", juicefs, "juicefs tuned", mountpoint-s3, rclone,
    /// "rclone tuned", s3fs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
    /// Seed of everything random: file contents, offsets and orders.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
}

/// The flags of a benchmark that runs larder-controller in a cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// The larder-controller to run. Default: the one beside this program.
    #[arg(long, value_name = "PATH")]
    pub(crate) controller: Option<PathBuf>,
    /// The kubeconfig file of the cluster. Default: $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}
