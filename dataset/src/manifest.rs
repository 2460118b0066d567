//! The manifest: the index of one snapshot, and the inode table of its mounts.
//!
//! - [`ManifestBuilder`] makes one in memory from rows in any order; `tree` numbers its folders. [`RowEncoder`] and
//!   [`Seal`] make one of rows that come in order, in constant memory.
//! - [`Manifest`] reads one in place over any bytes, usually a mapped file, without parsing it; `sections` gives it
//!   only bytes whose checksum is right.
//! - `layout` is the format.
//! - [`Manifest::compare`] says which files two snapshots share.
//! - [`ManifestBytes`] are the bytes, of which a failing disk may lose some; [`BlockLens`] gives blocks' lengths in
//!   order.
//!
//! A file's inode number is its row number, so any daemon that has the manifest can answer for any inode that an
//! earlier daemon gave out.
//!
//! Invariant: everything that is read was covered by a CRC when it was first touched, and no bytes, however broken,
//! make a reader panic, loop or reach outside the file: they give [`ManifestError::Corrupt`]. So do bytes that a disk
//! loses after that.
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
pub use read::Manifest;
pub use rows::{Dir, DirIndex, Entry, File, FileBlocks, FileIndex, Location, Pack, Totals};
pub use version_tag::VersionTag;
