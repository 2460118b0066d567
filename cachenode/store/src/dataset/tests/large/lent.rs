//! Large files that the kernel reads by itself: when they are checked, and what other processes may do to them.

use super::*;

// SEMANTICS: C22
#[test]
fn a_file_is_lent_once_all_of_it_is_cached_and_was_found_right() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.boot_id = boot(1);
    bed.open();
    assert!(put_whole(&bed, 0) && put_whole(&bed, 1) && put_pages(&bed, 2, 0..1));
    assert!(bed.cache().lend(FILE.first).is_none() && bed.cache().lend(BlockIndex(7)).is_none());
    assert!(put_pages(&bed, 2, 1..2));
    assert!(bed.cache().lend(FILE.first).is_some(), "all of it was written just now");
    bed.close();
    spoil(&bed, 1, 200, |page| page[0] ^= 1);
    bed.open();
    // The check of what an earlier process wrote finds the page that is wrong.
    let begun = Instant::now();
    while bed.counters.corrupt() == 0 {
        assert!(bed.cache().lend(FILE.first).is_none() && begun.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(bed.cache().lend(FILE.first).is_none());
    // The check may still have the block.
    while !put_pages(&bed, 1, 200..201) {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut found = Vec::new();
    std::io::Read::read_to_end(&mut lent(&bed), &mut found).unwrap();
    assert!(found == [content(0), content(1), content(2)].concat());
    assert_eq!(bed.counters.corrupt(), 1);
    // It is checked again after a start.
    bed.close();
    bed.open();
    assert!(bed.cache().lend(FILE.first).is_none());
    let _ = lent(&bed);
}

// SEMANTICS: C4, C22
#[test]
fn a_file_system_that_takes_no_writes_holds_one_of_those_that_open_files() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.boot_id = boot(1);
    bed.open();
    assert!((0..3).all(|block| put_whole(&bed, block)));
    let disk = &bed.store().base.disks[0];
    let stuck = disk.turn_to_mark().unwrap();
    assert!(bed.cache().lend(FILE.first).is_none());
    drop(stuck);
    assert!(bed.cache().lend(FILE.first).is_some());
    let _stuck = disk.turn_to_mark().unwrap();
    assert!(bed.cache().lend(FILE.first).is_some(), "it is marked");
}

/// A cache whose file was written by an earlier process.
fn bed_of_earlier() -> Bed {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.boot_id = boot(1);
    bed.open();
    assert!((0..3).all(|block| put_whole(&bed, block)));
    bed.close();
    bed.open();
    bed
}

// SEMANTICS: C22
#[test]
fn a_scrub_checks_files_before_anyone_opens_them() {
    let mut bed = bed_of_earlier();
    bed.cache().scrub();
    wait_until("the file is checked", || bed.cache().shared.large.is_checked(&FILE));
    assert!(bed.cache().lend(FILE.first).is_some(), "at the first opening");
    // It finds what nobody reads, too.
    bed.close();
    spoil(&bed, 1, 200, |page| page[0] ^= 1);
    bed.open();
    bed.cache().scrub();
    bed.cache().scrub();
    wait_until("the page is found", || bed.counters.corrupt() == 1);
    wait_until("the block is no longer whole", || !bed.cache().contains(BlockIndex(901)));
    assert!(!bed.cache().shared.large.is_checked(&FILE));
    bed.drop_all();
    assert_eq!(bed.counters.corrupt(), 1);
}

// SEMANTICS: C22
#[test]
fn a_file_that_is_opened_is_checked_although_it_is_not_the_turn_of_the_scrub() {
    let bed = bed_of_earlier();
    let base = Arc::clone(&bed.cache().shared.base);
    let turn = base.scrubbing.lock().unwrap();
    bed.cache().scrub();
    assert!(bed.cache().lend(FILE.first).is_none());
    drop(lent(&bed));
    // A cache that is closed meanwhile does not wait for its turn.
    let mut other = bed_of_earlier();
    let others = Arc::clone(&other.cache().shared.base);
    let others_turn = others.scrubbing.lock().unwrap();
    other.cache().scrub();
    other.drop_all();
    drop((turn, others_turn));
}

#[test]
fn a_file_that_was_asked_for_while_it_was_being_checked_is_not_read_again() {
    let bed = bed_of_earlier();
    drop(lent(&bed));
    spoil(&bed, 1, 200, |page| page[0] ^= 1);
    bed.cache().shared.check(&FILE);
    assert_eq!(bed.counters.corrupt(), 0);
}

// SEMANTICS: C22
#[test]
fn no_part_of_a_lent_file_is_freed_until_the_machine_boots_again() {
    let mut bed = bed(PolicyKind::Nr, FILE.bytes);
    bed.drop_all();
    bed.boot_id = boot(1);
    bed.open();
    assert!((0..3).all(|block| put_whole(&bed, block)));
    let file = lent(&bed);
    bed.close();
    // A policy that evicts lends nothing, and evicts down to its new size.
    (bed.config.policy, bed.config.reservation_bytes) = (PolicyKind::Fifo, BLOCK_BYTES);
    bed.open();
    assert!(bed.cache().lend(FILE.first).is_none() && bed.cache().usage().used_bytes <= BLOCK_BYTES);
    let mut found = vec![0; FILE.bytes as usize];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == [content(0), content(1), content(2)].concat());
    bed.close();
    bed.boot_id = boot(2);
    bed.open();
    assert!(file_disk_bytes(&bed) <= BLOCK_BYTES + (256 << 10), "{}", file_disk_bytes(&bed));
    assert_eq!(bed.counters.corrupt(), 0);
}

