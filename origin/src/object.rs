//! An origin over any of object_store's stores, which Google Cloud Storage and Azure use.
//!
//! [`ObjectOrigin`] implements the whole trait; `writer`, `keys` and `settings` also serve the S3 origin. The invariant
//! is that of the trait. The limits of object_store remain: one key that is not a valid path to it (`a//b`, a control
//! character) fails the listing that contains it, with a clear error, and a marker `a/` is listed as `a`.

pub(crate) mod error;
pub(crate) mod keys;
pub(crate) mod settings;
pub(crate) mod writer;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::retry::{AttemptError, Retry, RetryPolicy};
use crate::url::OriginUrl;
use crate::version::Version;
use error::attempt_error;
use writer::Writer;

/// Keys in a page of a deep listing.
const PAGE_KEYS: usize = 1000;

/// An origin over one of object_store's stores.
pub(crate) struct ObjectOrigin {
    url: OriginUrl,
    key_prefix: String,
    store: Arc<dyn ObjectStore>,
    policy: RetryPolicy,
}

impl fmt::Debug for ObjectOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOrigin").field("url", &self.url).finish_non_exhaustive()
    }
}

impl ObjectOrigin {
    pub(crate) fn new(url: &OriginUrl, store: Arc<dyn ObjectStore>, policy: RetryPolicy) -> Result<Self, OriginError> {
        let key_prefix = keys::prefix(url)?;
        Ok(Self { url: url.clone(), key_prefix, store, policy })
    }

    fn full_key(&self, key: &[u8]) -> Result<String, OriginError> {
        keys::full(&self.key_prefix, key)
    }

    fn info(&self, meta: ObjectMeta) -> Result<ObjectInfo, AttemptError> {
        let foreign =
            || OriginError::Unavailable { source: "the listing contains a key outside the requested prefix".into() };
        let key = meta.location.as_ref().strip_prefix(&self.key_prefix).ok_or_else(foreign)?.as_bytes().to_vec();
        let mtime_ns = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
        let version = Version::from_etag_or_mtime(meta.e_tag.as_deref(), mtime_ns, meta.size);
        Ok(ObjectInfo { key, size: meta.size, mtime_ns, version })
    }

    async fn list_page(
        &self,
        retry: &Retry,
        prefix: &[u8],
        after: Option<&[u8]>,
        depth: Depth,
    ) -> Result<Page, AttemptError> {
        let fail = |error| attempt_error(error, prefix, None, &self.policy);
        let full = self.full_key(prefix)?;
        let folder = match full.strip_suffix('/').unwrap_or(&full) {
            "" => None,
            folder => Some(keys::path(prefix, folder)?),
        };
        let folder = folder.as_ref();
        let mut page = Page::default();
        match depth {
            Depth::One => {
                let result = retry.progress(self.store.list_with_delimiter(folder)).await?.map_err(fail)?;
                for meta in result.objects {
                    page.files.push(self.info(meta)?);
                }
                for below in result.common_prefixes {
                    let below = below.as_ref().strip_prefix(&self.key_prefix).unwrap_or(below.as_ref());
                    page.prefixes.push(format!("{below}/").into_bytes());
                }
            }
            Depth::All => {
                let mut stream = match after {
                    // The offset need not be an existing key, but object_store must accept it as a path.
                    Some(after) => self.store.list_with_offset(folder, &keys::path(after, &self.full_key(after)?)?),
                    None => self.store.list(folder),
                };
                while let Some(meta) = retry.progress(stream.try_next()).await?.map_err(fail)? {
                    page.files.push(self.info(meta)?);
                    if page.files.len() == PAGE_KEYS {
                        page.next = page.files.last().map(|file| file.key.clone());
                        break;
                    }
                }
            }
        }
        page.files.retain(|file| after.is_none_or(|after| file.key.as_slice() > after));
        page.prefixes.retain(|prefix| after.is_none_or(|after| prefix.as_slice() > after));
        page.files.sort_by(|a, b| a.key.cmp(&b.key));
        page.prefixes.sort();
        Ok(page)
    }

    /// Makes one attempt at a read; of the whole object if there is no range.
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
        let got = self.info(result.meta.clone())?;
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
            // If the store itself returned a shorter range, the object ends there, and a retry cannot help.
            return Err(if wanted < expected { AttemptError::Final(error) } else { AttemptError::Retryable(error) });
        }
        Ok((bytes.freeze(), got.version))
    }

    /// Each store reports a range past the end in its own way, so the object's size decides.
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

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let mut retry = Retry::new(&self.policy, prefix);
        loop {
            match self.list_page(&retry, prefix, after, depth).await {
                Ok(page) => return Ok(page),
                Err(error) => retry.pause(error).await?,
            }
        }
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
                Ok(Ok(meta)) => match self.info(meta) {
                    Ok(info) => return Ok(info),
                    Err(error) => error,
                },
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
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::concurrency::ConcurrencyLimit;
    use crate::config::OriginConfig;
    use crate::conformance::conformance;
    use crate::{azure, gcs};

    fn policy() -> RetryPolicy {
        RetryPolicy::new(&OriginConfig::default(), &ConcurrencyLimit::fixed(8))
    }

    fn origin(url: &str) -> ObjectOrigin {
        let url = url.parse().expect("a URL");
        ObjectOrigin::new(&url, Arc::new(InMemory::new()), policy()).expect("an origin")
    }

    #[tokio::test]
    async fn any_object_store_conforms() {
        conformance(Arc::new(origin("gs://bucket")), 1, 1100).await;
        conformance(Arc::new(origin("az://container/pre/fix")), 2, 1100).await;
    }

    #[tokio::test]
    async fn keys_that_object_store_would_change_are_refused() {
        let origin = origin("gs://bucket");
        for key in ["a//b", "/a", "a/", "..", "a\u{1}", ""] {
            let put = origin.put(key.as_bytes(), Bytes::new()).await;
            assert!(matches!(put, Err(OriginError::Invalid { .. })), "{key:?}: {put:?}");
        }
    }

    #[test]
    fn stores_open_by_their_variables_and_show_no_secret() {
        let mut config = OriginConfig { anonymous: true, ..OriginConfig::default() };
        gcs::open(&"gs://b/p".parse().expect("a URL"), &config, policy()).expect("gcs");
        let url: OriginUrl = "az://c/p".parse().expect("a URL");
        let error = azure::open(&url, &config, policy()).expect_err("no account");
        assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
        config.env.set("AZURE_STORAGE_ACCOUNT_NAME", "me");
        config.env.set("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==");
        let azure = azure::open(&url, &config, policy()).expect("azure");
        assert!(!format!("{azure:?} {config:?}").contains("aHVudGVyMg"));
    }
}
