//! Readers beside each other.

use std::time::Duration;

use larder_origin::Slow;
use tokio::time::Instant;

use super::*;

/// Reads these files at once, for this reader. Returns how long the slowest took.
async fn read_at_once(world: &Arc<World>, thread: u32, files: impl Iterator<Item = u32>) -> Duration {
    let read = |file| {
        let world = Arc::clone(world);
        Caller::new(1, thread).run(async move {
            let started = Instant::now();
            world.read(file, 0, FILE_BYTES).await;
            started.elapsed()
        })
    };
    let reads: tokio::task::JoinSet<Duration> = files.map(read).collect();
    reads.join_all().await.into_iter().max().unwrap()
}

const FILE_BYTES: u64 = 100_000;

/// There is memory for about 80 fetches at once.
// SEMANTICS: O9
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_reader_makes_another_wait_for_no_more_than_three_times_its_own_time() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[FILE_BYTES; 2_300]);
    let config = FetchConfig { fetch_bytes: 8 << 20, ..FetchConfig::DEFAULT };
    let world = Arc::new(world_of(folder, manifest, None, config));
    let origin: Arc<dyn Origin> = Arc::<Noted>::clone(&world.origin);
    world.fetcher.replace_origin(Arc::new(Slow::new(origin, Duration::from_millis(40))));
    // No file follows another, so nothing is read ahead.
    let alone = read_at_once(&world, 2, (0..10).map(|n| 2_001 + 10 * n)).await;
    let flood = tokio::spawn({
        let world = Arc::clone(&world);
        async move { read_at_once(&world, 1, (0..500).map(|n| 2 * n)).await }
    });
    tokio::time::sleep(Duration::from_millis(5)).await;
    let beside = read_at_once(&world, 2, (0..10).map(|n| 2_101 + 10 * n)).await;
    assert!(beside <= 3 * alone, "{beside:?}, and {alone:?} alone");
    // Those that are the last of the flood's.
    let joined = read_at_once(&world, 3, (0..10).map(|n| 980 + 2 * n)).await;
    assert!(joined <= 3 * alone, "{joined:?}, and {alone:?} alone");
    let flooded = flood.await.unwrap();
    assert!(flooded > 4 * alone, "it was a flood: {flooded:?}");
}
