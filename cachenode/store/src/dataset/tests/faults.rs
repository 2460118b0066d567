//! Disks that fill up, reject writes or return wrong bytes.

use std::os::unix::fs::FileExt;
use std::process::Command;

use super::*;
use crate::record::extent_bytes;

/// A separate file system for one test. Needs root.
pub(super) struct Mount {
    pub(super) at: tempfile::TempDir,
}

impl Mount {
    pub(super) fn new(args: &[&str]) -> Self {
        let at = tempfile::tempdir().unwrap();
        run(Command::new("mount").args(args).arg(at.path()));
        Self { at }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(self.at.path()));
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?} (this test needs root): {}", String::from_utf8_lossy(&done.stderr));
}

fn try_put(bed: &Bed, block: u32) -> Option<Result<(), WriteError>> {
    let block = BlockIndex(block);
    let permit = bed.cache().admit(block, len_of(block))?;
    Some(bed.cache().write(permit, &bed.cache().record(block, &bytes_of(block, len_of(block)))))
}

/// Changes the segment files without the store's knowledge.
fn spoil(bed: &Bed, block: u32, change: impl FnOnce(&fs::File, u64)) {
    let place = bed.place(block);
    let file = fs::OpenOptions::new().read(true).write(true).open(bed.segment_file(place)).unwrap();
    change(&file, place.offset());
    file.sync_all().unwrap();
}

fn flip(file: &fs::File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_full_disk_pauses_admissions_costs_no_hit_and_is_tried_again() {
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=12m", "tmpfs"]);
    let bed = Bed::at(mount.at.path(), PolicyKind::Nr, 1 << 30);
    let ballast = mount.at.path().join("ballast");
    fs::write(&ballast, vec![1; 6 << 20]).unwrap();
    let error = (0..1000).find_map(|block| try_put(&bed, block)?.err()).expect("the disk fills up");
    assert!(matches!(error, WriteError::Full { .. }), "{error}");
    let kept = bed.counters.admitted.get();
    assert!(kept > 10);
    assert_eq!(bed.cache().usage().degraded, Some("disk full"));
    assert_eq!(bed.counters.write_errors.get(), 1);
    assert!(try_put(&bed, 999).is_none(), "paused");
    assert_eq!(bed.hits(0..1000) as u64, kept);
    let usage = bed.cache().usage();
    let cached = (0..1000).filter(|&block| bed.cache().contains(BlockIndex(block)));
    assert_eq!(usage.used_bytes, bytes_in(cached), "what failed gave its room back");
    std::thread::sleep(Duration::from_millis(25));
    // A block of many pages: the remaining space may suffice for a small one.
    assert!(try_put(&bed, 992).expect("tried").is_err());
    fs::remove_file(ballast).unwrap();
    std::thread::sleep(Duration::from_millis(45));
    try_put(&bed, 992).expect("tried").unwrap();
    assert_eq!(bed.cache().usage().degraded, None);
    assert!(bed.put(999) && bed.get(999) && bed.get(992));
    assert_eq!(bed.counters.corrupt(), 0);
}

// SEMANTICS: C4
#[test]
fn a_disk_too_small_for_the_slot_table_costs_one_dataset_its_cache() {
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"]);
    let bed = Bed::at(mount.at.path(), PolicyKind::Nr, 1 << 30);
    let large = CacheConfig { key: SnapshotId([9; 32]).into(), blocks: 10_000_000, ..bed.config.clone() };
    let cache = bed.store().dataset(large).unwrap();
    assert!(!put(&cache, 1) && !get(&cache, 1));
    assert!(cache.usage().degraded.is_some());
    bed.put_all([1]);
    assert!(bed.get(1) && bed.cache().usage().degraded.is_none(), "the other dataset has its cache");
}

/// A file system that accepts no change until this is dropped, like a disk that stalls.
struct Frozen(PathBuf);

impl Frozen {
    fn new(mount: &Mount) -> Self {
        let at = mount.at.path().to_owned();
        run(Command::new("fsfreeze").arg("--freeze").arg(&at));
        Self(at)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.0));
    }
}

