//! The headers of an answer that describe an object.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED};

use crate::version::Version;

pub(super) fn etag(headers: &HeaderMap) -> Option<Version> {
    Version::from_etag(headers.get(ETAG)?.to_str().ok()?)
}

/// The entity tag, or the time and size if there is no tag.
pub(super) fn version(headers: &HeaderMap, size: Option<u64>) -> Option<Version> {
    etag(headers).or_else(|| Some(Version::MtimeSize { mtime_ns: last_modified(headers)?, size: size? }))
}

/// True if the object is encrypted with a key of the store's key service or of its writer.
pub(super) fn has_opaque_tag(headers: &HeaderMap) -> bool {
    let of_key_service =
        headers.get("x-amz-server-side-encryption").is_some_and(|by| by.as_bytes().starts_with(b"aws:"));
    of_key_service || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `Last-Modified` in nanoseconds since 1970.
pub(super) fn last_modified(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(LAST_MODIFIED)?.to_str().ok()?;
    chrono::DateTime::parse_from_rfc2822(text).ok()?.timestamp_nanos_opt()
}

/// `bytes START-LAST/TOTAL`, stored with an exclusive end instead of the last byte.
pub(super) struct ContentRange {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) total: Option<u64>,
}

impl ContentRange {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let (range, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
        let (start, last) = range.split_once('-')?;
        let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
        let total = if total == "*" { None } else { Some(total.parse().ok()?) };
        (start <= last && last < u64::MAX).then_some(Self { start, end: last + 1, total })
    }
}
