//! A wrapper that limits concurrent calls, for production.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::limit::{OriginLimit, Permit};
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::{Md5Answer, Origin, Sink};
use crate::urgency::Urgency;
use crate::url::OriginUrl;
use crate::version::Version;
use crate::watch::{self, WaitsFor};

/// An origin that limits the number of concurrent calls and their bytes per second. Other calls wait: those first for
/// which somebody waits, and these for a limited time.
///
/// Uploads of streams are not limited: the stream may come from the same origin, and an upload that held one of few
/// places could wait for itself.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Origin>,
    limit: Arc<OriginLimit>,
    wait: Duration,
    urgency: Urgency,
}

impl Limited {
    /// Wraps `inner` and allows `concurrency` concurrent calls (at least one). A call that has waited for `wait` fails
    /// with `Busy`.
    pub fn new(inner: Arc<dyn Origin>, concurrency: usize, wait: Duration) -> Self {
        Self::with_limit(inner, OriginLimit::fixed(concurrency, None), wait)
    }

    /// Allows as many concurrent calls as `limit` has places.
    pub(crate) fn with_limit(inner: Arc<dyn Origin>, limit: Arc<OriginLimit>, wait: Duration) -> Self {
        Self { inner, limit, wait, urgency: Urgency::HIGH }
    }

    /// Waits for a place for a call that reads so many bytes. While nobody waits for the call, this waits as long as
    /// others need the origin.
    async fn permit(&self, bytes: u64) -> Result<Permit, OriginError> {
        let late = async {
            self.urgency.high().await;
            tokio::time::sleep(self.wait).await;
        };
        tokio::select! {
            biased;
            permit = self.limit.acquire(bytes, &self.urgency) => Ok(permit),
            () = late => {
                Err(OriginError::Busy { source: format!("no call in flight ended within {:?}", self.wait).into() })
            }
        }
    }

    /// Makes a call for `key`, of which `bytes_of` says how many bytes it has read.
    async fn call<T>(
        &self,
        key: &[u8],
        bytes: u64,
        call: impl Future<Output = Result<T, OriginError>> + Send,
        bytes_of: impl FnOnce(&T) -> u64 + Send,
    ) -> Result<T, OriginError> {
        self.inner.has_keys(key).await?;
        watch::report(|watch| watch.waits_for(WaitsFor::Turn));
        let permit = self.permit(bytes).await?;
        watch::report(|watch| watch.waits_for(WaitsFor::Answer));
        let got = call.await?;
        permit.succeeded(bytes_of(&got));
        Ok(got)
    }
}

#[async_trait]
impl Origin for Limited {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    fn with_urgency(&self, urgency: &Urgency) -> Option<Arc<dyn Origin>> {
        let inner = self.inner.with_urgency(urgency).unwrap_or_else(|| Arc::clone(&self.inner));
        let (limit, urgency) = (Arc::clone(&self.limit), urgency.clone());
        Some(Arc::new(Self { inner, limit, wait: self.wait, urgency }))
    }

    fn places(&self) -> usize {
        self.limit.places().min(self.inner.places())
    }

    async fn has_keys(&self, key: &[u8]) -> Result<(), OriginError> {
        self.inner.has_keys(key).await
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.call(prefix, 0, self.inner.list(prefix, after, depth), |_| 0).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let bytes = range.end.saturating_sub(range.start);
        self.call(key, bytes, self.inner.read(key, range, version), |_| bytes).await
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let bytes = range.end.saturating_sub(range.start);
        self.call(key, bytes, self.inner.read_to(key, range, version, sink), |()| bytes).await
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        self.call(key, 0, self.inner.head(key), |_| 0).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let whole = self.call(key, 0, self.inner.read_all(key, limit), |(bytes, _)| bytes.len() as u64).await?;
        // Its size was not known before.
        if let Some(rate) = &self.limit.rate {
            rate.charge(whole.0.len() as u64);
        }
        Ok(whole)
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.call(key, 0, self.inner.put(key, bytes), |_| 0).await
    }

    async fn put_with_md5(&self, key: &[u8], bytes: Bytes, md5: &[u8; 16]) -> Result<Md5Answer, OriginError> {
        self.call(key, 0, self.inner.put_with_md5(key, bytes, md5), |_| 0).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.inner.put_stream(key, chunks).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.call(key, 0, self.inner.delete(key), |()| 0).await
    }

    async fn copy_from(
        &self,
        source: &OriginUrl,
        object: &ObjectInfo,
        key: &[u8],
    ) -> Result<Option<Version>, OriginError> {
        self.call(key, 0, self.inner.copy_from(source, object, key), |_| 0).await
    }

    async fn has_opaque_tag(&self, key: &[u8]) -> Result<bool, OriginError> {
        self.call(key, 0, self.inner.has_opaque_tag(key), |_| 0).await
    }
}