/// Calls `call` on a thread of its own. Panics if it takes as long as a disk that hangs.
fn at_once<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    finished.recv_timeout(TIMEOUT).expect("it waits for the disk")
}

/// Writes a block on a thread of its own, and waits until that thread is in this state of the kernel's.
fn write_until(cache: &Arc<DatasetCache>, block: u32, state: char) -> JoinHandle<Result<(), WriteError>> {
    let (writing, block) = (Arc::clone(cache), BlockIndex(block));
    let (has_begun, begun) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let permit = writing.admit(block, len_of(block)).expect("admitted");
        let record = writing.record(block, &bytes_of(block, len_of(block)));
        has_begun.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        writing.write(permit, &record)
    });
    let thread = begun.recv().unwrap();
    let is_waiting = || {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, found)| found.starts_with(state))
    };
    let begun = Instant::now();
    while !is_waiting() {
        assert!(begun.elapsed() < TIMEOUT && !writer.is_finished(), "the writer does not wait for the disk");
        std::thread::yield_now();
    }
    writer
}

/// The calls that must not wait for the disk: admissions, some of which evict, permits that are given up, and hits of
/// all blocks that were cached before.
fn use_cache(cache: &DatasetCache, hits: &[u32]) {
    for block in 400..500 {
        let permit = cache.admit(BlockIndex(block), len_of(BlockIndex(block)));
        drop(permit.expect("there is room, or it is made"));
    }
    assert!(
        hits.iter().all(|&block| get(cache, block)),
        "what an admission evicts is a hit until its block is written"
    );
    assert!(cache.usage().degraded.is_none() && !cache.awaits_connections() && !cache.is_rebuilding());
}

fn cached(bed: &Bed) -> Vec<u32> {
    (0..1000).filter(|&block| bed.cache().contains(BlockIndex(block))).collect()
}

// SEMANTICS: C4
#[test]
fn while_the_disk_stalls_writers_wait_and_admissions_and_hits_do_not() {
    // Without evictions, the writer waits for the file of a new segment, and with them for a slot to be cleared.
    for (policy, reservation_bytes) in [(PolicyKind::Nr, 1 << 30), (PolicyKind::Lru, 2 << 20)] {
        let images = tempfile::tempdir().unwrap();
        let image = images.path().join("image");
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        let mount = Mount::new(&["-o", "loop", image.to_str().unwrap()]);
        let bed = Bed::at(mount.at.path(), policy, reservation_bytes);
        bed.put_all(0..300);
        let (cache, hits) = (Arc::clone(&bed.open.as_ref().unwrap().1), cached(&bed));
        cache.shared.lock().allocator.leave_all(&cache.shared.space);
        cache.shared.free_room(true);
        let frozen = Frozen::new(&mount);
        let writer = write_until(&cache, 320, 'D');
        let using = Arc::clone(&cache);
        at_once(move || use_cache(&using, &hits));
        assert!(!writer.is_finished());
        drop(frozen);
        writer.join().unwrap().unwrap();
        // The blocks that were evicted for the permits that were given up leave with the next write.
        assert!(bed.put(321) && bed.get(321));
        let (kept, usage) = (cached(&bed), bed.cache().usage());
        assert_eq!((usage.used_bytes, usage.blocks_cached), (bytes_in(kept.iter().copied()), kept.len() as u64));
        assert_eq!((bed.hits(kept.iter().copied()), bed.counters.corrupt()), (kept.len(), 0), "{policy}");
    }
}

