//! Kills and races.

use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::record::extent_bytes;

const CHILD_DIR: &str = "LARDER_TEST_CHILD_DIR";
const CHILD_POLICY: &str = "LARDER_TEST_CHILD_POLICY";

fn child_bed(dir: &Path, policy: PolicyKind) -> Bed {
    Bed::at(dir, policy, if policy == PolicyKind::Nr { 1 << 30 } else { 1 << 20 })
}

#[test]
#[ignore = "the process that the_next_run_hits_everything_that_a_killed_one_kept starts and kills"]
fn child() {
    let dir = std::env::var_os(CHILD_DIR).expect("started by its parent");
    let policy = std::env::var(CHILD_POLICY).unwrap().parse().unwrap();
    let bed = child_bed(Path::new(&dir), policy);
    // A loaded machine may kill the process before it has cached anything, so it keeps a few blocks first.
    for block in 0.. {
        if (0..1000).filter(|&block| bed.cache().contains(BlockIndex(block))).count() > 3 {
            break;
        }
        bed.put(block % 1000);
    }
    fs::write(Path::new(&dir).join("ready"), b"").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                for round in 0.. {
                    bed.put((mix(round * 4 + thread) % 1000) as u32);
                }
            });
        }
    });
}

#[test]
fn the_next_run_hits_everything_that_a_killed_one_kept() {
    for policy in [PolicyKind::Nr, PolicyKind::Lru, PolicyKind::Random] {
        let temp = tempfile::tempdir().unwrap();
        for kill in 0..4 {
            let ready = temp.path().join("ready");
            let _ = fs::remove_file(&ready);
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "dataset::tests::crash::child", "--ignored"])
                .env(CHILD_DIR, temp.path())
                .env(CHILD_POLICY, policy.name())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while !ready.exists() {
                assert!(begun.elapsed() < TIMEOUT && child.try_wait().unwrap().is_none(), "the child does not start");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20 + 37 * kill));
            // SIGKILL.
            child.kill().unwrap();
            child.wait().unwrap();
            let mut bed = child_bed(temp.path(), policy);
            let cached: Vec<_> = (0..1000).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
            assert!(cached.len() > 3, "{policy}: the child kept nothing");
            assert_eq!(bed.hits(0..1000), cached.len());
            assert_eq!((bed.counters.corrupt(), bed.counters.read_errors.get()), (0, 0));
            let usage = bed.cache().usage();
            assert_eq!(
                (usage.used_bytes, usage.blocks_cached),
                (bytes_in(cached.iter().copied()), cached.len() as u64)
            );
            assert!(usage.used_bytes <= usage.capacity_bytes);
            if policy.evicts() {
                let needed: usize = cached.iter().map(|&block| extent_bytes(len_of(BlockIndex(block)))).sum();
                // ext4 adds blocks of its own for files with many holes.
                assert!(
                    bed.disk_bytes() <= needed as u64 + (64 << 10),
                    "{policy}: the room that the kill left is freed"
                );
            }
            bed.drop_all();
        }
    }
}

/// Reads return the right bytes or a miss during any concurrent operation, and no eviction is mistaken for a flaw.
#[test]
fn readers_racing_evictions_get_right_bytes_or_a_miss() {
    for policy in [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Random] {
        let mut bed = Bed::new(policy, 700_000);
        bed.drop_all();
        // Small segments, so that segments are created and deleted too.
        bed.segment_bytes = 256 << 10;
        bed.open();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let (bed, over) = (&bed, &over);
                scope.spawn(move || {
                    for round in 0.. {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let block = (mix(round << 3 | thread) % 120) as u32;
                        let len = len_of(BlockIndex(block));
                        let start = (mix(round) % u64::from(len)) as u32;
                        let is_right = |found: &[u8]| found == &bytes_of(BlockIndex(block), len)[start as usize..];
                        match bed.cache().read(BlockIndex(block), len, start, len - start, is_right) {
                            Lookup::Hit(is_right) => assert!(is_right, "{block}: wrong bytes"),
                            Lookup::Miss => drop(bed.put(block)),
                        }
                    }
                });
            }
            let begun = Instant::now();
            let raced = || bed.counters.evicted.get() > 100 && bed.counters.hits.get() > 100;
            while begun.elapsed() < Duration::from_millis(1500) || (begun.elapsed() < TIMEOUT && !raced()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(bed.counters.evicted.get() > 100 && bed.counters.hits.get() > 100, "{policy}: the threads did race");
        assert_eq!((bed.counters.corrupt(), bed.counters.write_errors.get()), (0, 0), "{policy}");
        let cached: Vec<_> = (0..120).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
        let usage = bed.cache().usage();
        assert_eq!((usage.used_bytes, usage.blocks_cached), (bytes_in(cached.iter().copied()), cached.len() as u64));
        assert_eq!(bed.hits(0..120), cached.len());
    }
}

#[test]
#[ignore = "measures; run with --ignored --nocapture"]
fn measure_restart_with_100_000_blocks() {
    let blocks = 100_000;
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, 1 << 40);
        bed.drop_all();
        bed.config = CacheConfig {
            key: SnapshotId([3; 32]).into(),
            blocks,
            block_lens: Arc::new(|_: BlockIndex| 2000),
            ..bed.config
        };
        bed.segment_bytes = 1 << 30;
        bed.open();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let cache = bed.cache();
                scope.spawn(move || {
                    for block in (thread..blocks).step_by(8).map(BlockIndex) {
                        let permit = cache.admit(block, 2000).unwrap();
                        cache.write(permit, &cache.record(block, &[block.0 as u8; 2000])).unwrap();
                    }
                });
            }
        });
        let filled = begun.elapsed();
        bed.drop_all();
        let begun = Instant::now();
        bed.open = Some(bed.try_open().unwrap());
        let opened = begun.elapsed();
        let hit = |block| bed.cache().read(BlockIndex(block), 2000, 0, 2000, |found| found == [block as u8; 2000]);
        assert_eq!(hit(99_999), Lookup::Hit(true));
        let first = begun.elapsed();
        assert!(bed.cache().wait_rebuilt(TIMEOUT));
        let rebuilt = begun.elapsed();
        assert_eq!(bed.cache().usage().blocks_cached, u64::from(blocks));
        let begun = Instant::now();
        assert!((0..blocks).all(|block| hit(block) == Lookup::Hit(true)));
        println!(
            "{policy}: filled in {filled:?}; opened after {opened:?}, first hit {first:?}, counted {rebuilt:?}; \
             100,000 hits by one thread {:?}; changes to the index dropped: {}",
            begun.elapsed(),
            bed.counters.index_dropped.get()
        );
    }
}
