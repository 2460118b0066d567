//! A store over several folders. In these tests they are on one file system, and so have the same free room.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, mpsc};

use super::*;
use crate::disk::Disk;

const BLOCKS: std::ops::Range<u32> = 0..200;

/// A cache over `count` folders, of which the first was the only one before.
fn bed(policy: PolicyKind, count: usize) -> Bed {
    let mut bed = Bed::new(policy, 1 << 30);
    bed.drop_all();
    bed.more = (1..count).map(|nth| bed.dir.with_file_name(format!("disk-{nth}"))).collect();
    bed.open();
    bed
}

/// Ends as if killed, and starts with these further folders.
fn restart(bed: &mut Bed, more: &[PathBuf]) {
    bed.drop_all();
    bed.more = more.to_vec();
    bed.open();
}

/// The blocks on the disk of a folder.
fn on(bed: &Bed, dir: &Path) -> BTreeSet<u32> {
    let segments = bed.cache().shared.space.segments();
    let is_there = |block: &u32| {
        let place = bed.cache().shared.slots.get(BlockIndex(*block));
        place.and_then(|place| segments.get(place.segment)).is_some_and(|segment| segment.disk.dir() == dir)
    };
    (0..bed.config.blocks).filter(is_there).collect()
}

fn segments_in(bed: &Bed, dir: &Path) -> BTreeSet<String> {
    let folder = dir.join("datasets").join(bed.config.key.id().to_string()).join("segments");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.file_name().into_string().unwrap()).collect()
}

fn assert_all_are_hits(bed: &Bed) {
    assert_eq!((bed.hits(BLOCKS), bed.counters.corrupt()), (BLOCKS.len(), 0));
    let usage = bed.cache().usage();
    assert_eq!((usage.used_bytes, usage.blocks_cached), (bytes_in(BLOCKS), BLOCKS.len() as u64));
}

fn disk(bed: &Bed, nth: usize) -> Arc<Disk> {
    Arc::clone(&bed.store().base.disks[nth])
}

// SEMANTICS: C20
#[test]
fn blocks_are_on_all_disks_and_are_hits_after_a_kill() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed(policy, 3);
        bed.put_all(BLOCKS);
        let dirs = [vec![bed.dir.clone()], bed.more.clone()].concat();
        let before: Vec<_> = dirs.iter().map(|dir| on(&bed, dir)).collect();
        assert!(before.iter().all(|blocks| blocks.len() > BLOCKS.len() / 6), "{before:?}");
        let more = bed.more.clone();
        restart(&mut bed, &more);
        assert_all_are_hits(&bed);
        assert_eq!(dirs.iter().map(|dir| on(&bed, dir)).collect::<Vec<_>>(), before);
    }
}

/// An old cache is the first disk of a larger one.
// SEMANTICS: C20
#[test]
fn a_folder_that_is_added_takes_new_blocks_and_the_old_ones_stay() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..100);
    let added = bed.dir.with_file_name("added");
    restart(&mut bed, std::slice::from_ref(&added));
    assert_eq!(bed.hits(0..100), 100);
    bed.put_all(100..200);
    let moved = on(&bed, &added);
    assert!(moved.len() > 20 && moved.iter().all(|block| *block >= 100), "{moved:?}");
    assert_all_are_hits(&bed);
}

// SEMANTICS: C20
#[test]
fn a_folder_that_is_away_costs_its_blocks_and_gives_them_back_when_it_returns() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed(policy, 3);
        bed.put_all(BLOCKS);
        let more = bed.more.clone();
        let away = &more[0];
        let (lost, files) = (on(&bed, away), segments_in(&bed, away));
        restart(&mut bed, &more[1..]);
        assert_eq!(bed.hits(BLOCKS), BLOCKS.len() - lost.len());
        assert_eq!(bed.cache().usage().blocks_cached, (BLOCKS.len() - lost.len()) as u64);
        // Half of them are fetched again.
        let again: Vec<u32> = lost.iter().copied().step_by(2).collect();
        bed.put_all(again.iter().copied());
        assert_eq!(segments_in(&bed, away), files, "nothing is deleted");
        restart(&mut bed, &more);
        assert_all_are_hits(&bed);
        let back = on(&bed, away);
        assert!(back.is_subset(&lost) && again.iter().all(|block| !back.contains(block)));
        restart(&mut bed, &more);
        assert_all_are_hits(&bed);
    }
}

