use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::memory::MemoryBudget;

const LEN: u32 = 100;

fn planned() -> Arc<PlannedBlocks> {
    Arc::new(PlannedBlocks::new(Arc::default()))
}

fn memory() -> Permit {
    Arc::<MemoryBudget>::default().account(0, u64::MAX).take(1)
}

fn part(block: u32, range: Range<u32>) -> BlockPart {
    let (start, len) = (range.start, range.end - range.start);
    BlockPart { block: BlockIndex(block), file_offset: 0, block_len: LEN, start, len }
}

fn whole(block: u32) -> BlockPart {
    part(block, 0..LEN)
}

fn place(position: u64) -> Place {
    Place { position, nth: 0 }
}

/// Adds a block of plan 1, at its own number.
fn add(planned: &Arc<PlannedBlocks>, block: u32) -> Coming {
    planned.add(1, place(block.into()), &whole(block), memory()).unwrap()
}

fn fill(planned: &PlannedBlocks, block: u32) -> bool {
    planned.fill(BlockIndex(block), &Bytes::from(vec![block as u8; LEN as usize]), false)
}

fn wasted(planned: &PlannedBlocks) -> u64 {
    let counters = &planned.counters;
    assert_eq!(counters.plan_wasted_bytes.load(Relaxed), counters.plan_blocks_wasted.load(Relaxed) * u64::from(LEN));
    counters.plan_blocks_wasted.load(Relaxed)
}

#[test]
fn a_block_is_held_until_all_that_its_plan_wants_was_read_in_whatever_order() {
    let planned = planned();
    let coming = add(&planned, 7);
    assert!(planned.get(&part(7, 0..10)).is_none() && fill(&planned, 7));
    drop(coming);
    assert_eq!(planned.get(&part(7, 10..20)).unwrap(), [7; 10][..]);
    assert!(planned.mark_read(&part(7, 50..100)).is_none());
    assert!(planned.mark_read(&part(7, 50..60)).is_none(), "read again");
    let read = planned.mark_read(&part(7, 0..50)).unwrap();
    assert_eq!((read.block, read.bytes.len(), read.is_kept), (BlockIndex(7), 100, false));
    assert!(planned.get(&whole(7)).is_none() && planned.mark_read(&whole(7)).is_none());
    assert_eq!(planned.usage(1), Usage { read_to: 8, ..Usage::default() });
    assert_eq!((planned.counters.plan_blocks_in_time.load(Relaxed), wasted(&planned)), (1, 0));
}

// SEMANTICS: C22, C27
#[test]
fn what_the_kernel_reads_by_itself_counts_as_read_and_what_is_coming_stays() {
    let planned = planned();
    let _coming: Vec<_> = (0..5).map(|block| add(&planned, block)).collect();
    [1, 2, 4].into_iter().for_each(|block| assert!(fill(&planned, block)));
    planned.leave(&(BlockIndex(1)..BlockIndex(4)));
    let held: Vec<u32> = (0..5).filter(|&block| planned.get(&whole(block)).is_some()).collect();
    assert_eq!((held, planned.usage(1).blocks, planned.usage(1).read_to), (vec![4], 3, 3));
    assert_eq!((planned.counters.plan_blocks_in_time.load(Relaxed), wasted(&planned)), (2, 0));
    assert!([0, 3].into_iter().all(|block| planned.contains(BlockIndex(block)) && fill(&planned, block)));
    assert!(!planned.contains(BlockIndex(1)));
}

#[test]
fn a_part_that_is_wanted_is_enough() {
    let planned = planned();
    let _coming = planned.add(1, place(0), &part(7, 20..40), memory());
    assert!(fill(&planned, 7));
    assert!(planned.mark_read(&part(7, 0..30)).is_none());
    // Another item is in the same block.
    assert_eq!(planned.look_up(1, place(5), &part(7, 60..70), false), Found::Here);
    assert!(planned.mark_read(&part(7, 30..60)).is_none());
    assert!(planned.mark_read(&part(7, 60..80)).is_some());
}

