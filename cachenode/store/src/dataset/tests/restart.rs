//! The state after a restart, also with other settings or after the loss of slots or index.

use super::*;

#[test]
fn everything_kept_is_a_hit_from_the_moment_the_store_is_open_again() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..100);
        bed.close();
        bed.open = Some(bed.try_open().unwrap());
        assert_eq!(bed.hits(0..100), 100, "{policy}");
        bed.drop_all();
        bed.open();
        assert_eq!(bed.hits(0..100), 100, "{policy}");
        let usage = bed.cache().usage();
        assert_eq!((usage.used_bytes, usage.blocks_cached, usage.rebuilding), (bytes_in(0..100), 100, false));
        bed.put_all(100..120);
        assert_eq!(bed.hits(0..200), 120, "{policy}");
        assert_eq!(bed.counters.corrupt(), 0);
    }
}

#[test]
fn a_restart_writes_to_a_segment_of_its_own_and_only_when_it_has_to() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all([4]);
    bed.drop_all();
    bed.open();
    assert_eq!(bed.segment_files().len(), 1);
    bed.put_all([5]);
    assert_eq!(bed.place(5), Place { segment: 2, page: 0 });
}

#[test]
fn a_smaller_reservation_evicts_down_unless_the_policy_replaces_nothing_which_then_admits_nothing() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..200);
        bed.drop_all();
        bed.config.reservation_bytes = 500_000;
        bed.open();
        let usage = bed.cache().usage();
        let cached: Vec<_> = (0..200).filter(|&block| bed.cache().contains(BlockIndex(block))).collect();
        assert_eq!(usage.used_bytes, bytes_in(cached.iter().copied()));
        if !policy.evicts() {
            assert_eq!(bed.hits(0..200), 200);
            assert!(!bed.put(201));
        } else {
            assert!(usage.used_bytes <= 500_000);
            assert_eq!(bed.hits(0..200), cached.len());
            assert!(bed.put(201) && bed.get(201));
        }
        if matches!(policy, PolicyKind::Lru | PolicyKind::Fifo) {
            assert_eq!(cached, (200 - cached.len() as u32..200).collect::<Vec<_>>(), "the oldest leave");
        }
    }
}

#[test]
fn a_reservation_that_changes_while_the_dataset_is_open_counts_at_once_and_after_a_restart() {
    for policy in PolicyKind::ALL {
        let mut bed = Bed::new(policy, bytes_in(0..50));
        bed.put_all(0..50);
        let promised = |bytes| Reservation { bytes, disk_bytes: 2 * bytes, wanted_bytes: 3 * bytes };
        let (more, less) = (bytes_in(0..70), bytes_in(0..20));
        bed.cache().resize(more, promised(more));
        bed.put_all(50..70);
        assert_eq!((bed.hits(0..70), bed.cache().usage().used_bytes), (70, more), "{policy}");
        bed.cache().resize(less, promised(less));
        assert_eq!(bed.hits(0..70), 70, "{policy}: no block leaves now");
        assert_eq!(bed.put(71), policy.evicts(), "{policy}");
        let usage = bed.cache().usage();
        assert_eq!((usage.capacity_bytes, usage.wanted_bytes), (less, 3 * less));
        assert!(!policy.evicts() || usage.used_bytes <= less, "{policy}: {usage:?}");
        bed.drop_all();
        let next = Store::open(StoreConfig::new(&bed.dir), Arc::default()).unwrap();
        assert_eq!(next.datasets()[0].reservation, Some(promised(less)), "{policy}");
    }
}

#[test]
fn another_policy_takes_over_what_is_there() {
    let mut bed = Bed::new(PolicyKind::Nr, bytes_in(0..50));
    bed.put_all(0..50);
    for policy in [PolicyKind::Lru, PolicyKind::Smallest, PolicyKind::Random, PolicyKind::Fifo, PolicyKind::Nr] {
        bed.drop_all();
        bed.config.policy = policy;
        bed.open();
        assert_eq!(bed.cache().usage().policy, policy);
        assert_eq!(bed.hits(0..50), 50);
    }
}

#[test]
fn lost_slots_are_filled_again_from_the_index() {
    let lose: [&dyn Fn(&Path); 4] = [
        &|slots| fs::remove_file(slots).unwrap(),
        &|slots| fs::write(slots, b"").unwrap(),
        &|slots| fs::OpenOptions::new().write(true).open(slots).unwrap().set_len(6000).unwrap(),
        &|slots| fs::write(slots, vec![0x77; 20_000]).unwrap(),
    ];
    for policy in [PolicyKind::Nr, PolicyKind::Lru] {
        let mut bed = Bed::new(policy, 1 << 30);
        bed.put_all(0..100);
        for lose in lose {
            bed.close();
            lose(&bed.slots_file());
            bed.open();
            assert_eq!(bed.hits(0..100), 100);
            assert_eq!((bed.cache().usage().used_bytes, bed.counters.corrupt()), (bytes_in(0..100), 0));
        }
    }
}

/// Clears the slots of the first 50 blocks.
fn empty_slots(bed: &Bed) {
    let slots = fs::OpenOptions::new().write(true).open(bed.slots_file()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&slots, &[0; 8 * 50], 4096).unwrap();
}

