//! Blocks of a large file: in parts and whole, restarts, damage, eviction, several disks, adoption. `model` has these
//! in any order, with kills and the loss of power; `pair` sets up two snapshots that share large files, `killed` kills
//! the process that writes them, `power` loses what was not synced, and in `lent` the kernel reads them by itself.

mod killed;
mod lent;
mod model;
mod pair;
mod power;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{OnceLock, mpsc};

use pair::Shifted;

use super::faults::Mount;
use super::*;
use crate::config::{BlockLens, FileSpan};
use crate::dataset::ancestor::Ancestor;
use crate::pages::{PAGE_BYTES, page_count};

/// Blocks 900 to 902: two whole ones, and one of two pages.
const FILE: FileSpan = FileSpan { first: BlockIndex(900), bytes: 2 * BLOCK_BYTES + 20_000 };

/// The lengths of blocks if the dataset has a large file.
#[derive(Clone, Copy, Debug)]
struct Lens(FileSpan);

impl BlockLens for Lens {
    fn len_of(&self, block: BlockIndex) -> Option<u32> {
        Some(if self.0.contains(block) { self.0.len_of(block) } else { len_of(block) })
    }

    fn file_of(&self, block: BlockIndex) -> Option<FileSpan> {
        Some(self.0).filter(|span| span.contains(block))
    }
}

fn content(nth: u32) -> &'static [u8] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let all = ALL.get_or_init(|| FILE.blocks().map(|block| bytes_of(block, FILE.len_of(block))).collect());
    &all[nth as usize]
}

fn bytes_of_pages(nth: u32, pages: &Range<u32>) -> Range<usize> {
    let [from, to] = [pages.start, pages.end].map(|page| (page * PAGE_BYTES) as usize);
    from..to.min(content(nth).len())
}

/// Writes pages of a block of the file at `first`. False if they are not admitted.
fn put_pages_at(cache: &DatasetCache, first: u32, nth: u32, pages: Range<u32>) -> bool {
    let Some(permit) = cache.admit(BlockIndex(first + nth), content(nth).len() as u32) else { return false };
    let range = bytes_of_pages(nth, &pages);
    cache.write_part(permit, range.start as u32, &content(nth)[range]).unwrap();
    true
}

/// Reads pages of a block of the file at `first`, and checks their bytes. True if they are a hit.
fn get_pages_at(cache: &DatasetCache, first: u32, nth: u32, pages: Range<u32>) -> bool {
    let (block, block_len) = (BlockIndex(first + nth), content(nth).len() as u32);
    let range = bytes_of_pages(nth, &pages);
    let right = |found: &[u8]| assert!(*found == content(nth)[range.clone()], "block {nth}, pages {pages:?}");
    let (start, len) = (range.start as u32, range.len() as u32);
    let is_hit = cache.read(block, block_len, start, len, right).hit().is_some();
    let copied = cache.read_into(block, block_len, start, len, Vec::with_capacity).hit();
    assert_eq!(copied.is_some(), is_hit, "both ways to read agree");
    if let Some(PartBytes { memory, range, .. }) = copied {
        right(&memory[range]);
    }
    is_hit
}

fn put_pages(bed: &Bed, nth: u32, pages: Range<u32>) -> bool {
    put_pages_at(bed.cache(), FILE.first.0, nth, pages)
}

fn get_pages(bed: &Bed, nth: u32, pages: Range<u32>) -> bool {
    get_pages_at(bed.cache(), FILE.first.0, nth, pages)
}

fn all(nth: u32) -> Range<u32> {
    0..page_count(content(nth).len() as u32)
}

/// Writes a whole block.
fn put_whole(bed: &Bed, nth: u32) -> bool {
    let (cache, block) = (bed.cache(), BlockIndex(FILE.first.0 + nth));
    let Some(permit) = cache.admit(block, content(nth).len() as u32) else { return false };
    cache.write(permit, &cache.record(block, content(nth))).unwrap();
    true
}

fn bed_over(policy: PolicyKind, reservation_bytes: u64, disks: usize) -> Bed {
    let mut bed = Bed::new(policy, reservation_bytes);
    bed.drop_all();
    bed.more = (1..disks).map(|nth| bed.dir.with_file_name(format!("disk-{nth}"))).collect();
    bed.config.block_lens = Arc::new(Lens(FILE));
    bed.open();
    bed
}

