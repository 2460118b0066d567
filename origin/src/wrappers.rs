//! Wrappers that go round any origin: one for production, the others so that no production code has test switches.
//!
//! [`Limited`] bounds how many calls are under way. [`Slow`] adds latency, [`Faulty`] fails by a plan and [`Counting`]
//! counts. The invariant: but for what each is named after, a wrapper answers as the origin inside does.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;

use crate::error::{Key, OriginError};
use crate::pace::{Pace, Turn};
use crate::{Depth, Listed, Origin, OriginUrl, Page, Sink, Version};

/// Lets only so many calls through at a time; the others wait in line, for a bounded time.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Origin>,
    pace: Arc<Pace>,
    wait: Duration,
}

impl Limited {
    /// Lets `concurrency` calls (at least one) through at a time. A call that waited for `wait` ends with `Busy`.
    pub fn new(inner: Arc<dyn Origin>, concurrency: usize, wait: Duration) -> Self {
        Self::paced(inner, Pace::fixed(concurrency), wait)
    }

    /// Lets as many through as the pace gives turns.
    pub(crate) fn paced(inner: Arc<dyn Origin>, pace: Arc<Pace>, wait: Duration) -> Self {
        Self { inner, pace, wait }
    }

    async fn turn(&self) -> Result<Turn<'_>, OriginError> {
        let busy = || OriginError::Busy { source: format!("no call ended within {:?}", self.wait).into() };
        self.pace.turn(self.wait).await.ok_or_else(busy)
    }
}

#[async_trait]
impl Origin for Limited {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let _turn = self.turn().await?;
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let _turn = self.turn().await?;
        self.inner.read(key, range, version).await
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let _turn = self.turn().await?;
        self.inner.read_to(key, range, version, sink).await
    }

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
        let _turn = self.turn().await?;
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let _turn = self.turn().await?;
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        let _turn = self.turn().await?;
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let _turn = self.turn().await?;
        self.inner.put_stream(key, chunks).await
    }
}

/// Makes every call wait first, as a far origin does.
#[derive(Debug)]
pub struct Slow {
    inner: Arc<dyn Origin>,
    latency: Duration,
}

impl Slow {
    /// Adds `latency` before every call.
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

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
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
}

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
    /// `put` and `put_stream`
    Put,
}

/// A call, as a plan of faults sees it.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What is asked.
    pub operation: Operation,
    /// Of which key or prefix.
    pub key: &'a [u8],
    /// The how-manieth call of this wrapper it is, from 0.
    pub seq: u64,
}

/// What is to happen to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the origin inside answers.
    None,
    /// `NotFound`
    NotFound,
    /// `Stale`, if a version was asked for, else nothing.
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
    /// The bytes of a read come with one bit of the first byte flipped, as from a broken disk or wire.
    FlipBit,
    /// Never answers.
    Hang,
}