#[test]
fn after_a_power_loss_what_only_the_index_knows_is_put_back() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    // One segment has all blocks: a segment whose blocks had all lost their slots would be deleted.
    bed.segment_bytes = 1 << 30;
    bed.open();
    bed.put_all(0..100);
    bed.drop_all();
    empty_slots(&bed);
    bed.open();
    assert_eq!(bed.hits(0..100), 50, "same boot: the slots are right");
    bed.drop_all();
    bed.boot_id = "second boot".into();
    bed.open();
    assert_eq!(bed.hits(0..100), 100);
    bed.close();
    empty_slots(&bed);
    bed.boot_id = "third boot".into();
    bed.open();
    assert_eq!(bed.hits(0..100), 50, "closed cleanly: the slots are right");
}

// SEMANTICS: C4
#[test]
fn after_a_power_loss_slots_are_put_back_though_starts_do_not_open_the_dataset_first() {
    for closes in [false, true] {
        let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
        bed.drop_all();
        bed.segment_bytes = 1 << 30;
        bed.open();
        bed.put_all(0..100);
        bed.drop_all();
        empty_slots(&bed);
        bed.boot_id = "second boot".into();
        for _ in 0..2 {
            let store = bed.try_open_store().unwrap();
            if closes {
                store.close().unwrap();
            }
        }
        bed.open();
        assert_eq!(bed.hits(0..100), 100, "{closes}");
        bed.drop_all();
        empty_slots(&bed);
        bed.open();
        assert_eq!(bed.hits(0..100), 50, "once they were put back, the slots are right");
    }
}

// SEMANTICS: C4
#[test]
fn slots_of_a_table_that_was_made_anew_are_put_back_by_the_start_after_a_kill() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..100);
    let id = bed.config.key.id();
    bed.drop_all();
    fs::remove_file(bed.slots_file()).unwrap();
    // The process is killed once it has made the table.
    let (slots, found) = crate::slots::Slots::open(&bed.slots_file(), &id, bed.config.blocks).unwrap();
    assert_eq!(found, Found::Made);
    drop(slots);
    bed.open();
    assert_eq!((bed.hits(0..100), bed.counters.corrupt()), (100, 0));
}

/// The store rewrites a whole page only on a disk with bad sectors, so this test calls that code directly.
// SEMANTICS: C4
#[test]
fn slots_that_were_lost_with_their_page_are_looked_up_by_the_next_start_and_by_no_other() {
    use std::os::unix::fs::FileExt;
    let lose = |bed: &Bed| {
        let file = fs::OpenOptions::new().read(true).write(true).open(bed.slots_file()).unwrap();
        let mut kept = [0; 8];
        file.read_exact_at(&mut kept, 4096 + 8 * 70).unwrap();
        file.write_all_at(&[0; 8 * 100], 4096).unwrap();
        kept
    };
    for clean in [false, true] {
        let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
        bed.drop_all();
        bed.segment_bytes = 1 << 30;
        bed.open();
        bed.put_all(0..100);
        let kept = lose(&bed);
        bed.cache().shared.slots.write_page(4096, 8 * 70, kept).unwrap();
        assert_eq!(bed.hits(0..100), 1);
        if clean {
            bed.close()
        } else {
            bed.drop_all()
        }
        bed.open();
        assert_eq!((bed.hits(0..100), bed.cache().usage().used_bytes), (100, bytes_in(0..100)));
        if clean {
            bed.close()
        } else {
            bed.drop_all()
        }
        lose(&bed);
        bed.open();
        assert_eq!(bed.hits(0..100), 0, "what was lost before was found");
    }
}

#[test]
fn a_lost_index_costs_nothing_and_is_told_again_what_is_there() {
    let lose: [&dyn Fn(&Path); 3] = [
        &|index| fs::remove_dir_all(index).unwrap(),
        &|index| fs::write(index.join("CURRENT"), b"no manifest\n").unwrap(),
        &|index| fs::remove_file(index.join("CURRENT")).unwrap(),
    ];
    for lose in lose {
        let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
        bed.put_all(0..100);
        bed.close();
        lose(&bed.dir.join("index"));
        bed.open();
        assert_eq!(bed.hits(0..100), 100);
        bed.close();
        fs::remove_file(bed.slots_file()).unwrap();
        bed.open();
        assert_eq!(bed.hits(0..100), 100);
    }
}

// SEMANTICS: C4
#[test]
fn an_index_that_is_something_else_is_replaced_and_told_again_what_is_there() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..10);
    let spoil: [&dyn Fn(&Path); 2] = [
        &|index| {
            fs::remove_dir_all(index).unwrap();
            fs::write(index, b"").unwrap();
        },
        // A folder in place of a file makes RocksDB fail.
        &|index| {
            fs::remove_file(index.join("CURRENT")).unwrap();
            fs::create_dir(index.join("CURRENT")).unwrap();
        },
    ];
    for spoil in spoil {
        bed.close();
        spoil(&bed.dir.join("index"));
        bed.open();
        assert_eq!((bed.hits(0..10), bed.counters.index_errors.get()), (10, 0));
        bed.close();
        fs::remove_file(bed.slots_file()).unwrap();
        bed.open();
        assert_eq!(bed.hits(0..10), 10, "the new index knows them");
        assert!(!bed.dir.join("index.damaged").exists());
    }
}
