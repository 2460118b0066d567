//! A dataset's cache over a real folder.
//!
//! The cast: here, normal operation; `faults`, failing disks and broken bytes; `crash`, kills and races; `disowned`, blocks that
//! other nodes own now; `space`, the room in the segments; `model`, any order of all that against a map.

mod crash;
mod disowned;
mod faults;
mod model;
mod space;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use larder_dataset::{BLOCK_BYTES, PolicyKind, SnapshotId};

use super::*;
use crate::counters::StoreCounters;
use crate::reservations::Reservation;
use crate::store::{Store, StoreConfig};

const SNAPSHOT: SnapshotId = SnapshotId([0x11; 32]);
const TIMEOUT: Duration = Duration::from_secs(60);

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mostly small, some of several chunks, some at the limits.
fn len_of(block: BlockIndex) -> u32 {
    match block.0 % 16 {
        0 => 200_000,
        1 => 1,
        2 => 4096 - 68,
        3 => 65_536,
        _ => 1000 + (mix(u64::from(block.0)) % 9000) as u32,
    }
}

fn bytes_of(block: BlockIndex, len: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 8);
    for at in 0..u64::from(len).div_ceil(8) {
        bytes.extend(mix(u64::from(block.0) << 32 | at).to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// A cache folder, and its store and dataset while they are open.
struct Bed {
    dir: PathBuf,
    boot_id: String,
    counters: Arc<StoreCounters>,
    config: CacheConfig,
    segment_bytes: u64,
    open: Option<(Store, Arc<DatasetCache>)>,
    _temp: Option<tempfile::TempDir>,
}

impl Bed {
    fn new(policy: PolicyKind, reservation_bytes: u64) -> Self {
        let temp = tempfile::tempdir().unwrap();
        Self { _temp: None, ..Self::at(temp.path(), policy, reservation_bytes) }.keeping(temp)
    }

    fn at(dir: &Path, policy: PolicyKind, reservation_bytes: u64) -> Self {
        let config = CacheConfig {
            snapshot: SNAPSHOT,
            name: "images".into(),
            blocks: 1000,
            reservation_bytes,
            promised: Reservation::exactly(reservation_bytes),
            policy,
            seed: 5,
            block_lens: Arc::new(len_of),
            ownership: None,
        };
        let mut bed = Self {
            dir: dir.join("cache"),
            boot_id: "first boot".into(),
            counters: Arc::default(),
            config,
            segment_bytes: 1 << 20,
            open: None,
            _temp: None,
        };
        bed.open();
        bed
    }

    fn keeping(mut self, temp: tempfile::TempDir) -> Self {
        self._temp = Some(temp);
        self
    }

    fn try_open(&self) -> Result<(Store, Arc<DatasetCache>), StoreError> {
        let config = StoreConfig {
            segment_bytes: self.segment_bytes,
            pause_first: Duration::from_millis(20),
            pause_most: Duration::from_millis(40),
            ..StoreConfig::new(&self.dir)
        };
        let store = Store::open_at_boot(config, Arc::clone(&self.counters), &self.boot_id)?;
        let cache = store.dataset(self.config.clone())?;
        Ok((store, cache))
    }

    /// Opens, and waits until admissions are open.
    fn open(&mut self) {
        self.open = Some(self.try_open().unwrap());
        assert!(self.cache().wait_rebuilt(TIMEOUT));
    }

    /// Ends like a killed process.
    fn drop_all(&mut self) {
        self.open = None;
    }

    fn close(&mut self) {
        self.store().close().unwrap();
        self.open = None;
    }

    fn store(&self) -> &Store {
        &self.open.as_ref().unwrap().0
    }

    fn cache(&self) -> &DatasetCache {
        &self.open.as_ref().unwrap().1
    }

    fn put(&self, block: u32) -> bool {
        put(self.cache(), block)
    }

    fn put_all(&self, blocks: impl IntoIterator<Item = u32>) {
        blocks.into_iter().for_each(|block| assert!(self.put(block), "block {block}"));
    }

    fn get(&self, block: u32) -> bool {
        get(self.cache(), block)
    }

    fn hits(&self, blocks: impl IntoIterator<Item = u32>) -> usize {
        blocks.into_iter().filter(|&block| self.get(block)).count()
    }

    fn dataset_dir(&self) -> PathBuf {
        self.dir.join("datasets").join(SNAPSHOT.to_string())
    }

    fn slots_file(&self) -> PathBuf {
        self.dataset_dir().join("slots")
    }

    fn segment_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.dataset_dir().join("segments")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Bytes that the segments take on the disk.
    fn disk_bytes(&self) -> u64 {
        self.segment_files().iter().map(|file| fs::metadata(file).unwrap().blocks() * 512).sum()
    }

    fn place(&self, block: u32) -> Place {
        self.cache().shared.slots.get(BlockIndex(block)).expect("cached")
    }

    fn segment_file(&self, place: Place) -> PathBuf {
        self.dataset_dir().join(format!("segments/{:08}.seg", place.segment))
    }
}

fn put(cache: &DatasetCache, block: u32) -> bool {
    let block = BlockIndex(block);
    let Some(permit) = cache.admit(block, len_of(block)) else { return false };
    cache.write(permit, &cache.record(block, &bytes_of(block, len_of(block)))).unwrap();
    true
}

/// Reads a whole block; true if it is a hit. Checks the bytes.
fn get(cache: &DatasetCache, block: u32) -> bool {
    let block = BlockIndex(block);
    let len = len_of(block);
    cache
        .read(block, len, 0, len, |found| assert!(found == bytes_of(block, len), "{block}: wrong bytes"))
        .hit()
        .is_some()
}

fn bytes_in(blocks: impl IntoIterator<Item = u32>) -> u64 {
    blocks.into_iter().map(|block| u64::from(len_of(BlockIndex(block)))).sum()
}

#[test]
fn an_admitted_block_is_a_hit_of_the_same_bytes_and_others_are_misses() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    assert!(!bed.get(7));
    bed.put_all(0..100);
    assert_eq!(bed.hits(0..200), 100);
    let counters = &bed.counters;
    assert_eq!((counters.hits.get(), counters.misses.get(), counters.admitted.get()), (100, 101, 100));
    assert_eq!((counters.hit_bytes.get(), counters.admitted_bytes.get()), (bytes_in(0..100), bytes_in(0..100)));
    let usage = bed.cache().usage();
    assert_eq!((usage.used_bytes, usage.blocks_cached, usage.degraded), (bytes_in(0..100), 100, None));
}

#[test]
fn any_part_of_a_large_block_reads_back_and_nothing_beyond_it() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.config.block_lens = Arc::new(|_: BlockIndex| BLOCK_BYTES as u32);
    bed.open();
    let (block, len) = (BlockIndex(3), BLOCK_BYTES as u32);
    let bytes = bytes_of(block, len);
    let permit = bed.cache().admit(block, len).unwrap();
    bed.cache().write(permit, &bed.cache().record(block, &bytes)).unwrap();
    for (start, part) in [(0, 1), (0, len), (len - 1, 1), (65_535, 2), (1 << 20, 1 << 20), (3_000_000, 131_072)] {
        let found = bed.cache().read(block, len, start, part, <[u8]>::to_vec).hit().unwrap();
        assert!(found == bytes[start as usize..(start + part) as usize], "{start} {part}");
        // Any memory, with any start.
        for more in [0, 1, 4095, 1 << 20] {
            let memory = |needed| vec![0xee; if more == 1 { 0 } else { needed + more }];
            let PartBytes { memory, range, crc } =
                bed.cache().read_into(block, len, start, part, memory).hit().unwrap();
            assert!(memory[range] == found, "{start} {part} {more}");
            assert_eq!(crc, larder_dataset::crc32c(&found));
        }
    }
    for (block_len, start, part) in [(len, len, 1), (len, 1, len), (len, 0, 0)] {
        assert_eq!(bed.cache().read(block, block_len, start, part, |_| ()), Lookup::Miss);
        assert!(bed.cache().read_into(block, block_len, start, part, |len| vec![0; len]).hit().is_none());
    }
    assert_eq!(bed.counters.corrupt(), 0);
    assert_eq!(bed.cache().read(BlockIndex(u32::MAX), 5, 0, 5, |_| ()), Lookup::Miss);
    assert!(bed.cache().admit(BlockIndex(1000), 5).is_none() && bed.cache().admit(BlockIndex(4), len + 1).is_none());
}

