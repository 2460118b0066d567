//! The engine of a node's cache: serves reads of a snapshot from the store, from peers, then from the origin.
//!
//! The cast, from the reader outwards: [`Dataset`] answers reads; [`fetch`] fetches what the store lacks, once per block
//! however many readers wait for it; `window` holds blocks that the store does not keep while they are being read; `ahead`
//! detects sequential readers; [`warm`] fills the store ahead of all readers; [`sharing`] knows which node owns a
//! block, and `ownership` which blocks of a dataset are this node's.
//! Around them: [`node`] has the store, all open datasets and the peers; [`process`] is the common part of the programs
//! `larderd` and `cachenode`. [`source`] resolves a URL or a path to a mapped manifest and its origin; [`counters`] counts;
//! [`stats`] is the document in which a mount describes itself.
//!
//! Invariants: [`Dataset::read_now`] never waits for the network. Bytes are those of the pinned snapshot, or the reader
//! gets an error. Nothing here knows of FUSE or mounts.

mod ahead;
pub mod counters;
pub mod dataset;
mod extent;
pub mod fetch;
pub mod home;
pub mod manifest_file;
pub mod node;
mod ownership;
pub mod process;
pub mod request;
pub mod sharing;
pub mod source;
pub mod stats;
pub mod warm;
mod window;

pub use counters::StatsCounters;
pub use dataset::{CacheSpec, Dataset, OpenError};
pub use fetch::{FetchConfig, FetchError};
pub use home::Home;
pub use manifest_file::{ManifestFile, ManifestFileError, MappedManifest, open_manifest};
pub use node::{Node, NodeConfig, NodeError, OpenDataset, PeerConfig};
pub use request::{Credentials, DatasetRequest, OriginLimits};
pub use sharing::Sharing;
pub use stats::{CacheStats, DatasetSummary, ProcessStats, Stats, WarmState};
pub use warm::WARM_IOCTL;
