use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::*;

/// Of a dataset so large that three files in a row are evidence.
const MANY: u32 = 1 << 20;

/// In a dataset of files of one block.
fn small(block: BlockIndex) -> Option<BlockIndex> {
    block.0.checked_sub(1).map(BlockIndex)
}

fn missed(ahead: &ReadAhead, block: u32) -> bool {
    ahead.missed(BlockIndex(block), BlockIndex(block), small).is_some()
}

fn missed_in(ahead: &ReadAhead, block: u32, first_of_file: u32) -> Option<Begins> {
    ahead.missed(BlockIndex(block), BlockIndex(first_of_file), small)
}

fn shuffled(files: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..files).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));
    order
}

#[test]
fn a_large_file_is_a_stream_from_its_second_block_and_small_files_once_enough_came_in_a_row() {
    let ahead = ReadAhead::new(MANY);
    assert_eq!(missed_in(&ahead, 10, 10), None);
    assert_eq!(missed_in(&ahead, 11, 10), Some(Begins::InFile), "the second block of a large file");
    assert_eq!(missed_in(&ahead, 11, 10), None, "another part of it");
    for first in 20..23 {
        assert!(!missed(&ahead, first));
    }
    assert!(missed(&ahead, 23), "the fourth file in a row");
    for first in 0..3 {
        assert!(!missed(&ahead, first), "fewer than three come before");
    }
    assert!(missed_in(&ahead, 501, 400).is_none() && missed_in(&ahead, 502, 400).is_none(), "two in a large file");
    assert_eq!(missed_in(&ahead, 503, 400), Some(Begins::InFile), "three in a large file");
}

#[test]
fn large_files_in_a_row_count_as_one_each() {
    let ahead = ReadAhead::new(MANY);
    // Files of two blocks.
    let previous = |first: BlockIndex| first.0.checked_sub(2).map(BlockIndex);
    let read = |file: u32| {
        let first = BlockIndex(2 * file);
        let begins = ahead.missed(first, first, previous);
        assert_eq!(ahead.missed(BlockIndex(2 * file + 1), first, previous), Some(Begins::InFile));
        begins
    };
    assert_eq!([read(0), read(1), read(2), read(3)], [None, None, None, Some(Begins::AcrossFiles)]);
    assert_eq!(read(90), None);
}

#[test]
fn a_run_that_came_at_once_counts_as_one_file() {
    let ahead = ReadAhead::new(MANY);
    for run in 0..3 {
        assert!(!missed(&ahead, run * 30));
        ahead.fetched_run(BlockIndex(run * 30), BlockIndex(run * 30 + 29));
    }
    assert!(missed(&ahead, 90));
}

#[test]
fn readers_of_their_own_streams_do_not_hide_each_other_and_old_misses_are_forgotten() {
    let ahead = ReadAhead::new(MANY);
    for reader in 0..30 {
        assert_eq!(missed_in(&ahead, reader * 1000, reader * 1000), None);
    }
    for reader in 0..30 {
        assert_eq!(missed_in(&ahead, reader * 1000 + 1, reader * 1000), Some(Begins::InFile));
    }
    for other in 0..64 {
        missed_in(&ahead, 100_000 + other * 10, 100_000);
    }
    assert_eq!(missed_in(&ahead, 2, 0), None);
}

// SEMANTICS: C9
#[test]
fn the_evidence_keeps_false_gets_below_one_in_a_thousand_epochs_at_any_size() {
    for files in (0..30_000).chain((30_000..u32::MAX).step_by(99_991)) {
        let Evidence { remembered, files_in_row } = Evidence::for_files(files);
        let Some(k) = files_in_row else {
            assert!(files < 26, "{files} files have no streams");
            continue;
        };
        assert!((3..=6).contains(&k) || files < 50, "{k} files in a row of {files}");
        assert!(k <= remembered && remembered <= REMEMBERED);
        assert!(false_streams(files, remembered, k) * FALSE_GETS <= 1e-3, "{files}");
    }
    // The table at the top.
    let table = [50, 200, 2_000, 5_000, 10_000, 100_000, 1_000_000].map(Evidence::for_files);
    assert_eq!(table.map(|evidence| evidence.remembered), [6, 4, 31, 64, 64, 64, 64]);
    assert_eq!(table.map(|evidence| evidence.files_in_row.unwrap()), [6, 4, 5, 5, 5, 4, 3]);
}

