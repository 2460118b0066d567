//! A cache's disk that takes no writes for a while.

use tokio::sync::OwnedSemaphorePermit;

use super::*;

const MIB: u64 = 1 << 20;

/// Fewer than have a read-ahead across files.
const FILES: u32 = 24;

/// The memory for blocks that wait for the disk, and how many of 1 MiB fit: a KiB more is counted for each.
const WAITING_BYTES: u64 = 8 * MIB;
const WAITING: u32 = 7;

/// A dataset that keeps all of its blocks. Its writers are stuck until the permit is dropped.
fn on_a_stalled_disk() -> (Arc<World>, OwnedSemaphorePermit) {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[MIB; FILES as usize]);
    let config = FetchConfig { fetch_bytes: WAITING_BYTES, unwritten_bytes: WAITING_BYTES, ..FetchConfig::DEFAULT };
    let world = world_that_keeps(2 * u64::from(FILES) * MIB, folder, manifest, None, config);
    let writing = &world.fetcher.keeper.writing;
    let all = writing.available_permits() as u32;
    let stalled = Arc::clone(writing).try_acquire_many_owned(all).unwrap();
    (Arc::new(world), stalled)
}

fn blocks_cached(world: &World) -> u64 {
    world.fetcher.context.cache.usage().blocks_cached
}

// SEMANTICS: C4
#[tokio::test(start_paused = true)]
async fn a_stalled_disk_costs_hits_and_no_reader_waits_for_it() {
    let (world, stalled) = on_a_stalled_disk();
    let begun = Instant::now();
    // Backwards, so that there is no read-ahead.
    for file in (0..FILES).rev() {
        world.read(file, 0, MIB).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(world.origin.take().len() as u32, FILES);
    assert_eq!(world._store.counters().unwritten.get(), u64::from(FILES - WAITING));

    drop(stalled);
    world.fetcher.wait_idle().await;
    assert_eq!(blocks_cached(&world), u64::from(WAITING));
    for file in (0..FILES).rev() {
        world.read(file, 0, MIB).await;
        world.fetcher.wait_idle().await;
    }
    assert_eq!(world.origin.take().len() as u32, FILES - WAITING, "what was written is a hit");
    assert_eq!(blocks_cached(&world), u64::from(FILES));
}

// SEMANTICS: C4, C7
#[tokio::test(start_paused = true)]
async fn warming_waits_for_a_stalled_disk_and_readers_of_its_files_do_not() {
    let (world, stalled) = on_a_stalled_disk();
    let warm = |file| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.fetcher.warm(FileIndex(file), world.part(file, 0, MIB), true, None).await })
    };
    let warming: Vec<_> = (0..FILES).map(warm).collect();
    let gets = || world.origin.ranges.lock().unwrap().len() as u32;
    while gets() < WAITING {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    // One that waits for the disk, and one that has not begun.
    world.read(0, 0, MIB).await;
    world.read(FILES - 1, 0, MIB).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(gets(), WAITING + 1);

    drop(stalled);
    for warmed in warming {
        assert_eq!(warmed.await.unwrap(), Warmed::Kept);
    }
    assert_eq!((gets(), blocks_cached(&world)), (FILES, u64::from(FILES)));
    assert_eq!(world._store.counters().unwritten.get(), 0);
}

/// The search reads and clears slots, which are on the disk.
// SEMANTICS: C4
#[tokio::test(start_paused = true)]
async fn a_reader_that_joins_a_warm_up_does_not_wait_for_its_search_for_disowned_blocks() {
    let world = Arc::new(world(&[1_000], 64 << 20));
    let searching = Arc::clone(&world.fetcher.keeper.searching).lock_owned().await;
    let warming = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.fetcher.warm(FileIndex(0), world.part(0, 0, 1_000), true, None).await })
    };
    while world.fetcher.in_flight.get(BlockIndex(0)).is_none() {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(FetchConfig::DEFAULT.read_deadline / 2, world.read(0, 0, 1_000))
        .await
        .expect("it waits for the search");
    drop(searching);
    assert_eq!(warming.await.unwrap(), Warmed::NoRoom);
    assert_eq!(world.origin.take().len(), 1);
}

// SEMANTICS: C20
#[tokio::test(start_paused = true)]
async fn cached_blocks_do_not_wait_for_reads_of_another_disk() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[MIB; FILES as usize]);
    let more_dirs = vec![folder.path().join("other")];
    let store = StoreConfig { more_dirs, ..StoreConfig::new(folder.path().join("store")) };
    let kept = 2 * u64::from(FILES) * MIB;
    let world = world_with_store(store, kept, folder, manifest, None, FetchConfig::DEFAULT);
    for file in (0..FILES).rev() {
        world.read(file, 0, MIB).await;
        world.fetcher.wait_idle().await;
    }
    let hung = &world.fetcher.keeper.reading[1];
    let _reads = hung.acquire(hung.available() as u32).await;
    let half = FetchConfig::DEFAULT.read_deadline / 2;
    for disk in [0, 1] {
        let is_there = |part: &BlockPart| world.fetcher.context.cache.disk_of(part.block) == Some(disk);
        let part = (0..FILES).map(|file| world.part(file, 0, MIB)).find(is_there).unwrap();
        let begun = Instant::now();
        let found = world.fetcher.keeper.find(part, Purpose::Read, world.fetcher.deadline()).await;
        assert_eq!((found.is_some(), begun.elapsed() >= half), (disk == 0, disk == 1));
    }
}

// SEMANTICS: C4
#[tokio::test(start_paused = true)]
async fn all_datasets_together_have_few_threads_that_wait_for_a_stalled_disk() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[MIB]);
    let threads = DiskThreads::new(1);
    let config = FetchConfig { disk_threads: Some(threads.clone()), ..FetchConfig::DEFAULT };
    let world = world_that_keeps(2 * MIB, folder, manifest, None, config);
    // Those of other datasets.
    let stalled = threads.hang_writes();
    world.read(0, 0, MIB).await;
    let a_minute = Duration::from_secs(60);
    assert!(tokio::time::timeout(a_minute, world.fetcher.wait_idle()).await.is_err());
    assert_eq!(blocks_cached(&world), 0);
    drop(stalled);
    world.fetcher.wait_idle().await;
    assert_eq!(blocks_cached(&world), 1);
}
