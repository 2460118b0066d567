//! Reads of blocks that an earlier snapshot's cache has, while they are adopted.

use larder_store::{Earlier, SameBlocks};

use super::*;
use crate::earlier::{EarlierCache, EarlierSnapshot};

const PIECE_BYTES: u64 = 128 << 10;
const FILE_BYTES: u64 = 9 << 20;

/// An earlier snapshot of which no block is adopted until the cache is closed.
#[derive(Debug)]
struct Held(EarlierSnapshot);

impl Earlier for Held {
    fn cache(&self) -> larder_dataset::CacheId {
        self.0.cache()
    }

    fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    fn is_promised(&self) -> bool {
        true
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.0.find(block)
    }

    fn each_run(&self, is_stopped: &dyn Fn() -> bool, _: &mut dyn FnMut(SameBlocks) -> bool) {
        while !is_stopped() {
            std::thread::yield_now();
        }
    }
}

/// A dataset that keeps nothing itself. An earlier snapshot of it has all of its first file.
fn adopting() -> World {
    let (folder, before) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = manifest(before.path(), &[FILE_BYTES]);
    let new = manifest(folder.path(), &[FILE_BYTES, 1000]);
    let world = world_of(folder, Arc::clone(&new), None, FetchConfig::DEFAULT);
    let row = old.file(FileIndex(0)).unwrap();
    let cache = world
        ._store
        .dataset(CacheConfig {
            key: old.snapshot().into(),
            is_known_as_ours: false,
            name: "data".into(),
            blocks: old.totals().blocks,
            reservation_bytes: FILE_BYTES,
            promised: Reservation::exactly(FILE_BYTES),
            policy: PolicyKind::Nr,
            seed: 1,
            block_lens: Arc::new(|_: BlockIndex| 0),
        })
        .unwrap();
    for part in row.parts(0, FILE_BYTES) {
        let bytes: Vec<u8> = (0..part.block_len).map(|at| at as u8).collect();
        let permit = cache.admit(part.block, part.block_len).unwrap();
        cache.write(permit, &cache.record(part.block, &bytes)).unwrap();
    }
    let old = EarlierCache { cache: old.snapshot().into(), manifest: old };
    let earlier = Arc::new(Held(EarlierSnapshot { old, new, is_promised: true }));
    world.fetcher.context.cache.adopt(vec![earlier], |_| ());
    assert!(world.fetcher.context.cache.is_adopting());
    world
}

fn read_bytes(world: &World) -> u64 {
    world._store.counters().hit_bytes.get()
}

// SEMANTICS: C14
#[tokio::test]
async fn a_block_that_is_being_taken_over_is_read_in_the_parts_that_are_asked_for() {
    let world = adopting();
    let next = world.fetcher.ahead.begin(BlockIndex(0), NO_LIMIT).unwrap();
    world.fetcher.read_ahead(next);
    world.fetcher.wait_idle().await;
    assert_eq!(read_bytes(&world), 0, "nobody waits for it");
    // The second file is read ahead.
    let ahead = world.origin.take();
    assert_eq!((ahead.len(), &ahead[0]), (1, &(0..1000)));
    for piece in 0..FILE_BYTES / PIECE_BYTES {
        world.read(0, piece * PIECE_BYTES, PIECE_BYTES).await;
    }
    world.fetcher.wait_idle().await;
    assert_eq!((read_bytes(&world), world.origin.take()), (FILE_BYTES, vec![]));
}

// SEMANTICS: C16
#[tokio::test]
async fn the_header_of_a_file_that_is_being_taken_over_is_not_fetched() {
    let world = adopting();
    let part = world.part(0, 0, PIECE_BYTES);
    let header = world.fetcher.header_part(FileIndex(0), part, true).await.unwrap();
    assert!(header.iter().zip(0_u32..).all(|(&byte, at)| byte == at as u8) && header.len() as u64 == PIECE_BYTES);
    assert_eq!(world.origin.take(), []);
}

// SEMANTICS: O5
#[tokio::test(start_paused = true)]
async fn reads_of_blocks_that_are_being_taken_over_do_not_wait_for_a_hung_origin() {
    let world = adopting();
    let all = world.fetcher.memory.available() as u32;
    let _hung = world.fetcher.memory.acquire(all).await;
    world.read(0, 0, PIECE_BYTES).await;
    assert_eq!(world.origin.take(), []);
}

/// A peer that waits much longer takes this node for one that is down.
// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_block_that_is_being_taken_over_is_fetched_for_a_peer_if_the_disk_does_not_answer_it_in_time() {
    let world = adopting();
    let reading = &world.fetcher.keeper.reading[0];
    let stalled = reading.acquire(reading.available() as u32).await;
    let (part, patience, begun) = (world.part(0, 0, PIECE_BYTES), Duration::from_secs(3), Instant::now());
    let read = || world.fetcher.fetch_for_peer(FileIndex(0), part, false, patience);
    assert!(matches!(read().await, Ok(Some(BlockBytes::Whole { .. }))));
    let took = begun.elapsed();
    assert!((patience..patience + Duration::from_secs(1)).contains(&took), "{took:?}");
    assert_eq!(world.origin.take().len(), 1);
    drop(stalled);
    assert!(matches!(read().await, Ok(Some(BlockBytes::Whole { .. }))));
    assert_eq!(world.origin.take().len(), 0, "the disk has it");
}

// SEMANTICS: C4
#[tokio::test(start_paused = true)]
async fn blocks_that_the_disk_does_not_read_in_half_of_the_read_deadline_are_fetched() {
    let world = adopting();
    let reading = &world.fetcher.keeper.reading[0];
    let _stalled = reading.acquire(reading.available() as u32).await;
    let begun = Instant::now();
    world.read(0, 0, PIECE_BYTES).await;
    let (half, took) = (FetchConfig::DEFAULT.read_deadline / 2, begun.elapsed());
    assert!((half..half + Duration::from_secs(1)).contains(&took), "{took:?}");
    assert_eq!(world.origin.take().len(), 1);
}