/// The lock of the slot table is held for as long as a write of a slot takes.
// SEMANTICS: C4
#[test]
fn while_the_slot_of_a_new_block_is_written_admissions_and_hits_do_not_wait() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..300);
    let (cache, hits) = (Arc::clone(&bed.open.as_ref().unwrap().1), cached(&bed));
    let stalled = cache.shared.slots.0.changing.lock().unwrap();
    let writer = write_until(&cache, 320, 'S');
    let using = Arc::clone(&cache);
    at_once(move || use_cache(&using, &hits));
    assert!(!writer.is_finished() && !bed.get(320));
    drop(stalled);
    writer.join().unwrap().unwrap();
    assert!(bed.get(320));
}

/// Two datasets in one store, each with all of `blocks`.
fn with_another(bed: &Bed, blocks: std::ops::Range<u32>) -> CacheConfig {
    let other = CacheConfig { key: SnapshotId([2; 32]).into(), ..bed.config.clone() };
    let cache = bed.store().dataset(other.clone()).unwrap();
    for block in blocks {
        assert!(bed.get(block) || bed.put(block));
        assert!(get(&cache, block) || put(&cache, block));
    }
    other
}

// SEMANTICS: C4
#[test]
fn a_store_on_a_disk_that_is_read_only_from_the_start_serves_what_is_there() {
    let images = tempfile::tempdir().unwrap();
    let image = images.path().join("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run(Command::new("mkfs.ext4").arg("-q").arg(&image));
    let mount = Mount::new(&["-o", "loop", image.to_str().unwrap()]);
    for policy in [PolicyKind::Nr, PolicyKind::Lru] {
        run(Command::new("mount").args(["-o", "remount,rw"]).arg(mount.at.path()));
        let mut bed = Bed::at(mount.at.path(), policy, 1 << 30);
        let other = with_another(&bed, 0..20);
        bed.close();
        run(Command::new("mount").args(["-o", "remount,ro"]).arg(mount.at.path()));
        for _ in 0..2 {
            bed.open();
            let cache = bed.store().dataset(other.clone()).unwrap();
            assert!(cache.wait_rebuilt(TIMEOUT));
            assert_eq!(bed.hits(0..20), 20);
            assert!((0..20).all(|block| get(&cache, block)));
            assert_eq!(bed.cache().usage().degraded, Some("disk read-only"));
            assert!(try_put(&bed, 30).is_none_or(|done| done.is_err()) && !bed.get(30));
            // A dataset that has no files there is served without a cache.
            let new = bed.store().dataset(CacheConfig { key: SnapshotId([3; 32]).into(), ..other.clone() }).unwrap();
            assert!(new.usage().degraded.is_some() && !put(&new, 1));
            drop((cache, new));
            bed.drop_all();
        }
    }
    // An empty folder cannot become a cache here, so the store has none.
    let config = StoreConfig::new(mount.at.path().join("lost+found"));
    let store = Store::open(config, Arc::default()).unwrap();
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    let cache = store.dataset(bed.config.clone()).unwrap();
    assert!(!store.has_folder() && cache.usage().degraded.is_some() && !put(&cache, 1) && !get(&cache, 1));
    assert_eq!(store.datasets().len(), 1, "the open one");
    store.close().unwrap();
}

// SEMANTICS: C4
#[test]
fn a_segment_that_cannot_be_opened_costs_its_blocks_and_no_others() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.segment_bytes = 64 << 10;
    bed.open();
    let other = with_another(&bed, 1..15);
    bed.put_all(17..31);
    assert!(bed.segment_files().len() > 3);
    let spoil: [&dyn Fn(&Path); 3] = [
        &|segment| fs::create_dir(segment).unwrap(),
        &|segment| std::os::unix::fs::symlink("/nowhere", segment).unwrap(),
        &|segment| drop(std::os::unix::net::UnixListener::bind(segment).unwrap()),
    ];
    for spoil in spoil {
        let segment = bed.segment_file(bed.place(1));
        let of_segment = |block: &u32| bed.segment_file(bed.place(*block)) == segment;
        let (lost, kept): (Vec<u32>, Vec<u32>) = (1..15).chain(17..31).partition(of_segment);
        assert!(!lost.is_empty() && !kept.is_empty());
        bed.close();
        fs::remove_file(&segment).unwrap();
        // A relative path, because a socket's path has a length limit.
        std::env::set_current_dir(segment.parent().unwrap()).unwrap();
        spoil(Path::new(segment.file_name().unwrap()));
        std::env::set_current_dir("/").unwrap();
        bed.open();
        assert_eq!((bed.hits(lost.iter().copied()), bed.hits(kept.iter().copied())), (0, kept.len()));
        assert_eq!(bed.cache().usage().used_bytes, bytes_in(kept.iter().copied()));
        let cache = bed.store().dataset(other.clone()).unwrap();
        assert!(cache.wait_rebuilt(TIMEOUT) && (1..15).all(|block| get(&cache, block)));
        drop(cache);
        // The lost blocks can be cached again, and a later start finds no flaw.
        bed.put_all(lost);
        bed.close();
        let _ = fs::remove_dir(&segment);
        bed.open();
        assert_eq!(bed.hits((1..15).chain(17..31)), 28);
    }
    assert_eq!(bed.counters.write_errors.get(), 0);
}

