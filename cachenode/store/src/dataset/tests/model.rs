//! Reads, admissions, changes of the list of nodes, restarts and bit rot in any order, compared with a map of the
//! blocks that may be cached. With one disk and with two.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::disowned::List;
use super::*;
use crate::record::HEADER_BYTES;

const BLOCKS: u32 = 32;

#[derive(Clone, Debug)]
enum Op {
    Read(u32),
    Put(u32),
    /// A permit whose fetch fails.
    GiveUp(u32),
    /// Another list of nodes.
    List(u32),
    /// A byte of the block's record changes.
    Rot(u32, prop::sample::Index),
    Close,
    Kill,
    /// The process is killed, and its slot table is lost.
    LoseSlots,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let block = 0..BLOCKS;
    let op = prop_oneof![
        20 => block.clone().prop_map(Op::Read),
        20 => block.clone().prop_map(Op::Put),
        4 => block.clone().prop_map(Op::GiveUp),
        2 => (1..4_u32).prop_map(Op::List),
        4 => (block, any::<prop::sample::Index>()).prop_map(|(block, at)| Op::Rot(block, at)),
        1 => Just(Op::Close),
        1 => Just(Op::Kill),
        1 => Just(Op::LoseSlots),
    ];
    prop::collection::vec(op, 1..80)
}

fn run(policy: PolicyKind, disks: usize, ops: &[Op]) {
    let mut bed = Bed::new(policy, 300_000);
    bed.drop_all();
    bed.more = (1..disks).map(|nth| bed.dir.with_file_name(format!("disk-{nth}"))).collect();
    bed.segment_bytes = 96 << 10;
    let list = List::of(1);
    bed.ownership = Some(Arc::clone(&list) as _);
    bed.open();
    // The blocks on the disk, and those among them that are corrupt but not detected yet.
    let (mut kept, mut spoilt) = (BTreeSet::new(), BTreeSet::new());
    for op in ops {
        match *op {
            Op::Read(block) => {
                let is_hit = bed.get(block);
                assert_eq!(is_hit, kept.contains(&block) && !spoilt.contains(&block), "{block}");
                if spoilt.remove(&block) {
                    kept.remove(&block);
                }
            }
            Op::Put(block) => {
                // A node keeps the blocks that it owns.
                if list.owns(block) && bed.put(block) {
                    assert!(kept.insert(block), "{block} was there");
                }
            }
            Op::List(nodes) => list.change(nodes),
            Op::GiveUp(block) => drop(bed.cache().admit(BlockIndex(block), len_of(BlockIndex(block)))),
            Op::Rot(block, at) => {
                if kept.contains(&block) && spoilt.insert(block) {
                    let place = bed.place(block);
                    let file = fs::OpenOptions::new().read(true).write(true).open(bed.segment_file(place)).unwrap();
                    let at = place.offset() + at.index(HEADER_BYTES + len_of(BlockIndex(block)) as usize) as u64;
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at).unwrap();
                    file.write_all_at(&[!byte[0]], at).unwrap();
                    file.sync_all().unwrap();
                }
            }
            Op::Close => {
                bed.close();
                bed.open();
            }
            Op::Kill => {
                bed.drop_all();
                bed.open();
            }
            Op::LoseSlots => {
                bed.drop_all();
                fs::remove_file(bed.slots_file()).unwrap();
                bed.open();
            }
        }
        bed.cache().search_disowned();
        let cached: BTreeSet<_> = (0..BLOCKS).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
        // The policy decides on evictions, and disowned blocks leave for others; every block that stays must have been
        // kept.
        let left: Vec<u32> = kept.difference(&cached).copied().collect();
        assert!(policy.evicts() || left.iter().all(|&block| !list.owns(block)), "{left:?} left after {op:?}");
        assert!(left.is_empty() || matches!(op, Op::Put(_) | Op::GiveUp(_)), "{left:?} left after {op:?}");
        kept.retain(|block| cached.contains(block));
        spoilt.retain(|block| cached.contains(block));
        assert_eq!(cached, kept, "after {op:?}");
        let usage = bed.cache().usage();
        assert_eq!((usage.used_bytes, usage.blocks_cached), (bytes_in(kept.iter().copied()), kept.len() as u64));
        assert!(usage.used_bytes <= usage.capacity_bytes);
    }
    assert_eq!((bed.counters.write_errors.get(), bed.counters.index_errors.get()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_order_of_reads_writes_restarts_and_rot_is_as_the_model_says(ops in ops()) {
        for policy in PolicyKind::ALL {
            for disks in [1, 2] {
                run(policy, disks, &ops);
            }
        }
    }
}
