//! One node's cache: the blocks that were fetched once and need not be fetched again.
//!
//! The cast: [`Store`] is a cache folder, owned by one process; [`DatasetCache`] is the part of it that one snapshot
//! has. Blocks lie in append-only `segment`s as [`record`]s that carry their own checksums; `slots` is the mapped table
//! that says where each block is; `index` is the RocksDB that knows it too when the slots were lost; [`policy`] decides
//! what is kept; `health` pauses admissions when the disk fails.
//!
//! Invariant: what [`DatasetCache::read`] hands out are the bytes that were admitted for exactly this snapshot and
//! block, whatever happened to process, disk or folder in between. Everything else is a [`Lookup::Miss`] and a counter.
//! A block has a slot only while its whole record is written.
//!
//! The store does not know where blocks come from or who reads them, and nothing in it is async: [`DatasetCache::write`]
//! and all of [`Store`] block, the rest is quick.

mod base;
mod buffer;
mod counters;
mod dataset;
mod error;
mod folder;
mod health;
mod index;
pub mod policy;
pub mod record;
mod segment;
mod slots;
mod store;

pub use counters::{Counter, StoreCounters};
pub use dataset::{DatasetCache, DatasetSpec, InMemory, Lens, Lookup, Reservation, Usage, WriteError};
pub use error::StoreError;
pub use index::EpochRecord;
pub use policy::{Policy, build_policy};
pub use record::{Draft, Record};
pub use store::{DatasetInfo, Store, StoreConfig};