const CHILD_DIR: &str = "LARDER_TEST_FEW_DESCRIPTORS_DIR";

#[test]
#[ignore = "the process, with a limit of its own, that a_dataset_that_lacks_descriptors_loses_nothing starts"]
fn child_with_few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let dir = std::env::var_os(CHILD_DIR).expect("started by its parent");
    let mut bed = Bed::at(Path::new(&dir), PolicyKind::Nr, 1 << 30);
    bed.put_all(0..100);
    bed.open = None;
    let usual = getrlimit(Resource::Nofile);
    let (mut failed, mut succeeded) = (0, 0);
    // Each number of descriptors makes another step of the opening fail.
    for spare in 0..16 {
        let store = bed.try_open_store().unwrap();
        let free = std::os::fd::AsRawFd::as_raw_fd(&fs::File::open("/dev/null").unwrap()) as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(free + spare), ..usual }).unwrap();
        let opened = store.dataset(bed.config.clone());
        let is_whole = opened.as_ref().is_ok_and(|cache| cache.usage().degraded.is_none());
        if is_whole {
            succeeded += 1;
        } else {
            failed += 1;
        }
        setrlimit(Resource::Nofile, usual).unwrap();
        drop(opened);
        drop(store);
        bed.open();
        assert_eq!((bed.hits(0..100), bed.cache().usage().degraded), (100, None), "after {spare} descriptors");
        bed.drop_all();
    }
    assert!(failed >= 3 && succeeded > 0, "{failed} failed, {succeeded} succeeded");
    assert_eq!(bed.counters.corrupt(), 0);
}

// SEMANTICS: C4
#[test]
fn a_dataset_that_lacks_descriptors_loses_nothing() {
    let temp = tempfile::tempdir().unwrap();
    run(Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dataset::tests::faults::child_with_few_descriptors", "--ignored"])
        .env(CHILD_DIR, temp.path()));
}

/// A page beyond the end of the table's file fails like a page in a bad sector.
// SEMANTICS: C4
#[test]
fn a_part_of_the_slot_table_that_the_disk_loses_costs_hits_until_a_restart_and_no_process() {
    for policy in [PolicyKind::Nr, PolicyKind::Lru] {
        let mut bed = Bed::new(policy, 1 << 30);
        let other = with_another(&bed, 0..10);
        bed.put_all(500..520);
        let cache = bed.store().dataset(other).unwrap();
        let table = fs::OpenOptions::new().read(true).write(true).open(bed.slots_file()).unwrap();
        table.set_len(8192).unwrap();
        // Slots 512 and up are lost.
        assert_eq!((bed.hits(500..512), bed.hits(512..520), bed.hits(0..10)), (12, 0, 10), "{policy}");
        assert!((0..10).all(|block| get(&cache, block)));
        assert!(cache.usage().degraded.is_none() && bed.cache().usage().degraded.is_none());
        if policy == PolicyKind::Nr {
            // The lost blocks can be cached again, once each.
            bed.put_all(512..520);
            assert_eq!(bed.hits(500..520), 20);
            assert!((512..520).all(|block| !bed.put(block)));
        }
        drop(cache);
        bed.drop_all();
        bed.open();
        assert_eq!(bed.hits(0..1000), 30, "the index knows them");
        assert_eq!(bed.cache().usage().used_bytes, bytes_in((0..10).chain(500..520)));
        bed.close();
    }
}