// SEMANTICS: C9
#[test]
fn the_computed_false_streams_match_simulated_shuffled_epochs() {
    // With less evidence, so that it happens.
    for (files, remembered, k) in [(300, 8, 2), (2_000, 31, 2), (2_000, 62, 3), (10_000, 64, 2)] {
        let epochs = 40;
        let mut begun = 0;
        for seed in 0..epochs {
            let ahead = ReadAhead::with_evidence(Evidence { remembered, files_in_row: Some(k) });
            begun += shuffled(files, seed).into_iter().filter(|&file| missed(&ahead, file)).count();
        }
        let expected = false_streams(files, remembered, k) * epochs as f64;
        let measured = begun as f64;
        assert!(measured < 1.5 * expected + 3.0, "{files}: {measured} instead of {expected}");
        assert!(measured > 0.5 * expected - 3.0, "{files}: {measured} instead of {expected}");
    }
}

// SEMANTICS: C9
#[test]
fn shuffled_epochs_of_any_size_have_no_stream() {
    for (files, epochs) in [(1, 10), (5, 500), (30, 2_000), (300, 1_000), (2_000, 200), (20_000, 10)] {
        for seed in 0..epochs {
            let ahead = ReadAhead::new(files);
            let begun = shuffled(files, seed).into_iter().filter(|&file| missed(&ahead, file)).count();
            assert_eq!(begun, 0, "{files} files, seed {seed}");
        }
    }
}

/// Reads blocks in order while a stream of small files is 32 blocks ahead, and returns how many GETs it made in all.
fn gets_of_a_stream(order: impl Iterator<Item = u32>) -> u32 {
    let ahead = ReadAhead::new(MANY);
    let extend = |next: Next| {
        let last = next.block.0 + AHEAD_BLOCKS as u32;
        assert_eq!(ahead.extended(next.stream, BlockIndex(last), Some(BlockIndex(last))), None);
        last - next.last.0
    };
    // The stream begins before the first of these blocks.
    let gets = extend(ahead.begin(BlockIndex(0), NO_LIMIT).unwrap());
    gets + order.filter_map(|block| ahead.read(BlockIndex(block + 1))).map(extend).sum::<u32>()
}

// SEMANTICS: C9
#[test]
fn a_stream_continues_while_its_blocks_are_read_and_ends_otherwise() {
    let ahead_blocks = AHEAD_BLOCKS as u32;
    assert!(gets_of_a_stream(0..1000) >= 1000);
    // Sixteen readers that take the next block each, and some of them are late.
    let mut order: Vec<u32> = (0..1000).collect();
    order.chunks_mut(8).for_each(|chunk| chunk.shuffle(&mut StdRng::seed_from_u64(1)));
    assert!(gets_of_a_stream(order.into_iter()) >= 1000);
    // The middle, and none of those before it.
    assert_eq!(gets_of_a_stream([ahead_blocks / 2].into_iter()), ahead_blocks);
    // Shuffled epochs, one after the other.
    let streams = 300;
    let gets: u32 =
        (0..streams).map(|seed| gets_of_a_stream((0..5).flat_map(|epoch| shuffled(10_000, 1000 * seed + epoch)))).sum();
    let mean = f64::from(gets) / streams as f64;
    assert!((40.0..FALSE_GETS).contains(&mean), "{mean} GETs");
}

#[test]
fn a_read_that_is_not_ahead_of_a_stream_takes_no_lock() {
    let ahead = ReadAhead::new(MANY);
    let next = ahead.begin(BlockIndex(10), NO_LIMIT).unwrap();
    ahead.extended(next.stream, BlockIndex(13), Some(BlockIndex(13)));
    let locked = ahead.streams.lock().unwrap();
    for block in [0, 10, 14, u32::MAX] {
        assert_eq!(ahead.read(BlockIndex(block)), None, "{block}");
    }
    drop(locked);
    assert_eq!(ahead.read(BlockIndex(12)), None, "none before the middle was read, so the stream has ended");
    let _locked = ahead.streams.lock().unwrap();
    assert_eq!(ahead.read(BlockIndex(12)), None);
}
