//! The FUSE front of Larder: serves the files of a snapshot from the store, then the origin.
//!
//! The cast, from the kernel inwards: [`mount`] makes a mount and ends it; `fuse` decodes requests and replies, and decides
//! nothing; `filesystem` answers names, attributes and folders out of the manifest; [`Dataset`] answers reads; `fetch`
//! brings in what the store lacks, once per block however many wait for it; `about` makes the files below `.larder`;
//! [`errno`] is the only place where an error becomes an errno. Around them: [`source`] finds datasets, [`connection`] serves a
//! mount that somebody else made, [`daemon`] is all of it for many mounts at once, which `larderd` and `larder mount` run.
//!
//! Invariants: a FUSE thread never waits for the network. Bytes are those of the pinned snapshot, or the reader gets an
//! error.

mod about;
mod ahead;
mod chain;
pub mod connection;
pub mod daemon;
mod dataset;
pub mod errno;
mod fetch;
mod filesystem;
mod fuse;
pub mod home;
mod inode;
mod manifest_file;
pub mod mount;
pub mod process;
mod sharing;
pub mod source;
mod stats;
mod warm;
mod window;

pub use dataset::{CacheSpec, Dataset, DatasetConfig, OpenError};
pub use fetch::FetchError;
pub use home::Home;
pub use manifest_file::{ManifestFile, ManifestFileError, MappedManifest, open_manifest};
pub use mount::{MountConfig, MountError, Mounted};
pub use sharing::Sharing;
pub use stats::{CacheStats, DatasetStats, ProcessStats, Stats, StatsCounters};
pub use warm::{WARM_IOCTL, WarmState};