#[test]
fn a_disk_that_becomes_read_only_costs_no_hit_and_no_process() {
    let images = tempfile::tempdir().unwrap();
    let image = images.path().join("image");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run(Command::new("mkfs.ext4").arg("-q").arg(&image));
    let mount = Mount::new(&["-o", "loop", image.to_str().unwrap()]);
    // The cache is full, so that evictions must clear slots.
    let bed = Bed::at(mount.at.path(), PolicyKind::Lru, 2 << 20);
    bed.put_all(0..300);
    let cached: Vec<_> = (0..300).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
    // The kernel remounts ext4 the same way after a journal error.
    run(Command::new("mount").args(["-o", "remount,abort"]).arg(mount.at.path()));
    let mut failed = 0;
    for block in 300..600 {
        failed += u32::from(try_put(&bed, block).is_some_and(|done| done.is_err()));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(failed >= 2, "tried again after a pause");
    assert!(bed.cache().usage().degraded.is_some());
    assert!(bed.counters.write_errors.get() >= u64::from(failed));
    assert!(bed.hits(cached.iter().copied()) + 4 * failed as usize + 4 > cached.len());
    assert_eq!(bed.counters.corrupt(), 0);
    for block in 300..600 {
        assert!(!bed.get(block));
    }
}

#[test]
fn a_torn_record_is_a_counted_miss_and_fetched_again() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([0, 4, 5]);
    spoil(&bed, 5, |file, offset| file.set_len(offset + 100).unwrap());
    assert!(!bed.get(5) && !bed.cache().contains(BlockIndex(5)));
    assert_eq!(bed.counters.corrupt_torn.get(), 1);
    // The record was never written: its place is a hole in the file.
    spoil(&bed, 4, |file, offset| file.write_all_at(&[0; 4096], offset).unwrap());
    assert!(!bed.get(4));
    assert_eq!(bed.counters.corrupt_torn.get(), 2);
    assert_eq!(bed.cache().usage().used_bytes, bytes_in([0]));
    bed.put_all([4, 5]);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits([0, 4, 5]), 3);
}

#[test]
fn a_changed_byte_anywhere_is_a_counted_miss_and_never_wrong_bytes() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    // Block 16 has 200,000 bytes: four chunks, so its data starts at 80.
    for at in [0, 4, 30, 60, 65, 79, 80, 100_000, 200_079] {
        bed.put_all([16]);
        spoil(&bed, 16, |file, offset| flip(file, offset + at));
        assert!(!bed.get(16) && !bed.get(16), "byte {at}");
    }
    assert_eq!(bed.counters.corrupt_rotten.get(), 9, "each once");
    bed.put_all([16]);
    spoil(&bed, 16, |file, offset| flip(file, offset + 150_000));
    let read = |start, len| bed.cache().read(BlockIndex(16), 200_000, start, len, <[u8]>::to_vec).hit();
    assert_eq!(read(0, 131_072).unwrap(), bytes_of(BlockIndex(16), 131_072), "other chunks are good");
    assert_eq!(read(140_000, 1), None);
}