#[test]
fn a_read_may_read_another_block_while_it_has_the_bytes() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([4, 5]);
    let (block, len) = (BlockIndex(4), len_of(BlockIndex(4)));
    let found = bed.cache().read(block, len, 0, len, |bytes| {
        assert!(bed.get(5));
        bytes.to_vec()
    });
    assert_eq!(found, Lookup::Hit(bytes_of(block, len)));
}

#[test]
fn a_block_is_promised_once_and_a_dropped_promise_gives_its_room_back() {
    let bed = Bed::new(PolicyKind::Nr, u64::from(len_of(BlockIndex(5))));
    let permit = bed.cache().admit(BlockIndex(5), len_of(BlockIndex(5))).unwrap();
    assert!(bed.cache().admit(BlockIndex(5), len_of(BlockIndex(5))).is_none());
    assert!(!bed.put(1), "full");
    assert!(!bed.get(5));
    drop(permit);
    assert_eq!(bed.cache().usage().used_bytes, 0);
    assert!(bed.put(5) && !bed.put(5), "cached already");
    assert!(bed.get(5));
}

#[test]
fn a_write_of_another_block_length_or_dataset_is_refused_and_keeps_nothing() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 30);
    let other = bed.store().dataset(CacheConfig { snapshot: SnapshotId([2; 32]), ..bed.config.clone() }).unwrap();
    let five = bed.cache().record(BlockIndex(5), b"five5");
    for (block, len) in [(5, 10), (6, 5)] {
        let wrong = bed.cache().admit(BlockIndex(block), len).unwrap();
        assert!(matches!(bed.cache().write(wrong, &five), Err(WriteError::WrongBlock { got_bytes: 5, .. })));
    }
    let foreign = other.admit(BlockIndex(5), 5).unwrap();
    assert!(matches!(bed.cache().write(foreign, &five), Err(WriteError::WrongDataset)));
    let ours = bed.cache().admit(BlockIndex(5), 5).unwrap();
    let theirs = other.record(BlockIndex(5), b"five5");
    assert!(matches!(bed.cache().write(ours, &theirs), Err(WriteError::WrongDataset)));
    assert_eq!((bed.cache().usage().used_bytes, other.usage().used_bytes), (0, 0));
    assert!(bed.put(5) && put(&other, 5));
}