#[test]
fn a_reader_that_waits_makes_a_block_late_once_and_its_time_counts() {
    let planned = planned();
    assert!(planned.stalls(BlockIndex(7)).is_none(), "nobody wants it");
    let _coming = add(&planned, 7);
    let stalls = [planned.stalls(BlockIndex(7)), planned.stalls(BlockIndex(7))];
    std::thread::sleep(Duration::from_millis(2));
    drop(stalls);
    assert!(fill(&planned, 7) && planned.stalls(BlockIndex(7)).is_none());
    assert!(planned.mark_read(&whole(7)).is_some());
    let counters = &planned.counters;
    assert_eq!((counters.plan_blocks_late.load(Relaxed), counters.plan_blocks_in_time.load(Relaxed)), (1, 0));
    assert!(counters.plan_stalled_microseconds.load(Relaxed) >= 4_000, "of both readers");
}

#[test]
fn a_fetch_that_fails_gives_its_block_up_and_one_that_succeeds_does_not() {
    let planned = planned();
    drop(add(&planned, 7));
    assert_eq!((planned.totals(), planned.usage(1)), ((0, 0), Usage::default()));
    let first = add(&planned, 7);
    fill(&planned, 7);
    planned.mark_read(&whole(7));
    let _second = add(&planned, 7);
    drop(first);
    assert_eq!(planned.totals(), (100, 1), "the first one gives nothing up of the second");
}

#[test]
fn a_block_that_is_dropped_while_it_is_coming_keeps_its_memory_until_it_has_come() {
    let planned = planned();
    let coming = [add(&planned, 7), add(&planned, 8)];
    planned.forget(1);
    assert_eq!((planned.totals(), planned.usage(1)), ((200, 2), Usage::default()));
    assert!(!fill(&planned, 7), "nobody wants it");
    assert_eq!((planned.totals(), wasted(&planned)), ((100, 1), 1));
    // Another plan comes to the other one.
    assert_eq!(planned.look_up(2, place(3), &whole(8), false), Found::NoRoom);
    assert_eq!(planned.look_up(2, place(3), &whole(8), true), Found::Here);
    assert!(fill(&planned, 8));
    assert_eq!((planned.usage(2).bytes, planned.usage(2).coming_bytes), (100, 0));
    drop(coming);
    assert!(planned.get(&whole(8)).is_some());
}

#[test]
fn what_is_passed_or_farthest_is_wasted_unless_the_store_keeps_it() {
    let planned = planned();
    let _coming: Vec<_> = (0..5).map(|block| add(&planned, block)).collect();
    (0..4).for_each(|block| assert!(fill(&planned, block)));
    planned.fill(BlockIndex(4), &Bytes::from_static(&[0; 100]), true);
    assert_eq!(planned.first_position(1), Some(0));
    planned.pass(1, 2);
    assert_eq!((planned.first_position(1), wasted(&planned)), (Some(2), 2));
    assert_eq!(planned.drop_farthest(1), Some(place(4)));
    assert_eq!(wasted(&planned), 2, "the store keeps it");
    assert_eq!(planned.drop_farthest(1), Some(place(3)));
    planned.forget(1);
    assert_eq!((wasted(&planned), planned.totals(), planned.drop_farthest(1)), (4, (0, 0), None));
}

#[tokio::test(start_paused = true)]
async fn a_block_without_a_place_or_behind_the_readers_goes_after_a_while_unless_its_plan_comes_to_it_again() {
    let planned = planned();
    let _coming: Vec<_> = (0..6).map(|block| add(&planned, block)).collect();
    (0..6).for_each(|block| assert!(fill(&planned, block)));
    planned.cut(1, 4);
    assert_eq!(planned.look_up(1, place(9), &whole(5), false), Found::Here);
    planned.mark_read(&part(2, 0..10));
    tokio::time::advance(PASSED_STAYS / 2).await;
    planned.mark_read(&part(1, 0..10));
    planned.drop_passed(1);
    assert_eq!(planned.usage(1).blocks, 6);
    let held = || -> Vec<u32> {
        planned.drop_passed(1);
        (0..6).filter(|&block| planned.get(&whole(block)).is_some()).collect()
    };
    tokio::time::advance(PASSED_STAYS / 2).await;
    assert_eq!(held(), [0, 1, 2, 3, 5], "4 has no place; 1 is being read, and the reader of 0 may take its time");
    tokio::time::advance(PASSED_STAYS / 2).await;
    assert_eq!(held(), [0, 2, 3, 5], "the reader of 1 has gone on");
    tokio::time::advance(UNREAD_STAYS).await;
    assert_eq!(held(), [2, 3, 5], "0 is behind the reader of 2");
    assert_eq!(wasted(&planned), 3);
}