fn bed(policy: PolicyKind, reservation_bytes: u64) -> Bed {
    bed_over(policy, reservation_bytes, 1)
}

/// The large file with this first block of a cache, on whichever disk it is.
fn file_in(bed: &Bed, id: &CacheId, first: u32) -> Option<PathBuf> {
    let path = PathBuf::from("datasets").join(id.to_string()).join(format!("files/{first:08x}"));
    [&bed.dir].into_iter().chain(&bed.more).map(|dir| dir.join(&path)).find(|path| path.exists())
}

fn file(bed: &Bed) -> PathBuf {
    file_in(bed, &bed.config.key.id(), FILE.first.0).expect("the file is there")
}

fn file_disk_bytes(bed: &Bed) -> u64 {
    fs::metadata(file(bed)).unwrap().blocks() * 512
}

/// Changes bytes of a page of the file.
fn spoil(bed: &Bed, nth: u32, page: u32, change: impl FnOnce(&mut [u8])) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file(bed)).unwrap();
    let range = bytes_of_pages(nth, &(page..page + 1));
    let at = u64::from(nth) * BLOCK_BYTES + range.start as u64;
    let mut bytes = vec![0; range.len()];
    file.read_exact_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
    file.sync_all().unwrap();
}

const OTHER: SnapshotId = SnapshotId([0x22; 32]);
/// The file in a snapshot that has it one block later.
const LATER: FileSpan = FileSpan { first: BlockIndex(901), ..FILE };

/// Waits until the file may be lent.
fn lent(bed: &Bed) -> fs::File {
    let begun = Instant::now();
    loop {
        if let Some(file) = bed.cache().lend(FILE.first) {
            return file;
        }
        assert!(begun.elapsed() < TIMEOUT, "the file is not lent");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The id of a boot, as long as Linux has them.
fn boot(nth: u8) -> String {
    format!("{nth:036}")
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// SEMANTICS: C21, C28
#[test]
fn a_part_of_a_block_is_known_to_be_cached_once_all_of_its_pages_are() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    let has = |start, len| bed.cache().contains_part(FILE.first, BLOCK_BYTES as u32, start, len);
    assert!(!has(0, 1));
    assert!(put_pages(&bed, 0, 3..5));
    assert!(has(3 * PAGE_BYTES, 2 * PAGE_BYTES) && has(5 * PAGE_BYTES - 1, 1));
    assert!(!has(3 * PAGE_BYTES, 2 * PAGE_BYTES + 1) && !has(3 * PAGE_BYTES - 1, 2));
    assert!(put_whole(&bed, 0) && has(0, BLOCK_BYTES as u32));
}

// SEMANTICS: C7, C21
#[test]
fn a_policy_that_keeps_the_smallest_blocks_does_not_leave_out_the_rest_of_one() {
    // Room for one of the two large blocks.
    let bed = bed(PolicyKind::Smallest, BLOCK_BYTES + 20_000);
    let mut sizes = Sizes::default();
    FILE.blocks().for_each(|block| sizes.add(FILE.len_of(block)));
    bed.cache().set_sizes(sizes);
    assert!(put_pages(&bed, 0, 3..5));
    let [first, second] = [FILE.first, BlockIndex(FILE.first.0 + 1)];
    let leaves_out = |block| bed.cache().leaves_out(block, BLOCK_BYTES as u32);
    assert!(!leaves_out(first) && leaves_out(second));
    drop(bed.cache().admit_without_evicting(first, BLOCK_BYTES as u32).expect("the rest of the block"));
    assert!(bed.cache().admit_without_evicting(second, BLOCK_BYTES as u32).is_none());
}

// SEMANTICS: C1, C21
#[test]
fn parts_of_a_block_are_hits_and_the_first_of_them_takes_the_room_of_all() {
    let mut bed = bed(PolicyKind::Nr, BLOCK_BYTES + 1000);
    let used = |bed: &Bed| (bed.cache().usage().used_bytes, bed.cache().usage().blocks_cached);
    assert!(put_pages(&bed, 0, 3..5));
    assert_eq!(used(&bed), (BLOCK_BYTES, 1));
    assert!(get_pages(&bed, 0, 3..5) && get_pages(&bed, 0, 4..5));
    assert!(!get_pages(&bed, 0, 2..4) && !get_pages(&bed, 0, 4..6) && !get_pages(&bed, 0, 100..101));
    assert!(!bed.cache().contains(FILE.first));
    // There is no room for another block, and none is needed for the rest of this one.
    assert!(!put_pages(&bed, 1, 0..1) && !put_pages(&bed, 2, 0..1));
    drop(bed.cache().admit(FILE.first, BLOCK_BYTES as u32).expect("the rest of the block"));
    assert!(put_pages(&bed, 0, 5..200) && get_pages(&bed, 0, 3..200));
    assert!(put_whole(&bed, 0) && bed.cache().contains(FILE.first) && get_pages(&bed, 0, all(0)));
    assert!(bed.cache().admit(FILE.first, BLOCK_BYTES as u32).is_none());
    for end in [Bed::drop_all, Bed::close] {
        end(&mut bed);
        bed.open();
        assert!(get_pages(&bed, 0, all(0)));
        assert_eq!(used(&bed), (BLOCK_BYTES, 1));
        assert!(!put_pages(&bed, 1, 0..1));
    }
    assert_eq!((bed.counters.corrupt(), bed.counters.write_errors.get()), (0, 0));
}

// SEMANTICS: C21
#[test]
fn the_bytes_of_a_file_are_in_one_sparse_file_at_their_own_offsets() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_whole(&bed, 2));
    assert!(file_disk_bytes(&bed) <= 64 << 10, "{}", file_disk_bytes(&bed));
    assert_eq!(fs::metadata(file(&bed)).unwrap().len(), FILE.bytes);
    assert!(put_pages(&bed, 1, 7..8) && put_whole(&bed, 0) && put_whole(&bed, 1));
    let stored = fs::read(file(&bed)).unwrap();
    assert!(stored == [content(0), content(1), content(2)].concat());
    assert!(bed.segment_files().is_empty());
    // Other blocks are records, as they always were.
    bed.put_all(0..20);
    assert_eq!((bed.hits(0..20), bed.segment_files().len()), (20, 1));
}

