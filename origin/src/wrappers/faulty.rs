//! A wrapper that injects faults, for tests.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;

use crate::error::OriginError;
use crate::key::Key;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;
use crate::version::Version;

/// The methods of [`Origin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `list`
    List,
    /// `read`
    Read,
    /// `head`
    Head,
    /// `read_all`
    ReadAll,
    /// `put`, `put_stream` and `delete`
    Put,
}

/// A call, as passed to a fault plan.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The operation.
    pub operation: Operation,
    /// The key or prefix of the call.
    pub key: &'a [u8],
    /// The number of the call at this wrapper, from 0.
    pub seq: u64,
}

/// The fault to inject into a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// No fault: the inner origin answers.
    None,
    /// `NotFound`
    NotFound,
    /// `Stale` if the call requests a version; otherwise no fault.
    Stale,
    /// `Denied`
    Denied,
    /// `Busy`
    Busy,
    /// `TimedOut`
    TimedOut,
    /// `Truncated`
    Truncated,
    /// `Unavailable`
    Unavailable,
    /// One bit of the first byte of a read is flipped, as by a broken disk or network.
    FlipBit,
    /// The call never returns.
    Hang,
}

type Plan = Box<dyn Fn(&Call<'_>) -> InjectedFault + Send + Sync>;

/// An origin whose calls fail according to a plan.
pub struct Faulty {
    inner: Arc<dyn Origin>,
    plan: Plan,
    seq: AtomicU64,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner).field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Faulty {
    /// Wraps `inner`. Calls `plan` to choose the fault of each call.
    pub fn new(inner: Arc<dyn Origin>, plan: impl Fn(&Call<'_>) -> InjectedFault + Send + Sync + 'static) -> Self {
        Self { inner, plan: Box::new(plan), seq: AtomicU64::new(0) }
    }

    /// Injects one of `faults` into a `share` of the calls (0 to 1). The same seed chooses the same calls.
    pub fn seeded(inner: Arc<dyn Origin>, seed: u64, share: f64, faults: Vec<InjectedFault>) -> Self {
        Self::new(inner, move |call| {
            use rand::{RngExt, SeedableRng};
            let mut random = rand::rngs::SmallRng::seed_from_u64(seed ^ call.seq.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            if faults.is_empty() || !random.random_bool(share.clamp(0.0, 1.0)) {
                return InjectedFault::None;
            }
            faults[random.random_range(0..faults.len())]
        })
    }

    /// Returns whether to damage the bytes, or the error that the fault causes.
    async fn fault(&self, operation: Operation, key: &[u8], version: Option<&Version>) -> Result<bool, OriginError> {
        let call = Call { operation, key, seq: self.seq.fetch_add(1, Ordering::Relaxed) };
        let shown = Key::from(key);
        let source = "injected".into();
        match ((self.plan)(&call), version) {
            (InjectedFault::None, _) | (InjectedFault::Stale, None) => Ok(false),
            (InjectedFault::FlipBit, _) => Ok(true),
            (InjectedFault::Hang, _) => std::future::pending().await,
            (InjectedFault::NotFound, _) => Err(OriginError::NotFound { key: shown }),
            (InjectedFault::Stale, Some(version)) => {
                Err(OriginError::Stale { key: shown, expected: version.clone(), got: None })
            }
            (InjectedFault::Denied, _) => Err(OriginError::Denied { key: shown, source }),
            (InjectedFault::Busy, _) => Err(OriginError::Busy { source }),
            (InjectedFault::TimedOut, _) => Err(OriginError::TimedOut { key: shown, after: Duration::ZERO }),
            (InjectedFault::Truncated, _) => Err(OriginError::Truncated { key: shown, expected: 1, got: 0 }),
            (InjectedFault::Unavailable, _) => Err(OriginError::Unavailable { source }),
        }
    }
}

fn flipped(bytes: Bytes) -> Bytes {
    let mut bytes = BytesMut::from(bytes.as_ref());
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    bytes.freeze()
}

#[async_trait]
impl Origin for Faulty {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.fault(Operation::List, prefix, None).await?;
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let flip = self.fault(Operation::Read, key, version).await?;
        let bytes = self.inner.read(key, range, version).await?;
        Ok(if flip { flipped(bytes) } else { bytes })
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        self.fault(Operation::Head, key, None).await?;
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let flip = self.fault(Operation::ReadAll, key, None).await?;
        let (bytes, version) = self.inner.read_all(key, limit).await?;
        Ok((if flip { flipped(bytes) } else { bytes }, version))
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.fault(Operation::Put, key, None).await?;
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.fault(Operation::Put, key, None).await?;
        self.inner.put_stream(key, chunks).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.fault(Operation::Put, key, None).await?;
        self.inner.delete(key).await
    }
}