#[test]
fn another_blocks_record_is_a_counted_miss_and_the_other_stays() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([4, 5, 6]);
    bed.cache().shared.slots.set(BlockIndex(5), Some(bed.place(4))).unwrap();
    assert!(!bed.get(5) && bed.get(4) && bed.get(6));
    assert_eq!(bed.counters.corrupt_foreign.get(), 1);
    let record = |block: u32| vec![0; extent_bytes(len_of(BlockIndex(block)))];
    let (mut four, mut six) = (record(4), record(6));
    spoil(&bed, 4, |file, offset| file.read_exact_at(&mut four, offset).unwrap());
    spoil(&bed, 6, |file, offset| {
        file.read_exact_at(&mut six, offset).unwrap();
        file.write_all_at(&four, offset).unwrap();
    });
    spoil(&bed, 4, |file, offset| file.write_all_at(&six, offset).unwrap());
    assert!(!bed.get(4) && !bed.get(6));
    assert_eq!(bed.counters.corrupt(), 3);
}

#[test]
fn the_same_block_of_another_snapshot_is_foreign() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([4]);
    let theirs = bed.segment_file(bed.place(4));
    bed.drop_all();
    bed.config.key = SnapshotId([0x33; 32]).into();
    bed.open();
    bed.put_all([4]);
    let ours = bed.dir.join("datasets").join("33".repeat(32)).join("segments/00000001.seg");
    fs::copy(theirs, ours).unwrap();
    assert!(!bed.get(4));
    assert_eq!(bed.counters.corrupt_foreign.get(), 1);
}

#[test]
fn slots_full_of_nonsense_give_misses_and_harm_no_other_block() {
    let mut bed = Bed::new(PolicyKind::Lru, 1 << 30);
    bed.put_all(0..50);
    let middle = Place { page: bed.place(0).page + 1, ..bed.place(0) };
    let nonsense = [middle, Place { segment: 77, page: 0 }, Place { segment: 1, page: u32::MAX }, bed.place(20)];
    for (block, place) in (60..).zip(nonsense) {
        bed.cache().shared.slots.set(BlockIndex(block), Some(place)).unwrap();
    }
    assert_eq!(bed.hits(60..64), 0);
    assert_eq!(bed.hits(0..50), 50);
    for (block, place) in (60..).zip(nonsense) {
        bed.cache().shared.slots.set(BlockIndex(block), Some(place)).unwrap();
    }
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits(60..64), 0);
    assert_eq!(bed.hits(0..50), 50);
    assert_eq!(bed.cache().usage().used_bytes, bytes_in(0..50));
}

#[test]
fn a_segment_lost_between_two_runs_costs_its_blocks_only() {
    let mut bed = Bed::new(PolicyKind::Fifo, 1 << 30);
    bed.put_all(0..200);
    let gone = bed.place(100).segment;
    let lost: Vec<_> = (0..200).filter(|&block| bed.place(block).segment == gone).collect();
    fs::remove_file(bed.segment_file(bed.place(100))).unwrap();
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits(0..200), 200 - lost.len());
    bed.put_all(lost);
    assert_eq!(bed.hits(0..200), 200);
    assert_eq!(bed.cache().usage().used_bytes, bytes_in(0..200));
}

#[test]
fn a_deleted_folder_ends_admissions_and_nothing_else() {
    let mut bed = Bed::new(PolicyKind::Lru, 3 << 20);
    bed.put_all(0..100);
    let cached: Vec<_> = (0..100).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
    fs::remove_dir_all(&bed.dir).unwrap();
    let mut failed = 0;
    for block in 100..400 {
        match try_put(&bed, block) {
            Some(Err(WriteError::Gone { .. })) => failed += 1,
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    assert!(failed >= 2 && bed.cache().usage().degraded == Some("cache folder deleted"));
    assert!(bed.hits(cached.iter().copied()) > 0, "open files outlive their names");
    assert_eq!(bed.counters.corrupt(), 0);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits(0..400), 0);
    assert!(bed.put(4) && bed.get(4));
}