// SEMANTICS: C20
#[test]
fn numbers_of_segments_that_are_away_are_not_given_again() {
    let mut bed = bed(PolicyKind::Nr, 2);
    let numbers = |bed: &Bed| -> Vec<u32> {
        let files = [&bed.dir].into_iter().chain(&bed.more).flat_map(|dir| segments_in(bed, dir));
        files.map(|file| file.split(['-', '.']).next().unwrap().parse().unwrap()).collect()
    };
    bed.put_all(BLOCKS);
    let before = numbers(&bed);
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), before.len());
    let highest = before.iter().copied().max().unwrap();
    // The segments with the highest numbers may be on either disk.
    restart(&mut bed, &[]);
    assert_eq!(bed.cache().shared.slots.highest_segment(), highest);
    bed.put_all(200..300);
    assert!(numbers(&bed).iter().all(|number| before.contains(number) || *number > highest));
}

// SEMANTICS: C4
#[test]
fn a_folder_that_cannot_be_listed_for_want_of_descriptors_is_not_taken_for_a_disk_that_is_away() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let more = bed.more.clone();
    bed.drop_all();
    let segments = more[0].join("datasets").join(bed.config.key.id().to_string()).join("segments");
    let aside = segments.with_file_name("aside");
    fs::rename(&segments, &aside).unwrap();
    // Listing a link to itself fails with ELOOP, which says nothing about the disk either.
    std::os::unix::fs::symlink(&segments, &segments).unwrap();
    bed.open();
    assert_eq!(bed.cache().usage().degraded, Some("no cache: disk error"));
    bed.drop_all();
    fs::remove_file(&segments).unwrap();
    fs::rename(&aside, &segments).unwrap();
    restart(&mut bed, &more);
    assert_all_are_hits(&bed);
}

// SEMANTICS: C20
#[test]
fn a_folder_that_returns_empty_is_filled_again() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let more = bed.more.clone();
    let lost = on(&bed, &more[0]);
    bed.drop_all();
    fs::remove_dir_all(&more[0]).unwrap();
    bed.open();
    assert_eq!((bed.hits(BLOCKS), bed.counters.corrupt()), (BLOCKS.len() - lost.len(), 0));
    bed.put_all(lost);
    assert_all_are_hits(&bed);
    assert!(!on(&bed, &more[0]).is_empty());
}

// SEMANTICS: C20
#[test]
fn the_loss_of_the_first_folder_costs_its_blocks_though_it_has_the_tables() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed(policy, 2);
        bed.put_all(BLOCKS);
        let (dir, other) = (bed.dir.clone(), bed.more[0].clone());
        let kept = on(&bed, &other);
        bed.drop_all();
        fs::remove_dir_all(&dir).unwrap();
        let all = bed.try_open_store().unwrap().datasets();
        assert!(all.len() == 1 && all[0].is_keyed, "the key is on each disk");
        bed.open();
        assert_eq!((bed.hits(BLOCKS), bed.counters.corrupt()), (kept.len(), 0));
        assert_eq!(bed.cache().usage().used_bytes, bytes_in(kept.iter().copied()));
        bed.put_all(BLOCKS.filter(|block| !kept.contains(block)));
        restart(&mut bed, std::slice::from_ref(&other));
        assert_all_are_hits(&bed);
    }
}

// SEMANTICS: C20
#[test]
fn the_order_of_the_folders_may_change() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed(policy, 2);
        bed.put_all(BLOCKS);
        bed.drop_all();
        std::mem::swap(&mut bed.dir, &mut bed.more[0]);
        bed.open();
        assert_all_are_hits(&bed);
    }
}

/// As after a kill while records are read. The first of them is skipped, so that no segment was begun.
// SEMANTICS: C20
#[test]
fn blocks_are_found_by_their_records_though_an_earlier_start_ended_while_it_read_them() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed(policy, 2);
        bed.put_all(BLOCKS);
        bed.drop_all();
        std::mem::swap(&mut bed.dir, &mut bed.more[0]);
        let (arrived, stopped) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (at_first, is_first) = ([Arc::clone(&arrived), Arc::clone(&stopped)], AtomicBool::new(true));
        bed.config.block_lens = Arc::new(move |block: BlockIndex| {
            if !is_first.swap(false, Ordering::Relaxed) {
                return len_of(block);
            }
            for barrier in &at_first {
                barrier.wait();
            }
            len_of(block) + 1
        });
        let (store, cache) = bed.try_open().unwrap();
        arrived.wait();
        cache.shared.stop();
        stopped.wait();
        drop((cache, store));
        bed.config.block_lens = Arc::new(len_of);
        bed.open();
        assert_all_are_hits(&bed);
    }
}

