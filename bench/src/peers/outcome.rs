//! The settings of a run, and its measurements.

use std::path::PathBuf;

use serde::Serialize;

use super::machine::Machine;
use crate::side_by_side::{LeftOut, State, SystemInfo};
use crate::systems::Kind;
use larder_epochs::epochs::Epoch;
use larder_epochs::figures::Spread;
use larder_epochs::fuse_requests::Requests;

/// The name of the row that reads objects without a filesystem.
pub const RAW: &str = "object_store";

/// The number of files that all but the largest number of readers read. Few readers are slow, and this many files
/// suffice for a stable rate.
pub(super) const FILES_OF_FEWER_READERS: u32 = 4000;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PeersConfig {
    /// Number of files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Numbers of reader threads, ascending. The largest number reads all files, the others 4000 of them.
    pub readers: Vec<u32>,
    /// Number of rounds.
    pub rounds: u32,
    /// The names of the systems to measure; all if empty.
    pub only: Vec<String>,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// How long the S3 server takes for each answer at least, in milliseconds.
    pub origin_delay_ms: u64,
    /// How many bytes per second it sends; any number if there is none.
    pub origin_bytes_per_second: Option<u64>,
    /// An existing folder on the disk to measure. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One epoch of one system, and its cost.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    pub system: String,
    /// The state of the caches at its start.
    pub state: State,
    /// Number of reader threads.
    pub readers: u32,
    /// The round, from 0.
    pub round: u32,
    /// The reader's result, with the reader's own CPU time.
    pub epoch: Epoch,
    /// Seconds of CPU of the daemon and of the metadata engine together.
    pub daemon_cpu_seconds: f64,
    /// Seconds of CPU of the S3 server; `None` where its client is in the same process.
    pub s3_cpu_seconds: Option<f64>,
    /// Resident memory of daemon and metadata engine after the epoch.
    pub rss_bytes: u64,
    /// Their peak resident memory since their start.
    pub peak_rss_bytes: u64,
    /// Requests of the kernel to the daemon; `None` if they cannot be counted.
    pub fuse: Option<Requests>,
    /// GET requests that the S3 server received.
    pub gets: u64,
    /// Bytes in the S3 server's responses to GET.
    pub get_bytes: u64,
    /// HEAD requests.
    pub heads: u64,
    /// LIST requests: one per page.
    pub lists: u64,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PeersOutcome {
    pub config: PeersConfig,
    /// The machine.
    pub machine: Machine,
    /// Size of the dataset.
    pub bytes: u64,
    /// Whether the S3 server had the objects in memory.
    pub objects_in_memory: bool,
    /// The systems, in the order of the rows.
    pub systems: Vec<SystemInfo>,
    /// The systems that were not measured, or not in every round.
    pub left_out: Vec<LeftOut>,
    /// Why FUSE requests were not counted; `None` if they were.
    pub no_fuse_requests: Option<String>,
    /// One entry per epoch.
    pub measurements: Vec<Measurement>,
}

impl PeersOutcome {
    /// The measurements of one system in all rounds.
    pub(super) fn of<'a>(
        &'a self,
        system: &'a str,
        state: State,
        readers: u32,
    ) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |one| one.system == system && one.state == state && one.readers == readers)
    }

    /// The spread of one system's figure over the rounds.
    pub(super) fn spread(
        &self,
        system: &str,
        state: State,
        readers: u32,
        figure: impl Fn(&Measurement) -> f64,
    ) -> Option<Spread> {
        Spread::of(self.of(system, state, readers).map(figure))
    }

    /// The largest number of readers, which reads all files.
    pub(super) fn most_readers(&self) -> u32 {
        self.config.readers.last().copied().unwrap_or_default()
    }

    /// Files per second of the fastest system of these kinds, with the largest number of readers.
    pub(super) fn best(&self, kinds: &[Kind], state: State) -> Option<f64> {
        let rate = |one: &Measurement| one.epoch.files_per_second;
        let systems = self.systems.iter().filter(|system| kinds.contains(&system.kind));
        let rates = systems.filter_map(|system| self.spread(&system.name, state, self.most_readers(), rate));
        rates.map(|spread| spread.median).max_by(f64::total_cmp)
    }
}