// SEMANTICS: C22
#[test]
fn the_check_of_a_file_does_not_count_for_one_that_comes_in_its_place() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_whole(&bed, 0) && bed.cache().shared.large.is_checked(&FILE));
    let (path, copy) = (file(&bed), bed.dir.join("probe"));
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    bed.cache().shared.large.find_or_make(&FILE, || true).unwrap();
    assert!(!bed.cache().shared.large.is_checked(&FILE), "another process has replaced it");
    let config = CacheConfig { key: OTHER.into(), block_lens: Arc::new(Lens(LATER)), ..bed.config.clone() };
    let later = bed.store().dataset(config).unwrap();
    let (ours, theirs) = (&later.shared.large, &bed.cache().shared.large);
    ours.find_or_make(&LATER, || true).unwrap();
    assert!(ours.is_checked(&LATER), "all of it will be written by this process");
    ours.delete_unless(LATER.first, Some(&LATER), &bed.store().base.disks[0], || false).unwrap();
    ours.link(ours.wait_to_make(), &LATER, theirs, &FILE).unwrap().expect("the other snapshot has it");
    assert!(!ours.is_checked(&LATER));
}

// SEMANTICS: B1, C21, C22
#[test]
fn a_file_that_lost_pages_behind_the_process_is_not_lent_before_it_has_them_again() {
    let spoils: [&dyn Fn(&Path); 2] = [&|path| fs::remove_file(path).unwrap(), &cut_off];
    for (nth, spoil) in spoils.into_iter().enumerate() {
        let mut bed = bed(PolicyKind::Nr, 1 << 30);
        bed.drop_all();
        bed.boot_id = boot(1);
        bed.open();
        assert!(put_whole(&bed, 0) && put_whole(&bed, 1) && put_pages(&bed, 2, 0..1));
        spoil(&file(&bed));
        // The end of the file. With it, each block has a slot that says that the block is there.
        assert!(put_pages(&bed, 2, 0..2));
        assert_eq!(fs::metadata(file(&bed)).unwrap().len(), FILE.bytes);
        assert!(bed.cache().lend(FILE.first).is_none(), "{nth}");
        // Its check finds what is missing, and that is fetched again.
        lent_again(&bed);
    }
}