#[test]
fn nr_keeps_what_came_first_and_hits_it_in_every_epoch() {
    let bed = Bed::new(PolicyKind::Nr, bytes_in(0..50));
    for epoch in 0..3 {
        let mut hits = 0;
        for block in 0..200 {
            if bed.get(block) {
                hits += 1;
            } else {
                bed.put(block);
            }
        }
        assert_eq!(hits, if epoch == 0 { 0 } else { 50 });
    }
    assert_eq!(bed.cache().usage().used_bytes, bytes_in(0..50));
    assert_eq!((bed.counters.evicted.get(), bed.counters.refused.get()), (0, 3 * 150));
}

#[test]
fn lru_knows_of_reads_and_fifo_does_not() {
    for (policy, survivor) in [(PolicyKind::Lru, 4), (PolicyKind::Fifo, 5)] {
        let bed = Bed::new(policy, bytes_in([4, 5, 6]));
        bed.put_all([4, 5, 6]);
        assert!(bed.get(4));
        // Needs the room of one block and a little more.
        bed.put_all([1]);
        assert!(bed.get(survivor) && !bed.get(9 - survivor), "{policy}");
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
    // As a killed process leaves it.
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

#[test]
fn a_block_evicted_before_it_was_written_is_a_miss_and_takes_no_room() {
    let bed = Bed::new(PolicyKind::Lru, 10_000);
    let early = bed.cache().admit(BlockIndex(1), 6000).unwrap();
    let late = bed.cache().admit(BlockIndex(2), 6000).unwrap();
    bed.cache().write(early, &bed.cache().record(BlockIndex(1), &[1; 6000])).unwrap();
    assert!(!bed.cache().contains(BlockIndex(1)));
    bed.cache().write(late, &bed.cache().record(BlockIndex(2), &[2; 6000])).unwrap();
    assert!(bed.cache().contains(BlockIndex(2)));
    assert_eq!((bed.cache().usage().used_bytes, bed.cache().usage().blocks_cached), (6000, 1));
}

#[test]
fn everything_kept_is_a_hit_from_the_moment_the_store_is_open_again() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..100);
        bed.close();
        bed.open = Some(bed.try_open().unwrap());
        assert_eq!(bed.hits(0..100), 100, "{policy}");
        bed.drop_all();
        bed.open();
        assert_eq!(bed.hits(0..100), 100, "{policy}");
        let usage = bed.cache().usage();
        assert_eq!((usage.used_bytes, usage.blocks_cached, usage.rebuilding), (bytes_in(0..100), 100, false));
        bed.put_all(100..120);
        assert_eq!(bed.hits(0..200), 120, "{policy}");
        assert_eq!(bed.counters.corrupt(), 0);
    }
}

