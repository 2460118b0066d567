use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use super::counting::{Counting, Counts};
use super::faulty::{Faulty, InjectedFault, Operation};
use super::limited::Limited;
use super::slow::Slow;
use crate::error::OriginError;
use crate::listing::{Depth, ObjectInfo, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;
use crate::version::Version;

/// Answers each read with one byte after a second. Records the highest number of concurrent reads.
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

fn info(key: &[u8]) -> ObjectInfo {
    ObjectInfo { key: key.to_vec(), size: 1, mtime_ns: 0, version: Version::MtimeSize { mtime_ns: 0, size: 1 } }
}

#[async_trait]
impl Origin for Stub {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, prefix: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
        Ok(Page { files: vec![info(prefix)], ..Page::default() })
    }

    async fn read(&self, _: &[u8], _: Range<u64>, _: Option<&Version>) -> Result<Bytes, OriginError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Bytes::from_static(b"a"))
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        Ok(info(key))
    }

    async fn read_all(&self, key: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
        Ok((self.read(key, 0..1, None).await?, info(key).version))
    }

    async fn put(&self, key: &[u8], _: Bytes) -> Result<Version, OriginError> {
        Ok(info(key).version)
    }

    async fn put_stream(
        &self,
        key: &[u8],
        _: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        Ok(info(key).version)
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
    assert!(limited.read(b"k", 0..1, None).await.is_ok(), "an abandoned wait loses no permit");
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
        (Operation::Head, b"gone", 0) => InjectedFault::NotFound,
        (Operation::Read, _, _) => InjectedFault::FlipBit,
        (Operation::ReadAll, _, _) => InjectedFault::Hang,
        _ => InjectedFault::None,
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
        let faulty = Faulty::seeded(Stub::new(), seed, 0.3, vec![InjectedFault::Busy, InjectedFault::Unavailable]);
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
    let faulty = Faulty::new(Stub::new(), |call| if call.seq == 0 { InjectedFault::Busy } else { InjectedFault::None });
    let counting = Counting::new(Arc::new(faulty));
    counting.read(b"k", 0..1, None).await.expect_err("busy");
    counting.read(b"k", 0..1, None).await.expect("read");
    counting.list(b"", None, Depth::All).await.expect("list");
    let expected = Counts { lists: 1, reads: 2, read_bytes: 1, heads: 0, puts: 0, errors: 1 };
    assert_eq!(counting.counts(), expected);
}
