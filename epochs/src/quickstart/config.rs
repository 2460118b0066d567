//! The settings of the quickstart.

use std::path::PathBuf;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Number of files.
    pub files: u32,
    /// Mean file size in bytes.
    pub mean_size: u64,
    /// Number of epochs for each policy and cache size; at least 2.
    pub epochs: u32,
    /// Number of reader threads.
    pub readers: usize,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// An existing folder for the files, the store and the mount point.
    pub folder: PathBuf,
}
