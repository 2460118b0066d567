//! Datasets that share the memory of a process.

use std::time::Duration;

use tokio::task::JoinSet;

use super::*;
use crate::memory::MemoryBudget;

const MIB: u64 = 1 << 20;
const FILES: u32 = 48;
const TARGET_BYTES: u64 = 64 * MIB;

fn world_with(memory: &Arc<MemoryBudget>) -> Arc<World> {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[MIB; FILES as usize]);
    let config = FetchConfig { memory: Some(Arc::clone(memory)), ..FetchConfig::DEFAULT };
    Arc::new(world_of(folder, manifest, None, config))
}

/// Begins to read all files. They are backwards, so that nothing is read ahead.
fn flood(world: &Arc<World>) -> JoinSet<()> {
    let read = |file| {
        let world = Arc::clone(world);
        async move { world.read(file, 0, MIB).await }
    };
    (0..FILES).rev().map(read).collect()
}

// SEMANTICS: C14
#[tokio::test(start_paused = true)]
async fn a_dataset_whose_origin_hangs_leaves_memory_to_the_reads_of_another() {
    let memory = Arc::new(MemoryBudget::new(TARGET_BYTES));
    let (hung, other) = (world_with(&memory), world_with(&memory));
    hung.origin.hold_until(Instant::now() + Duration::from_secs(50));
    let hanging = flood(&hung);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = || other.fetcher.memory_values()[1].1;
    assert!((TARGET_BYTES / 4..=TARGET_BYTES).contains(&used()), "{}", used());
    let gets = hung.origin.ranges.lock().unwrap().len();
    assert!(gets < FILES as usize, "some wait for memory: {gets}");

    let begun = Instant::now();
    for file in (0..FILES).rev() {
        other.read(file, 0, MIB).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(other.origin.take().len() as u32, FILES);
    // The others end, too, once the origin answers.
    hanging.join_all().await;
}

// SEMANTICS: C14
#[tokio::test(start_paused = true)]
async fn datasets_that_are_all_read_cold_hold_no_more_than_the_target_and_their_least() {
    let memory = Arc::new(MemoryBudget::new(TARGET_BYTES));
    let worlds: Vec<_> = (0..8).map(|_| world_with(&memory)).collect();
    let until = Instant::now() + Duration::from_secs(10);
    worlds.iter().for_each(|world| world.origin.hold_until(until));
    let floods: Vec<_> = worlds.iter().map(flood).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Each has the least of its origin and of its window.
    let least = 8 * (8 + 4) * MIB;
    let used = worlds[0].fetcher.memory_values()[1].1;
    assert!(used <= TARGET_BYTES + least, "{used}");
    for flood in floods {
        flood.join_all().await;
    }
}
