//! The space in the segments: where records are placed, and when the space of dead records is freed.

use super::*;
use crate::dataset::space::{Allocator, Garbage, Space};
use crate::disk::Disk;
use crate::folder::Abilities;
use crate::health::Health;
use crate::record::extent_bytes;
use crate::segment::{Segment, SegmentFolder};

const LEN: u32 = 8000;
const EXTENT: u64 = 8192;

fn open(folder: &Path, reservation_bytes: u64, evicts: bool) -> (Space, Allocator) {
    Space::open(vec![on_disk(folder, true)], None, 0, 1 << 30, reservation_bytes, evicts).unwrap()
}

/// A folder on a disk that nobody watches.
fn on_disk(folder: &Path, is_only: bool) -> SegmentFolder {
    let abilities = Abilities { direct: false, free: true };
    let disk = Disk::new(folder, abilities, Health::new(Duration::ZERO, Duration::ZERO), 0, is_only);
    SegmentFolder { path: folder.to_owned(), disk }
}

fn only(space: &Space) -> &Arc<Disk> {
    space.disks().next().unwrap()
}

fn allocate(space: &Space, allocator: &mut Allocator, records: usize) -> Vec<Place> {
    allocate_on(space, allocator, only(space), records)
}

fn allocate_on(space: &Space, allocator: &mut Allocator, disk: &Arc<Disk>, records: usize) -> Vec<Place> {
    assert_eq!(extent_bytes(LEN) as u64, EXTENT);
    let mut place = || match allocator.allocate(space, disk, EXTENT as usize) {
        Some(allotment) => allotment.place,
        None => {
            let number = allocator.take_number().unwrap();
            allocator.start(space, Arc::new(space.create(disk, number, Segment::create).unwrap()));
            allocator.allocate(space, disk, EXTENT as usize).unwrap().place
        }
    };
    (0..records).map(|_| place()).collect()
}

fn extents(garbage: &[Garbage]) -> Vec<(u32, u64, u64)> {
    let extent = |garbage: &Garbage| match garbage {
        Garbage::Records { segment, offset, bytes } => (segment.number, offset / EXTENT, bytes / EXTENT),
        other => panic!("{other:?}"),
    };
    garbage.iter().map(extent).collect()
}

#[test]
fn dead_records_are_freed_in_batches_neighbours_together_and_in_the_current_segment_last() {
    let temp = tempfile::tempdir().unwrap();
    // Segments of 1 MiB: 128 records. Batches of 64 KiB: 8 records.
    let (space, mut allocator) = open(temp.path(), 1 << 20, true);
    let places = allocate(&space, &mut allocator, 128 + 20);
    let mut retire = |at: usize| {
        allocator.retire(&space, places[at], Some(LEN));
        extents(&allocator.take_dead(&space, only(&space), false))
    };
    for at in [3, 128, 5, 4, 129, 130, 131, 132, 133, 134, 135, 136, 10, 1, 11, 12] {
        assert_eq!(retire(at), [], "{at}");
    }
    assert_eq!(retire(13), [(1, 1, 1), (1, 3, 3), (1, 10, 4)]);
    assert_eq!(retire(14), []);
    assert_eq!(extents(&allocator.take_dead(&space, only(&space), true)), [(1, 14, 1), (2, 0, 9)]);
}

#[test]
fn a_segment_whose_records_have_all_left_is_deleted_and_nothing_of_it_is_freed_before() {
    let temp = tempfile::tempdir().unwrap();
    let (space, mut allocator) = open(temp.path(), 1 << 20, true);
    let places = allocate(&space, &mut allocator, 129);
    let mut pieces = 0;
    for &place in &places[..128] {
        allocator.retire(&space, place, Some(LEN));
        // Only the last batch is still waiting when the segment goes.
        pieces += allocator.take_dead(&space, only(&space), false).len();
    }
    assert!(pieces < 128 / 8, "{pieces}");
    assert!(allocator.take_dead(&space, only(&space), true).is_empty());
    let (whole, _) = allocator.take_whole(&space);
    assert!(matches!(&whole[..], [Garbage::Segment(segment)] if segment.number == 1), "{whole:?}");
    assert_eq!(space.segments().iter().map(|segment| segment.number).collect::<Vec<_>>(), [2]);
}