#[test]
fn parts_that_are_not_of_the_block_or_not_of_whole_pages_are_refused() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    let write = |block: u32, len: u32, start: u32, bytes: &[u8]| {
        let permit = bed.cache().admit(BlockIndex(block), len).unwrap();
        bed.cache().write_part(permit, start, bytes)
    };
    let (whole, page) = (BLOCK_BYTES as u32, [0; PAGE_BYTES as usize]);
    for (block, len, start, bytes) in [
        (900, whole, 1, &page[..]),
        (900, whole, 0, &page[1..]),
        (900, whole, 0, &[]),
        (900, whole, whole, &page),
        (902, 20_000, PAGE_BYTES, &page),
        (7, len_of(BlockIndex(7)), 0, &page),
    ] {
        write(block, len, start, bytes).unwrap_err();
    }
    assert_eq!((bed.cache().usage().used_bytes, bed.cache().usage().blocks_cached), (0, 0));
    assert!(bed.cache().takes_parts(FILE.first) && !bed.cache().takes_parts(BlockIndex(7)));
    write(902, 20_000, PAGE_BYTES, &content(2)[PAGE_BYTES as usize..]).unwrap();
    assert!(get_pages(&bed, 2, 1..2));
}

// SEMANTICS: C14
#[test]
fn a_thread_that_has_written_a_large_part_keeps_no_memory_for_it() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_pages(&bed, 0, 0..200));
    assert!(buffer::kept() <= buffer::KEPT_BYTES, "{}", buffer::kept());
}

