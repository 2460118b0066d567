use std::sync::Arc;

use larder_dataset::BLOCK_BYTES;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::memory::MemoryBudget;

const KIB: u32 = 1 << 10;

fn part(block: u32, start: u32, len: u32) -> BlockPart {
    BlockPart { block: BlockIndex(block), file_offset: BLOCK_BYTES, block_len: BLOCK_BYTES as u32, start, len }
}

/// The range of the piece that a miss fetches, in KiB.
fn next(pieces: &mut Pieces, start_kib: u32, kib: u32) -> Option<(u32, u32)> {
    let Miss { piece, .. } = pieces.next(&part(7, start_kib * KIB, kib * KIB))?;
    Some((piece.start / KIB, (piece.start + piece.len) / KIB))
}

#[test]
fn each_miss_of_a_block_fetches_more_and_the_last_one_all_of_it() {
    let mut pieces = Pieces::default();
    assert_eq!(next(&mut pieces, 100, 4), Some((96, 112)));
    assert_eq!(next(&mut pieces, 1020, 8), Some((992, 1056)), "across two of 32 KiB");
    assert_eq!(next(&mut pieces, 700, 4), Some((640, 704)));
    assert_eq!(next(&mut pieces, 2100, 4), Some((2048, 2304)));
    assert_eq!(next(&mut pieces, 3500, 4), Some((3072, 4096)));
    let last = pieces.next(&part(7, 1500 * KIB, 4 * KIB)).unwrap();
    assert!(last.then_block, "all of it");
    assert_eq!((last.piece.start, last.piece.len), (1488 * KIB, 16 * KIB), "and first what its reader waits for");
    let anew = pieces.next(&part(7, 100 * KIB, 4 * KIB)).unwrap();
    assert!(!anew.then_block && anew.piece.len == 16 * KIB, "if it is gone again: {anew:?}");
}

#[test]
fn a_miss_that_reads_on_or_asks_for_much_fetches_the_block() {
    let mut pieces = Pieces::default();
    let first = BlockPart { file_offset: 0, ..part(6, 0, 4 * KIB) };
    assert_eq!(pieces.next(&first), None, "a file's beginning");
    assert_eq!(next(&mut pieces, 0, 64), None, "a block's beginning");
    assert_eq!(next(&mut pieces, 0, 4), Some((0, 16)), "a place like any other");
    assert_eq!(next(&mut pieces, 16, 4), None, "after all it was the beginning");
    assert_eq!(next(&mut pieces, 512, 1024), None, "a quarter");
    assert_eq!(next(&mut pieces, 512, 128), Some((512, 640)));
    assert_eq!(next(&mut pieces, 640, 128), None, "where the last one ended");
    // The piece was rounded, and could not be held.
    assert_eq!(next(&mut pieces, 100, 4), Some((96, 112)));
    assert_eq!(next(&mut pieces, 104, 4), None);
    let last = BlockPart { block_len: 50 * KIB, ..part(8, 20 * KIB, 4 * KIB) };
    assert_eq!(pieces.next(&last), None, "a piece of a small block would be most of it");
}

// SEMANTICS: C14
#[test]
fn a_few_random_reads_of_a_large_file_fetch_at_most_16_times_what_they_ask_for() {
    let blocks = (2_000_000_000 / BLOCK_BYTES) as u32;
    let memory = Arc::<MemoryBudget>::default().account(0, u64::MAX);
    let mut random = StdRng::seed_from_u64(1);
    let (mut asked, mut fetched) = (0, 0);
    for _ in 0..20 {
        let mut pieces = Pieces::default();
        for _ in 0..500 {
            let asks = part(random.random_range(0..blocks), random.random_range(0..1024) * 4 * KIB, 4 * KIB);
            asked += u64::from(asks.len);
            if pieces.get(&asks).is_none() {
                let whole = BlockPart { start: 0, len: asks.block_len, ..asks };
                let miss = pieces.next(&asks).unwrap_or(Miss { piece: whole, then_block: false });
                let Miss { piece, then_block } = miss;
                fetched += u64::from(piece.len) + if then_block { BLOCK_BYTES } else { 0 };
                pieces.hold(piece, vec![0; piece.len as usize].into(), memory.take(0), u64::MAX);
            }
        }
    }
    assert!(fetched <= 16 * asked, "{fetched} for {asked}");
}

#[test]
fn readers_that_cover_a_file_at_random_fetch_its_blocks_after_few_gets() {
    let blocks = 256;
    let mut random = StdRng::seed_from_u64(2);
    let mut pieces = Pieces::default();
    let mut here = vec![false; blocks as usize];
    let (mut gets, mut fetched) = (0, 0);
    for _ in 0..32 * blocks {
        let asks = part(random.random_range(0..blocks), random.random_range(1..1024) * 4 * KIB, 4 * KIB);
        let is_here = &mut here[asks.block.0 as usize];
        if !*is_here {
            let miss = pieces.next(&asks);
            *is_here = miss.is_none_or(|miss| miss.then_block);
            gets += if miss.is_some_and(|miss| miss.then_block) { 2 } else { 1 };
            fetched += miss.map_or(0, |miss| u64::from(miss.piece.len)) + if *is_here { BLOCK_BYTES } else { 0 };
        }
    }
    assert!(here.iter().all(|&is_here| is_here));
    // With a growing piece for each of the first five misses of a block, seven GETs and a third more bytes.
    assert!(gets <= 5 * blocks, "{gets} GETs for {blocks} blocks");
    assert!(fetched * 100 <= 105 * u64::from(blocks) * BLOCK_BYTES, "{fetched}");
    let miss = pieces.next(&part(blocks, 512 * KIB, 4 * KIB)).unwrap();
    assert!(!miss.then_block, "the first in a block may be that of another reader");
}

#[test]
fn pieces_answer_what_they_have_in_bounded_memory_and_for_a_while() {
    let memory = Arc::<MemoryBudget>::default().account(0, u64::MAX);
    let mut pieces = Pieces::default();
    for block in 0..4 {
        let piece = part(block, 96 * KIB, 32 * KIB);
        let bytes = (0..piece.len).map(|at| (piece.start + at) as u8).collect();
        pieces.hold(piece, bytes, memory.take(33), 64 << 10);
    }
    assert_eq!(pieces.bytes(), 64 << 10);
    assert!(pieces.get(&part(1, 100 * KIB, 10)).is_none(), "the oldest left");
    let start = 100 * KIB + 1;
    assert_eq!(pieces.get(&part(2, start, 10)).unwrap(), (start..start + 10).map(|at| at as u8).collect::<Vec<u8>>());
    assert!(pieces.get(&part(2, 96 * KIB, 33 * KIB)).is_none() && pieces.get(&part(2, 95 * KIB, KIB)).is_none());
    pieces.drop_old();
    assert_eq!(pieces.bytes(), 64 << 10);
    pieces.held.iter_mut().for_each(|piece| piece.since -= STAYS);
    pieces.drop_old();
    assert_eq!((pieces.bytes(), pieces.drop_oldest()), (0, false));
}

#[test]
fn the_misses_of_a_bounded_number_of_blocks_are_known() {
    let mut pieces = Pieces::default();
    for block in 0..2 * BLOCKS_MOST as u32 {
        pieces.next(&part(block, 4 * KIB, 4 * KIB)).unwrap();
    }
    assert_eq!((pieces.misses.len(), pieces.misses_order.len()), (BLOCKS_MOST, BLOCKS_MOST));
    assert!(!pieces.misses.contains_key(&BlockIndex(0)));
}
