//! The manifest: the index of one snapshot, and the inode table of its mounts.
//!
//! - [`ManifestBuilder`] builds a manifest in memory from rows in any order; `tree` numbers its folders. [`RowEncoder`]
//!   and [`Seal`] build one from rows in order, in constant memory.
//! - [`Manifest`] reads a manifest in place from any bytes, usually a mapped file, without parsing it. `sections` gives
//!   it only bytes whose checksum is right.
//! - `layout` is the format.
//! - A symbolic link is a row that names the row of the file or folder it leads to, so no link can leave the tree.
//! - [`Manifest::mirrored_at`] builds the manifest of a copy in another origin, with the same rows.
//! - [`Manifest::compare`] finds the files that two snapshots share.
//! - [`ManifestBytes`] are the bytes, some of which a failing disk may lose. [`BlockLens`] returns the lengths of
//!   blocks in order.
//!
//! A file's inode number follows from its row number, so any daemon that has the manifest can answer for any inode
//! number that an earlier daemon assigned.
//!
//! Invariant: every byte that is read was covered by a CRC when it was first touched. No bytes, however broken, make a
//! reader panic, loop or reach outside the file: the reader returns [`ManifestError::Corrupt`], including for bytes
//! that a disk loses after they were checked.
//!
//! Invariant: the time of the listing is in the header and not part of the snapshot's id (ADR 18).

mod block_lens;
mod builder;
mod built;
mod bytes;
mod compare;
mod contents_hash;
mod encoder;
mod error;
mod layout;
mod mirror;
mod read;
mod rows;
mod sections;
#[cfg(test)]
mod tests;
mod tree;
mod verify;
mod version_tag;

pub use block_lens::BlockLens;
pub use builder::{ManifestBuilder, PackObject, PackedFile, PlainFile};
pub use built::{BuildError, Built, RejectedKey};
pub use bytes::ManifestBytes;
pub use compare::{Comparison, FileChange};
pub use encoder::{DirRow, FileRow, RowEncoder, Seal, Sealed};
pub use error::ManifestError;
pub use read::{Manifest, check_header};
pub use rows::{
    Dir, DirIndex, Entry, File, FileBlocks, FileIndex, Link, LinkIndex, LinkTarget, Location, Mirrored, Pack, Totals,
};
pub use version_tag::VersionTag;