// SEMANTICS: C21
#[test]
fn pages_that_a_killed_process_did_not_show_are_fetched_again_and_their_space_is_freed() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_pages(&bed, 0, 0..4));
    bed.drop_all();
    let before = file_disk_bytes(&bed);
    // Pages of a block that has a slot, and of one that has none.
    spoil(&bed, 0, 9, |page| page.fill(7));
    spoil(&bed, 1, 0, |page| page.fill(7));
    bed.open();
    assert!(get_pages(&bed, 0, 0..4) && !get_pages(&bed, 0, 9..10) && !get_pages(&bed, 1, 0..1));
    assert!(file_disk_bytes(&bed) <= before + (32 << 10));
    assert!(put_pages(&bed, 0, 9..10) && put_pages(&bed, 1, 0..1));
    assert!(get_pages(&bed, 0, 9..10) && get_pages(&bed, 1, 0..1));
    assert_eq!(bed.counters.corrupt(), 0);
}

// SEMANTICS: C4, C21
#[test]
fn the_loss_of_the_slots_and_of_the_index_costs_no_page() {
    for policy in PolicyKind::ALL {
        let mut bed = bed(policy, 1 << 30);
        assert!(put_pages(&bed, 0, 5..9) && put_whole(&bed, 2));
        for lost in [&["slots"][..], &["slots", "index"]] {
            bed.close();
            for name in lost {
                let _ = fs::remove_file(bed.dataset_dir().join(name));
                let _ = fs::remove_dir_all(bed.dir.join(name));
            }
            bed.open();
            assert!(get_pages(&bed, 0, 5..9) && get_pages(&bed, 2, all(2)), "{policy}, {lost:?}");
            assert!(bed.cache().contains(BlockIndex(902)) && !bed.cache().contains(FILE.first));
            let usage = bed.cache().usage();
            assert_eq!((usage.used_bytes, usage.blocks_cached), (BLOCK_BYTES + 20_000, 2));
        }
        // Without their table, nobody knows whether the pages are right.
        bed.close();
        fs::remove_file(bed.dataset_dir().join("pages")).unwrap();
        bed.open();
        assert!(!get_pages(&bed, 0, 5..6) && bed.cache().usage().used_bytes == 0);
        assert!(put_whole(&bed, 0) && get_pages(&bed, 0, all(0)));
        assert_eq!(bed.counters.corrupt(), 0, "{policy}");
    }
}

// SEMANTICS: C4, C21
#[test]
fn a_wrong_page_is_one_counted_miss_and_the_rest_of_its_block_stays() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_whole(&bed, 0));
    spoil(&bed, 0, 17, |page| page[4000] ^= 1);
    assert!(get_pages(&bed, 0, 16..17) && bed.counters.corrupt() == 0);
    assert!(!get_pages(&bed, 0, 16..18));
    assert_eq!((bed.counters.corrupt_rotten.get(), bed.counters.corrupt()), (1, 1));
    assert!(get_pages(&bed, 0, 0..17) && get_pages(&bed, 0, 18..256) && !get_pages(&bed, 0, 17..18));
    assert!(!bed.cache().contains(FILE.first));
    assert_eq!(bed.cache().usage().used_bytes, BLOCK_BYTES);
    assert!(put_pages(&bed, 0, 17..18) && bed.cache().contains(FILE.first) && get_pages(&bed, 0, all(0)));
    assert_eq!(bed.counters.corrupt(), 1);
}

// SEMANTICS: C4, C21
#[test]
fn a_file_that_is_cut_off_replaced_or_deleted_costs_hits_and_is_filled_again() {
    let spoils: [&dyn Fn(&Path); 4] = [
        &|path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100_000).unwrap(),
        &|path| fs::write(path, vec![7; 5000]).unwrap(),
        &|path| fs::remove_file(path).unwrap(),
        &|path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
    ];
    for (nth, spoil) in spoils.into_iter().enumerate() {
        for is_open in [true, false] {
            let mut bed = bed(PolicyKind::Nr, 1 << 30);
            bed.drop_all();
            bed.boot_id = boot(1);
            bed.open();
            assert!(put_whole(&bed, 0) && put_whole(&bed, 2) && get_pages(&bed, 2, all(2)));
            let path = file(&bed);
            if is_open {
                spoil(&path);
            } else {
                bed.drop_all();
                spoil(&path);
                bed.open();
            }
            // A file that was deleted while it was open is still read, until a block is written to it.
            let _ = get_pages(&bed, 0, all(0));
            for block in [1, 0, 2] {
                let _ = put_whole(&bed, block);
                let _ = get_pages(&bed, block, all(block));
                let _ = put_whole(&bed, block);
                assert!(get_pages(&bed, block, all(block)), "{nth}, open {is_open}, block {block}");
            }
            let is_lent_right = |bed: &Bed| {
                let mut found = Vec::new();
                std::io::Read::read_to_end(&mut lent(bed), &mut found).unwrap();
                found == [content(0), content(1), content(2)].concat()
            };
            assert!(is_lent_right(&bed), "{nth}, open {is_open}");
            bed.drop_all();
            bed.open();
            assert!(is_lent_right(&bed), "{nth}, open {is_open}, after a start");
            assert!((0..3).all(|block| get_pages(&bed, block, all(block))));
            assert_eq!(bed.cache().usage().used_bytes, FILE.bytes);
        }
    }
}

