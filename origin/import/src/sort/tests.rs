use proptest::prelude::*;
use std::os::unix::fs::FileExt;

use super::*;
use crate::disk::DiskLimit;

type Record = (Vec<u8>, Vec<u8>);

fn disk() -> DiskUse {
    DiskUse::new(DiskLimit::default())
}

fn sorted(records: &[Record], share_bytes: usize) -> (Vec<Record>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let mut sorter = Sorter::new(dir.path(), disk(), share_bytes);
    for (key, value) in records {
        sorter.push(key, value).unwrap();
    }
    let runs = sorter.runs.len();
    assert!(runs < RUNS_AT_ONCE, "{runs} runs");
    let mut merge = sorter.finish().unwrap();
    let mut out = Vec::new();
    while let Some((key, value)) = merge.next().unwrap() {
        out.push((key.to_vec(), value.to_vec()));
    }
    assert!(merge.next().unwrap().is_none());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "runs have no names");
    (out, runs)
}

fn numbered(count: u32) -> Vec<Record> {
    (0..count)
        .map(|n| {
            let n = n.wrapping_mul(2_654_435_761);
            (format!("train/{:03}/{n:010}", n % 7).into_bytes(), n.to_le_bytes().repeat((n % 9) as usize))
        })
        .collect()
}

#[test]
fn records_come_back_in_order_however_little_memory_there_is() {
    let records = numbered(20_000);
    let mut expected = records.clone();
    expected.sort();
    let (out, runs) = sorted(&records, 1 << 30);
    assert!(out == expected && runs == 0, "what fits into memory is not written");
    let (out, runs) = sorted(&records, 64 << 10);
    assert!(out == expected && runs > 5, "{runs} runs");
    let (out, _) = sorted(&records, 1 << 10);
    assert!(out == expected, "sorted in several passes");
}

// SEMANTICS: I5
#[test]
fn a_run_that_the_disk_changed_is_an_error_and_never_another_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), &disk()).unwrap();
    for n in 0..50_u32 {
        writer.push(format!("key/{n:05}").as_bytes(), &n.to_le_bytes()).unwrap();
    }
    let run = writer.finish().unwrap();
    for at in 0..run.len {
        let mut byte = [0];
        run.file.read_exact_at(&mut byte, at).unwrap();
        run.file.write_all_at(&[byte[0] ^ 0x11], at).unwrap();
        let mut reader = run.read();
        let end = loop {
            match reader.advance() {
                Ok(true) => {}
                end => break end,
            }
        };
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::InvalidData, "byte {at}");
        run.file.write_all_at(&byte, at).unwrap();
    }
}

#[test]
fn a_run_on_a_full_disk_is_an_error_of_the_import() {
    let mut sorter = Sorter::new(Path::new("/nonexistent"), disk(), 100);
    let error = (0..100_u32).find_map(|n| sorter.push(&n.to_be_bytes(), b"value").err());
    assert_eq!(error.expect("the run cannot be written").kind(), io::ErrorKind::NotFound);
}

proptest! {
    #[test]
    fn any_records_come_back_sorted(
        records in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(any::<u8>(), 0..40)), 0..200),
        share_bytes in 1..8_192_usize,
    ) {
        let (out, _) = sorted(&records, share_bytes);
        let keys: Vec<_> = out.iter().map(|(key, _)| key.clone()).collect();
        prop_assert!(keys.is_sorted());
        let (mut out, mut expected) = (out, records);
        out.sort();
        expected.sort();
        prop_assert_eq!(out, expected);
    }
}
