//! The domain of Larder: the parts of a dataset's snapshot.
//!
//! - [`name`] decides which origin keys can be file names.
//! - [`block`] splits files into the units of caching.
//! - [`manifest`] is the immutable index of a snapshot and the inode table of its mounts.
//! - [`placement`] decides which nodes own which blocks.
//! - [`selection`] finds the files that the lines of a list name.
//! - [`spec`] is a dataset as users describe it; [`size`], [`policy`] and [`refresh`] are parts of
//!   it. [`written`] checks the texts that they wrote.
//! - [`nodes`] chooses the nodes that hold a dataset, and [`score`] tells nodes apart for a pod.
//!
//! Invariant: everything here is pure. No I/O, no clock, no logging, no async: the same input gives the same answer on
//! every node, so readers, schedulers and controllers cannot disagree.

#![warn(missing_docs)]

pub mod block;
mod chain;
mod checksum;
pub mod environment;
pub mod manifest;
pub mod name;
pub mod nodes;
pub mod placement;
pub mod policy;
pub mod refresh;
pub mod score;
pub mod selection;
pub mod size;
pub mod snapshot;
pub mod spec;
pub mod written;

pub use block::{BLOCK_BYTES, BlockIndex, BlockPart, BlockRange};
pub use chain::Chain;
pub use checksum::{crc32c, crc32c_append, crc32c_combine};
pub use manifest::{
    Dir, DirIndex, Entry, File, FileBlocks, FileIndex, Location, Manifest, ManifestBuilder, ManifestBytes,
    ManifestError, Totals, VersionTag,
};
pub use name::{NameRules, Rejection};
pub use placement::{Member, Members, Owners, PlaceKey, Placement, PlacementError};
pub use policy::{PolicyKind, UnknownPolicy};
pub use refresh::{InvalidRefresh, Refresh};
pub use snapshot::{InvalidSnapshotId, SnapshotId};
pub use spec::DatasetSpec;
