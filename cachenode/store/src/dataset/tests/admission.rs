//! Blocks are admitted, written, read and evicted, without a restart.

use super::*;

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
        // Any memory is accepted, with any content at its start.
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
    let other = bed.store().dataset(CacheConfig { key: SnapshotId([2; 32]).into(), ..bed.config.clone() }).unwrap();
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

/// The sizes of the blocks of a test's dataset.
fn sizes_in(blocks: impl IntoIterator<Item = u32>) -> Sizes {
    let mut sizes = Sizes::default();
    blocks.into_iter().for_each(|block| sizes.add(len_of(BlockIndex(block))));
    sizes
}

/// Reads blocks and admits those that are missed. Returns how many hit.
fn epoch(bed: &Bed, blocks: impl IntoIterator<Item = u32>) -> usize {
    let hit_or_put = |&block: &u32| {
        let is_hit = bed.get(block);
        if !is_hit {
            bed.put(block);
        }
        is_hit
    };
    blocks.into_iter().filter(hit_or_put).count()
}

// SEMANTICS: C1, C5
#[test]
fn smallest_hits_the_same_bytes_as_nr_in_more_blocks_in_every_epoch_and_after_a_restart() {
    let capacity = bytes_in(0..200) * 5 / 16;
    let run = |policy| {
        let mut bed = Bed::new(policy, capacity);
        bed.cache().set_sizes(sizes_in(0..200));
        assert_eq!(epoch(&bed, (0..200).rev()), 0);
        let hits = epoch(&bed, 0..200);
        assert_eq!((epoch(&bed, 0..200), bed.counters.evicted.get()), (hits, 0));
        let used = bed.cache().usage().used_bytes;
        bed.drop_all();
        bed.open();
        bed.cache().set_sizes(sizes_in(0..200));
        assert_eq!((epoch(&bed, 0..200), bed.cache().usage().used_bytes), (hits, used));
        (hits, used)
    };
    let ((smallest, used), (nr, _)) = (run(PolicyKind::Smallest), run(PolicyKind::Nr));
    // The limit is among the blocks of 65,536 bytes.
    assert!((capacity - 65_536..=capacity).contains(&used), "{used} of {capacity}");
    assert!(smallest > nr + nr / 2, "{smallest} and {nr} blocks hit");
}

#[test]
fn a_larger_reservation_moves_the_limit_of_smallest_and_a_smaller_one_drops_nothing() {
    let bed = Bed::new(PolicyKind::Smallest, 0);
    bed.cache().set_sizes(sizes_in(0..48));
    let large = |block: &u32| block.is_multiple_of(16) || block % 16 == 3;
    let small = (0..48).filter(|block| !large(block)).count();
    assert_eq!((epoch(&bed, 0..48), bed.cache().usage().blocks_cached), (0, 0));
    let room = bytes_in((0..48).filter(|block| !large(block)));
    bed.cache().resize(room, Reservation::exactly(room));
    epoch(&bed, 0..48);
    assert_eq!(bed.cache().usage().blocks_cached, small as u64);
    assert!(bed.cache().leaves_out(BlockIndex(0), len_of(BlockIndex(0))));
    bed.cache().resize(room / 2, Reservation::exactly(room / 2));
    assert_eq!(epoch(&bed, 0..48), small);
    bed.cache().resize(1 << 30, Reservation::exactly(1 << 30));
    assert_eq!((epoch(&bed, 0..48), epoch(&bed, 0..48)), (small, 48));
}

#[test]
fn smallest_refuses_a_large_block_unless_a_list_names_it_or_it_is_missed_again() {
    let bed = Bed::new(PolicyKind::Smallest, 250_000);
    bed.cache().set_sizes(sizes_in(0..48));
    let large = len_of(BlockIndex(16));
    assert!(bed.cache().admit_without_evicting(BlockIndex(16), large).is_none());
    assert_eq!(bed.counters.refused.get(), 1);
    drop(bed.cache().admit_listed(BlockIndex(16), large).expect("the list decides"));
    assert!(bed.cache().admit_without_evicting(BlockIndex(16), large).is_none(), "that was no miss");
    assert!(bed.cache().admit(BlockIndex(16), large).is_none());
    drop(bed.cache().admit(BlockIndex(16), large).expect("missed again, and there is room"));
}

#[test]
fn lru_knows_of_reads_and_fifo_does_not() {
    for (policy, survivor) in [(PolicyKind::Lru, 4), (PolicyKind::Fifo, 5)] {
        let bed = Bed::new(policy, bytes_in([4, 5, 6]));
        bed.put_all([4, 5, 6]);
        assert!(bed.get(4));
        // This needs the space of one block and a little more.
        bed.put_all([1]);
        assert!(bed.get(survivor) && !bed.get(9 - survivor), "{policy}");
    }
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
