//! A wrapper that counts calls, for tests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;
use crate::version::Version;

/// The number of calls of each kind, including failed ones. Bytes are counted only for successful calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `list`.
    pub lists: u64,
    /// Calls of `read` and `read_all`.
    pub reads: u64,
    /// Bytes that these calls returned.
    pub read_bytes: u64,
    /// Calls of `head`.
    pub heads: u64,
    /// Calls of `put` and `put_stream`.
    pub puts: u64,
    /// Calls of any kind that ended with an error.
    pub errors: u64,
}

/// An origin that counts calls.
#[derive(Debug)]
pub struct Counting {
    inner: Arc<dyn Origin>,
    lists: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    heads: AtomicU64,
    puts: AtomicU64,
    errors: AtomicU64,
}

impl Counting {
    /// Wraps `inner`. All counts start at zero.
    pub fn new(inner: Arc<dyn Origin>) -> Self {
        let zero = AtomicU64::default;
        Self { inner, lists: zero(), reads: zero(), read_bytes: zero(), heads: zero(), puts: zero(), errors: zero() }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            lists: read(&self.lists),
            reads: read(&self.reads),
            read_bytes: read(&self.read_bytes),
            heads: read(&self.heads),
            puts: read(&self.puts),
            errors: read(&self.errors),
        }
    }

    fn counted<T>(&self, count: &AtomicU64, result: Result<T, OriginError>) -> Result<T, OriginError> {
        count.fetch_add(1, Ordering::Relaxed);
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

#[async_trait]
impl Origin for Counting {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.counted(&self.lists, self.inner.list(prefix, after, depth).await)
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let bytes = self.counted(&self.reads, self.inner.read(key, range, version).await)?;
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        self.counted(&self.heads, self.inner.head(key).await)
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let whole = self.counted(&self.reads, self.inner.read_all(key, limit).await)?;
        self.read_bytes.fetch_add(whole.0.len() as u64, Ordering::Relaxed);
        Ok(whole)
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.counted(&self.puts, self.inner.put(key, bytes).await)
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.counted(&self.puts, self.inner.put_stream(key, chunks).await)
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.inner.delete(key).await
    }
}
