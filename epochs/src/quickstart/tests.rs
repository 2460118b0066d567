//! Whole runs over real mounts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;

use super::*;

/// How long the slow disk stalls: longer than an epoch takes.
const PAUSE: Duration = Duration::from_millis(100);

fn config(folder: &std::path::Path) -> QuickstartConfig {
    // One reader, so that the order of the reads is the same in every run.
    QuickstartConfig { files: 48, mean_size: 20_000, epochs: 2, readers: 1, seed: 42, folder: folder.to_owned() }
}

#[test]
fn a_slow_cache_disk_does_not_change_the_hit_ratios() {
    let parent = tempfile::tempdir().unwrap();
    let [fast, slow] = ["fast", "slow"].map(|name| parent.path().join(name));
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let bar = ProgressBar::hidden();
    std::fs::create_dir(&fast).unwrap();
    let fast = run_on(&config(&fast), runtime.handle(), runtime.handle(), &bar).unwrap();

    // The store writes with one thread, which this task keeps busy nearly all the time.
    let fetches = Builder::new_multi_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let done = AtomicBool::new(false);
    std::fs::create_dir(&slow).unwrap();
    let slow = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fetches.block_on(fetches.spawn_blocking(|| std::thread::sleep(PAUSE))).unwrap();
            }
        });
        let slow = run_on(&config(&slow), runtime.handle(), fetches.handle(), &bar);
        done.store(true, Ordering::Relaxed);
        slow.unwrap()
    });

    let waited: f64 = slow.cells.iter().flat_map(|cell| &cell.epochs).map(|counted| counted.settle_seconds).sum();
    assert!(waited > 0.2, "no writes were queued when the epochs ended: {waited} s");
    for (fast, slow) in fast.cells.iter().zip(&slow.cells) {
        for (fast_epoch, slow_epoch) in fast.epochs.iter().zip(&slow.epochs) {
            assert!(slow_epoch.settled);
            let (expected, found) = (fast_epoch.hit_ratio_files, slow_epoch.hit_ratio_files);
            // Read-ahead may cache one file more or less. An evicted file can be read until the disk has cleared its slot.
            let most = expected + fast.share;
            assert!(
                (expected - 1.5 / 48.0..=most + 1.5 / 48.0).contains(&found),
                "{} at {}: {found} instead of {expected}",
                fast.policy,
                fast.share
            );
        }
    }
    assert!(!slow.table().contains("WARNING"), "{}", slow.table());
}

#[test]
fn a_warm_file_costs_a_lookup_and_a_read_and_a_hot_one_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = QuickstartConfig { files: 300, ..config(folder.path()) };
    let outcome = run(&config, &ProgressBar::hidden()).unwrap();
    assert_eq!(outcome.requests_not_counted, None);
    let warm = outcome.warm_requests.as_ref().unwrap();
    // Each folder is looked up once as well.
    assert!((300..=305).contains(&warm.kinds["lookup"]), "{warm:?}");
    assert!((300..=303).contains(&warm.kinds["read"]), "{warm:?}");
    // Larder answers the first OPEN and the first FLUSH of a mount with ENOSYS, after which the kernel sends no more of
    // them.
    assert!(warm.total <= 300 + 300 + 10, "{warm:?}");
    assert_eq!(outcome.hot_requests.as_ref().unwrap().total, 0);
    assert!(outcome.table().contains("FUSE requests per file: warm lookup 1.0"), "{}", outcome.table());
}