// SEMANTICS: C20
#[test]
fn while_the_first_folder_cannot_be_used_the_next_one_has_the_tables() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let (dir, other) = (bed.dir.clone(), bed.more[0].clone());
    let kept = on(&bed, &other);
    bed.drop_all();
    // A file blocks the path of the folder.
    fs::rename(&dir, dir.with_extension("away")).unwrap();
    fs::write(&dir, b"").unwrap();
    bed.open();
    assert!(bed.store().has_folder());
    assert_eq!((bed.hits(BLOCKS), bed.counters.corrupt()), (kept.len(), 0));
    bed.put_all((0..20).filter(|block| !kept.contains(block)));
    bed.drop_all();
    fs::remove_file(&dir).unwrap();
    fs::rename(dir.with_extension("away"), &dir).unwrap();
    restart(&mut bed, std::slice::from_ref(&other));
    assert_all_are_hits(&bed);
}

/// Their segments have the same numbers.
// SEMANTICS: C20
#[test]
fn two_caches_become_one() {
    let mut bed = Bed::new(PolicyKind::Nr, 1 << 30);
    bed.put_all(0..100);
    let (first, second) = (bed.dir.clone(), bed.dir.with_file_name("second"));
    bed.drop_all();
    bed.dir.clone_from(&second);
    bed.open();
    bed.put_all(100..200);
    bed.drop_all();
    bed.dir = first;
    restart(&mut bed, std::slice::from_ref(&second));
    assert_all_are_hits(&bed);
    assert_eq!(on(&bed, &second), (100..200).collect());
}

// SEMANTICS: C19, C20
#[test]
fn blocks_of_which_nobody_knows_whose_they_are_are_not_found_again() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let more = bed.more.clone();
    let lost = on(&bed, &more[0]);
    bed.drop_all();
    fs::remove_file(more[0].join("datasets").join(bed.config.key.id().to_string()).join("key")).unwrap();
    bed.open();
    assert_eq!(bed.hits(BLOCKS), BLOCKS.len() - lost.len());
    assert_eq!(segments_in(&bed, &more[0]), BTreeSet::new());
}

// SEMANTICS: C20
#[test]
fn blocks_for_a_disk_that_fails_go_to_the_others() {
    let bed = bed(PolicyKind::Nr, 2);
    bed.put_all(0..50);
    let there = on(&bed, &bed.more[0]);
    fs::remove_dir_all(&bed.more[0]).unwrap();
    // Each write succeeds, although some were to go to the folder that is gone.
    bed.put_all(50..200);
    assert!(bed.counters.write_errors.get() > 0);
    assert_eq!(bed.cache().usage().degraded, None, "blocks are admitted");
    assert_eq!(on(&bed, &bed.more[0]), there);
    assert_all_are_hits(&bed);
    assert_eq!(disk(&bed, 1).health.reason(), Some("cache folder deleted"));
}

// SEMANTICS: C20
#[test]
fn a_disk_that_does_not_answer_is_not_waited_for_until_it_answers() {
    let bed = bed(PolicyKind::Nr, 2);
    bed.put_all(0..100);
    let (there, silent) = (on(&bed, &bed.more[0]), disk(&bed, 1));
    let block = *there.first().unwrap();
    // The disk does answer, at most once a second.
    let while_silent = |wanted: &dyn Fn() -> bool| {
        (0..1000).any(|_| {
            silent.silence();
            wanted()
        })
    };
    assert!(while_silent(&|| !bed.get(block)));
    assert!(while_silent(&|| bed.hits(0..100) == 100 - there.len()));
    let into = |block: &u32, len| bed.cache().read_into(BlockIndex(*block), len, 0, len, Vec::with_capacity);
    assert!(while_silent(&|| bed.cache().disk_of(BlockIndex(block)).is_none()));
    assert!(while_silent(&|| into(&block, len_of(BlockIndex(block))).hit().is_none()));
    assert!(while_silent(&|| {
        let (before, next) = (on(&bed, &bed.more[0]).len(), bed.cache().usage().blocks_cached as u32);
        bed.put_all(next..next + 20);
        on(&bed, &bed.more[0]).len() == before
    }));
    let begun = Instant::now();
    while !bed.get(block) {
        assert!(begun.elapsed() < TIMEOUT, "it answers again");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((bed.cache().disk_of(BlockIndex(block)), bed.counters.corrupt()), (Some(1), 0));
}

// SEMANTICS: C20
#[test]
fn a_release_removes_the_blocks_on_all_disks_and_several_folders_on_one_disk_have_its_room_once() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let (id, base) = (bed.config.key.id(), &bed.store().base);
    let measured: u64 = bed.store().datasets().iter().map(|info| info.disk_bytes).sum();
    assert!(measured > bytes_in(BLOCKS), "those on both disks");
    let of_one = crate::probe::free_bytes(&bed.dir).unwrap();
    assert!(bed.store().free_bytes().unwrap() < of_one + of_one / 2);
    assert_eq!(base.folders().filter(|folder| folder.dataset(&id).exists()).count(), 2);
    let store = bed.open.take().unwrap().0;
    bed.user = None;
    assert!(store.release(&id).unwrap());
    assert!(store.base.folders().all(|folder| !folder.dataset(&id).exists()));
}

