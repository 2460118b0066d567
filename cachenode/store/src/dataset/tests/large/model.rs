//! Reads and writes of pages, evictions, restarts, kills, bit rot and losses of power in any order, compared with a map
//! of the pages that may be cached. With one disk and with two.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Read(u32, Range<u32>),
    Put(u32, Range<u32>),
    PutWhole(u32),
    /// A permit whose fetch fails.
    GiveUp(u32),
    /// A byte of a page changes.
    Rot(u32, u32),
    Close,
    Kill,
    /// The process is killed, and its slot table is lost.
    LoseSlots,
    /// The machine loses its power: pages that were not synced may be lost, and what shows them is there.
    LosePower(u64),
}

/// A few pages of a block.
fn pages() -> impl Strategy<Value = (u32, Range<u32>)> {
    (0..3_u32, 0..8_u32, 1..4_u32).prop_map(|(nth, first, count)| {
        let most = all(nth).end;
        let first = first.min(most - 1);
        (nth, first..(first + count).min(most))
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => pages().prop_map(|(nth, pages)| Op::Read(nth, pages)),
        20 => pages().prop_map(|(nth, pages)| Op::Put(nth, pages)),
        1 => (0..3_u32).prop_map(Op::PutWhole),
        4 => (0..3_u32).prop_map(Op::GiveUp),
        4 => pages().prop_map(|(nth, pages)| Op::Rot(nth, pages.start)),
        1 => Just(Op::Close),
        1 => Just(Op::Kill),
        1 => Just(Op::LoseSlots),
        1 => any::<u64>().prop_map(Op::LosePower),
    ];
    prop::collection::vec(op, 1..60)
}

/// The pages that may be hits.
#[derive(Debug, Default)]
struct Model {
    held: BTreeSet<(u32, u32)>,
    /// Those of them whose bytes have changed, which nobody has noticed yet.
    spoilt: BTreeSet<(u32, u32)>,
    /// Those that a loss of power cannot take.
    synced: BTreeSet<(u32, u32)>,
}

impl Model {
    /// Whether a read is a hit. One that finds a wrong page drops all wrong pages of the block.
    fn read(&mut self, nth: u32, pages: Range<u32>) -> bool {
        let asked: Vec<_> = pages.map(|page| (nth, page)).collect();
        if !asked.iter().all(|page| self.held.contains(page)) {
            return false;
        }
        let is_wrong = asked.iter().any(|page| self.spoilt.contains(page));
        if is_wrong {
            self.held.retain(|page| page.0 != nth || !self.spoilt.contains(page));
            self.spoilt.retain(|page| page.0 != nth);
        }
        !is_wrong
    }

    fn put(&mut self, nth: u32, pages: Range<u32>) {
        for page in pages.map(|page| (nth, page)) {
            self.held.insert(page);
            self.spoilt.remove(&page);
            self.synced.remove(&page);
        }
    }

    fn forget(&mut self, nth: u32) {
        [&mut self.held, &mut self.spoilt, &mut self.synced]
            .into_iter()
            .for_each(|pages| pages.retain(|page| page.0 != nth));
    }
}

fn run(policy: PolicyKind, disks: usize, ops: &[Op]) {
    // The small block and one of the others, or both others.
    let mut bed = bed_over(policy, 2 * BLOCK_BYTES + 10_000, disks);
    let mut model = Model::default();
    let has_slot = |bed: &Bed, nth: u32| bed.cache().shared.slots.get(BlockIndex(FILE.first.0 + nth)).is_some();
    let mut had: Vec<u32> = Vec::new();
    for op in ops {
        match op.clone() {
            Op::Read(nth, pages) => {
                let expected = model.read(nth, pages.clone());
                assert_eq!(get_pages(&bed, nth, pages), expected, "{op:?}, {model:?}");
            }
            Op::Put(..) | Op::PutWhole(_) => {
                let (nth, pages, is_whole) = match op.clone() {
                    Op::Put(nth, pages) => (nth, pages, false),
                    Op::PutWhole(nth) => (nth, all(nth), true),
                    _ => unreachable!(),
                };
                let is_complete = bed.cache().contains(BlockIndex(FILE.first.0 + nth));
                let has_part = has_slot(&bed, nth) && !is_complete;
                let is_put = if is_whole { put_whole(&bed, nth) } else { put_pages(&bed, nth, pages.clone()) };
                assert!(!(is_complete && is_put) && (is_put || !has_part), "{op:?}");
                if is_put {
                    model.put(nth, pages);
                }
            }
            Op::GiveUp(nth) => drop(bed.cache().admit(BlockIndex(FILE.first.0 + nth), content(nth).len() as u32)),
            Op::Rot(nth, page) => {
                if model.held.contains(&(nth, page)) && model.spoilt.insert((nth, page)) {
                    spoil(&bed, nth, page, |bytes| bytes[5] = !bytes[5]);
                }
            }
            Op::Close => {
                bed.close();
                model.synced = model.held.difference(&model.spoilt).copied().collect();
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
            Op::LosePower(seed) => {
                bed.drop_all();
                bed.boot_id = format!("boot {seed}");
                let lost: Vec<_> = model.held.difference(&model.synced).copied().collect();
                for (nth, page) in lost {
                    if mix(seed ^ u64::from(nth << 8 | page)).is_multiple_of(2) {
                        spoil(&bed, nth, page, |bytes| bytes.fill(0));
                        model.spoilt.insert((nth, page));
                    }
                }
                bed.open();
            }
        }
        bed.cache().search_disowned();
        let has: Vec<u32> = (0..3).filter(|&nth| has_slot(&bed, nth)).collect();
        assert!(policy.evicts() || had.iter().all(|nth| has.contains(nth)), "{had:?} became {has:?} by {op:?}");
        (0..3).filter(|nth| !has.contains(nth)).for_each(|nth| model.forget(nth));
        let usage = bed.cache().usage();
        let bytes: u64 = has.iter().map(|&nth| content(nth).len() as u64).sum();
        assert_eq!((usage.used_bytes, usage.blocks_cached), (bytes, has.len() as u64), "{op:?}");
        assert!(usage.used_bytes <= usage.capacity_bytes);
        had = has;
    }
    assert_eq!((bed.counters.write_errors.get(), bed.counters.index_errors.get()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    // SEMANTICS: C3, C21
    #[test]
    fn any_order_of_reads_writes_restarts_rot_and_losses_of_power_is_as_the_model_says(ops in ops()) {
        for policy in PolicyKind::ALL {
            for disks in [1, 2] {
                run(policy, disks, &ops);
            }
        }
    }
}
