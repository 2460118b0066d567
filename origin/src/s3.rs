//! S3 and servers that speak its protocol.
//!
//! Reads, listings and writes with an MD5 use requests of our own. Other writes use object_store, which implements
//! multipart uploads.
//!
//! - `settings` turns flags, environment and `profile` into a `client`, which sends requests signed by `sigv4`.
//! - `sts`, `sso` and `process` are ways to keys that expire.
//! - `clock` follows the server's clock if this machine's clock is wrong.
//! - `read` and `list_objects` validate the answers, `empty_pages` ends endless listings, and `refusal` converts failed
//!   answers into errors.
//!
//! The invariant: bytes are passed on only if the status, the entity tag, `Content-Range` and the length all match the
//! request.

mod body;
mod client;
mod clock;
mod empty_pages;
mod headers;
mod list_objects;
mod process;
mod profile;
mod read;
mod refusal;
mod settings;
mod sigv4;
mod sso;
mod sts;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, StatusCode};
use object_store::aws::AmazonS3;

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key::Key;
use crate::limit::OriginLimit;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::object::keys;
use crate::object::writer::Writer;
use crate::origin::{Md5Answer, Origin, Sink};
use crate::retry::{AttemptError, Retry, RetryPolicy};
use crate::url::{OriginUrl, Scheme};
use crate::version::Version;
use body::malformed;
use client::{S3Client, Target};
use empty_pages::EmptyPages;
use read::PartialRead;
use refusal::BadDigest;

/// The largest object that the store copies: of a larger one, the answer might take longer than an attempt may.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// The most bytes that are read of the answer to a copy.
const COPY_ANSWER_LIMIT: u64 = 64 << 10;

/// An origin with the S3 API.
pub(crate) struct S3Origin {
    url: OriginUrl,
    /// The text that precedes every relative key. It is UTF-8 because a URL is.
    key_prefix: String,
    client: S3Client,
    store: AmazonS3,
    policy: RetryPolicy,
}

impl fmt::Debug for S3Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Origin")
            .field("url", &self.url)
            .field("bucket_endpoint", &self.client.bucket_endpoint)
            .field("signed", &self.client.signer.is_some())
            .finish_non_exhaustive()
    }
}

impl S3Origin {
    /// The origin, and the limit that it shares with all others of its bucket.
    pub(crate) fn open(url: &OriginUrl, config: &OriginConfig) -> Result<(Self, Arc<OriginLimit>), OriginError> {
        let key_prefix = keys::prefix(url)?;
        let (client, store) = settings::connect(url, config)?;
        let limit = config.limits.of(url.scheme(), client.bucket_endpoint.clone());
        let policy = RetryPolicy::new(config, &limit);
        Ok((Self { url: url.clone(), key_prefix, client, store, policy }, limit))
    }

    fn full_key(&self, key: &[u8]) -> Result<String, OriginError> {
        let unusable = |why: &str| OriginError::Invalid { what: format!("{}: {why}", Key::from(key)) };
        let full = keys::full(&self.key_prefix, key)?;
        // URL parsers resolve these segments, even if they are percent-encoded, and would request another object.
        if full.split('/').any(|part| part == "." || part == "..") {
            return Err(unusable("HTTP cannot request a key with a path segment '.' or '..'"));
        }
        if full.is_empty() {
            return Err(unusable("the empty key names the bucket, not an object"));
        }
        Ok(full)
    }

    fn retry(&self, key: &[u8]) -> Retry {
        Retry::new(&self.policy, key)
    }

    fn writer(&self) -> Writer<'_> {
        Writer { store: &self.store, policy: &self.policy }
    }

    /// Makes one attempt at one page.
    async fn list_page(
        &self,
        retry: &Retry,
        prefix: &str,
        after: Option<&str>,
        token: Option<&str>,
        depth: Depth,
    ) -> Result<list_objects::Parsed, AttemptError> {
        let target = Target::Listing(list_objects::query(prefix, after, token, depth));
        let shown = prefix.as_bytes();
        let (parts, stream) = self.client.send(retry, Method::GET, shown, &target, None, None).await?.into_parts();
        if parts.status != StatusCode::OK {
            return Err(malformed("a status other than 200 in answer to a listing"));
        }
        let mut xml = Vec::new();
        let limit = list_objects::ANSWER_LIMIT;
        let got = body::receive(retry, stream, limit, &mut |chunk| xml.extend_from_slice(chunk)).await?;
        if headers::content_length(&parts.headers).is_some_and(|length| length != got) {
            return Err(malformed("a listing that contradicts its Content-Length"));
        }
        list_objects::parse(&xml, self.key_prefix.len(), shown, after.map(str::as_bytes)).map_err(|error| {
            let incomplete = matches!(error, list_objects::Malformed::Incomplete);
            let error = OriginError::Unavailable { source: Box::new(error) };
            // An incomplete page may have been cut off in transit. Any other invalid answer would be the same the next
            // time.
            if incomplete { AttemptError::Retryable(error) } else { AttemptError::Final(error) }
        })
    }
}

