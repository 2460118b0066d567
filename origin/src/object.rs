//! Google Cloud Storage and Azure over object_store, and the writing that S3 shares with them.
//!
//! [`Writer`] puts whole objects and streams; [`ObjectOrigin`] is the whole trait over any of object_store's stores.
//! The invariant is that of the trait. What object_store cannot do is left: one key that is no valid path of its own
//! (`a//b`, a control character) fails the listing that holds it, with a clear error, and a marker `a/` is listed as `a`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, HeaderValue, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutResult, RetryConfig, WriteMultipart,
};

use crate::config::OriginConfig;
use crate::error::{Key, OriginError};
use crate::retry::{Failure, Patience, Retry};
use crate::s3_list;
use crate::url::OriginUrl;
use crate::{Depth, Listed, Origin, Page, Version};

/// An object above this is written in parts of this size. S3 takes 10,000 parts, so an object may have 156 GiB.
const PART: usize = 16 << 20;

/// Parts in flight, which with the one being filled bounds the memory of a stream.
const PARTS_IN_FLIGHT: usize = 3;

/// Keys in a page of a deep listing.
const PAGE_KEYS: usize = 1000;

/// The client settings that all of object_store's stores share.
pub(crate) fn client_options(config: &OriginConfig) -> ClientOptions {
    ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(concat!("larder/", env!("CARGO_PKG_VERSION"))))
        .with_connect_timeout(config.connect_timeout)
        // This bounds the whole transfer of a part, which takes longer than an attempt may go without progress.
        .with_timeout(config.attempt_timeout.max(config.deadline / 3))
        .with_pool_max_idle_per_host(config.concurrency)
}

/// How object_store asks again by itself.
pub(crate) fn retry_config(config: &OriginConfig) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100).min(config.deadline / 16),
            max_backoff: Duration::from_secs(5).min(config.deadline / 8),
            base: 2.0,
        },
        max_retries: 10,
        // Before our own bound, so that what is told is the store's last refusal and not that time ran out.
        retry_timeout: config.deadline * 3 / 4,
    }
}

/// The object_store path of a key, if it is one and stays as it is.
fn path(key: &[u8], full: &str) -> Result<Path, OriginError> {
    match Path::parse(full) {
        Ok(_) if full.is_empty() => Err(OriginError::Invalid { what: "the empty key names no object".into() }),
        Ok(path) if path.as_ref() == full => Ok(path),
        Ok(_) => {
            Err(OriginError::Invalid { what: format!("{}: a key here cannot begin or end with '/'", Key::from(key)) })
        }
        Err(error) => Err(OriginError::Invalid { what: format!("{}: {error}", Key::from(key)) }),
    }
}

/// What an error of object_store means.
fn failure(error: object_store::Error, key: &[u8], expected: Option<&Version>, patience: &Patience) -> Failure {
    use object_store::Error;
    let shown = Key::from(key);
    match (error, expected) {
        (Error::NotFound { .. }, _) => Failure::Final(OriginError::NotFound { key: shown }),
        (Error::Precondition { .. } | Error::NotModified { .. }, Some(expected)) => {
            Failure::Final(OriginError::Stale { key: shown, expected: expected.clone(), got: None })
        }
        (error @ (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }), _) => {
            Failure::Final(OriginError::Denied { key: shown, source: Box::new(error) })
        }
        (
            error @ (Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::UnknownConfigurationKey { .. }),
            _,
        ) => Failure::Final(OriginError::Invalid { what: format!("{shown}: {error}") }),
        (error, _) if timed_out(&error) => {
            Failure::Again(OriginError::TimedOut { key: shown, after: patience.attempt })
        }
        (error, _) => {
            // Its type of a refused request is private, so the text is what tells a busy store from a broken one.
            let text = error.to_string();
            Failure::Again(
                if ["SlowDown", "status code: 503", "status code: 429"].iter().any(|sign| text.contains(sign)) {
                    OriginError::Busy { source: Box::new(error) }
                } else {
                    OriginError::Unavailable { source: Box::new(error) }
                },
            )
        }
    }
}

