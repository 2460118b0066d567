//! A wrapper that limits concurrent calls, for production.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::{Origin, Sink};
use crate::url::OriginUrl;
use crate::version::Version;

/// An origin that limits the number of concurrent calls. Other calls wait in order, for a limited time.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Origin>,
    limit: Arc<ConcurrencyLimit>,
    wait: Duration,
}

impl Limited {
    /// Wraps `inner` and allows `concurrency` concurrent calls (at least one). A call that has waited for `wait` fails
    /// with `Busy`.
    pub fn new(inner: Arc<dyn Origin>, concurrency: usize, wait: Duration) -> Self {
        Self::with_limit(inner, ConcurrencyLimit::fixed(concurrency), wait)
    }

    /// Allows as many concurrent calls as `limit` has permits.
    pub(crate) fn with_limit(inner: Arc<dyn Origin>, limit: Arc<ConcurrencyLimit>, wait: Duration) -> Self {
        Self { inner, limit, wait }
    }

    async fn permit(&self) -> Result<Permit<'_>, OriginError> {
        let busy = || OriginError::Busy { source: format!("no call in flight ended within {:?}", self.wait).into() };
        self.limit.acquire(self.wait).await.ok_or_else(busy)
    }
}

#[async_trait]
impl Origin for Limited {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let _permit = self.permit().await?;
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let _permit = self.permit().await?;
        self.inner.read(key, range, version).await
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let _permit = self.permit().await?;
        self.inner.read_to(key, range, version, sink).await
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let _permit = self.permit().await?;
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let _permit = self.permit().await?;
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        let _permit = self.permit().await?;
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let _permit = self.permit().await?;
        self.inner.put_stream(key, chunks).await
    }
}