// SEMANTICS: C21
#[test]
fn an_evicted_block_frees_its_pages_and_may_return() {
    for policy in [PolicyKind::Fifo, PolicyKind::Lru] {
        let bed = bed(policy, BLOCK_BYTES + 30_000);
        assert!(put_whole(&bed, 0) && put_whole(&bed, 2));
        assert!(put_pages(&bed, 1, 0..2));
        assert!(!get_pages(&bed, 0, 0..1) && get_pages(&bed, 1, 0..2) && get_pages(&bed, 2, all(2)), "{policy}");
        assert!(file_disk_bytes(&bed) < 256 << 10, "{}", file_disk_bytes(&bed));
        assert_eq!(bed.cache().usage().used_bytes, BLOCK_BYTES + 20_000);
        assert!(put_whole(&bed, 0) && get_pages(&bed, 0, all(0)) && !get_pages(&bed, 1, 0..1));
        assert_eq!(bed.counters.corrupt(), 0);
    }
}

#[test]
fn a_block_that_is_evicted_while_its_rest_is_fetched_leaves() {
    for is_written in [false, true] {
        let bed = bed(PolicyKind::Fifo, BLOCK_BYTES + 30_000);
        assert!(put_pages(&bed, 0, 0..1));
        let rest = bed.cache().admit(FILE.first, BLOCK_BYTES as u32).unwrap();
        assert!(put_pages(&bed, 1, 0..1));
        assert!(get_pages(&bed, 0, 0..1), "until the permit ends");
        if is_written {
            bed.cache().write_part(rest, PAGE_BYTES, &content(0)[bytes_of_pages(0, &(1..2))]).unwrap();
        } else {
            drop(rest);
        }
        bed.cache().search_disowned();
        assert!(!get_pages(&bed, 0, 0..1) && !get_pages(&bed, 0, 1..2) && get_pages(&bed, 1, 0..1));
        let usage = bed.cache().usage();
        assert_eq!((usage.used_bytes, usage.blocks_cached), (BLOCK_BYTES, 1));
        assert!(put_pages(&bed, 2, 0..1) && put_pages(&bed, 0, 0..1));
        assert_eq!(bed.counters.corrupt(), 0);
    }
}

#[test]
fn a_pipe_among_the_files_does_not_keep_a_cache_from_closing() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_whole(&bed, 0));
    let (pipe, mode) = (file(&bed).with_file_name("000003e7"), rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (sender, closed) = mpsc::channel();
    std::thread::spawn(move || {
        bed.close();
        sender.send(()).unwrap();
    });
    closed.recv_timeout(TIMEOUT).unwrap();
}

