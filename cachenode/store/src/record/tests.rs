//! The golden file, parts of blocks, and damaged bytes.

use proptest::prelude::*;

use super::*;
use crate::draft::Record;

fn data(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn record(block: u32, data: &[u8]) -> Vec<u8> {
    Record::new([0xa5; KEY_BYTES], BlockIndex(block), data).as_bytes().to_vec()
}

/// Reads a part of a record as a segment does.
fn read(record: &[u8], block: u32, part: &Part) -> Result<Vec<u8>, Flaw> {
    let cut = |from: usize, to: usize| record.get(from..to.min(record.len())).unwrap_or_default();
    let buffer = [cut(0, part.head_bytes), cut(part.from, part.to)].concat();
    part.check(&[0xa5; KEY_BYTES], BlockIndex(block), &buffer).map(|range| buffer[range].to_vec())
}

#[test]
fn golden_file_is_still_written_and_read() {
    // Two chunks, so that the chunk table is not trivial.
    let made = record(0x0102_0304, &data(70_000));
    let golden = format!("{}/golden/v1.record", std::env::var("CARGO_MANIFEST_DIR").unwrap());
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &made).unwrap();
    }
    let checked_in = std::fs::read(&golden).unwrap();
    assert!(checked_in == made, "the format changed: raise the version and add a golden file beside it");
    let header = Header { key: [0xa5; KEY_BYTES], block: BlockIndex(0x0102_0304), len: 70_000 };
    assert_eq!(decode_header(&checked_in), Ok(header));
    let part = Part::new(70_000, 0, 70_000).unwrap();
    assert!(read(&checked_in, 0x0102_0304, &part).unwrap() == data(70_000));
}

#[test]
fn foreign_headers_are_distinguished() {
    let good = record(1, b"hello");
    assert_eq!(decode_header(&good[..63]), Err(RecordError::Absent));
    assert_eq!(decode_header(&[0; 4096]), Err(RecordError::Absent));
    assert_eq!(decode_header(&[7; 64]), Err(RecordError::NotARecord));
    let resealed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        let crc = larder_dataset::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        decode_header(&bytes)
    };
    assert_eq!(resealed(4, 2), Err(RecordError::Version { found: 2 }));
    assert_eq!(resealed(28, 0), Err(RecordError::Damaged), "no block is empty");
    assert_eq!(resealed(31, 1), Err(RecordError::Damaged), "no block is that long");
    for bit in 0..8 * HEADER_BYTES {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_header(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn a_small_block_is_one_read_and_a_far_part_is_its_first_page_and_its_chunks() {
    let small = Part::new(100_000, 50_000, 50_000).unwrap();
    assert_eq!((small.head_bytes, small.from, small.to), (102_400, 102_400, 102_400));
    let far = Part::new(4 << 20, 2 << 20, 4096).unwrap();
    assert_eq!((far.head_bytes, far.from, far.to - far.from), (4096, 2 << 20, CHUNK_BYTES + 4096));
}

#[test]
fn another_blocks_record_is_foreign() {
    let part = Part::new(5, 0, 5).unwrap();
    assert_eq!(read(&record(1, b"hello"), 2, &part), Err(Flaw::Foreign));
    assert_eq!(read(&record(1, b"hello!"), 1, &part), Err(Flaw::Foreign));
    assert_eq!(read(&record(1, b"hello"), 1, &part).as_deref(), Ok(&b"hello"[..]));
}

#[test]
fn an_empty_part_or_one_beyond_the_block_is_none() {
    for (block_len, start, len) in [(5, 0, 0), (5, 5, 1), (5, 0, 6), (5, u32::MAX, 2), (u32::MAX, 0, 1), (0, 0, 0)] {
        assert_eq!(Part::new(block_len, start, len), None);
    }
}

/// Lengths near the boundaries of chunks and pages, and arbitrary ones.
fn len() -> impl Strategy<Value = u32> {
    prop_oneof![
        1..5000_u32,
        65_500..65_600_u32,
        (1..=64_u32, 0..3_u32).prop_map(|(chunks, less)| chunks * CHUNK_BYTES as u32 - less),
        1..=(4_u32 << 20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_part_of_any_block_reads_back(
        len in len(), ends in prop::array::uniform2(any::<prop::sample::Index>())
    ) {
        let [a, b] = ends.map(|end| end.index(len as usize) as u32);
        let (start, end) = (a.min(b), a.max(b) + 1);
        let data = data(len);
        let part = Part::new(len, start, end - start).unwrap();
        let found = read(&record(9, &data), 9, &part).unwrap();
        prop_assert!(found == data[start as usize..end as usize]);
    }

    #[test]
    fn a_changed_or_cut_record_never_gives_wrong_bytes(
        len in len(), ends in prop::array::uniform2(any::<prop::sample::Index>()),
        at in any::<prop::sample::Index>(), bit in 0..8_u32, cut in any::<bool>()
    ) {
        let [a, b] = ends.map(|end| end.index(len as usize) as u32);
        let (start, end) = (a.min(b), a.max(b) + 1);
        let data = data(len);
        let mut record = record(9, &data);
        let at = at.index(record.len());
        if cut { record.truncate(at) } else { record[at] ^= 1_u8 << bit }
        let part = Part::new(len, start, end - start).unwrap();
        if let Ok(found) = read(&record, 9, &part) {
            prop_assert!(found == data[start as usize..end as usize]);
        }
        if at < 60 {
            prop_assert!(read(&record, 9, &part).is_err());
        }
    }

    #[test]
    fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = decode_header(&bytes);
    }
}
