//! One node's cache: blocks that were fetched once and need not be fetched again.
//!
//! Its parts: [`Store`] is a cache, in one folder or in several on different disks, owned by one process; `disk` is one
//! of these disks, and `pulse` says whether it answers; [`DatasetCache`] is the part of it that holds a snapshot's
//! blocks for one place and owner ([`larder_dataset::CacheKey`]). Blocks are in append-only `segment`s, as [`record`]s
//! that carry their own checksums; those of a `large_file` are in one file, each at its own offset, and the table of
//! its `pages` has their checksums. `slots` is the mapped table of each block's place; `index` is the RocksDB that
//! restores slots when they are lost. `reservations` stores each dataset's promise, `promises` the space that is kept
//! for datasets, open or not, and `quotas` the limits of namespaces; a list of either kind is `standing` until it is
//! replaced. `aliases` name the blocks that were adopted from another snapshot. [`policy`] decides which blocks are
//! kept. `health` pauses admissions when the disk fails, and [`FreeShare`] when little of it is free. [`probe`] tests
//! whether a folder can be written to. [`Mapping`] is a mapped file whose disk errors do not end the process.
//! `measured` keeps the disk use of datasets, and `uses` tracks those that must not be released.
//!
//! Invariant: [`DatasetCache::read`] returns exactly the bytes that were admitted for this snapshot and block, whatever
//! happened to the process, disk or folder since. Any other result is a [`Lookup::Miss`] and a counter. A block has a
//! slot only while its complete record is on the disk.
//!
//! The store does not depend on the source of the blocks or on their readers. Nothing in it is async:
//! [`DatasetCache::write`] and all methods of [`Store`] block; the other calls are quick.
//!
//! Invariant: a record is verified (snapshot, block, length, CRC32C of each 64 KiB) each time it is read from disk, and
//! so is a page of a large file (CRC-32). A record or page that fails verification is a counted miss. An adopted record
//! is verified against the snapshot that wrote it and the block's number in that snapshot.

#![warn(missing_docs)]

mod aliases;
mod base;
pub mod buffer;
mod config;
mod counters;
mod dataset;
mod disk;
mod draft;
mod earlier;
mod error;
mod folder;
mod free_share;
mod health;
mod index;
mod info;
mod key_file;
mod large_file;
mod lookup;
mod mapping;
mod measured;
mod memory;
mod ownership;
mod pages;
pub mod policy;
pub mod probe;
mod promises;
mod pulse;
mod quotas;
pub mod record;
mod reservations;
mod segment;
mod slots;
mod standing;
mod store;
mod table;
mod usage;
mod uses;
mod whole_file;
mod write_error;

pub use config::{BlockLens, CacheConfig, FileSpan};
pub use counters::{Counter, StoreCounters};
pub use dataset::{AdmissionPermit, CacheUser, DatasetCache};
pub use draft::{Draft, Record};
pub use earlier::{Earlier, SameBlocks};
pub use error::StoreError;
pub use folder::{FileId, SharedFile, has_snapshot};
pub use free_share::FreeShare;
pub use info::DatasetInfo;
pub use lookup::{Lookup, PartBytes};
pub use mapping::Mapping;
pub use ownership::Ownership;
pub use policy::{Policy, Sizes, Wish, build_policy};
pub use promises::Promise;
pub use quotas::Quota;
pub use reservations::{Reservation, disk_bytes};
pub use store::{Store, StoreConfig};
pub use usage::Usage;
pub use write_error::WriteError;