#[test]
fn a_restart_writes_to_a_segment_of_its_own_and_only_when_it_has_to() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([4]);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.segment_files().len(), 1);
    bed.put_all([5]);
    assert_eq!(bed.place(5), Place { segment: 2, page: 0 });
}

#[test]
fn a_smaller_reservation_evicts_down_but_for_nr_which_admits_nothing() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..200);
        bed.drop_all();
        bed.config.reservation_bytes = 500_000;
        bed.open();
        let usage = bed.cache().usage();
        let cached: Vec<_> = (0..200).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
        assert_eq!(usage.used_bytes, bytes_in(cached.iter().copied()));
        if policy == PolicyKind::Nr {
            assert_eq!(bed.hits(0..200), 200);
            assert!(!bed.put(201));
        } else {
            assert!(usage.used_bytes <= 500_000);
            assert_eq!(bed.hits(0..200), cached.len());
            assert!(bed.put(201) && bed.get(201));
        }
        if matches!(policy, PolicyKind::Lru | PolicyKind::Fifo) {
            assert_eq!(cached, (200 - cached.len() as u32..200).collect::<Vec<_>>(), "the oldest leave");
        }
    }
}

#[test]
fn a_reservation_that_changes_while_the_dataset_is_open_counts_at_once_and_after_a_restart() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, bytes_in(0..50));
        bed.put_all(0..50);
        let promised = |bytes| Reservation { bytes, disk_bytes: 2 * bytes, wanted_bytes: 3 * bytes };
        let (more, less) = (bytes_in(0..70), bytes_in(0..20));
        bed.cache().resize(more, promised(more));
        bed.put_all(50..70);
        assert_eq!((bed.hits(0..70), bed.cache().usage().used_bytes), (70, more), "{policy}");
        bed.cache().resize(less, promised(less));
        assert_eq!(bed.hits(0..70), 70, "{policy}: no block leaves now");
        assert_eq!(bed.put(71), policy.evicts(), "{policy}");
        let usage = bed.cache().usage();
        assert_eq!((usage.capacity_bytes, usage.wanted_bytes), (less, 3 * less));
        assert!(!policy.evicts() || usage.used_bytes <= less, "{policy}: {usage:?}");
        bed.drop_all();
        let next = Store::open(StoreConfig::new(&bed.dir), Arc::default()).unwrap();
        assert_eq!(next.datasets().unwrap()[0].reservation, Some(promised(less)), "{policy}");
    }
}

#[test]
fn another_policy_takes_over_what_is_there() {
    let mut bed = Bed::new(PolicyKind::Nr, bytes_in(0..50));
    bed.put_all(0..50);
    for policy in [PolicyKind::Lru, PolicyKind::Random, PolicyKind::Fifo, PolicyKind::Nr] {
        bed.drop_all();
        bed.config.policy = policy;
        bed.open();
        assert_eq!(bed.cache().usage().policy, policy);
        assert_eq!(bed.hits(0..50), 50);
    }
}

#[test]
fn lost_slots_are_filled_again_from_the_index() {
    let lose: [&dyn Fn(&Path); 4] = [
        &|slots| fs::remove_file(slots).unwrap(),
        &|slots| fs::write(slots, b"").unwrap(),
        &|slots| fs::OpenOptions::new().write(true).open(slots).unwrap().set_len(6000).unwrap(),
        &|slots| fs::write(slots, vec![0x77; 20_000]).unwrap(),
    ];
    for policy in [PolicyKind::Nr, PolicyKind::Lru] {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..100);
        for lose in lose {
            bed.close();
            lose(&bed.slots_file());
            bed.open();
            assert_eq!(bed.hits(0..100), 100);
            assert_eq!((bed.cache().usage().used_bytes, bed.counters.corrupt()), (bytes_in(0..100), 0));
        }
    }
}