/// Another process changes the file.
fn cut_off(path: &Path) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100_000).unwrap();
}

/// Waits until the file may be lent, while readers fetch what is missing. Its bytes are right.
fn lent_again(bed: &Bed) {
    wait_until("the file is lent", || {
        for block in 0..3 {
            let _ = put_whole(bed, block);
        }
        let Some(mut file) = bed.cache().lend(FILE.first) else { return false };
        let mut found = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut found).unwrap();
        assert!(found == [content(0), content(1), content(2)].concat());
        true
    });
}

fn bed_with_a_whole_file() -> Bed {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.boot_id = boot(1);
    bed.open();
    assert!((0..3).all(|block| put_whole(&bed, block)) && bed.cache().lend(FILE.first).is_some());
    bed
}

// SEMANTICS: B1, C22
#[test]
fn a_file_that_another_dataset_gives_its_size_again_after_it_was_cut_off_is_not_lent_before_it_was_checked() {
    let bed = bed_with_a_whole_file();
    cut_off(&file(&bed));
    let ancestor = Ancestor::open(&bed.store().base, Arc::new(Shifted(vec![LATER]))).unwrap().unwrap();
    assert!(ancestor.large.find(&FILE).unwrap().is_some());
    assert_eq!(fs::metadata(file(&bed)).unwrap().len(), FILE.bytes);
    assert!(bed.cache().lend(FILE.first).is_none());
    // Its check finds what is missing, and that is fetched again.
    lent_again(&bed);
}

// SEMANTICS: B1, C22
#[test]
fn a_check_during_which_a_file_was_cut_off_does_not_count() {
    let bed = bed_of_earlier();
    let shared = &bed.cache().shared;
    let large = shared.large.find(&FILE).unwrap().unwrap();
    let identity = large.identity().unwrap();
    assert!(FILE.blocks().all(|block| shared.mend(block, Place::in_file(true))));
    // Before the check ends, a reader misses the end of the file, and it is written again.
    cut_off(&file(&bed));
    assert!(!get_pages(&bed, 2, all(2)) && put_whole(&bed, 2));
    shared.large.note_checked(&FILE, identity);
    assert!(bed.cache().lend(FILE.first).is_none());
    lent_again(&bed);
}

// SEMANTICS: B1, C22
#[test]
fn an_open_file_that_another_process_replaces_or_cuts_off_is_checked_and_lent_again() {
    let replace = |path: &Path| {
        let copy = path.with_extension("copy");
        fs::copy(path, &copy).unwrap();
        fs::rename(&copy, path).unwrap();
    };
    for change in [&replace as &dyn Fn(&Path), &cut_off] {
        let bed = bed_with_a_whole_file();
        change(&file(&bed));
        assert!(bed.cache().lend(FILE.first).is_none());
        lent_again(&bed);
    }
}

// SEMANTICS: B1, C22
#[test]
fn a_file_is_never_longer_than_it_is_to_be_while_its_end_is_written_again() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_whole(&bed, 2));
    let (path, written) = (file(&bed), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !written.load(Ordering::Relaxed) {
                assert_eq!(fs::metadata(&path).unwrap().len(), FILE.bytes);
            }
        });
        let (large, end) = (bed.cache().shared.large.find(&FILE).unwrap().unwrap(), BlockIndex(902));
        let record = bed.cache().record(end, content(2));
        (0..200).for_each(|_| large.write(end, 0, content(2).len(), record.as_bytes()).unwrap());
        written.store(true, Ordering::Relaxed);
    });
    assert!(get_pages(&bed, 2, all(2)));
    // Another process left something behind its end.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(FILE.bytes + 7).unwrap();
    bed.drop_all();
    bed.open();
    assert!(get_pages(&bed, 2, all(2)));
    assert_eq!(fs::metadata(&path).unwrap().len(), FILE.bytes);
}