type Plan = Box<dyn Fn(&Call<'_>) -> Fault + Send + Sync>;

/// Fails calls by a plan.
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
    /// Asks `plan` what is to happen to each call.
    pub fn new(inner: Arc<dyn Origin>, plan: impl Fn(&Call<'_>) -> Fault + Send + Sync + 'static) -> Self {
        Self { inner, plan: Box::new(plan), seq: AtomicU64::new(0) }
    }

    /// Picks one of `faults` for a share of the calls, the same ones for the same seed.
    pub fn seeded(inner: Arc<dyn Origin>, seed: u64, share: f64, faults: Vec<Fault>) -> Self {
        Self::new(inner, move |call| {
            use rand::{Rng, SeedableRng};
            let mut random = rand::rngs::SmallRng::seed_from_u64(seed ^ call.seq.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            if faults.is_empty() || !random.random_bool(share.clamp(0.0, 1.0)) {
                return Fault::None;
            }
            faults[random.random_range(0..faults.len())]
        })
    }

    /// Gives whether the bytes are to be damaged, or the error of the call's fault.
    async fn fault(&self, operation: Operation, key: &[u8], version: Option<&Version>) -> Result<bool, OriginError> {
        let call = Call { operation, key, seq: self.seq.fetch_add(1, Ordering::Relaxed) };
        let shown = Key::from(key);
        let source = "made up".into();
        match ((self.plan)(&call), version) {
            (Fault::None, _) | (Fault::Stale, None) => Ok(false),
            (Fault::FlipBit, _) => Ok(true),
            (Fault::Hang, _) => std::future::pending().await,
            (Fault::NotFound, _) => Err(OriginError::NotFound { key: shown }),
            (Fault::Stale, Some(version)) => {
                Err(OriginError::Stale { key: shown, expected: version.clone(), got: None })
            }
            (Fault::Denied, _) => Err(OriginError::Denied { key: shown, source }),
            (Fault::Busy, _) => Err(OriginError::Busy { source }),
            (Fault::TimedOut, _) => Err(OriginError::TimedOut { key: shown, after: Duration::ZERO }),
            (Fault::Truncated, _) => Err(OriginError::Truncated { key: shown, expected: 1, got: 0 }),
            (Fault::Unavailable, _) => Err(OriginError::Unavailable { source }),
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

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
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
}

/// How many calls of each kind there were; calls that failed are counted too, bytes only of those that did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `list`.
    pub lists: u64,
    /// Calls of `read` and `read_all`.
    pub reads: u64,
    /// Bytes that these gave.
    pub read_bytes: u64,
    /// Calls of `head`.
    pub heads: u64,
    /// Calls of `put` and `put_stream`.
    pub puts: u64,
    /// Calls of any kind that ended with an error.
    pub errors: u64,
}

/// Counts the calls.
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
    /// Counts from zero.
    pub fn new(inner: Arc<dyn Origin>) -> Self {
        let zero = AtomicU64::default;
        Self { inner, lists: zero(), reads: zero(), read_bytes: zero(), heads: zero(), puts: zero(), errors: zero() }
    }

    /// The counts up to now.
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

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each read after a second with one byte, and knows how many there were at a time.
    #[derive(Debug)]
    struct Stub {
        url: OriginUrl,
        now: AtomicU64,
        most: AtomicU64,
    }

    impl Stub {
        fn new() -> Arc<Self> {
            let url = OriginUrl::folder("/stub").expect("a URL");
            Arc::new(Self { url, now: AtomicU64::new(0), most: AtomicU64::new(0) })
        }
    }

    fn listed(key: &[u8]) -> Listed {
        Listed { key: key.to_vec(), size: 1, mtime_ns: 0, version: Version::MtimeSize { mtime_ns: 0, size: 1 } }
    }

    #[async_trait]
    impl Origin for Stub {
        fn url(&self) -> &OriginUrl {
            &self.url
        }

        async fn list(&self, prefix: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
            Ok(Page { files: vec![listed(prefix)], ..Page::default() })
        }

        async fn read(&self, _: &[u8], _: Range<u64>, _: Option<&Version>) -> Result<Bytes, OriginError> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.now.fetch_sub(1, Ordering::SeqCst);
            Ok(Bytes::from_static(b"a"))
        }

        async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
            Ok(listed(key))
        }

        async fn read_all(&self, key: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
            Ok((self.read(key, 0..1, None).await?, listed(key).version))
        }

        async fn put(&self, key: &[u8], _: Bytes) -> Result<Version, OriginError> {
            Ok(listed(key).version)
        }

        async fn put_stream(
            &self,
            key: &[u8],
            _: BoxStream<'_, Result<Bytes, OriginError>>,
        ) -> Result<Version, OriginError> {
            Ok(listed(key).version)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limited_lets_so_many_through_and_makes_the_others_wait() {
        let stub = Stub::new();
        let limited = Limited::new(Arc::clone(&stub) as Arc<dyn Origin>, 3, Duration::from_secs(60));
        let reads = (0..10).map(|_| limited.read(b"k", 0..1, None));
        let reads = futures::future::join_all(reads).await;
        assert!(reads.iter().all(Result::is_ok));
        assert_eq!(stub.most.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_waits_too_long_for_its_turn_is_busy() {
        let limited = Limited::new(Stub::new(), 1, Duration::from_millis(1500));
        let reads = (0..4).map(|_| limited.read(b"k", 0..1, None));
        let reads = futures::future::join_all(reads).await;
        let busy = reads.iter().filter(|read| matches!(read, Err(OriginError::Busy { .. }))).count();
        assert_eq!(busy, 2, "{reads:?}");
        assert!(limited.read(b"k", 0..1, None).await.is_ok(), "a turn given up is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_adds_its_latency() {
        let slow = Slow::new(Stub::new(), Duration::from_secs(5));
        let start = tokio::time::Instant::now();
        slow.head(b"k").await.expect("head");
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn faulty_does_what_its_plan_says() {
        let faulty = Faulty::new(Stub::new(), |call| match (call.operation, call.key, call.seq) {
            (Operation::Head, b"gone", 0) => Fault::NotFound,
            (Operation::Read, _, _) => Fault::FlipBit,
            (Operation::ReadAll, _, _) => Fault::Hang,
            _ => Fault::None,
        });
        assert!(matches!(faulty.head(b"gone").await, Err(OriginError::NotFound { .. })));
        assert!(faulty.head(b"gone").await.is_ok());
        assert_eq!(faulty.read(b"k", 0..1, None).await.expect("read"), "`");
        let hung = tokio::time::timeout(Duration::from_secs(3600), faulty.read_all(b"k", 1)).await;
        assert!(hung.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn same_seed_fails_the_same_calls() {
        async fn failed(seed: u64) -> Vec<bool> {
            let faulty = Faulty::seeded(Stub::new(), seed, 0.3, vec![Fault::Busy, Fault::Unavailable]);
            let mut failed = Vec::new();
            for _ in 0..200 {
                failed.push(faulty.head(b"k").await.is_err());
            }
            failed
        }
        let first = failed(1).await;
        assert_eq!(first, failed(1).await);
        assert_ne!(first, failed(2).await);
        let share = first.iter().filter(|failed| **failed).count();
        assert!((30..90).contains(&share), "{share} of 200");
    }

    #[tokio::test(start_paused = true)]
    async fn counting_counts_bytes_only_of_what_came() {
        let faulty = Faulty::new(Stub::new(), |call| if call.seq == 0 { Fault::Busy } else { Fault::None });
        let counting = Counting::new(Arc::new(faulty));
        counting.read(b"k", 0..1, None).await.expect_err("busy");
        counting.read(b"k", 0..1, None).await.expect("read");
        counting.list(b"", None, Depth::All).await.expect("list");
        let expected = Counts { lists: 1, reads: 2, read_bytes: 1, heads: 0, puts: 0, errors: 1 };
        assert_eq!(counting.counts(), expected);
    }
}
