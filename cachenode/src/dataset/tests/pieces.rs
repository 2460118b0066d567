//! Reads of more than one block, of which the store keeps none.

use super::*;
use crate::fetch::DiskThreads;
use crate::fetch::tests::{Noted, manifest};

// SEMANTICS: C2
#[tokio::test]
async fn a_read_across_two_blocks_fetches_the_first_once_whatever_becomes_of_the_second() {
    const SIZE: u64 = BLOCK_BYTES + 100_000;
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[SIZE]);
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
    let origin = Noted::new();
    let spec = CacheSpec::exactly(manifest.snapshot(), 0, PolicyKind::Nr, 1);
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let dataset = Dataset::open(manifest, &store, spec, own, None, &Handle::current(), FetchConfig::DEFAULT).unwrap();
    let row = dataset.manifest().file_blocks(FileIndex(0)).unwrap();
    let expected = |offset: u64, len: u32| (offset..offset + u64::from(len)).map(|at| at as u8).collect::<Vec<u8>>();

    // All of the first block but its end, in pieces of which none begins a stream.
    let most = BLOCK_BYTES as u32 - 50_000;
    let half = most / 2;
    for (offset, len) in [(0, 100_000), (100_000, half - 100_000), (half, most - half)] {
        assert_eq!(dataset.read_file(0, offset.into(), len).await.unwrap(), expected(offset.into(), len));
    }
    // Its end, which is here, and the beginning of the second, which is not.
    let (offset, len) = (u64::from(most), 100_000);
    assert!(!dataset.read_now(row, offset, len, |_| panic!("the second block is missing")));
    assert_eq!(dataset.read_file(0, offset, len).await.unwrap(), expected(offset, len));
    let (offset, len) = (offset + 100_000, 50_000);
    assert!(dataset.read_now(row, offset, len, |bytes| assert_eq!(bytes, expected(offset, len))));
    assert_eq!(origin.take(), [0..BLOCK_BYTES, BLOCK_BYTES..SIZE]);
}

// SEMANTICS: O1
#[tokio::test(start_paused = true)]
async fn a_read_across_two_blocks_has_one_deadline() {
    const SIZE: u64 = BLOCK_BYTES + 100_000;
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[SIZE]);
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
    let origin = Noted::new();
    let spec = CacheSpec::exactly(manifest.snapshot(), 0, PolicyKind::Nr, 1);
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let dataset = Dataset::open(manifest, &store, spec, own, None, &Handle::current(), FetchConfig::DEFAULT).unwrap();
    let (begun, a_second) = (Instant::now(), Duration::from_secs(1));
    let read_deadline = FetchConfig::DEFAULT.read_deadline;
    // The first block comes shortly before the end, and the second does not come.
    origin.hold_until(begun + read_deadline - a_second);
    let read = tokio::spawn({
        let dataset = Arc::clone(&dataset);
        async move { dataset.read_file(0, BLOCK_BYTES - 50_000, 100_000).await }
    });
    tokio::time::sleep(a_second).await;
    origin.hold_until(begun + read_deadline * 10);
    let error = read.await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::TimedOut { .. }), "{error}");
    let took = begun.elapsed();
    assert!((read_deadline..read_deadline + a_second).contains(&took), "{took:?}");
    assert_eq!(origin.take().len(), 2);
}

// SEMANTICS: S4
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_only_read_of_a_peer_causes_no_get() {
    const SIZE: u64 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[SIZE; 2]);
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
    let origin = Noted::new();
    let spec = CacheSpec::exactly(manifest.snapshot(), SIZE, PolicyKind::Nr, 1);
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let dataset = Dataset::open(manifest, &store, spec, own, None, &Handle::current(), FetchConfig::DEFAULT).unwrap();
    let buffers = Arc::default();
    let ask = async |block: u32| {
        let range = BlockRange { block: BlockIndex(block), start: 10, len: 1000 };
        let request = ReadRequest { cache: dataset.cache_id(), range, token: None, forwarded: true, cached_only: true };
        match dataset.read_for_peer(&request, &buffers).await {
            Ok(BlockBytes::Whole { bytes, .. }) => bytes == (10..1010).map(|at| at as u8).collect::<Vec<u8>>(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(matches!(error, ReadError::Unavailable { .. }), "{error}");
                false
            }
        }
    };
    assert!(!ask(0).await && !ask(1).await);
    assert!(origin.take().is_empty());
    // The store keeps the first file; the window has the second until it was read to its end.
    for (file, len) in [(0, SIZE), (1, SIZE - 1)] {
        dataset.read_file(file, 0, len as u32).await.unwrap();
    }
    dataset.settle().await;
    assert!(ask(0).await && ask(1).await);
    dataset.read_file(1, SIZE - 1, 1).await.unwrap();
    assert!(ask(0).await && !ask(1).await);
    assert_eq!(origin.take().len(), 2);
}

