//! The settings of the quickstart.

use std::path::PathBuf;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Epochs for each policy and size; at least 2.
    pub epochs: u32,
    /// Reader threads.
    pub readers: usize,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// An existing folder for all of it.
    pub folder: PathBuf,
}