// SEMANTICS: C20
#[test]
fn nothing_is_freed_on_a_disk_that_does_not_answer_until_it_does() {
    let temp = tempfile::tempdir().unwrap();
    let folders = ["one", "other"].map(|name| {
        let folder = temp.path().join(name);
        fs::create_dir(&folder).unwrap();
        on_disk(&folder, false)
    });
    let [one, other] = folders.each_ref().map(|folder| Arc::clone(&folder.disk));
    let (space, mut allocator) = Space::open(folders.to_vec(), None, 0, 1 << 30, 1 << 20, true).unwrap();
    // Two segments each, of which the second is current.
    let places = allocate_on(&space, &mut allocator, &one, 129);
    let others = allocate_on(&space, &mut allocator, &other, 256 + 1);
    for place in places[3..13].iter().chain(&others[..138]) {
        allocator.retire(&space, *place, Some(LEN));
    }
    other.silence();
    assert!(space.turn_to_free(&other).is_none());
    assert!(matches!(allocator.take_whole(&space), (whole, true) if whole.is_empty()));
    let turn = space.turn_to_free(&one);
    assert!(turn.is_some() && space.turn_to_free(&one).is_none(), "nobody waits for its turn");
    assert_eq!(extents(&allocator.take_dead(&space, &one, true)), [(1, 3, 10)]);

    other.answer();
    assert!(space.turn_to_free(&other).is_some());
    assert!(matches!(&allocator.take_whole(&space).0[..], [Garbage::Segment(segment)] if segment.number == 3));
    assert_eq!(extents(&allocator.take_dead(&space, &other, true)), [(4, 0, 10)]);
}

#[test]
fn a_cache_that_evicts_has_segments_of_a_16th_of_its_reservation_and_nr_full_ones() {
    for (evicts, segments) in [(true, 4), (false, 1)] {
        let temp = tempfile::tempdir().unwrap();
        let (space, mut allocator) = open(temp.path(), 32 << 20, evicts);
        allocate(&space, &mut allocator, (8 << 20) / EXTENT as usize);
        assert_eq!(space.segments().iter().count(), segments);
    }
}

/// Most evicted records are in the segment that is being written to: blocks in use stay, and the newest blocks leave.
#[test]
fn evicting_the_newest_blocks_keeps_the_room_on_the_disk_within_its_bound() {
    let mut bed = Bed::new(PolicyKind::Lru, 32 << 20);
    bed.drop_all();
    bed.segment_bytes = 1 << 30;
    bed.config.block_lens = Arc::new(|_: BlockIndex| 65_536);
    bed.open();
    let data = vec![7; 65_536];
    let put = |block| {
        let permit = bed.cache().admit(BlockIndex(block), 65_536).unwrap();
        bed.cache().write(permit, &bed.cache().record(BlockIndex(block), &data)).unwrap();
    };
    let read = |block| bed.cache().read(BlockIndex(block), 65_536, 0, 1, |_| ()).hit();
    (0..512).for_each(put);
    let mut most = 0;
    for block in 512..900 {
        if block % 8 == 0 {
            assert!((0..500).all(|block| read(block).is_some()));
        }
        put(block);
        most = most.max(bed.disk_bytes());
    }
    let records = (bed.cache().usage().blocks_cached + 1) * extent_bytes(65_536) as u64;
    assert!(most <= records + (32 << 20) / 10 + (512 << 10), "{most} on the disk, {records} needed");
    assert_eq!((bed.counters.corrupt(), bed.counters.write_errors.get()), (0, 0));
}

