//! Blocks that another node owns now: they leave one by one, and only to make space for blocks of this node.

use std::sync::atomic::{AtomicBool, AtomicU32};

use super::*;
use crate::ownership::Ownership;

/// A list of nodes under which this node owns every block whose number is divisible by `nodes`.
#[derive(Debug)]
pub(super) struct List {
    version: AtomicU64,
    nodes: AtomicU32,
    is_known: AtomicBool,
}

impl List {
    pub(super) fn of(nodes: u32) -> Arc<Self> {
        Arc::new(Self { version: AtomicU64::new(1), nodes: AtomicU32::new(nodes), is_known: AtomicBool::new(true) })
    }

    pub(super) fn change(&self, nodes: u32) {
        self.nodes.store(nodes, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn owns(&self, block: u32) -> bool {
        block.is_multiple_of(self.nodes.load(Ordering::Relaxed))
    }
}

impl Ownership for List {
    fn version(&self) -> Option<u64> {
        self.is_known.load(Ordering::Relaxed).then(|| self.version.load(Ordering::Relaxed))
    }

    fn retain_disowned(&self, version: u64, blocks: &mut Vec<BlockIndex>) -> bool {
        assert!(blocks.is_sorted());
        blocks.retain(|block| !self.owns(block.0));
        self.version() == Some(version)
    }
}

/// A full cache that has the blocks 0 to 99.
fn full(policy: PolicyKind, list: &Arc<List>) -> Bed {
    let mut bed = Bed::new(policy, bytes_in(0..100));
    bed.drop_all();
    bed.ownership = Some(Arc::clone(list) as Arc<dyn Ownership>);
    bed.open();
    bed.put_all(0..100);
    bed
}

fn cached(bed: &Bed) -> Vec<u32> {
    (0..1000).filter(|&block| bed.cache().contains(BlockIndex(block))).collect()
}

/// Puts a block as an owner does: requests a search if one is wanted. False if the block found no space.
fn put_and_search(bed: &Bed, block: u32) -> bool {
    let kept = bed.put(block);
    bed.cache().search_disowned();
    kept || bed.put(block)
}

// SEMANTICS: S3
#[test]
fn a_full_nr_cache_gives_the_room_of_disowned_blocks_to_owned_ones_and_to_them_alone() {
    let list = List::of(1);
    let bed = full(PolicyKind::Nr, &list);
    assert!(!put_and_search(&bed, 200), "all blocks are this node's");
    list.change(2);
    assert_eq!(bed.hits(0..100), 100, "without need nothing leaves");
    let mut kept = 0;
    for block in (100..1000).step_by(2) {
        let used = bed.cache().usage().used_bytes;
        let left = bed.counters.disowned.get();
        if put_and_search(&bed, block) {
            kept += 1;
        }
        let usage = bed.cache().usage();
        assert!(usage.used_bytes <= usage.capacity_bytes);
        // Without the last dropped block, there would not have been enough space.
        let missing = (used + u64::from(len_of(BlockIndex(block)))).saturating_sub(usage.capacity_bytes);
        assert!(missing > 0 || bed.counters.disowned.get() == left, "block {block}: there was room");
    }
    assert!(kept > 15, "{kept}");
    let (owned, others): (Vec<_>, Vec<_>) = cached(&bed).into_iter().partition(|block| block.is_multiple_of(2));
    assert_eq!(others, [0; 0], "all of their room was needed");
    assert_eq!((owned[..50].to_vec(), bed.hits(owned.iter().copied())), ((0..100).step_by(2).collect(), owned.len()));
    assert_eq!((bed.counters.disowned.get(), bed.counters.evicted.get()), (50, 0));
    assert_eq!(bed.cache().usage().used_bytes, bytes_in(owned));
    assert!(!bed.cache().wants_search(), "the search is over until the list changes");
}

// SEMANTICS: S3
#[test]
fn what_the_next_list_gives_back_stays() {
    let list = List::of(1);
    let bed = full(PolicyKind::Nr, &list);
    list.change(2);
    assert!(put_and_search(&bed, 100), "it takes a few of the disowned blocks, and many more are known");
    let before = cached(&bed);
    assert!(before.len() > 90);
    list.change(1);
    // Large blocks, for which the remaining free space is too small.
    for block in [112, 128] {
        assert!(!put_and_search(&bed, block), "a list that came and went disowns nothing");
    }
    assert_eq!(cached(&bed), before);
}

// SEMANTICS: S3
#[test]
fn while_no_list_is_known_nothing_is_disowned() {
    let list = List::of(1);
    let bed = full(PolicyKind::Nr, &list);
    list.change(2);
    assert!(!bed.put(100) && bed.cache().wants_search());
    bed.cache().search_disowned();
    list.is_known.store(false, Ordering::Relaxed);
    assert!(!put_and_search(&bed, 100));
    assert_eq!((bed.hits(0..100), bed.cache().wants_search()), (100, false));
    list.is_known.store(true, Ordering::Relaxed);
    assert!(put_and_search(&bed, 100));
}

// SEMANTICS: S3
#[test]
fn a_restart_finds_the_disowned_blocks_again() {
    let list = List::of(1);
    let mut bed = full(PolicyKind::Nr, &list);
    list.change(4);
    assert!(put_and_search(&bed, 100));
    let mut kept: Vec<u32> = (0..=100).step_by(4).collect();
    // Large blocks, for which the remaining free space is too small.
    for (kill, block) in [(true, 208), (false, 224)] {
        if kill {
            bed.drop_all();
        } else {
            bed.close();
        }
        let before = bed.counters.disowned.get();
        bed.open();
        assert!(put_and_search(&bed, block), "{block}");
        assert!(bed.counters.disowned.get() > before);
        kept.push(block);
    }
    assert_eq!(bed.hits(kept.iter().copied()), kept.len());
}

#[test]
fn their_room_counts_as_free_and_is_freed_on_the_disk() {
    let list = List::of(1);
    let mut bed = full(PolicyKind::Nr, &list);
    assert_eq!(bed.cache().usage().room_bytes, 0);
    list.change(10);
    assert!(bed.cache().admit_without_evicting(BlockIndex(100), 1).is_none(), "nothing is known yet");
    bed.cache().search_disowned();
    let disowned = bytes_in((0..100).filter(|block| block % 10 != 0));
    assert_eq!(bed.cache().usage().room_bytes, disowned);
    drop(bed.cache().admit_without_evicting(BlockIndex(100), 1).expect("warming takes it as well"));
    assert!((100..1000).step_by(10).filter(|&block| bed.put(block)).count() > 10);
    let cached = cached(&bed);
    assert_eq!((bed.hits(cached.iter().copied()), bed.counters.corrupt()), (cached.len(), 0));
    bed.drop_all();
    let records =
        cached.iter().map(|&block| crate::record::extent_bytes(len_of(BlockIndex(block))) as u64).sum::<u64>();
    // The file system may need an additional block for a file with holes.
    let most = records + 4096 * bed.segment_files().len() as u64;
    assert!(bed.disk_bytes() <= most, "{} bytes for {records} of records", bed.disk_bytes());
}

#[test]
fn under_any_policy_disowned_blocks_leave_first() {
    for policy in PolicyKind::ALL {
        let list = List::of(1);
        let bed = full(policy, &list);
        list.change(2);
        assert!(bed.cache().admit_without_evicting(BlockIndex(100), 1).is_none());
        bed.cache().search_disowned();
        bed.put_all((100..120).step_by(2));
        assert_eq!(bed.hits((0..120).step_by(2)), 60, "{policy}");
        assert_eq!(bed.counters.evicted.get(), 0, "{policy}");
    }
}

#[test]
fn a_search_in_steps_finds_each_disowned_block_once() {
    const BLOCKS: u32 = 3_000;
    let list = List::of(1);
    let mut bed = Bed::new(PolicyKind::Nr, u64::from(BLOCKS));
    bed.drop_all();
    bed.ownership = Some(Arc::clone(&list) as Arc<dyn Ownership>);
    bed.config = CacheConfig {
        key: SnapshotId([4; 32]).into(),
        blocks: 2 * BLOCKS,
        block_lens: Arc::new(|_: BlockIndex| 1),
        ..bed.config
    };
    bed.open();
    let put = |block| {
        let Some(permit) = bed.cache().admit(BlockIndex(block), 1) else { return false };
        bed.cache().write(permit, &bed.cache().record(BlockIndex(block), b"x")).is_ok()
    };
    assert!((0..BLOCKS).all(put));
    list.change(2);
    assert!(!put(BLOCKS));
    for block in (BLOCKS..2 * BLOCKS).step_by(2) {
        bed.cache().search_disowned();
        assert!(put(block), "{block}");
    }
    bed.cache().search_disowned();
    assert!(!put(1), "there is none left");
    let found: Vec<u32> = (0..2 * BLOCKS).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
    assert_eq!(found, (0..2 * BLOCKS).step_by(2).collect::<Vec<_>>());
    assert_eq!(bed.counters.disowned.get(), u64::from(BLOCKS) / 2);
}

#[test]
fn a_block_larger_than_the_cache_takes_nobodys_room() {
    let list = List::of(1);
    let bed = full(PolicyKind::Nr, &list);
    list.change(2);
    assert!(!put_and_search(&bed, 100) || bed.counters.disowned.get() > 0);
    let left = bed.counters.disowned.get();
    assert!(bed.cache().admit(BlockIndex(102), BLOCK_BYTES as u32).is_none());
    assert_eq!(bed.counters.disowned.get(), left);
}

#[test]
fn while_a_user_of_the_cache_owns_all_blocks_none_is_disowned() {
    let list = List::of(1);
    let bed = full(PolicyKind::Nr, &list);
    list.change(2);
    assert!(put_and_search(&bed, 100), "it takes a few of the disowned blocks, and many more are known");
    let all = bed.cache().join(None);
    let (before, usage) = (cached(&bed), bed.cache().usage());
    assert_eq!(usage.room_bytes, usage.capacity_bytes.saturating_sub(usage.used_bytes));
    // Large blocks, for which the remaining free space is too small.
    for block in [112, 128] {
        assert!(!put_and_search(&bed, block), "{block}");
    }
    list.change(3);
    assert!(!put_and_search(&bed, 144), "nor by another list");
    assert_eq!((cached(&bed), bed.cache().wants_search()), (before, false));
    drop(all);
    assert!(put_and_search(&bed, 144), "its blocks make room when it is gone");
}

// SEMANTICS: S3
#[test]
fn a_block_that_one_of_two_users_owns_stays() {
    let (one, other) = (List::of(1), List::of(1));
    let bed = full(PolicyKind::Nr, &one);
    let user = bed.cache().join(Some(Arc::clone(&other) as _));
    one.change(2);
    other.change(3);
    let put_all = || {
        for block in (102..1000).step_by(6) {
            put_and_search(&bed, block);
        }
    };
    put_all();
    let owned: Vec<u32> = (0..100).filter(|block| block % 2 == 0 || block % 3 == 0).collect();
    assert_eq!(bed.hits(0..100), owned.len());
    assert_eq!(bed.hits(owned.iter().copied()), owned.len());
    drop(user);
    put_all();
    assert_eq!(bed.hits((0..100).filter(|block| block % 2 == 1)), 0, "what it alone owned makes room now");
    assert_eq!(bed.hits((0..100).step_by(2)), 50);
}
