//! An origin over any of object_store's stores. Google Cloud Storage and Azure use it.
//!
//! [`ObjectOrigin`] implements the whole trait, with `listing`. `writer`, `keys` and `settings` also serve the S3
//! origin. The invariant is that of the trait. Two limits of object_store remain. One key that is not a valid path to
//! it (`a//b`, a control character) makes the listing that contains it fail, with a clear error. A marker `a/` is
//! listed as `a`.

pub(crate) mod error;
pub(crate) mod keys;
mod listing;
pub(crate) mod settings;
pub(crate) mod writer;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use crate::bearer::BearerSession;
use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::retry::{AttemptError, Retry, RetryPolicy};
use crate::url::OriginUrl;
use crate::version::Version;
use error::{attempt_error, denied, keys_are_late};
use listing::{Lister, Tokens, info};
use writer::Writer;

/// An origin over one of object_store's stores.
pub(crate) struct ObjectOrigin {
    url: OriginUrl,
    key_prefix: String,
    store: Arc<dyn ObjectStore>,
    lister: Lister,
    policy: RetryPolicy,
    /// Of the pod whose token is sent, if it is one.
    session: Option<Arc<BearerSession>>,
}

impl fmt::Debug for ObjectOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOrigin").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ObjectOrigin {
    pub(crate) fn new<S>(url: &OriginUrl, store: S, policy: RetryPolicy) -> Result<Self, OriginError>
    where
        S: ObjectStore + PaginatedListStore,
    {
        let store = Arc::new(store);
        let key_prefix = keys::prefix(url)?;
        let lister = Lister {
            url: url.clone(),
            key_prefix: key_prefix.clone(),
            store: Arc::clone(&store) as Arc<dyn PaginatedListStore>,
            policy: policy.clone(),
            tokens: Tokens::default(),
        };
        Ok(Self { url: url.clone(), key_prefix, store, lister, policy, session: None })
    }

    /// The same, with the session from which `store` has the token that it sends.
    pub(crate) fn with_session(self, session: Option<Arc<BearerSession>>) -> Self {
        Self { session, ..self }
    }

    fn full_key(&self, key: &[u8]) -> Result<String, OriginError> {
        keys::full(&self.key_prefix, key)
    }

    /// Makes one attempt at a read of a range, or of the whole object if there is no range.
    async fn attempt(
        &self,
        retry: &Retry,
        key: &[u8],
        range: Option<&Range<u64>>,
        version: Option<&Version>,
        limit: u64,
    ) -> Result<(Bytes, Version), AttemptError> {
        let fail = |error| attempt_error(error, key, version, &self.policy);
        let path = keys::path(key, &self.full_key(key)?)?;
        let if_match = match version {
            Some(Version::ETag(tag)) => Some(tag.clone()),
            Some(Version::MtimeSize { .. }) | None => None,
        };
        let options = GetOptions { range: range.cloned().map(GetRange::Bounded), if_match, ..GetOptions::default() };
        let result = match retry.answer(self.store.get_opts(&path, options)).await? {
            Ok(result) => result,
            Err(error) => return Err(self.past_the_end(retry, key, &path, range, fail(error)).await),
        };
        let got = info(key.to_vec(), &result.meta);
        if let Some(expected) = version.filter(|expected| **expected != got.version) {
            let error = OriginError::Stale { key: Key::from(key), expected: expected.clone(), got: Some(got.version) };
            return Err(error.into());
        }
        let wanted = result.range.end - result.range.start;
        if wanted > limit {
            return Err(OriginError::TooLarge { key: Key::from(key), size: wanted, limit }.into());
        }
        let expected = range.map_or(wanted, |range| range.end - range.start);
        let mut bytes = BytesMut::with_capacity(wanted as usize);
        let mut stream = result.into_stream();
        while let Some(chunk) = retry.progress(stream.next()).await? {
            bytes.extend_from_slice(&chunk.map_err(fail)?);
        }
        if bytes.len() as u64 != expected {
            let error = OriginError::Truncated { key: Key::from(key), expected, got: bytes.len() as u64 };
            // If the store itself returned a shorter range, the object ends there and a retry cannot help.
            return Err(if wanted < expected { AttemptError::Final(error) } else { AttemptError::Retryable(error) });
        }
        Ok((bytes.freeze(), got.version))
    }

    /// Each store reports a range past the end differently, so this compares the range with the object's size.
    async fn past_the_end(
        &self,
        retry: &Retry,
        key: &[u8],
        path: &Path,
        range: Option<&Range<u64>>,
        error: AttemptError,
    ) -> AttemptError {
        let (AttemptError::Retryable(OriginError::Unavailable { .. }), Some(range)) = (&error, range) else {
            return error;
        };
        match retry.progress(self.store.head(path)).await {
            Ok(Ok(meta)) if meta.size < range.end => {
                let (expected, got) = (range.end - range.start, meta.size.saturating_sub(range.start));
                AttemptError::Final(OriginError::Truncated { key: Key::from(key), expected, got })
            }
            _ => error,
        }
    }

    fn writer(&self) -> Writer<'_> {
        Writer { store: self.store.as_ref(), policy: &self.policy }
    }

    /// The version of an object that was just written.
    async fn written(&self, key: &[u8], version: Option<Version>) -> Result<Version, OriginError> {
        match version {
            Some(version) => Ok(version),
            None => Ok(self.head(key).await?.version),
        }
    }
}

#[async_trait]
impl Origin for ObjectOrigin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn has_keys(&self, key: &[u8]) -> Result<(), OriginError> {
        let Some(session) = &self.session else { return Ok(()) };
        let mut retry = Retry::new(&self.policy, key);
        loop {
            let error = match retry.progress(session.credential()).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => denied(&error, key),
                Err(late) => keys_are_late(late, key),
            };
            retry.pause(error).await?;
        }
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.lister.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut retry = Retry::new(&self.policy, key);
        loop {
            match self.attempt(&retry, key, Some(&range), version, u64::MAX).await {
                Ok((bytes, _)) => return Ok(bytes),
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let path = keys::path(key, &self.full_key(key)?)?;
        let mut retry = Retry::new(&self.policy, key);
        loop {
            let error = match retry.progress(self.store.head(&path)).await {
                Ok(Ok(meta)) => return Ok(info(key.to_vec(), &meta)),
                Ok(Err(error)) => attempt_error(error, key, None, &self.policy),
                Err(error) => error,
            };
            retry.pause(error).await?;
        }
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let mut retry = Retry::new(&self.policy, key);
        loop {
            match self.attempt(&retry, key, None, None, limit).await {
                Ok(whole) => return Ok(whole),
                Err(error) => retry.pause(error).await?,
            }
        }
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        let version = self.writer().put(key, &self.full_key(key)?, bytes).await?;
        self.written(key, version).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let version = self.writer().put_stream(key, &self.full_key(key)?, chunks).await?;
        self.written(key, version).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.writer().delete(key, &self.full_key(key)?).await
    }
}

#[cfg(test)]
mod tests;