// SEMANTICS: C4, C21
#[test]
fn a_block_for_which_the_disk_has_no_room_takes_none_of_what_is_left() {
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=64m", "tmpfs"]);
    let mut bed = Bed::at(mount.at.path(), PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.config.block_lens = Arc::new(Lens(FILE));
    bed.open();
    assert!(put_pages(&bed, 1, 0..1));
    let ballast = mount.at.path().join("ballast");
    let free = bed.store().free_bytes().unwrap();
    fs::write(&ballast, vec![1; (free - BLOCK_BYTES / 2) as usize]).unwrap();
    let (before, cache) = (file_disk_bytes(&bed), bed.cache());
    let permit = cache.admit(FILE.first, BLOCK_BYTES as u32).unwrap();
    let error = cache.write(permit, &cache.record(FILE.first, content(0))).unwrap_err();
    assert!(matches!(error, WriteError::Full { .. }), "{error}");
    assert_eq!(file_disk_bytes(&bed), before);
    fs::remove_file(ballast).unwrap();
    cache.try_disk_again();
    assert!(put_whole(&bed, 0) && get_pages(&bed, 0, all(0)) && get_pages(&bed, 1, 0..1));
}

// SEMANTICS: C20, C21
#[test]
fn a_file_is_on_one_disk_and_a_disk_that_was_away_gives_it_back() {
    for policy in [PolicyKind::Nr, PolicyKind::Fifo] {
        let mut bed = bed_over(policy, 1 << 30, 3);
        assert!(put_whole(&bed, 0) && put_pages(&bed, 1, 4..9) && put_whole(&bed, 2));
        let dirs = [vec![bed.dir.clone()], bed.more.clone()].concat();
        let files = |dir: &PathBuf| {
            let folder = dir.join("datasets").join(SNAPSHOT.to_string()).join("files");
            fs::read_dir(folder).into_iter().flatten().count()
        };
        assert_eq!(dirs.iter().map(files).sum::<usize>(), 1);
        let path = file(&bed);
        let away = bed.more.iter().position(|dir| path.starts_with(dir)).expect("block 900 falls to the last disk");
        let more = bed.more.clone();
        bed.drop_all();
        bed.more.remove(away);
        bed.open();
        assert!(!get_pages(&bed, 0, 0..1) && bed.cache().usage().used_bytes == 0);
        assert!(path.exists(), "nothing is deleted");
        bed.drop_all();
        bed.more = more;
        bed.open();
        assert!(get_pages(&bed, 0, all(0)) && get_pages(&bed, 1, 4..9) && get_pages(&bed, 2, all(2)));
        assert_eq!((bed.cache().usage().used_bytes, bed.counters.corrupt()), (FILE.bytes, 0));
    }
}

// SEMANTICS: C4, C20, C21
#[test]
fn threads_that_must_not_wait_for_a_disk_open_no_file_on_it() {
    let bed = bed_over(PolicyKind::Nr, 1 << 30, 2);
    assert!(put_whole(&bed, 0) && put_pages(&bed, 1, 3..5));
    let (cache, large, path) = (bed.cache(), &bed.cache().shared.large, file(&bed));
    let disks = &bed.store().base.disks;
    let nth = disks.iter().position(|disk| path.starts_with(disk.dir())).unwrap();
    large.close(FILE.first);
    let [whole, part] = [FILE.first, BlockIndex(901)];
    assert_eq!(
        (cache.disk_of(whole), cache.disk_of(part), cache.disk_of(BlockIndex(902))),
        (Some(nth), Some(nth), None)
    );
    assert!(cache.contains_part(part, BLOCK_BYTES as u32, 3 * PAGE_BYTES, 1));
    assert!(!cache.contains_part(part, BLOCK_BYTES as u32, 5 * PAGE_BYTES, 1));
    // As many threads wait for the disk as may.
    let waiting: Vec<_> = std::iter::from_fn(|| disks[nth].read()).collect();
    assert!(cache.read(whole, BLOCK_BYTES as u32, 0, 1, |_| ()).hit().is_none());
    assert!(large.opened(&FILE).is_none());
    drop(waiting);
    assert!(get_pages(&bed, 0, all(0)) && large.opened(&FILE).is_some());
    assert_eq!(bed.counters.read_errors.get(), 0);
}

// SEMANTICS: C20, C21
#[test]
fn new_blocks_of_a_file_whose_disk_fails_go_to_another_disk() {
    let mut bed = bed_over(PolicyKind::Nr, 1 << 30, 2);
    // It has a part of the second block already.
    assert!(put_whole(&bed, 0) && put_pages(&bed, 1, 3..200));
    let path = file(&bed);
    let disks = &bed.store().base.disks;
    disks.iter().find(|disk| path.starts_with(disk.dir())).unwrap().health.failed("test", Instant::now());
    assert!(put_whole(&bed, 1) && put_whole(&bed, 2));
    let segments = bed.cache().shared.space.segments();
    let place = bed.cache().shared.slots.get(BlockIndex(901)).unwrap();
    assert!(segments.get(place.segment).is_some(), "it is a record");
    drop(segments);
    assert!((0..3).all(|block| get_pages(&bed, block, all(block))));
    assert_eq!(bed.cache().usage().blocks_cached, 3);
    bed.drop_all();
    bed.open();
    assert!((0..3).all(|block| get_pages(&bed, block, all(block))));
    assert_eq!((bed.cache().usage().used_bytes, bed.counters.corrupt()), (FILE.bytes, 0));
    assert!(file_disk_bytes(&bed) <= BLOCK_BYTES + (64 << 10), "the part of the second block is freed");
}

// SEMANTICS: C20, C21
#[test]
fn new_blocks_of_a_file_whose_disk_ends_no_write_go_to_another_disk() {
    let bed = bed_over(PolicyKind::Nr, 1 << 30, 2);
    assert!(put_whole(&bed, 0));
    let path = file(&bed);
    let disk = bed.store().base.disks.iter().find(|disk| path.starts_with(disk.dir())).unwrap();
    let is_record = |nth| {
        let place = bed.cache().shared.slots.get(BlockIndex(FILE.first.0 + nth)).unwrap();
        bed.cache().shared.space.segments().get(place.segment).is_some()
    };
    let stalled = disk.write();
    disk.stall();
    assert!(put_whole(&bed, 1) && is_record(1));
    // Nor does a file that is to be made on it, or may be.
    bed.cache().shared.large.close(FILE.first);
    fs::remove_file(&path).unwrap();
    let making = bed.cache().shared.large.turn_to_make().unwrap();
    disk.stall();
    assert!(put_whole(&bed, 2) && is_record(2));
    drop((making, stalled));
    assert!((1..3).all(|block| get_pages(&bed, block, all(block))));
}

// SEMANTICS: C21
#[test]
fn a_record_that_is_evicted_while_pages_that_it_had_are_being_freed_leaves() {
    let bed = bed_over(PolicyKind::Fifo, 1 << 30, 2);
    assert!(put_whole(&bed, 0) && put_pages(&bed, 2, 0..1));
    let (path, shared) = (file(&bed), &bed.cache().shared);
    let disk = bed.store().base.disks.iter().find(|disk| path.starts_with(disk.dir())).unwrap();
    let (large, end) = (shared.large.find(&FILE).unwrap().unwrap(), BlockIndex(902));
    let ended = std::sync::atomic::AtomicBool::new(false);
    let leaves = || {
        // While its pages are being freed, it is not admitted.
        wait_until("it is a record", || {
            disk.health.failed("test", Instant::now());
            put_whole(&bed, 2)
        });
        // As its pages are being freed.
        let begun = Instant::now();
        let mut state = loop {
            let state = shared.lock();
            if state.pending.contains_key(&end) || state.leaving.contains(&end) {
                break state;
            }
            assert!(begun.elapsed() < TIMEOUT, "its pages are not being freed");
        };
        shared.forget(&mut state, end, FILE.len_of(end));
        let victim = state.evict(end);
        drop(state);
        shared.clear(victim);
        let begun = Instant::now();
        while shared.slots.get(end).is_some() && begun.elapsed() < TIMEOUT {
            shared.clear_unclaimed();
        }
        shared.slots.get(end).is_none()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                shared.free_unused_block(end, &large);
            }
        });
        let all_leave = (0..10).all(|_| leaves());
        ended.store(true, Ordering::Relaxed);
        assert!(all_leave);
    });
}