#[test]
fn after_a_power_loss_what_only_the_index_knows_is_put_back() {
    let empty_slots = |bed: &Bed| {
        let slots = fs::OpenOptions::new().write(true).open(bed.slots_file()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&slots, &[0; 8 * 50], 4096).unwrap();
    };
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    // One segment for all blocks: a segment whose blocks have all lost their slots would be deleted.
    bed.segment_bytes = 1 << 30;
    bed.open();
    bed.put_all(0..100);
    bed.drop_all();
    empty_slots(&bed);
    bed.open();
    assert_eq!(bed.hits(0..100), 50, "same boot: the slots are right");
    bed.drop_all();
    bed.boot_id = "second boot".into();
    bed.open();
    assert_eq!(bed.hits(0..100), 100);
    bed.close();
    empty_slots(&bed);
    bed.boot_id = "third boot".into();
    bed.open();
    assert_eq!(bed.hits(0..100), 50, "closed cleanly: the slots are right");
}

#[test]
fn a_lost_index_costs_nothing_and_is_told_again_what_is_there() {
    let lose: [&dyn Fn(&Path); 3] = [
        &|index| fs::remove_dir_all(index).unwrap(),
        &|index| fs::write(index.join("CURRENT"), b"no manifest\n").unwrap(),
        &|index| fs::remove_file(index.join("CURRENT")).unwrap(),
    ];
    for lose in lose {
        let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
        bed.put_all(0..100);
        bed.close();
        lose(&bed.dir.join("index"));
        bed.open();
        assert_eq!(bed.hits(0..100), 100);
        bed.close();
        fs::remove_file(bed.slots_file()).unwrap();
        bed.open();
        assert_eq!(bed.hits(0..100), 100);
    }
}

#[test]
fn an_index_that_is_something_else_is_replaced_and_told_again_what_is_there() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    let spoil: [&dyn Fn(&Path); 2] = [
        &|index| {
            fs::remove_dir_all(index).unwrap();
            fs::write(index, b"").unwrap();
        },
        // RocksDB cannot read a folder where a file should be.
        &|index| {
            fs::remove_file(index.join("CURRENT")).unwrap();
            fs::create_dir(index.join("CURRENT")).unwrap();
        },
    ];
    for spoil in spoil {
        bed.close();
        spoil(&bed.dir.join("index"));
        bed.open();
        assert_eq!((bed.hits(0..10), bed.counters.index_errors.get()), (10, 0));
        bed.close();
        fs::remove_file(bed.slots_file()).unwrap();
        bed.open();
        assert_eq!(bed.hits(0..10), 10, "the new index knows them");
        assert!(!bed.dir.join("index.damaged").exists());
    }
}

#[test]
fn datasets_are_listed_and_a_released_one_is_gone() {
    let mut bed = Bed::new(PolicyKind::Lru, 1 << 30);
    bed.put_all(0..10);
    let other = SnapshotId([0x22; 32]);
    let cache =
        bed.store().dataset(CacheConfig { snapshot: other, name: "text".into(), ..bed.config.clone() }).unwrap();
    assert!(put(&cache, 4));
    drop(cache);
    let list = |bed: &Bed| -> Vec<_> {
        bed.store().datasets().unwrap().into_iter().map(|info| (info.name, info.policy, info.open.is_some())).collect()
    };
    let images = ("images".to_owned(), PolicyKind::Lru, true);
    assert_eq!(list(&bed), [images.clone(), ("text".to_owned(), PolicyKind::Lru, false)]);
    assert!(matches!(bed.store().release(&SNAPSHOT), Err(StoreError::DatasetInUse { .. })));
    assert!(bed.store().release(&other).unwrap() && !bed.store().release(&other).unwrap());
    assert_eq!(list(&bed), [images]);
    assert!(!bed.dir.join("datasets").join(other.to_string()).exists());
    let cache = bed.store().dataset(CacheConfig { snapshot: other, ..bed.config.clone() }).unwrap();
    assert!(!get(&cache, 4));
    drop(cache);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.hits(0..10), 10, "a release changes no other dataset");
    let infos = bed.store().datasets().unwrap();
    assert!(infos.iter().all(|info| info.last_use_unix_s > 1_600_000_000 && info.reservation == Some(Reservation::exactly(1 << 30))));
}

