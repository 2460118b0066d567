//! One attempt at a read of a range or of a whole object.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use crate::error::OriginError;
use crate::key::Key;
use crate::origin::Sink;
use crate::retry::{AttemptError, Retry};
use crate::s3::body::{self, malformed};
use crate::s3::client::{S3Client, Target};
use crate::s3::headers::{self, ContentRange};
use crate::version::Version;

/// A server that ignores `Range` sends the object from its start. At most this many preceding bytes are discarded
/// before the read fails.
const IGNORED_RANGE_LIMIT: u64 = 64 << 20;

/// The largest offset that is requested. No object is larger, and some servers store offsets in signed numbers.
const RANGE_LIMIT: u64 = 1 << 60;

/// The state that all attempts at one read share.
pub(super) struct PartialRead<'a> {
    /// The number of bytes that `sink` has received.
    bytes: u64,
    /// The version of these bytes.
    version: Option<Version>,
    sink: &'a mut Sink<'a>,
}

impl<'a> PartialRead<'a> {
    pub(super) fn new(version: Option<Version>, sink: &'a mut Sink<'a>) -> Self {
        Self { bytes: 0, version, sink }
    }

    fn take(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        (self.sink)(chunk);
    }

    /// Compares an answer with the version so far. In a read without a version, the first answer sets the version, so
    /// that bytes of two versions are never combined.
    fn bind(&mut self, key: &[u8], headers: &HeaderMap, total: Option<u64>) -> Result<(), AttemptError> {
        let Some(got) = headers::version(headers, total) else {
            return Err(malformed("neither ETag nor Last-Modified"));
        };
        let same = match (&self.version, &got) {
            (None, _) => {
                self.version = Some(got);
                return Ok(());
            }
            (Some(Version::ETag(expected)), Version::ETag(got)) => expected == got,
            (Some(Version::MtimeSize { mtime_ns, size }), _) => {
                // A listing has milliseconds, but the header has only whole seconds.
                let seconds = |ns: i64| ns.div_euclid(1_000_000_000);
                headers::last_modified(headers).is_some_and(|got| seconds(got) == seconds(*mtime_ns))
                    && total.is_none_or(|total| total == *size)
            }
            (Some(Version::ETag(_)), Version::MtimeSize { .. }) => {
                return Err(malformed("no ETag to compare the bytes with"));
            }
        };
        match (same, self.version.clone()) {
            (false, Some(expected)) => {
                Err(AttemptError::Final(OriginError::Stale { key: Key::from(key), expected, got: Some(got) }))
            }
            _ => Ok(()),
        }
    }
}

/// Makes one attempt at the bytes of `range` that `got` does not have yet.
pub(super) async fn read_rest(
    client: &S3Client,
    retry: &Retry,
    key: &[u8],
    full: &str,
    range: &Range<u64>,
    got: &mut PartialRead<'_>,
) -> Result<(), AttemptError> {
    let rest = range.start + got.bytes..range.end;
    let wanted = rest.end - rest.start;
    let version = got.version.clone();
    let response =
        client.send(retry, Method::GET, key, &Target::Object(full), version.as_ref(), Some(rest.clone())).await?;
    let (parts, stream) = response.into_parts();
    let truncated = |more: u64| OriginError::Truncated {
        key: Key::from(key),
        expected: range.end - range.start,
        got: rest.start - range.start + more,
    };
    let length = headers::content_length(&parts.headers);
    // The offset of the body within the object, and the object's size.
    let (start, total) = match parts.status {
        StatusCode::PARTIAL_CONTENT => {
            let Some(sent) = ContentRange::of(&parts.headers) else {
                return Err(malformed("a partial answer without Content-Range"));
            };
            if sent.start != rest.start || sent.end > rest.end {
                return Err(malformed("a Content-Range that was not requested"));
            }
            if length.is_some_and(|length| length != sent.end - sent.start) {
                return Err(malformed("a Content-Length that contradicts the Content-Range"));
            }
            if sent.end < rest.end {
                // If the object itself ends here, a retry cannot help.
                let error = truncated(sent.end - sent.start);
                return Err(if sent.total == Some(sent.end) {
                    AttemptError::Final(error)
                } else {
                    AttemptError::Retryable(error)
                });
            }
            (sent.start, sent.total)
        }
        StatusCode::OK => {
            if rest.start > IGNORED_RANGE_LIMIT {
                let source = "the server ignores Range, so bytes this far into an object cannot be read".into();
                return Err(AttemptError::Final(OriginError::Unavailable { source }));
            }
            if let Some(length) = length.filter(|length| *length < rest.end) {
                return Err(AttemptError::Final(truncated(length.saturating_sub(rest.start))));
            }
            (0, length)
        }
        _ => return Err(malformed("neither 200 nor 206 in answer to a GET")),
    };
    got.bind(key, &parts.headers, total)?;

    let mut skip = rest.start - start;
    let mut left = wanted;
    let end = body::receive(retry, stream, skip + wanted, &mut |chunk| {
        let skipped = skip.min(chunk.len() as u64);
        skip -= skipped;
        left -= chunk.len() as u64 - skipped;
        got.take(&chunk[skipped as usize..]);
    })
    .await;
    match end {
        Ok(_) if left == 0 => Ok(()),
        Ok(_) | Err(AttemptError::Retryable(OriginError::Unavailable { .. })) => {
            Err(AttemptError::Retryable(truncated(wanted - left)))
        }
        Err(error) => Err(error),
    }
}

/// Makes one attempt at a whole object of at most `limit` bytes.
///
/// The request has a range, because a partial answer states the object's size twice. An empty object has no valid
/// range, so it needs a second request without one.
pub(super) async fn read_whole(
    client: &S3Client,
    retry: &Retry,
    key: &[u8],
    full: &str,
    limit: u64,
) -> Result<(Bytes, Version), AttemptError> {
    let target = Target::Object(full);
    let range = 0..limit.clamp(1, RANGE_LIMIT);
    let response = match client.send(retry, Method::GET, key, &target, None, Some(range)).await {
        Err(AttemptError::Final(OriginError::Truncated { .. })) => {
            client.send(retry, Method::GET, key, &target, None, None).await?
        }
        response => response?,
    };
    let (parts, stream) = response.into_parts();
    let length = headers::content_length(&parts.headers).ok_or_else(|| malformed("no Content-Length"))?;
    let size = match (parts.status, ContentRange::of(&parts.headers)) {
        (StatusCode::OK, _) => length,
        (StatusCode::PARTIAL_CONTENT, Some(ContentRange { start: 0, end, total: Some(total) })) if end == length => {
            total
        }
        _ => return Err(malformed("no object size that agrees with the Content-Length")),
    };
    if size > limit {
        return Err(OriginError::TooLarge { key: Key::from(key), size, limit }.into());
    }
    let version =
        headers::version(&parts.headers, Some(size)).ok_or_else(|| malformed("neither ETag nor Last-Modified"))?;
    let mut bytes = body::buffer(size);
    let end = body::receive(retry, stream, size, &mut |chunk| bytes.extend_from_slice(chunk)).await;
    let truncated = || OriginError::Truncated { key: Key::from(key), expected: size, got: bytes.len() as u64 };
    match end {
        Ok(_) if bytes.len() as u64 == size => Ok((bytes.freeze(), version)),
        Ok(_) | Err(AttemptError::Retryable(OriginError::Unavailable { .. })) => {
            Err(AttemptError::Retryable(truncated()))
        }
        Err(error) => Err(error),
    }
}
