//! The trait that every origin implements.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::url::OriginUrl;
use crate::version::Version;

/// Receives bytes in order, as they arrive.
pub type Sink<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// A store of objects. All methods may be called concurrently and are cancel-safe, but a cancelled `put` may or may
/// not have taken effect.
#[async_trait]
pub trait Origin: Send + Sync + fmt::Debug + 'static {
    /// The origin's URL.
    fn url(&self) -> &OriginUrl;

    /// One page of the keys under `prefix` (relative; empty or ending with `/`), in key order, after the key `after`.
    ///
    /// A store without such a prefix returns an empty page. A folder returns the whole tree in one page for
    /// [`Depth::All`]. For [`Depth::One`] it returns a directory of many entries in pages that are in order by
    /// themselves only.
    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError>;

    /// Exactly `range.len()` bytes of `key` as of `version`, or of its current version if `version` is `None`.
    ///
    /// An empty range is answered without a request. `Stale` if the object has another version by now, `Truncated` if
    /// it ends before the range does.
    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError>;

    /// Like `read`, but passes the bytes to `sink` piece by piece, each byte once, as soon as they are known to be of
    /// that version. On an error, `sink` has received the bytes that came before it.
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

    /// The same information about `key` as in a listing.
    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError>;

    /// The whole object and its version; `TooLarge` if it has more than `limit` bytes.
    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError>;

    /// Writes a whole object and returns its version. Readers see either all of it or none.
    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError>;

    /// Writes an object of any size in constant memory; readers see it once the stream has ended. An error in the
    /// stream leaves the key as it was.
    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError>;
}
