//! The engine of a node's cache: serves reads of a snapshot from the store, from peers, then from the origin.
//!
//! The cast, from the reader outwards: [`Dataset`] answers reads; [`fetch`] fetches what the store lacks, once per
//! block however many readers wait for it; `window` holds blocks that the store does not keep while they are being
//! read; `ahead` detects sequential readers, and `tensors` readers of models; [`plan`] fetches what programs say that
//! they will read, which `planned` holds until then; [`warm`] fills the store ahead of all readers; [`sharing`] knows
//! which node owns a block, and `ownership` which blocks of a dataset are this node's; `earlier` compares the dataset
//! with an earlier snapshot.
//! Around them: [`node`] has the store, all open datasets and the peers; [`process`] is the common part of the programs
//! `larderd` and `cachenode`, and `folder` says what to do about a folder that is not writable. [`source`] resolves a
//! URL or a path to a mapped manifest and its origin, [`kept_listing`] is what this machine has listed, which `renewal`
//! explains how to renew, and `kept_manifests` what it keeps of it for mounts and later snapshots; `memory` divides the
//! memory of the process among all datasets; `mirrors` reads from several origins as if they were one; and
//! [`allocator`] limits what the C library keeps; [`importing`] has an origin listed by a process of its own, which is
//! [`importer_process`]; [`counters`] counts, `stalls` knows what readers wait for, `passes` divides what was counted
//! into passes over the dataset, which [`history`] keeps; [`stats`] is the document in which a mount describes itself.
//!
//! Invariants: [`Dataset::read_now`] never waits for the network. Bytes are those of the pinned snapshot, or the reader
//! gets an error. Nothing here knows of FUSE or mounts.

#![warn(missing_docs)]

mod ahead;
pub mod allocator;
pub mod counters;
pub mod dataset;
mod earlier;
mod error_kind;
mod extent;
pub mod fetch;
mod folder;
pub mod history;
pub mod home;
pub mod importer_process;
pub mod importing;
pub mod kept_listing;
mod kept_manifests;
mod log_pace;
pub mod manifest_file;
mod memory;
mod mirrors;
pub mod node;
mod ownership;
mod passes;
pub mod plan;
mod planned;
pub mod process;
mod renewal;
pub mod request;
pub mod sharing;
pub mod source;
mod stalls;
pub mod stats;
mod tensors;
pub mod warm;
mod window;

pub use counters::StatsCounters;
pub use dataset::{CacheSpec, Dataset, OpenError};
pub use fetch::{FetchConfig, FetchError};
pub use folder::FolderRefused;
pub use history::PassRecord;
pub use home::{Home, HomeLimits};
pub use larder_origin::Caller;
pub use manifest_file::{ManifestFile, ManifestFileError, MappedManifest, open_manifest, order_of, put_order};
pub use memory::MemoryBudget;
pub use node::{Node, NodeConfig, NodeError, OpenDataset, PeerConfig};
pub use passes::Pass;
pub use plan::{PageCache, PlanRefused, PlanSource};
pub use request::{Credentials, DatasetRequest, MirrorRequest, OriginLimits, PodVolume};
pub use sharing::Sharing;
pub use stalls::Cause;
pub use stats::{
    CacheStats, DatasetSummary, ListingStats, OriginStats, ProcessStats, StallStats, Stats, TimesStats, WarmState,
};
pub use warm::list_part::{WARM_LIST_IOCTL, WarmListPart};
pub use warm::{ListRefused, WARM_IOCTL};