/// A file of two blocks, both of which the store has, and the threads that may wait for its disk.
async fn on_one_disk(folder: &TempDir) -> (Arc<Dataset>, Arc<Noted>, DiskThreads) {
    const SIZE: u64 = BLOCK_BYTES + 100_000;
    let manifest = manifest(folder.path(), &[SIZE]);
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
    let (origin, threads) = (Noted::new(), DiskThreads::new(1));
    let spec = CacheSpec::exactly(manifest.snapshot(), 2 * SIZE, PolicyKind::Nr, 1);
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&origin);
    let config = FetchConfig { disk_threads: Some(threads.clone()), ..FetchConfig::DEFAULT };
    let dataset = Dataset::open(manifest, &store, spec, own, None, &Handle::current(), config).unwrap();
    dataset.read_file(0, 0, SIZE as u32).await.unwrap();
    dataset.settle().await;
    assert_eq!(dataset.cache_usage().blocks_cached, 2);
    origin.take();
    (dataset, origin, threads)
}

// SEMANTICS: C4
#[tokio::test(start_paused = true)]
async fn a_read_across_two_cached_blocks_waits_for_a_disk_that_hangs_on_none_but_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (dataset, origin, threads) = on_one_disk(&folder).await;
    let (offset, len) = (BLOCK_BYTES - 50_000, 100_000);
    let expected: Vec<u8> = (offset..offset + u64::from(len)).map(|at| at as u8).collect();
    let from_store = || dataset.counters().read_bytes_store.load(Ordering::Relaxed);
    let before = from_store();
    let stored = || from_store() - before;
    let hanging = threads.hang_reads(0);
    let begun = Instant::now();
    assert_eq!(dataset.read_file(0, offset, len).await.unwrap(), expected);
    let read_deadline = FetchConfig::DEFAULT.read_deadline;
    assert!((read_deadline / 2..read_deadline).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!((stored(), origin.take().len()), (0, 2), "the blocks are fetched");

    drop(hanging);
    assert_eq!(dataset.read_file(0, offset, len).await.unwrap(), expected);
    assert_eq!((stored(), origin.take().len()), (u64::from(len), 0));
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_peer_gets_a_refusal_from_a_disk_that_hangs_before_it_takes_the_node_for_dead() {
    let folder = tempfile::tempdir().unwrap();
    let (dataset, origin, threads) = on_one_disk(&folder).await;
    let buffers = Arc::default();
    let ask = async |cached_only| {
        let range = BlockRange { block: BlockIndex(0), start: 10, len: 1000 };
        let request = ReadRequest { cache: dataset.cache_id(), range, token: None, forwarded: true, cached_only };
        dataset.read_for_peer(&request, &buffers).await
    };
    let hanging = threads.hang_reads(0);
    for (cached_only, patience) in [(true, HEDGE_PATIENCE), (false, PEER_PATIENCE)] {
        let begun = Instant::now();
        let error = ask(cached_only).await.unwrap_err();
        assert!(matches!(error, ReadError::Unavailable { .. }), "{error}");
        assert!(begun.elapsed() < patience + Duration::from_millis(10), "{:?}", begun.elapsed());
    }
    drop(hanging);
    for cached_only in [true, false] {
        assert!(matches!(ask(cached_only).await, Ok(BlockBytes::Whole { .. })));
    }
    assert!(origin.take().is_empty());
}
