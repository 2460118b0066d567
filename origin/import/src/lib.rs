//! Creates snapshots: converts an origin's listing to a manifest, packs small files, and verifies both.
//!
//! - [`import()`] lists an origin once, in parallel and resumably, into a manifest.
//! - [`count()`] lists an origin the same way and only counts.
//! - [`pack()`] writes a snapshot's files into packs, and the manifest of the packs.
//! - [`sync()`] copies a snapshot to a mirror, with a manifest that names the snapshot.
//! - [`DraftManifest`] is the result of an import; [`write_manifest`] and [`fetch_manifest`] store and fetch manifests.
//! - [`verify_origin`] compares an origin with a manifest.
//! - [`object_range`] locates a file's bytes; mounts use it too.
//! - [`DiskLimit`] bounds the disk space that an import or a fetched manifest takes.
//! - A journal lets a run continue after `kill -9`; [`Progress`] receives its progress.
//!
//! Invariant: a stored manifest is true. It names only objects that were listed, or packs and copies that were written
//! before it.
//! Nothing in this crate prints, mounts or caches.

#![warn(missing_docs)]

mod assemble;
mod blocking;
mod clock;
mod count;
mod disk;
mod draft;
mod import;
mod journal;
mod links;
mod listing;
#[cfg(test)]
mod memory;
mod object_range;
mod pack;
mod progress;
mod publish;
mod skipped;
mod sort;
mod sync;
mod verify;
mod version;

pub use count::{Counted, count};
pub use disk::{DiskLimit, DiskRoom};
pub use draft::{DraftManifest, remove_orphaned_drafts};
pub use import::{ImportError, ImportOptions, Imported, SkippedKey, import};
pub use journal::{JournalError, remove_old_journals};
pub use listing::ListError;
pub use object_range::{ObjectRange, object_range};
pub use pack::{PackError, PackOptions, Packed, pack};
pub use progress::{Progress, Silent};
pub use publish::{
    FetchedManifest, MANIFEST_KEY, PublishError, fetch_manifest, put_manifest, source_manifest_key, write_manifest,
};
pub use sync::{Before, SyncError, SyncOptions, Synced, check_mirror, sync};
pub use verify::{Problems, VerifyError, VerifyReport, verify_origin};
pub use version::version_of;
