//! GETs, counted, for files of which the store keeps none.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use async_trait::async_trait;
use futures::stream::BoxStream;
use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, PolicyKind, VersionTag};
use larder_origin::{Depth, ObjectInfo, OriginError, OriginUrl, Page, Version};
use larder_peers::BlockBytes;
use larder_store::{CacheConfig, Reservation, Store, StoreConfig};

use super::*;
use crate::manifest_file::open_manifest;

mod beside;
mod checksums;
mod earlier;
mod kept_pieces;
mod late;
mod owners;
mod shared_memory;
mod stalled_disk;
mod streams;
mod tensors;
mod warming;

/// An origin whose objects have any bytes that are asked for, and which notes the ranges.
#[derive(Debug)]
pub(crate) struct Noted {
    url: OriginUrl,
    /// The first bytes of each object.
    start: Mutex<Vec<u8>>,
    pub(crate) ranges: Mutex<Vec<Range<u64>>>,
    /// So many of the next reads get a wrong byte.
    wrong: AtomicU32,
    /// So many of the next reads fail.
    failing: AtomicU32,
    /// Reads that begin now are answered then.
    held_until: Mutex<Option<Instant>>,
}

impl Noted {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            url: "s3://bucket/data".parse().unwrap(),
            start: Mutex::default(),
            ranges: Mutex::default(),
            wrong: AtomicU32::new(0),
            failing: AtomicU32::new(0),
            held_until: Mutex::default(),
        })
    }

    /// Reads that begin from now on are not answered before `until`.
    pub(crate) fn hold_until(&self, until: Instant) {
        *self.held_until.lock().unwrap() = Some(until);
    }

    /// Objects begin with these bytes from now on.
    fn start_with(&self, bytes: Vec<u8>) {
        *self.start.lock().unwrap() = bytes;
    }

    /// So many of the next reads fail.
    pub(crate) fn fail_next(&self, reads: u32) {
        self.failing.store(reads, SeqCst);
    }

    /// The ranges that were asked for since the last call.
    pub(crate) fn take(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.ranges.lock().unwrap())
    }
}

#[async_trait]
impl Origin for Noted {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, _: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
        Err(only_read("list"))
    }

    async fn read(&self, _: &[u8], range: Range<u64>, _: Option<&Version>) -> Result<Bytes, OriginError> {
        self.ranges.lock().unwrap().push(range.clone());
        let held_until = *self.held_until.lock().unwrap();
        match held_until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => tokio::task::yield_now().await,
        }
        if self.failing.fetch_update(SeqCst, SeqCst, |failing| failing.checked_sub(1)).is_ok() {
            return Err(OriginError::Invalid { what: "it fails on purpose".into() });
        }
        let is_wrong = self.wrong.fetch_update(SeqCst, SeqCst, |wrong| wrong.checked_sub(1)).is_ok();
        let start = self.start.lock().unwrap();
        let byte = |at: u64| start.get(at as usize).copied().unwrap_or(at as u8);
        Ok(range.map(|at| byte(at) ^ u8::from(is_wrong)).collect())
    }

    async fn head(&self, _: &[u8]) -> Result<ObjectInfo, OriginError> {
        Err(only_read("head"))
    }

    async fn read_all(&self, _: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
        Err(only_read("read_all"))
    }

    async fn put(&self, _: &[u8], _: Bytes) -> Result<Version, OriginError> {
        Err(only_read("put"))
    }

    async fn put_stream(&self, _: &[u8], _: BoxStream<'_, Result<Bytes, OriginError>>) -> Result<Version, OriginError> {
        Err(only_read("put_stream"))
    }
}

/// The error of a call that no fetch makes.
fn only_read(call: &str) -> OriginError {
    OriginError::Invalid { what: format!("this origin is only read: it has no answer to {call}") }
}

/// A snapshot of files of these sizes, in a file of `folder`.
pub(crate) fn manifest(folder: &std::path::Path, sizes: &[u64]) -> Arc<MappedManifest> {
    let mut builder = ManifestBuilder::new();
    for (n, &size) in sizes.iter().enumerate() {
        let version = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
        let path = format!("{n:06}");
        builder
            .push(&PlainFile { path: path.as_bytes(), size, mtime_ns: 0, version }, NameRules::OBJECT_STORE)
            .unwrap();
    }
    let path = folder.join("manifest");
    std::fs::write(&path, builder.finish("data", "s3://bucket/data", 0).unwrap().to_bytes()).unwrap();
    Arc::new(open_manifest(&path).unwrap())
}

struct World {
    origin: Arc<Noted>,
    fetcher: Arc<Fetcher>,
    manifest: Arc<MappedManifest>,
    _store: Store,
    _folder: tempfile::TempDir,
}

fn world(sizes: &[u64], window_bytes: u64) -> World {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), sizes);
    world_of(folder, manifest, None, FetchConfig { window_bytes, ..FetchConfig::DEFAULT })
}

fn world_of(
    folder: tempfile::TempDir,
    manifest: Arc<MappedManifest>,
    sharing: Option<Arc<Sharing>>,
    config: FetchConfig,
) -> World {
    world_that_keeps(0, folder, manifest, sharing, config)
}

/// Its store keeps this many bytes.
fn world_that_keeps(
    bytes: u64,
    folder: tempfile::TempDir,
    manifest: Arc<MappedManifest>,
    sharing: Option<Arc<Sharing>>,
    config: FetchConfig,
) -> World {
    let store = StoreConfig::new(folder.path().join("store"));
    world_with_store(store, bytes, folder, manifest, sharing, config)
}