fn timed_out(error: &object_store::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.downcast_ref::<HttpError>().is_some_and(|error| error.kind() == HttpErrorKind::Timeout) {
            return true;
        }
        source = error.source();
    }
    false
}

fn version_put(result: PutResult) -> Option<Version> {
    s3_list::tagged(result.e_tag.as_deref()?)
}

/// Writes objects. Attempts are made by object_store, which knows which part of an upload to send again.
pub(crate) struct Writer<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) patience: &'a Patience,
}

impl Writer<'_> {
    /// Writes a whole object and gives its version, if the store tells it.
    pub(crate) async fn put(&self, key: &[u8], full: &str, bytes: Bytes) -> Result<Option<Version>, OriginError> {
        if bytes.len() > PART {
            return self.put_stream(key, full, futures::stream::iter([Ok(bytes)]).boxed()).await;
        }
        let path = path(key, full)?;
        let result = self.within(key, self.store.put_opts(&path, bytes.into(), PutOptions::default())).await?;
        Ok(version_put(result))
    }

    /// Writes a stream; in parts only if it is larger than one.
    pub(crate) async fn put_stream(
        &self,
        key: &[u8],
        full: &str,
        mut chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Option<Version>, OriginError> {
        let path = path(key, full)?;
        let mut first = Vec::new();
        let mut length = 0;
        while length <= PART {
            match chunks.next().await.transpose()? {
                Some(chunk) => {
                    length += chunk.len();
                    first.push(chunk);
                }
                None => {
                    let payload = first.into_iter().collect();
                    let put = self.store.put_opts(&path, payload, PutOptions::default());
                    return Ok(version_put(self.within(key, put).await?));
                }
            }
        }
        let upload = self.within(key, self.store.put_multipart_opts(&path, PutMultipartOptions::default())).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART);
        match self.pour(key, &mut upload, first, chunks).await {
            Ok(()) => Ok(version_put(self.within(key, upload.finish()).await?)),
            Err(error) => {
                // The store keeps what was uploaded until it is told to forget it, or its lifecycle rule does.
                if let Err(error) = self.within(key, upload.abort()).await {
                    tracing::warn!(key = %Key::from(key), error = &error as &dyn std::error::Error, "abort upload");
                }
                Err(error)
            }
        }
    }

    async fn pour(
        &self,
        key: &[u8],
        upload: &mut WriteMultipart,
        first: Vec<Bytes>,
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<(), OriginError> {
        let mut chunks = futures::stream::iter(first.into_iter().map(Ok)).chain(chunks);
        while let Some(mut chunk) = chunks.try_next().await? {
            // A chunk of many parts must not put all of them in flight at once.
            while !chunk.is_empty() {
                self.within(key, upload.wait_for_capacity(PARTS_IN_FLIGHT)).await?;
                upload.put(chunk.split_to(chunk.len().min(PART)));
            }
        }
        Ok(())
    }

    async fn within<T>(
        &self,
        key: &[u8],
        step: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, OriginError> {
        match tokio::time::timeout(self.patience.deadline, step).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => match failure(error, key, None, self.patience) {
                Failure::Final(error) | Failure::Again(error) => Err(error),
            },
            Err(_) => Err(OriginError::TimedOut { key: Key::from(key), after: self.patience.deadline }),
        }
    }
}

/// An origin over one of object_store's stores.
pub(crate) struct ObjectOrigin {
    url: OriginUrl,
    key_prefix: String,
    store: Arc<dyn ObjectStore>,
    patience: Patience,
}