// SEMANTICS: C21
#[test]
fn blocks_that_an_earlier_version_stored_as_records_stay_and_new_ones_go_to_the_file() {
    let mut bed = bed(PolicyKind::Nr, 1 << 30);
    bed.drop_all();
    bed.config.block_lens = Arc::new(|block: BlockIndex| Lens(FILE).len_of(block).unwrap());
    bed.open();
    assert!(put_whole(&bed, 0) && put_whole(&bed, 1) && file_in(&bed, &bed.config.key.id(), 900).is_none());
    bed.drop_all();
    bed.config.block_lens = Arc::new(Lens(FILE));
    bed.open();
    assert!(get_pages(&bed, 0, all(0)) && get_pages(&bed, 1, 3..4));
    assert!(put_pages(&bed, 2, 0..1) && put_pages(&bed, 2, 1..2));
    bed.drop_all();
    bed.open();
    assert!((0..3).all(|block| get_pages(&bed, block, all(block))));
    assert_eq!((bed.cache().usage().used_bytes, bed.counters.corrupt()), (FILE.bytes, 0));
}
// SEMANTICS: C20, C21
#[test]
fn a_page_that_comes_during_an_adoption_does_not_wait_for_a_disk_that_ends_no_write() {
    let bed = bed_over(PolicyKind::Nr, 1 << 30, 2);
    assert!(put_whole(&bed, 0));
    let config = CacheConfig { key: OTHER.into(), block_lens: Arc::new(Lens(LATER)), ..bed.config.clone() };
    let later = bed.store().dataset(config).unwrap();
    assert!(put_pages_at(&later, 901, 0, 0..1));
    let path = file_in(&bed, &CacheId(OTHER.0), 901).unwrap();
    let (base, large) = (&bed.store().base, &later.shared.large);
    let ancestor = Ancestor::open(base, Arc::new(Shifted(vec![LATER]))).unwrap().unwrap();
    later.shared.ancestors.store(Some(Arc::new(vec![ancestor])));
    // A thread makes a file on the other disk.
    let other = base.disks.iter().find(|disk| !path.starts_with(disk.dir())).unwrap();
    let _making = (other.write(), large.turn_to_make().unwrap());
    other.stall();
    assert!(put_pages_at(&later, 901, 0, 1..2) && get_pages_at(&later, 901, 0, 0..2));
}