/// Blocks are admitted in rounds that exceed the cache, as in epochs.
#[test]
#[ignore = "measures; run with --ignored --nocapture"]
fn measure_writes_that_evict() {
    let (blocks, len, threads) = (800_u32, 111_000_u32, [1, 8, 64]);
    for (policy, share) in
        [(PolicyKind::Nr, 100), (PolicyKind::Lru, 10), (PolicyKind::Fifo, 50), (PolicyKind::Random, 10)]
    {
        for threads in threads {
            let mut bed = Bed::new(PolicyKind::Nr, 1);
            bed.drop_all();
            let reservation_bytes = u64::from(blocks * share / 100) * u64::from(len);
            bed.config = CacheConfig {
                key: SnapshotId([3; 32]).into(),
                blocks: 100_000,
                block_lens: Arc::new(move |_: BlockIndex| len),
                reservation_bytes: if policy == PolicyKind::Nr { 1 << 40 } else { reservation_bytes },
                policy,
                ..bed.config
            };
            bed.segment_bytes = 1 << 30;
            bed.open();
            let cache = bed.cache();
            let data = bytes_of(BlockIndex(1), len);
            let records: Vec<_> = (0..blocks).map(|block| cache.record(BlockIndex(block), &data)).collect();
            // NR needs no second round: it would admit nothing more.
            let rounds = if policy == PolicyKind::Nr { 1 } else { 5 };
            let (next, slowest) = (AtomicU64::new(0), AtomicU64::new(0));
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        loop {
                            let at = next.fetch_add(1, Ordering::Relaxed);
                            if at >= u64::from(blocks * rounds) {
                                return;
                            }
                            let record = &records[at as usize % blocks as usize];
                            let begun = Instant::now();
                            if let Some(permit) = cache.admit(record.header().block, len) {
                                cache.write(permit, record).unwrap();
                            }
                            slowest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
                        }
                    });
                }
            });
            let (took, written) = (begun.elapsed(), bed.counters.admitted.get());
            println!(
                "{policy} {share} % cached, {threads} threads: {:.0} writes/s, {:.2} ms a write, the slowest {:.1} ms, \
                 {} evicted",
                written as f64 / took.as_secs_f64(),
                took.as_secs_f64() * 1e3 * f64::from(threads) / written as f64,
                slowest.load(Ordering::Relaxed) as f64 / 1e3,
                bed.counters.evicted.get()
            );
        }
    }
}

#[test]
fn what_is_evicted_gives_its_room_on_the_disk_back() {
    for policy in [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Random] {
        let bed = Bed::new(policy, 2 << 20);
        bed.put_all(0..600);
        let cached: Vec<_> = (0..600).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
        assert_eq!(bed.hits(0..600), cached.len());
        assert_eq!(bed.cache().usage().used_bytes, bytes_in(cached.iter().copied()));
        assert!(bed.cache().usage().used_bytes <= 2 << 20);
        // The 600 blocks needed more than four times that.
        assert!(bytes_in(0..600) > 8 << 20);
        let overhead = cached.len() as u64 * (4096 + 320);
        // A segment's room is taken ahead, the last victims are freed by a later write, and ext4 counts its own blocks.
        let most = (2 << 20) + overhead + (1 << 20) + (512 << 10);
        assert!(bed.disk_bytes() <= most, "{policy}: {} on disk", bed.disk_bytes());
        assert_eq!(bed.counters.corrupt(), 0);
        assert_eq!(bed.counters.evicted.get() + cached.len() as u64, 600);
    }
}

#[test]
fn room_taken_ahead_is_given_back_at_the_end_and_after_a_kill() {
    let mut bed = Bed::new(PolicyKind::Nr, 32 << 20);
    bed.drop_all();
    bed.segment_bytes = 1 << 30;
    bed.open();
    bed.put_all([4, 5]);
    assert_eq!(fs::metadata(&bed.segment_files()[0]).unwrap().len(), 2 << 20, "a 16th of the capacity");
    bed.drop_all();
    let used: usize = [4, 5].map(|block| crate::record::extent_bytes(len_of(BlockIndex(block)))).iter().sum();
    assert_eq!(fs::metadata(&bed.segment_files()[0]).unwrap().len(), used as u64);
    // The state that a killed process leaves.
    let file = fs::OpenOptions::new().write(true).open(&bed.segment_files()[0]).unwrap();
    file.set_len(2 << 20).unwrap();
    bed.open();
    assert_eq!(fs::metadata(&bed.segment_files()[0]).unwrap().len(), used as u64);
    assert_eq!(bed.hits([4, 5]), 2);
}

#[test]
fn a_segment_without_a_block_is_deleted() {
    let bed = Bed::new(PolicyKind::Fifo, 1 << 20);
    bed.put_all(0..600);
    let files = bed.segment_files();
    assert!(files.len() <= 4 && !files[0].ends_with("00000001.seg"), "{files:?}");
}