/// The same, with this store.
fn world_with_store(
    store: StoreConfig,
    bytes: u64,
    folder: tempfile::TempDir,
    manifest: Arc<MappedManifest>,
    sharing: Option<Arc<Sharing>>,
    config: FetchConfig,
) -> World {
    let store = Store::open(store, Arc::default()).unwrap();
    let cache = store
        .dataset(CacheConfig {
            key: manifest.snapshot().into(),
            is_known_as_ours: false,
            name: "data".into(),
            blocks: manifest.totals().blocks,
            reservation_bytes: bytes,
            promised: Reservation::exactly(bytes),
            policy: PolicyKind::Nr,
            seed: 1,
            block_lens: Arc::new(|_: BlockIndex| 0),
        })
        .unwrap();
    let origin = Noted::new();
    let (by_manifest, counters) = (Arc::clone(&manifest), Arc::default());
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let fetcher = Arc::new(Fetcher::new(by_manifest, cache, own, sharing, counters, Handle::current(), config));
    World { origin, fetcher, manifest, _store: store, _folder: folder }
}

impl World {
    fn part(&self, file: u32, offset: u64, len: u64) -> BlockPart {
        let row = self.manifest.file(FileIndex(file)).unwrap();
        let mut parts = row.parts(offset, len);
        let part = parts.next().unwrap();
        assert!(parts.next().is_none(), "one block");
        part
    }

    async fn read(&self, file: u32, offset: u64, len: u64) {
        let part = self.part(file, offset, len);
        let bytes = self.fetcher.fetch(FileIndex(file), part, self.fetcher.deadline()).await.unwrap().bytes;
        self.fetcher.mark_read(&part);
        assert!(bytes.iter().zip(offset..).all(|(&byte, at)| byte == at as u8) && bytes.len() as u64 == len);
    }
}

/// One piece is read; the other found neither window nor fetch, and comes when the fetch has ended.
// SEMANTICS: C2
#[tokio::test]
async fn a_piece_that_comes_when_the_fetch_of_its_block_has_ended_starts_no_get() {
    let world = world(&[1_000], 64 << 20);
    let late = world.part(0, 500, 500);
    assert!(world.fetcher.in_window(&late).is_none(), "the look that comes too early");
    world.read(0, 0, 500).await;
    world.fetcher.wait_idle().await;
    let end = End::by(world.fetcher.deadline());
    let (in_flight, _) = world.fetcher.join_or_start(FileIndex(0), late, Purpose::Read, end);
    assert!(matches!(in_flight.outcome().await, Outcome::Fetched(_, Tier::Window)));
    assert_eq!(world.origin.take().len(), 1);
    world.fetcher.mark_read(&late);
    assert!(!world.fetcher.context.window.contains(BlockIndex(0)), "nothing of it stays");
}

// SEMANTICS: C2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pieces_that_are_read_at_the_same_time_make_one_get_however_they_meet() {
    const FILES: u32 = 2_000;
    let world = Arc::new(world(&[4_000; FILES as usize], 64 << 20));
    for file in 0..FILES {
        let pieces: Vec<_> = (0..4)
            .map(|piece| {
                let world = Arc::clone(&world);
                tokio::spawn(async move { world.read(file, piece * 1_000, 1_000).await })
            })
            .collect();
        for piece in pieces {
            piece.await.unwrap();
        }
    }
    assert_eq!(world.origin.take().len() as u32, FILES);
}

// SEMANTICS: C2
#[tokio::test]
async fn a_page_that_the_kernel_has_lost_is_not_fetched_again() {
    let world = world(&[165_000], 64 << 20);
    world.read(0, 0, 165_000).await;
    world.read(0, 45_056, 4_096).await;
    assert_eq!(world.origin.take().len(), 1);
}

/// Many readers are in the middle of a block each, more than the window holds.
// SEMANTICS: C14
#[tokio::test]
async fn more_readers_than_the_window_holds_blocks_fetch_each_byte_once_and_hold_no_more() {
    const MIB: u64 = 1 << 20;
    let world = world(&[9 * MIB; 64], 16 * MIB);
    for piece in 0..9 {
        for file in 0..64 {
            world.read(file, piece * MIB, MIB).await;
            assert!(world.fetcher.window_bytes() <= 16 * MIB);
        }
    }
    world.fetcher.wait_idle().await;
    let bytes: u64 = world.origin.take().iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, 64 * 9 * MIB);
}

/// Tens of thousands of them may wait for a hung origin.
// SEMANTICS: O5
#[tokio::test]
async fn a_read_that_waits_for_the_origin_and_its_fetch_take_at_most_4_kib() {
    let world = world(&[1_000], 64 << 20);
    let (part, deadline) = (world.part(0, 0, 1_000), world.fetcher.deadline());
    let end = End::by(deadline);
    let (_, started) = world.fetcher.in_flight.join_or_start(FileIndex(0), part, false, &end, |_| Vec::new());
    let read = world.fetcher.fetch(FileIndex(0), part, deadline);
    let fetch = Arc::clone(&world.fetcher).run(started.unwrap(), Purpose::Read, end, Route::ALONE, None);
    let sizes = (size_of_val(&read), size_of_val(&fetch));
    assert!(sizes.0 + sizes.1 <= 4 << 10, "{sizes:?}");
}

// SEMANTICS: C9
#[tokio::test]
async fn a_stream_in_a_large_file_ends_with_the_file() {
    let world = world(&[5 << 20; 40], 64 << 20);
    for file in [30, 3, 17, 9, 22] {
        world.read(file, 0, 4 << 20).await;
        world.read(file, 4 << 20, 1 << 20).await;
    }
    world.fetcher.wait_idle().await;
    assert_eq!(world.origin.take().len(), 10, "two blocks of each, and nothing of the next files");
}
