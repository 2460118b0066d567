//! The trait that every origin implements.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::urgency::Urgency;
use crate::url::OriginUrl;
use crate::version::Version;

/// Receives the bytes of a read in order, as they arrive.
pub type Sink<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// One of several places that data is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceReport {
    /// The name of the mirror; `None` for the data's own origin.
    pub mirror: Option<String>,
    /// The URL, without credentials.
    pub url: String,
    /// Why it is not read from at present, if it is not.
    pub unused: Option<String>,
    /// Calls.
    pub gets: u64,
    /// Bytes that they returned.
    pub bytes: u64,
    /// Objects that it lacked or had in another version.
    pub missing: u64,
    /// Calls that failed.
    pub failures: u64,
}

/// The answer of a store to an object that was sent with its MD5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Md5Answer {
    /// It is stored as this version.
    Stored(Version),
    /// The store has found that the bytes have another MD5.
    Differs,
    /// The store does not write this way.
    Refused,
}

/// A store of objects. All methods may be called concurrently and are cancel-safe. A cancelled `put` may or may not
/// have taken effect.
#[async_trait]
pub trait Origin: Send + Sync + fmt::Debug + 'static {
    /// The origin's URL.
    fn url(&self) -> &OriginUrl;

    /// The same origin for calls of this urgency, which let more urgent ones go first and meanwhile wait without a
    /// limit. `None` if the origin treats all calls alike.
    fn with_urgency(&self, _urgency: &Urgency) -> Option<Arc<dyn Origin>> {
        None
    }

    /// How many calls it bears at the same time, as far as it is known now. More would only wait.
    fn places(&self) -> usize {
        usize::MAX
    }

    /// Waits until there are the keys that a call for `key` needs, if they come from another server. What limits calls
    /// waits for this first, so that calls without keys leave the origin to others. Errors: `Denied`, as of the call.
    async fn has_keys(&self, _key: &[u8]) -> Result<(), OriginError> {
        Ok(())
    }

    /// Returns one page of the keys under `prefix` (relative; empty or ending with `/`), in key order, after the key
    /// `after`.
    ///
    /// A store without such a prefix returns an empty page. For [`Depth::All`], a folder returns the whole tree in one
    /// page. For [`Depth::One`], it returns a large directory in several pages, each of which is sorted only by itself.
    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError>;

    /// Returns exactly `range.len()` bytes of `key` as of `version`, or as of its current version if `version` is
    /// `None`.
    ///
    /// An empty range is answered without a request. Errors: `Stale` if the object has another version now, `Truncated`
    /// if it ends before the range does.
    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError>;

    /// Like `read`, but passes the bytes to `sink` piece by piece, each byte once, as soon as they are known to belong
    /// to that version. On an error, `sink` has received the bytes before the failure.
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

    /// Returns the information about `key` that a listing contains.
    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError>;

    /// Returns the whole object and its version. Errors: `TooLarge` if it has more than `limit` bytes.
    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError>;

    /// Writes a whole object and returns its version. Readers see either the whole object or none of it.
    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError>;

    /// Writes a whole object if the store itself finds that its bytes have this MD5. Makes one attempt. If the object is
    /// not stored, the caller compares the bytes and uses `put`.
    async fn put_with_md5(&self, _key: &[u8], _bytes: Bytes, _md5: &[u8; 16]) -> Result<Md5Answer, OriginError> {
        Ok(Md5Answer::Refused)
    }

    /// Writes an object of any size in constant memory. Readers see it once the stream has ended. An error in the
    /// stream leaves the key unchanged.
    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError>;

    /// Removes an object. Removing one that does not exist succeeds.
    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        Err(OriginError::Invalid { what: format!("{}: objects of {} cannot be removed", Key::from(key), self.url()) })
    }

    /// Has the store itself copy an object of `source`, an origin of the same server that these credentials may read,
    /// and returns the version of the copy. `None` if the store did not copy it, for whatever reason: the caller then
    /// reads and writes the bytes.
    async fn copy_from(
        &self,
        _source: &OriginUrl,
        _object: &ObjectInfo,
        _key: &[u8],
    ) -> Result<Option<Version>, OriginError> {
        Ok(None)
    }

    /// True if the store encrypts an object with a key of its own. The entity tag of such an object looks like an MD5
    /// and is none.
    async fn has_opaque_tag(&self, _key: &[u8]) -> Result<bool, OriginError> {
        Ok(false)
    }

    /// The same data without the place that is read first, for a caller that got wrong bytes. `None` if there is no
    /// other place.
    fn elsewhere(&self) -> Option<Arc<dyn Origin>> {
        None
    }

    /// True if reads go to a place that is farther or costs more than the one that is meant to be read.
    fn is_costly(&self) -> bool {
        false
    }

    /// The places that the data is read from, in order. Empty if there is only one.
    fn report(&self) -> Vec<PlaceReport> {
        Vec::new()
    }
}