#[test]
fn a_dataset_is_open_once_and_given_again_to_who_wants_the_same() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    let again = bed.store().dataset(bed.config.clone()).unwrap();
    assert!(std::ptr::eq(&*again, bed.cache()));
    let other = CacheConfig { reservation_bytes: 1 << 21, ..bed.config.clone() };
    assert!(matches!(bed.store().dataset(other), Err(StoreError::AlreadyOpen { .. })));
}

#[test]
fn a_closed_store_goes_on_serving_what_it_has_and_admits_nothing() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    bed.put_all([4]);
    let permit = bed.cache().admit(BlockIndex(5), len_of(BlockIndex(5))).unwrap();
    bed.store().close().unwrap();
    assert!(bed.get(4) && !bed.put(6));
    let record = bed.cache().record(BlockIndex(5), &bytes_of(BlockIndex(5), len_of(BlockIndex(5))));
    bed.cache().write(permit, &record).unwrap();
    assert!(bed.get(5));
    assert!(matches!(bed.store().dataset(bed.config.clone()), Err(StoreError::Closed)));
}

#[test]
fn a_folder_in_use_is_refused_with_the_process_and_the_remedy() {
    let bed = Bed::new(PolicyKind::Nr, 1 << 20);
    let error = bed.try_open().unwrap_err();
    let said = error.to_string();
    assert!(said.contains(&format!("process {}", std::process::id())) && said.contains("--cache-dir"), "{said}");
}

#[test]
fn a_folder_of_something_else_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let open = || Store::open(StoreConfig::new(temp.path()), Arc::default());
    fs::write(temp.path().join("thesis.tex"), b"years of work").unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "nothing was made");
    // Names like those of a cache do not make it one.
    for (folder, file) in [("datasets", "imagenet"), ("index", "a")] {
        fs::create_dir(temp.path().join(folder)).unwrap();
        fs::write(temp.path().join(folder).join(file), b"").unwrap();
    }
    fs::write(temp.path().join("format"), b"LARD").unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    fs::remove_file(temp.path().join("thesis.tex")).unwrap();
    assert!(matches!(open(), Err(StoreError::NotAStore { .. })));
    assert!(temp.path().join("datasets/imagenet").exists() && temp.path().join("index/a").exists());
}

#[test]
fn a_cache_of_another_version_is_emptied_and_used() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    for version in [9, 0] {
        bed.put_all(0..10);
        bed.close();
        let format = bed.dir.join("format");
        let mut marker = fs::read(&format).unwrap();
        assert_eq!(marker, b"LARDERST\x01\0\0\0\xf1\x10\x46\xf7", "the format changed: raise the version");
        marker[8] = version;
        fs::write(&format, &marker).unwrap();
        // The sockets of its process do not matter.
        let _socket = std::os::unix::net::UnixListener::bind(bed.dir.join(format!("{version}.sock"))).unwrap();
        bed.open();
        assert_eq!((bed.hits(0..10), bed.cache().usage().blocks_cached), (0, 0));
        let begun = Instant::now();
        while bed.dir.join("dropped").exists() {
            assert!(begun.elapsed() < TIMEOUT, "its room is given back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    bed.put_all(0..10);
    bed.close();
    bed.open();
    assert_eq!(bed.hits(0..10), 10);
}

#[test]
fn a_format_marker_that_is_damaged_or_lost_is_written_anew_and_costs_no_hit() {
    let spoil: [&dyn Fn(&Path); 4] = [
        &|format| fs::write(format, b"LARD").unwrap(),
        &|format| fs::write(format, b"LARDERST\x01\0\0\0\xf1\x10\x46\x00").unwrap(),
        &|format| fs::write(format, b"").unwrap(),
        &|format| fs::remove_file(format).unwrap(),
    ];
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    for spoil in spoil {
        bed.close();
        spoil(&bed.dir.join("format"));
        bed.open();
        assert_eq!(bed.hits(0..10), 10);
        assert_eq!(fs::read(bed.dir.join("format")).unwrap().len(), 16);
    }
}