// SEMANTICS: C20
#[test]
fn nothing_is_admitted_while_one_disk_fails_and_the_other_one_does_not_answer() {
    let bed = bed(PolicyKind::Nr, 2);
    let (failing, silent) = (disk(&bed, 0), disk(&bed, 1));
    let refuses = |block: u32| {
        let now = Instant::now();
        failing.health.failed("test", now);
        silent.silence();
        bed.cache().shared.admit(BlockIndex(block), len_of(BlockIndex(block)), true, now).is_none()
    };
    // The disk does answer, at most once a second.
    assert!((0..1000).any(refuses));
    assert!((0..1000).any(|_| {
        silent.silence();
        bed.cache().usage().degraded == Some("test")
    }));
    failing.health.end_pause(Instant::now());
    assert!(failing.health.may_write(Instant::now()) && failing.health.worked());
    assert_eq!(bed.cache().usage().degraded, None);
    assert!((0..1000).any(|_| {
        failing.silence();
        silent.silence();
        bed.cache().usage().degraded == Some("disk does not answer")
    }));
}

// SEMANTICS: C20
#[test]
fn a_release_and_a_list_of_all_datasets_touch_no_disk_that_does_not_answer() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(0..100);
    let (id, silent) = (bed.config.key.id(), disk(&bed, 1));
    let there = bed.more[0].join("datasets").join(id.to_string());
    let listed = || bed.store().datasets().iter().map(|info| info.disk_bytes).sum::<u64>();
    // The disk does answer, at most once a second.
    let is_not_measured = |nth: usize| {
        let before = listed();
        fs::write(there.join(nth.to_string()), vec![1; 8192]).unwrap();
        bed.cache().shared.stale.mark();
        silent.silence();
        listed() == before
    };
    assert!((0..1000).any(is_not_measured));
    let store = bed.open.take().unwrap().0;
    bed.user = None;
    let leaves_it = || {
        fs::create_dir_all(&there).unwrap();
        silent.silence();
        store.release(&id).unwrap();
        there.exists()
    };
    assert!((0..1000).any(|_| leaves_it()));
    assert!(!bed.dataset_dir().exists());
}

// SEMANTICS: C20
#[test]
fn blocks_are_admitted_before_a_disk_has_freed_what_the_last_run_left() {
    let mut bed = bed(PolicyKind::Nr, 2);
    bed.put_all(BLOCKS);
    let path = bed.segment_file(bed.place(0));
    bed.drop_all();
    // As after a kill: a part of the file was allocated for further records.
    let bytes = || fs::metadata(&path).unwrap().len();
    let (used, left) = (bytes(), 1 << 20);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(used + left).unwrap();
    let gate = Arc::new(Barrier::new(2));
    let (at_first, is_first) = (Arc::clone(&gate), AtomicBool::new(true));
    bed.config.block_lens = Arc::new(move |block: BlockIndex| {
        if is_first.swap(false, Ordering::Relaxed) {
            at_first.wait();
        }
        len_of(block)
    });
    bed.open = Some(bed.try_open().unwrap());
    let (send, seen) = mpsc::channel();
    let at = path.clone();
    bed.cache().when_rebuilt(move || send.send(fs::metadata(at).unwrap().len()).unwrap());
    gate.wait();
    assert_eq!(seen.recv_timeout(TIMEOUT).unwrap(), used + left, "it is freed later");
    bed.wait_freed();
    assert_eq!(bytes(), used);
    assert_all_are_hits(&bed);
}

// SEMANTICS: C20
#[test]
fn a_search_for_blocks_of_other_nodes_does_not_wait_for_a_disk_that_frees_room() {
    let bed = Bed::new(PolicyKind::Fifo, bytes_in(0..96));
    bed.put_all(0..96);
    // Evicts the first block, which is large, and is not written.
    let large = BlockIndex(112);
    drop(bed.cache().admit(large, len_of(large)).unwrap());
    let disk = disk(&bed, 0);
    let hanging = bed.cache().shared.space.turn_to_free(&disk).unwrap();
    let (done, ended) = mpsc::channel();
    let has_ended = std::thread::scope(|scope| {
        let cache = bed.cache();
        scope.spawn(move || {
            cache.search_disowned();
            done.send(()).unwrap();
        });
        let has_ended = ended.recv_timeout(TIMEOUT).is_ok();
        drop(hanging);
        has_ended
    });
    assert!(has_ended && !bed.cache().contains(BlockIndex(0)));
}
