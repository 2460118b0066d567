//! Where datasets come from: an object store or a folder, behind one trait.
//!
//! - [`Origin`]: lists keys, reads ranges of one version of an object, and writes manifests and packs.
//! - [`open`] makes one from an [`OriginUrl`] and an [`OriginConfig`].
//! - [`Counting`], [`Slow`], [`Faulty`] and [`Limited`] wrap any origin.
//! - [`conformance`] is what every implementation has to pass.
//!
//! The invariant: a read gives exactly the bytes asked for of exactly the version asked for, or an error; and every
//! call ends within a stated time. It knows nothing of manifests, of blocks and of which names a filesystem can hold:
//! a listing gives back every key as it is, the hostile ones too.

mod aws_profile;
mod config;
mod conformance;
mod error;
mod folder;
mod object;
mod pace;
mod retry;
mod s3;
mod s3_list;
mod sigv4;
mod url;
mod wrappers;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

pub use crate::config::{Env, OriginConfig};
pub use crate::conformance::conformance;
pub use crate::error::{Key, OriginError, Source};
use crate::pace::Pace;
pub use crate::url::{OriginUrl, Scheme};
pub use crate::wrappers::{Call, Counting, Counts, Fault, Faulty, Limited, Operation, Slow};

/// What the bytes of an object are bound to: two reads with the same version give bytes of the same object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// The entity tag as the store sent it, quotes included; quotes are added where a store leaves them out.
    ETag(String),
    /// For a folder, and for a store that gives no entity tag. A change in place that keeps size and time is not seen.
    MtimeSize {
        /// Modification time in nanoseconds since 1970.
        mtime_ns: i64,
        /// Size in bytes.
        size: u64,
    },
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ETag(tag) => write!(f, "entity tag {}", Key::from(tag.as_bytes())),
            Self::MtimeSize { mtime_ns, size } => write!(f, "{size} bytes of {mtime_ns} ns"),
        }
    }
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The key below the origin's prefix, without a `/` before it unless the store holds one there. Any bytes in a
    /// folder, UTF-8 elsewhere. The object named as the prefix itself plus `/` has the empty key.
    pub key: Vec<u8>,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// What a read is to be bound to.
    pub version: Version,
}

/// An entry that no read could ever give bytes of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its key; ends with `/` if it is a folder.
    pub key: Vec<u8>,
    /// Why, in words for people.
    pub reason: &'static str,
}

/// One page of a listing; every part of it is in the order of the keys' bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub files: Vec<Listed>,
    /// For [`Depth::One`]: what is below, each once over all pages, each ending with `/`.
    pub prefixes: Vec<Vec<u8>>,
    /// Folder entries that are no regular files, and what could not be looked at.
    pub skipped: Vec<Skipped>,
    /// To be passed as `after` for the next page. It need not be a key that exists.
    pub next: Option<Vec<u8>>,
}

/// How far a listing goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only what is directly below the prefix; deeper keys are summed up as prefixes.
    One,
    /// Everything.
    All,
}

/// Takes bytes in as they arrive, in order.
pub type Sink<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// A store of objects. All methods may be called concurrently and are cancel-safe, but a cancelled `put` may or may
/// not have happened.
#[async_trait]
pub trait Origin: Send + Sync + fmt::Debug + 'static {
    /// Where it is.
    fn url(&self) -> &OriginUrl;

    /// One page of the keys under `prefix` (relative; empty or ending with `/`), in key order, after the key `after`.
    ///
    /// A store without such a prefix gives an empty page. A folder gives what it has in one page: a directory for
    /// [`Depth::One`], the whole tree below it for [`Depth::All`].
    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError>;

    /// Exactly `range.len()` bytes of `key` as of `version`; of whatever is there now if `version` is `None`.
    ///
    /// An empty range is answered without asking. `Stale` if the object is another version by now, `Truncated` if it
    /// ends before the range does.
    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError>;

    /// The same, given to `sink` piece by piece, each byte once, as soon as it is known to be of that version; on an error,
    /// what came before it.
    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        sink(&self.read(key, range, version).await?);
        Ok(())
    }

    /// What a listing would say of `key`.
    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError>;

    /// The whole object and its version; `TooLarge` if it has more than `limit` bytes.
    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError>;

    /// Writes a whole object, which readers see at once or not at all, and returns its version.
    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError>;

    /// Writes an object of any size in constant memory; readers see it when the stream has ended. An error in the
    /// stream leaves the key as it was.
    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError>;
}

/// Opens the origin of `url`. It is asked as many things at a time as it bears, up to the configured number. Nothing is
/// asked of it yet.
///
/// # Errors
/// `Invalid` with the flag or variable to change.
pub fn open(url: &OriginUrl, config: &OriginConfig) -> Result<Arc<dyn Origin>, OriginError> {
    let pace = Pace::new(config.concurrency);
    let patience = config.patience(&pace);
    let origin: Arc<dyn Origin> = match url.scheme() {
        Scheme::S3 => Arc::new(s3::S3Origin::open(url, config, patience)?),
        Scheme::Gcs => Arc::new(object::open_gcs(url, config, patience)?),
        Scheme::Azure => Arc::new(object::open_azure(url, config, patience)?),
        Scheme::Folder => {
            // A disk has its own queue.
            let folder = folder::FolderOrigin::open(url, config)?;
            return Ok(Arc::new(Limited::new(Arc::new(folder), config.concurrency, config.deadline)));
        }
    };
    Ok(Arc::new(Limited::paced(origin, pace, config.deadline)))
}
