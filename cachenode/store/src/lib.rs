//! One node's cache: blocks that were fetched once and need not be fetched again.
//!
//! The cast: [`Store`] is a cache folder, owned by one process; [`DatasetCache`] is one snapshot's part of it. Blocks
//! lie in append-only `segment`s as [`record`]s that carry their own checksums; `slots` is the mapped table that says
//! where each block is; `index` is the RocksDB that restores the slots when they are lost; `reservations` remembers
//! what each dataset was promised, and `promises` the room that is kept for datasets, open or not; `aliases`
//! name the blocks that were adopted from another snapshot; [`policy`] decides what is kept; `health` pauses admissions
//! when the disk fails, and `free_share` when little of it is free; [`probe`] tests whether a folder can be written to;
//! [`Mapping`] is a mapped file whose disk errors do not end the process; `uses` knows which datasets must not be
//! released.
//!
//! Invariant: [`DatasetCache::read`] returns exactly the bytes that were admitted for this snapshot and block, whatever
//! happened to process, disk or folder in between. Everything else is a [`Lookup::Miss`] and a counter. A block has a
//! slot only while its complete record is on the disk.
//!
//! The store does not know where blocks come from or who reads them, and nothing in it is async:
//! [`DatasetCache::write`] and all of [`Store`] block, the rest is quick.
//!
//! Invariant: a record is verified (snapshot, block, length, CRC32C of each 64 KiB) each time it is read from disk; a
//! record that fails is a counted miss. A record that another snapshot wrote is verified by that snapshot and its block
//! there.

#![warn(missing_docs)]

mod aliases;
mod base;
mod buffer;
mod config;
mod counters;
mod dataset;
mod draft;
mod earlier;
mod error;
mod folder;
mod free_share;
mod health;
mod index;
mod info;
mod lookup;
mod mapping;
mod ownership;
pub mod policy;
pub mod probe;
mod promises;
pub mod record;
mod reservations;
mod segment;
mod slots;
mod store;
mod table;
mod usage;
mod uses;
mod write_error;

pub use config::{BlockLens, CacheConfig};
pub use counters::{Counter, StoreCounters};
pub use dataset::{AdmissionPermit, CacheUser, DatasetCache};
pub use draft::{Draft, Record};
pub use earlier::{Earlier, SameBlocks};
pub use error::StoreError;
pub use folder::{SharedFile, has_snapshot};
pub use info::DatasetInfo;
pub use lookup::{Lookup, PartBytes};
pub use mapping::Mapping;
pub use ownership::Ownership;
pub use policy::{Policy, build_policy};
pub use promises::Promise;
pub use reservations::{Reservation, disk_bytes};
pub use store::{Store, StoreConfig};
pub use usage::Usage;
pub use write_error::WriteError;
