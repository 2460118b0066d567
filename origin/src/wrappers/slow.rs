//! A wrapper that adds latency, for tests.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;
use crate::version::Version;

/// An origin that delays every call, like a distant origin.
#[derive(Debug)]
pub struct Slow {
    inner: Arc<dyn Origin>,
    latency: Duration,
}

impl Slow {
    /// Wraps `inner` and waits for `latency` before every call.
    pub fn new(inner: Arc<dyn Origin>, latency: Duration) -> Self {
        Self { inner, latency }
    }
}

#[async_trait]
impl Origin for Slow {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.read(key, range, version).await
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.put_stream(key, chunks).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        tokio::time::sleep(self.latency).await;
        self.inner.delete(key).await
    }
}
