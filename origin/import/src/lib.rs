//! Makes snapshots: an origin's listing becomes a manifest, small files become packs, and both can be checked.
//!
//! - [`import`](import::import) lists an origin once, in parallel and resumable, into a manifest.
//! - [`pack`](pack::pack) writes a snapshot's files into packs, and the manifest of these.
//! - [`publish`] stores manifests and fetches them.
//! - [`verify_origin`] compares an origin with a manifest.
//! - [`object_range`] says where a file's bytes are; the mount uses it too.
//! - [`journal`] is what lets a run go on after `kill -9`; [`Progress`] hears how far it is.
//!
//! Invariant: a manifest that is stored is true: it names only what was listed, or packs that were written before it.
//! Nothing here prints, mounts or caches.

pub mod import;
pub mod journal;
mod listing;
#[cfg(test)]
mod memory;
pub mod pack;
mod progress;
pub mod publish;
pub mod source;
pub mod verify;

pub use import::{ImportError, ImportOptions, Imported, SkippedKey, import};
pub use listing::ListError;
pub use pack::{PackError, PackOptions, Packed, pack};
pub use progress::{Progress, Silent};
pub use publish::{Fetched, MANIFEST_KEY, PublishError, fetch_manifest, put_manifest, write_manifest};
pub use source::{ObjectRange, object_range};
pub use verify::{Problems, VerifyError, VerifyReport, verify_origin};
