//! Pieces of large files that are read here and there, and that the store keeps.

use larder_store::{BlockLens, FileSpan};

use super::*;

const SIZE: u64 = 40 << 20;

const PAGE: u64 = 16 << 10;

/// All blocks are of one file of this size.
struct OneFile(u64);

impl BlockLens for OneFile {
    fn len_of(&self, block: BlockIndex) -> Option<u32> {
        Some(self.0.saturating_sub(u64::from(block.0) * BLOCK_BYTES).min(BLOCK_BYTES) as u32)
    }

    fn file_of(&self, _: BlockIndex) -> Option<FileSpan> {
        Some(FileSpan { first: BlockIndex(0), bytes: self.0 })
    }
}

/// A world of one file of this size, of which the store keeps this many bytes.
pub(super) fn one_file(size: u64, bytes: u64) -> World {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[size]);
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
    let config = CacheConfig {
        key: manifest.snapshot().into(),
        is_known_as_ours: false,
        name: "data".into(),
        blocks: manifest.totals().blocks,
        reservation_bytes: bytes,
        promised: Reservation::exactly(bytes),
        policy: PolicyKind::Nr,
        seed: 1,
        block_lens: Arc::new(OneFile(size)),
    };
    let cache = store.dataset(config).unwrap();
    let origin = Noted::new();
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let (by_manifest, counters, runtime) = (Arc::clone(&manifest), Arc::default(), Handle::current());
    let fetcher = Arc::new(Fetcher::new(by_manifest, cache, own, None, counters, runtime, FetchConfig::DEFAULT));
    World { origin, fetcher, manifest, _store: store, _folder: folder }
}

impl World {
    /// True if the store has these bytes, which lie in one block.
    fn has(&self, offset: u64, len: u64) -> bool {
        let part = self.part(0, offset, len);
        let right = |bytes: &[u8]| assert!(bytes.iter().zip(offset..).all(|(&byte, at)| byte == at as u8));
        self.fetcher.context.cache.read(part.block, part.block_len, part.start, part.len, right).hit().is_some()
    }
}

// SEMANTICS: C21
#[tokio::test]
async fn the_store_keeps_what_readers_here_and_there_fetch_and_the_rest_once_they_fetch_it() {
    let world = one_file(SIZE, SIZE);
    let cache = &world.fetcher.context.cache;
    let at = 5 * BLOCK_BYTES + 20 * PAGE;
    world.read(0, at + 100, 4096).await;
    world.fetcher.wait_idle().await;
    let page = at..at + PAGE;
    assert_eq!(world.origin.take(), [page]);
    assert!(world.has(at, PAGE) && !world.has(at - PAGE, PAGE) && !world.has(at + PAGE, PAGE));
    assert!(!cache.contains(BlockIndex(5)));
    // A reader of a large part fetches the whole block, which needs no more room.
    assert_eq!(cache.usage().used_bytes, BLOCK_BYTES);
    world.read(0, 5 * BLOCK_BYTES + (2 << 20), 1 << 20).await;
    world.fetcher.wait_idle().await;
    assert!(world.has(5 * BLOCK_BYTES, BLOCK_BYTES) && cache.contains(BlockIndex(5)));
    assert_eq!(cache.usage().used_bytes, BLOCK_BYTES);
}

// SEMANTICS: C1, C21
#[tokio::test]
async fn a_full_store_keeps_no_piece_of_another_block() {
    let world = one_file(SIZE, BLOCK_BYTES);
    for block in [3, 5] {
        world.read(0, block * BLOCK_BYTES + PAGE, 4096).await;
        world.fetcher.wait_idle().await;
    }
    assert!(world.has(3 * BLOCK_BYTES + PAGE, PAGE) && !world.has(5 * BLOCK_BYTES + PAGE, PAGE));
    assert_eq!(world.fetcher.context.cache.usage().used_bytes, BLOCK_BYTES);
    world.read(0, 3 * BLOCK_BYTES + 9 * PAGE, 4096).await;
    world.fetcher.wait_idle().await;
    assert!(world.has(3 * BLOCK_BYTES + 9 * PAGE, 4096), "the room of its block is taken already");
}

// SEMANTICS: C7
#[tokio::test]
async fn a_warm_up_goes_on_with_a_block_of_which_a_piece_was_being_written() {
    let world = one_file(SIZE, SIZE);
    let writing = world.fetcher.context.cache.admit(BlockIndex(3), BLOCK_BYTES as u32).unwrap();
    let (fetcher, whole) = (Arc::clone(&world.fetcher), world.part(0, 3 * BLOCK_BYTES, BLOCK_BYTES));
    let warming = tokio::spawn(async move { fetcher.warm(FileIndex(0), whole, false, None).await });
    while !world.fetcher.in_flight.contains(BlockIndex(3)) && !warming.is_finished() {
        tokio::task::yield_now().await;
    }
    // Long enough for the store to be asked.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(writing);
    assert_eq!(warming.await.unwrap(), Warmed::Kept);
}

// SEMANTICS: C14, C21
#[tokio::test(start_paused = true)]
async fn a_block_is_kept_although_a_piece_of_it_was_being_written_when_its_fetch_began() {
    let world = Arc::new(one_file(SIZE, SIZE));
    let writing = world.fetcher.context.cache.admit(BlockIndex(5), BLOCK_BYTES as u32).unwrap();
    world.origin.hold_until(Instant::now() + Duration::from_secs(1));
    let reading = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.read(0, 5 * BLOCK_BYTES + (2 << 20), 1 << 20).await })
    };
    while world.origin.ranges.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(writing);
    reading.await.unwrap();
    world.fetcher.wait_idle().await;
    assert!(world.fetcher.context.cache.contains(BlockIndex(5)));
}
