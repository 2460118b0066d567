//! Objects in the store.
//!
//! The invariant: an [`Object`] never changes, so its tag always matches its bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use bytes::Bytes;

/// The bytes of an object, or where to find them.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Memory(Bytes),
    File { path: PathBuf, len: u64 },
}

/// One version of an object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) content: Content,
    /// The entity tag, without quotes.
    pub(crate) etag: String,
    pub(crate) modified: SystemTime,
    /// The modification time, formatted for a `Last-Modified` header.
    pub(crate) http_date: String,
    /// The number of GETs of the key, over all of its versions.
    pub(super) gets: Arc<AtomicU64>,
}

impl Object {
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File { len, .. } => *len,
        }
    }
}