#[async_trait]
impl Origin for S3Origin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn has_keys(&self, key: &[u8]) -> Result<(), OriginError> {
        let mut retry = self.retry(key);
        while let Err(error) = self.client.keys(&retry, key).await {
            retry.pause(error).await?;
        }
        Ok(())
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let full = |key: &[u8]| keys::full(&self.key_prefix, key);
        let shown = prefix;
        let (prefix, after) = (full(prefix)?, after.map(full).transpose()?);
        let mut retry = self.retry(shown);
        let mut token: Option<String> = None;
        let mut empty = EmptyPages::default();
        loop {
            match self.list_page(&retry, &prefix, after.as_deref(), token.as_deref(), depth).await {
                Ok(parsed) => match parsed.continuation {
                    // A store with many deleted keys returns pages without entries. Each page has its own deadline.
                    Some(next) => {
                        empty.count(&next)?;
                        token = Some(next);
                        retry = self.retry(shown);
                    }
                    None => return Ok(parsed.page),
                },
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let mut bytes = body::buffer(range.end.saturating_sub(range.start));
        self.read_to(key, range, version, &mut |chunk| bytes.extend_from_slice(chunk)).await?;
        Ok(bytes.freeze())
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let full = self.full_key(key)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut retry = self.retry(key);
        let mut got = PartialRead::new(version.cloned(), sink);
        loop {
            match read::read_rest(&self.client, &retry, key, &full, &range, &mut got).await {
                Ok(()) => return Ok(()),
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let full = self.full_key(key)?;
        let mut retry = self.retry(key);
        loop {
            let error = match self.client.send(&retry, Method::HEAD, key, &Target::Object(&full), None, None).await {
                Ok(response) => {
                    let found = response.headers();
                    let size = headers::content_length(found);
                    match (size, headers::last_modified(found), headers::version(found, size)) {
                        (Some(size), Some(mtime_ns), Some(version)) => {
                            return Ok(ObjectInfo { key: key.to_vec(), size, mtime_ns, version });
                        }
                        _ => malformed("an object without size or time"),
                    }
                }
                Err(error) => error,
            };
            retry.pause(error).await?;
        }
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let full = self.full_key(key)?;
        let mut retry = self.retry(key);
        loop {
            match read::read_whole(&self.client, &retry, key, &full, limit).await {
                Ok(whole) => return Ok(whole),
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        let full = self.full_key(key)?;
        match self.writer().put(key, &full, bytes).await? {
            Some(version) => Ok(version),
            None => Ok(self.head(key).await?.version),
        }
    }

    async fn put_with_md5(&self, key: &[u8], bytes: Bytes, md5: &[u8; 16]) -> Result<Md5Answer, OriginError> {
        if !self.client.writes_plainly {
            return Ok(Md5Answer::Refused);
        }
        let full = self.full_key(key)?;
        // The same keys as `put`.
        keys::path(key, &full)?;
        let target = Target::Put { full: &full, bytes: &bytes, md5 };
        // As for object_store's writes, this limits the whole transfer.
        let attempt_timeout = self.policy.attempt_timeout.max(self.policy.deadline / 3);
        let retry = Retry::new(&RetryPolicy { attempt_timeout, ..self.policy.clone() }, key);
        match self.client.send(&retry, Method::PUT, key, &target, None, None).await {
            Ok(answer) => match headers::etag(answer.headers()) {
                Some(version) => Ok(Md5Answer::Stored(version)),
                None => Ok(Md5Answer::Stored(self.head(key).await?.version)),
            },
            Err(AttemptError::Final(OriginError::Unavailable { source })) if source.is::<BadDigest>() => {
                Ok(Md5Answer::Differs)
            }
            // A policy may forbid bodies that are not signed.
            Err(AttemptError::Final(error @ (OriginError::Invalid { .. } | OriginError::Denied { .. }))) => {
                tracing::debug!(%error, "not written with its MD5");
                Ok(Md5Answer::Refused)
            }
            Err(AttemptError::Final(error) | AttemptError::Retryable(error)) => Err(error),
        }
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let full = self.full_key(key)?;
        match self.writer().put_stream(key, &full, chunks).await? {
            Some(version) => Ok(version),
            None => Ok(self.head(key).await?.version),
        }
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.writer().delete(key, &self.full_key(key)?).await
    }

    async fn copy_from(
        &self,
        source: &OriginUrl,
        object: &ObjectInfo,
        key: &[u8],
    ) -> Result<Option<Version>, OriginError> {
        let ObjectInfo { key: from, size, version, .. } = object;
        if source.scheme() != Scheme::S3 || *size > COPY_BYTES_MAX {
            return Ok(None);
        }
        let from = keys::full(&keys::prefix(source)?, from)?;
        let (full, source) = (self.full_key(key)?, format!("{}/{from}", source.bucket()));
        let target = Target::Copy { to: &full, source: &source };
        let retry = self.retry(key);
        // One attempt: a store that does not copy, or not now, has the bytes read and written.
        let Ok(answer) = self.client.send(&retry, Method::PUT, key, &target, Some(version), None).await else {
            return Ok(None);
        };
        let (body, mut text) = (answer.into_body(), Vec::new());
        let received = body::receive(&retry, body, COPY_ANSWER_LIMIT, &mut |chunk| text.extend_from_slice(chunk)).await;
        // A copy that fails midway is reported in an answer that began as a success.
        let is_copied = received.is_ok() && String::from_utf8_lossy(&text).contains("CopyObjectResult");
        let copy = if is_copied { Some(self.head(key).await?) } else { None };
        Ok(copy.filter(|copy| copy.size == *size).map(|copy| copy.version))
    }

    async fn has_opaque_tag(&self, key: &[u8]) -> Result<bool, OriginError> {
        let full = self.full_key(key)?;
        let mut retry = self.retry(key);
        loop {
            match self.client.send(&retry, Method::HEAD, key, &Target::Object(&full), None, None).await {
                Ok(answer) => return Ok(headers::has_opaque_tag(answer.headers())),
                Err(error) => retry.pause(error).await?,
            }
        }
    }
}