// SEMANTICS: C16, C21
#[test]
fn a_snapshot_that_has_the_file_links_it_and_each_of_them_fills_and_frees_its_own() {
    let bed = bed(PolicyKind::Nr, 1 << 30);
    assert!(put_pages(&bed, 0, 0..10) && put_whole(&bed, 2));
    let config = CacheConfig { key: OTHER.into(), block_lens: Arc::new(Lens(LATER)), ..bed.config.clone() };
    let later = bed.store().dataset(config).unwrap();
    assert!(later.wait_rebuilt(TIMEOUT));
    let adopt = || {
        let (sender, ended) = mpsc::channel();
        later.adopt(vec![Arc::new(Shifted(vec![LATER]))], move |complete| sender.send(complete).unwrap());
        assert!(ended.recv_timeout(TIMEOUT).unwrap());
    };
    adopt();
    let (get, put) =
        (|nth, pages| get_pages_at(&later, 901, nth, pages), |nth, pages| put_pages_at(&later, 901, nth, pages));
    assert!(get(0, 0..10) && !get(0, 10..11) && get(2, all(2)));
    let usage = later.usage();
    assert_eq!((usage.used_bytes, usage.blocks_cached), (BLOCK_BYTES + 20_000, 2));
    let inode = |id: SnapshotId, first| fs::metadata(file_in(&bed, &CacheId(id.0), first).unwrap()).unwrap().ino();
    assert_eq!(inode(SNAPSHOT, 900), inode(OTHER, 901));
    // Each has its own pages in the file.
    assert!(put(0, 10..20) && get(0, 0..20) && !get_pages(&bed, 0, 10..11));
    assert!(put_pages(&bed, 0, 15..25) && get_pages(&bed, 0, 15..25) && !get(0, 20..21) && get(0, 10..20));
    assert!(put_pages(&bed, 1, 0..1) && !get(1, 0..1));
    adopt();
    assert!(get(1, 0..1), "what has come since is adopted as well");
    let Bed { mut open, mut user, .. } = bed;
    let (store, first) = open.take().unwrap();
    drop((user.take(), first));
    store.release(&CacheId(SNAPSHOT.0)).unwrap();
    later.free_unused();
    assert!(get(0, 0..20) && get(1, 0..1) && get(2, all(2)));
    assert_eq!(store.counters().corrupt(), 0);
}