impl fmt::Debug for ObjectOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectOrigin").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Opens a bucket of Google Cloud Storage by the usual `GOOGLE_*` variables.
pub(crate) fn open_gcs(
    url: &OriginUrl,
    config: &OriginConfig,
    patience: Patience,
) -> Result<ObjectOrigin, OriginError> {
    let mut options = client_options(config);
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in config.env.iter().filter(|(name, _)| name.starts_with("GOOGLE_") || *name == "SERVICE_ACCOUNT")
    {
        match name.to_ascii_lowercase().parse() {
            Ok(GoogleConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) if name == "SERVICE_ACCOUNT" => builder = builder.with_service_account_path(value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
    }
    let store = builder
        .with_client_options(options)
        .with_bucket_name(url.bucket())
        .with_retry(one_retry(config))
        .with_skip_signature(config.anonymous)
        .build()
        .map_err(|error| OriginError::Invalid { what: format!("settings of {url}: {error}") })?;
    ObjectOrigin::new(url, Arc::new(store), patience)
}

/// Opens a container of Azure Blob Storage by the usual `AZURE_*` variables.
pub(crate) fn open_azure(
    url: &OriginUrl,
    config: &OriginConfig,
    patience: Patience,
) -> Result<ObjectOrigin, OriginError> {
    let mut options = client_options(config);
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in config.env.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        match name.to_ascii_lowercase().parse() {
            Ok(AzureConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_endpoint(endpoint.clone());
    }
    let store = builder
        .with_client_options(options)
        .with_container_name(url.bucket())
        .with_retry(one_retry(config))
        .with_skip_signature(config.anonymous)
        .build()
        .map_err(|error| OriginError::Invalid {
            what: format!("settings of {url}: {error} (the account is AZURE_STORAGE_ACCOUNT_NAME)"),
        })?;
    ObjectOrigin::new(url, Arc::new(store), patience)
}

/// Reads are asked again by us, so object_store's own attempts have to fit into one of ours.
fn one_retry(config: &OriginConfig) -> RetryConfig {
    RetryConfig { max_retries: 1, ..retry_config(config) }
}

impl ObjectOrigin {
    fn new(url: &OriginUrl, store: Arc<dyn ObjectStore>, patience: Patience) -> Result<Self, OriginError> {
        let key_prefix = String::from_utf8(url.key_prefix())
            .map_err(|_| OriginError::Invalid { what: "the prefix of the URL is not UTF-8".into() })?;
        Ok(Self { url: url.clone(), key_prefix, store, patience })
    }

    fn full_key(&self, key: &[u8]) -> Result<String, OriginError> {
        match std::str::from_utf8(key) {
            Ok(key) => Ok(format!("{}{key}", self.key_prefix)),
            Err(_) => {
                Err(OriginError::Invalid { what: format!("{}: keys of an object store are UTF-8", Key::from(key)) })
            }
        }
    }

    fn listed(&self, meta: ObjectMeta) -> Result<Listed, Failure> {
        let foreign =
            || OriginError::Unavailable { source: "the listing holds a key outside of the prefix asked for".into() };
        let key = meta.location.as_ref().strip_prefix(&self.key_prefix).ok_or_else(foreign)?.as_bytes().to_vec();
        let mtime_ns = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
        let version = s3_list::version(meta.e_tag.as_deref(), mtime_ns, meta.size);
        Ok(Listed { key, size: meta.size, mtime_ns, version })
    }

    async fn list_page(
        &self,
        retry: &Retry,
        prefix: &[u8],
        after: Option<&[u8]>,
        depth: Depth,
    ) -> Result<Page, Failure> {
        let fail = |error| failure(error, prefix, None, &self.patience);
        let full = self.full_key(prefix)?;
        let folder = match full.strip_suffix('/').unwrap_or(&full) {
            "" => None,
            folder => Some(path(prefix, folder)?),
        };
        let folder = folder.as_ref();
        let mut page = Page::default();
        match depth {
            Depth::One => {
                let result = retry.progress(self.store.list_with_delimiter(folder)).await?.map_err(fail)?;
                for meta in result.objects {
                    page.files.push(self.listed(meta)?);
                }
                for below in result.common_prefixes {
                    let below = below.as_ref().strip_prefix(&self.key_prefix).unwrap_or(below.as_ref());
                    page.prefixes.push(format!("{below}/").into_bytes());
                }
            }
            Depth::All => {
                let mut stream = match after {
                    // The offset need not be a key that exists, but has to be one of object_store's paths.
                    Some(after) => self.store.list_with_offset(folder, &path(after, &self.full_key(after)?)?),
                    None => self.store.list(folder),
                };
                while let Some(meta) = retry.progress(stream.try_next()).await?.map_err(fail)? {
                    page.files.push(self.listed(meta)?);
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
    ) -> Result<(Bytes, Version), Failure> {
        let fail = |error| failure(error, key, version, &self.patience);
        let path = path(key, &self.full_key(key)?)?;
        let if_match = match version {
            Some(Version::ETag(tag)) => Some(tag.clone()),
            Some(Version::MtimeSize { .. }) | None => None,
        };
        let options = GetOptions { range: range.cloned().map(GetRange::Bounded), if_match, ..GetOptions::default() };
        let result = match retry.answer(self.store.get_opts(&path, options)).await? {
            Ok(result) => result,
            Err(error) => return Err(self.past_the_end(retry, key, &path, range, fail(error)).await),
        };
        let got = self.listed(result.meta.clone())?;
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
            // What the store itself says is all there is does not get longer by asking again.
            return Err(if wanted < expected { Failure::Final(error) } else { Failure::Again(error) });
        }
        Ok((bytes.freeze(), got.version))
    }

    /// The stores tell of a range past the end in ways of their own, so the object's size is looked up to know.
    async fn past_the_end(
        &self,
        retry: &Retry,
        key: &[u8],
        path: &Path,
        range: Option<&Range<u64>>,
        failure: Failure,
    ) -> Failure {
        let (Failure::Again(OriginError::Unavailable { .. }), Some(range)) = (&failure, range) else { return failure };
        match retry.progress(self.store.head(path)).await {
            Ok(Ok(meta)) if meta.size < range.end => {
                let (expected, got) = (range.end - range.start, meta.size.saturating_sub(range.start));
                Failure::Final(OriginError::Truncated { key: Key::from(key), expected, got })
            }
            _ => failure,
        }
    }

    fn writer(&self) -> Writer<'_> {
        Writer { store: self.store.as_ref(), patience: &self.patience }
    }

    /// The version of what was just written.
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
        let mut retry = Retry::new(&self.patience, prefix);
        loop {
            match self.list_page(&retry, prefix, after, depth).await {
                Ok(page) => return Ok(page),
                Err(failure) => retry.pause(failure).await?,
            }
        }
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let mut retry = Retry::new(&self.patience, key);
        loop {
            match self.attempt(&retry, key, Some(&range), version, u64::MAX).await {
                Ok((bytes, _)) => return Ok(bytes),
                Err(failure) => retry.pause(failure).await?,
            }
        }
    }

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
        let path = path(key, &self.full_key(key)?)?;
        let mut retry = Retry::new(&self.patience, key);
        loop {
            let failure = match retry.progress(self.store.head(&path)).await {
                Ok(Ok(meta)) => match self.listed(meta) {
                    Ok(listed) => return Ok(listed),
                    Err(failure) => failure,
                },
                Ok(Err(error)) => failure(error, key, None, &self.patience),
                Err(failure) => failure,
            };
            retry.pause(failure).await?;
        }
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let mut retry = Retry::new(&self.patience, key);
        loop {
            match self.attempt(&retry, key, None, None, limit).await {
                Ok(whole) => return Ok(whole),
                Err(failure) => retry.pause(failure).await?,
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
    use super::*;
    use object_store::memory::InMemory;

    fn patience() -> Patience {
        OriginConfig::default().patience(&crate::pace::Pace::fixed(8))
    }

    fn origin(url: &str) -> ObjectOrigin {
        let url = url.parse().expect("a URL");
        ObjectOrigin::new(&url, Arc::new(InMemory::new()), patience()).expect("an origin")
    }

    #[tokio::test]
    async fn any_object_store_conforms() {
        crate::conformance(Arc::new(origin("gs://bucket")), 1, 1100).await;
        crate::conformance(Arc::new(origin("az://container/pre/fix")), 2, 1100).await;
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
        open_gcs(&"gs://b/p".parse().expect("a URL"), &config, patience()).expect("gcs");
        let url: OriginUrl = "az://c/p".parse().expect("a URL");
        let error = open_azure(&url, &config, patience()).expect_err("no account");
        assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
        config.env.set("AZURE_STORAGE_ACCOUNT_NAME", "me");
        config.env.set("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==");
        let azure = open_azure(&url, &config, patience()).expect("azure");
        assert!(!format!("{azure:?} {config:?}").contains("aHVudGVyMg"));
    }
}
