//! The domain of Larder: the parts of a dataset's snapshot.
//!
//! - [`name`] decides which origin keys can be file names.
//! - [`block`] splits files into the units of caching.
//! - [`manifest`] is the immutable index of a snapshot and the inode table of its mounts.
//! - [`placement`] decides which nodes own which blocks.
//! - [`selection`] finds the files that the lines of a list select.
//! - [`spec`] is a dataset as users describe it; [`size`], [`policy`] and [`refresh`] are the types of its values.
//!   [`written`] validates the text that users wrote, and [`mirrors`] what they wrote of its copies elsewhere.
//! - [`nodes`] chooses the nodes that hold a dataset, and [`score`] ranks nodes for a pod.
//!
//! Invariant: this crate is pure. It has no I/O, no clock, no logging and no async. The same input gives the same
//! answer on every node, so readers, schedulers and controllers cannot disagree.

#![warn(missing_docs)]

pub mod block;
mod cache_key;
mod chain;
mod checksum;
pub mod environment;
pub mod manifest;
pub mod mirrors;
pub mod name;
pub mod nodes;
pub mod ownership;
pub mod placement;
pub mod policy;
pub mod refresh;
pub mod score;
pub mod selection;
mod shell;
pub mod size;
pub mod snapshot;
pub mod spec;
pub mod written;

pub use block::{BLOCK_BYTES, BlockIndex, BlockPart, BlockRange};
pub use cache_key::{CacheId, CacheKey};
pub use chain::Chain;
pub use checksum::{crc32c, crc32c_append, crc32c_combine};
pub use manifest::{
    Dir, DirIndex, Entry, File, FileBlocks, FileIndex, Link, LinkIndex, LinkTarget, Location, Manifest,
    ManifestBuilder, ManifestBytes, ManifestError, Mirrored, Totals, VersionTag,
};
pub use name::{NameRules, Rejection};
pub use ownership::Ownership;
pub use placement::{Member, Members, Owners, PlaceKey, Placement, PlacementError};
pub use policy::{PolicyKind, UnknownPolicy};
pub use refresh::{InvalidRefresh, Refresh};
pub use shell::{larder_command, shell_word};
pub use snapshot::{InvalidSnapshotId, SnapshotId};
pub use spec::DatasetSpec;
