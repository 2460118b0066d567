//! The queue, the record of the last run, and an index of an earlier version.

use larder_dataset::PolicyKind;
use rocksdb::{ColumnFamilyDescriptor, Options};

use super::*;

#[test]
fn a_full_queue_drops_and_counts_and_what_is_waited_for_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let counters = Arc::<StoreCounters>::default();
    let (index, last_run) = Index::open(dir.path(), "b", 1, Duration::from_secs(1), Arc::clone(&counters));
    assert_eq!(last_run, LastRun { slots_doubtful: false, index_is_new: true });
    for block in 0..20_000 {
        index.put(1, BlockIndex(block), Place { segment: 1, page: block });
    }
    index.put_waiting(1, BlockIndex(20_000), Place { segment: 1, page: 7 });
    index.put_waiting(2, BlockIndex(3), Place { segment: 1, page: 7 });
    let blocks = blocks(&index, 1);
    assert_eq!(blocks.last(), Some(&(BlockIndex(20_000), Place { segment: 1, page: 7 })));
    assert_eq!(blocks.len() as u64 + counters.index_dropped.get(), 20_001);
    assert_eq!(counters.index_errors.get(), 0);
}

#[test]
fn slots_are_doubted_after_an_unclean_end_and_another_boot_only() {
    let dir = tempfile::tempdir().unwrap();
    let open = |boot_id| Index::open(dir.path(), boot_id, 8, Duration::from_secs(1), Arc::default());
    drop(open("a"));
    assert!(!open("a").1.slots_doubtful);
    assert!(open("b").1.slots_doubtful);
    let (index, _) = open("b");
    index.close();
    drop(index);
    assert_eq!(open("c").1, LastRun { slots_doubtful: false, index_is_new: false });
}

#[test]
fn each_dataset_is_doubted_until_its_doubt_has_ended_whatever_starts_and_closes_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let open = |boot_id| Index::open(dir.path(), boot_id, 8, Duration::from_secs(1), Arc::default()).0;
    let row = |number| DatasetRow {
        number,
        policy: PolicyKind::Nr,
        reservation_bytes: 0,
        last_use_unix_s: 0,
        name: String::new(),
    };
    let all = [1, 2, 3].map(|byte| CacheId([byte; 32]));
    let index = open("a");
    for id in &all {
        index.register(id, row(0));
    }
    drop(index);
    let doubted = |index: &Index| all.map(|id| index.is_doubtful(&id));
    let index = open("b");
    assert_eq!(doubted(&index), [true; 3]);
    index.end_doubt(&all[0]);
    index.close();
    drop(index);
    let index = open("b");
    assert_eq!(doubted(&index), [false, true, true], "a clean end says nothing about slots that were lost before");
    index.release(&all[1]);
    drop(index);
    assert_eq!(doubted(&open("b")), [false, false, true]);
    assert_eq!(doubted(&open("c")), [true, false, true], "the second has no row");
}

#[test]
fn an_index_with_the_history_of_earlier_versions_opens_with_all_its_blocks_and_without_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let id = CacheId([7; 32]);
    let row = DatasetRow {
        number: 9,
        policy: PolicyKind::Lru,
        reservation_bytes: 5,
        last_use_unix_s: 6,
        name: "images".into(),
    };
    {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        let families =
            ["datasets", "blocks", "epochs"].map(|name| ColumnFamilyDescriptor::new(name, Options::default()));
        let db = DB::open_cf_descriptors(&options, dir.path(), families).unwrap();
        db.put(b"state", b"\x01\x01boot").unwrap();
        let family = |name| db.cf_handle(name).unwrap();
        db.put_cf(family("datasets"), id.0, rows::encode_dataset(&row)).unwrap();
        db.put_cf(family("blocks"), b"\0\0\0\x09\0\0\0\x02", b"\0\0\0\x03\0\0\0\x04").unwrap();
        db.put_cf(family("epochs"), b"\0\0\0\x09\0\0\0\0\0\0\0\x07", [1; 33]).unwrap();
    }
    for _ in 0..2 {
        let counters = Arc::<StoreCounters>::default();
        let (index, last_run) = Index::open(dir.path(), "boot", 8, Duration::from_secs(1), Arc::clone(&counters));
        assert_eq!(last_run, LastRun { slots_doubtful: false, index_is_new: false });
        assert_eq!(index.datasets(), [(id, row.clone())]);
        assert_eq!(blocks(&index, 9), [(BlockIndex(2), Place { segment: 3, page: 4 })]);
        assert_eq!(counters.index_errors.get(), 0);
        drop(index);
        assert_eq!(DB::list_cf(&Options::default(), dir.path()).unwrap(), ["default", "datasets", "blocks"]);
    }
}

fn blocks(index: &Index, dataset: u32) -> Vec<(BlockIndex, Place)> {
    let mut blocks = Vec::new();
    index.each_block(dataset, |block, place| {
        blocks.push((block, place));
        true
    });
    blocks
}
