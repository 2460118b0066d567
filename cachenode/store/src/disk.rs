//! One disk of a store: the abilities of its file system, its health, its free part, and whether it answers.
//!
//! A store may have several, each with a folder of the same layout. The first folder has the tables and everything else
//! that is not a block; all of them have segments.
//!
//! Invariant: with several disks, one that does not answer holds at most [`readers_most`] threads that answer the
//! kernel, whatever the number of datasets. Of those that write blocks it holds at most [`WRITERS_MOST`], or as many as
//! another disk has at once, and none that came after it was known to hold them.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::buffer;
use crate::folder::{Abilities, FileId};
use crate::free_share::FreeShare;
use crate::health::Health;
use crate::pulse::{self, Progress, Pulse};
use crate::record::ALIGN_BYTES;

/// The number of threads that answer the kernel for one mount, until [`Disk::set_threads`] sets another.
const THREADS: usize = 16;

/// The most threads that answer the kernel and wait for one of several disks: three quarters of the `threads` that a
/// mount has, so that a disk that hangs leaves some to the others, and that one that works is busy. Other threads,
/// which may wait, take over the reads beyond it.
fn readers_most(threads: usize) -> usize {
    (threads * 3 / 4).max(1)
}

/// As long as a disk has fewer threads that write blocks, it may get another. A dataset has 8.
const WRITERS_MOST: usize = 4;

/// How long a thread waits for its turn to mark a file, and its pause between two attempts.
const MARK_PATIENCE: Duration = Duration::from_millis(100);
const MARK_PAUSE: Duration = Duration::from_millis(1);

/// One disk of a store.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    /// The number of the file system. None if it cannot be read.
    device: Option<u64>,
    pub(crate) abilities: Abilities,
    pub(crate) health: Health,
    pub(crate) free_share: FreeShare,
    /// Held while a file gets an attribute.
    marking: Mutex<()>,
    /// How often files were found cut off by another process: of those, which are few.
    cuts: Mutex<HashMap<FileId, u32>>,
    /// None if the store has no other disk: then every read and write must wait for this one.
    shared_load: Option<Load>,
}

/// The threads that wait for a disk, and whether it answers.
#[derive(Debug)]
struct Load {
    readers: AtomicUsize,
    readers_most: AtomicUsize,
    writing: Progress,
    pulse: Pulse,
}

/// A thread that reads from a disk; it no longer does when this is dropped.
#[derive(Debug)]
pub(crate) struct Reading<'a>(Option<&'a AtomicUsize>);

/// The same of a thread that writes.
#[derive(Debug)]
pub(crate) struct Writing<'a>(Option<&'a Progress>);

impl Disk {
    /// The disk of the folder `dir`. `is_only`: the store has no other.
    pub(crate) fn new(
        dir: &Path,
        abilities: Abilities,
        health: Health,
        keep_free_percent: u8,
        is_only: bool,
    ) -> Arc<Self> {
        let load = || Load {
            readers: AtomicUsize::new(0),
            readers_most: AtomicUsize::new(readers_most(THREADS)),
            writing: Progress::new(),
            pulse: Pulse::new(),
        };
        let disk = Arc::new(Self {
            dir: dir.to_owned(),
            device: std::fs::metadata(dir).ok().map(|about| about.dev()),
            abilities,
            health,
            free_share: FreeShare::new(dir.to_owned(), keep_free_percent),
            marking: Mutex::default(),
            cuts: Mutex::default(),
            shared_load: (!is_only).then(load),
        });
        disk.watch();
        disk
    }

    /// Asks the disk once a second whether it answers, on a thread of its own that ends after the disk was dropped.
    fn watch(self: &Arc<Self>) {
        if self.shared_load.is_none() {
            return;
        }
        let flags = if self.abilities.direct { libc::O_DIRECT } else { 0 };
        // A file that every folder of the store has.
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.dir.join("format"));
        let disk = Arc::downgrade(self);
        let ask = move |file: File| {
            while let Some(disk) = disk.upgrade() {
                if let Some(load) = &disk.shared_load {
                    // An error is an answer, too.
                    load.pulse.ask(|| buffer::with(ALIGN_BYTES, |page| drop(file.read_at(page, 0))));
                }
                drop(disk);
                std::thread::sleep(pulse::EVERY);
            }
        };
        let watching = file
            .and_then(|file| std::thread::Builder::new().name("larder-disk".into()).spawn(move || ask(file)).map(drop));
        if let Err(error) = watching {
            warn!(dir = ?self.dir, %error, "cannot watch a disk of the cache: if it hangs, reads wait for it");
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// True if both folders are known to be on one file system.
    pub(crate) fn is_same_device(&self, other: &Self) -> bool {
        self.device.is_some() && self.device == other.device
    }

    /// True if the disk does not answer, and there are others.
    pub(crate) fn is_silent(&self) -> bool {
        self.shared_load.as_ref().is_some_and(|load| load.pulse.is_silent())
    }

    /// True if whoever writes to the disk would wait: it does not answer, or ends no write, and there are others.
    pub(crate) fn holds_writers(&self) -> bool {
        self.shared_load.as_ref().is_some_and(|load| load.pulse.is_silent() || load.writing.is_stalled())
    }

    /// Sets the number of threads that answer the kernel for one mount.
    pub(crate) fn set_threads(&self, threads: usize) {
        if let Some(load) = &self.shared_load {
            load.readers_most.store(readers_most(threads), Ordering::Relaxed);
        }
    }

    /// Registers a thread that answers the kernel and reads from the disk. None if the thread would wait too long.
    pub(crate) fn read(&self) -> Option<Reading<'_>> {
        let Some(load) = &self.shared_load else { return Some(Reading(None)) };
        let before = load.readers.fetch_add(1, Ordering::Relaxed);
        let reading = Reading(Some(&load.readers));
        let readers_most = load.readers_most.load(Ordering::Relaxed);
        (before < readers_most && !load.pulse.is_silent()).then_some(reading)
    }

    /// Registers a thread that writes to the disk.
    pub(crate) fn write(&self) -> Writing<'_> {
        let writing = self.shared_load.as_ref().map(|load| &load.writing);
        if let Some(writing) = writing {
            writing.begin();
        }
        Writing(writing)
    }

    /// Waits for a turn to give a file an attribute. None if that takes long: the thread whose turn it is waits for the
    /// disk.
    pub(crate) fn turn_to_mark(&self) -> Option<MutexGuard<'_, ()>> {
        let begun = Instant::now();
        loop {
            match self.marking.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < MARK_PATIENCE => std::thread::sleep(MARK_PAUSE),
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    /// Notes that another process has cut a file off.
    pub(crate) fn note_cut(&self, file: FileId) {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let cuts = cuts.entry(file).or_default();
        *cuts = cuts.wrapping_add(1);
    }

    /// How often a file was found cut off.
    pub(crate) fn cuts_of(&self, file: FileId) -> u32 {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner).get(&file).copied().unwrap_or(0)
    }

    /// How many threads more than a few would write to the disk with another one.
    fn excess_writers(&self) -> usize {
        self.shared_load.as_ref().map_or(0, |load| (load.writing.writes() + 1).saturating_sub(WRITERS_MOST))
    }

    /// Lets the disk appear silent until it answers, which takes less than a second if it is watched.
    #[cfg(test)]
    pub(crate) fn silence(&self) {
        self.shared_load.as_ref().unwrap().pulse.silence();
    }

    #[cfg(test)]
    pub(crate) fn answer(&self) {
        self.shared_load.as_ref().unwrap().pulse.ask(|| ());
    }

    /// Lets the writes in flight appear stalled until one ends.
    #[cfg(test)]
    pub(crate) fn stall(&self) {
        self.shared_load.as_ref().unwrap().writing.stall();
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(threads) = self.0 {
            threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(progress) = self.0 {
            progress.end();
        }
    }
}

/// The disk for a block, of those that a dataset may use: by the number of the block, in proportion to their free room,
/// so that all of them become full at the same time. If all have some writers, the one with the fewest gets it: writes
/// that hang stay, so their disk soon has the most. A disk that failed gets the next block once its pause has ended.
/// If all have failed, the block is for one that its admission may try. One that would hold the writer gets none while
/// another one would not, even one that failed: that returns the writer's thread.
pub(crate) fn choose<'a>(disks: impl Iterator<Item = &'a Arc<Disk>> + Clone, block: u32) -> Option<&'a Arc<Disk>> {
    let now = Instant::now();
    let mut due = disks.clone().filter(|disk| disk.health.is_failing() && !disk.holds_writers());
    if disks.clone().nth(1).is_some()
        && let Some(disk) = due.find(|disk| disk.health.may_write(now))
    {
        return Some(disk);
    }
    let answers = |disk: &&Arc<Disk>| !disk.holds_writers();
    let is_well = |disk: &&Arc<Disk>| !disk.health.is_failing() && answers(disk);
    let is_being_tried = |disk: &&Arc<Disk>| disk.health.is_being_tried() && answers(disk);
    let well: Vec<_> = disks.clone().filter(is_well).map(|disk| (disk, disk.excess_writers())).collect();
    let least = well.iter().map(|(_, excess)| *excess).min();
    let idlest = well.iter().filter(|(_, excess)| Some(*excess) == least).map(|(disk, _)| *disk);
    by_room(idlest, block, now)
        .or_else(|| by_room(disks.clone().filter(is_being_tried), block, now))
        .or_else(|| by_room(disks.clone().filter(answers), block, now))
        .or_else(|| by_room(disks, block, now))
}

fn by_room<'a>(disks: impl Iterator<Item = &'a Arc<Disk>> + Clone, block: u32, now: Instant) -> Option<&'a Arc<Disk>> {
    let pages = |disk: &Arc<Disk>| disk.free_share.room(now) / ALIGN_BYTES as u64;
    let rooms: Vec<u64> = disks.clone().map(pages).collect();
    disks.clone().nth(share_of(&rooms, block))
}

/// Which of several parts a block falls into, in proportion to their sizes. Neighbouring blocks fall into any of them.
/// A block stays in its part while the sizes keep their proportions.
fn share_of(sizes: &[u64], block: u32) -> usize {
    // Where no part has room, all are alike. The product fits, since sizes are below 2^53 pages.
    let size = |size: &u64| u128::from(*size) + 1;
    let total: u128 = sizes.iter().map(size).sum();
    let scattered = u64::from(block).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut at = (u128::from(scattered) * total) >> 64;
    for (nth, part) in sizes.iter().enumerate() {
        match at.checked_sub(size(part)) {
            Some(rest) => at = rest,
            None => return nth,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u32 = 10_000;

    fn shares(sizes: &[u64]) -> Vec<u32> {
        let mut shares = vec![0; sizes.len()];
        (0..BLOCKS).for_each(|block| shares[share_of(sizes, block)] += 1);
        shares
    }

    #[test]
    fn blocks_are_spread_in_proportion_to_the_room() {
        for (sizes, percents) in [
            (&[1000][..], &[100][..]),
            (&[1_000_000, 3_000_000][..], &[25, 75][..]),
            (&[0, 1 << 50, 1 << 50][..], &[0, 50, 50][..]),
            (&[0, 0][..], &[50, 50][..]),
        ] {
            for (share, percent) in shares(sizes).into_iter().zip(percents) {
                let expected = BLOCKS / 100 * percent;
                assert!(share.abs_diff(expected) <= BLOCKS / 50, "{share} of {sizes:?}, not {expected}");
            }
        }
    }

    fn disks(dir: &Path, keep_free_percents: &[u8]) -> Vec<Arc<Disk>> {
        let abilities = Abilities { direct: false, free: true };
        let health = || Health::new(Duration::from_secs(3600), Duration::from_secs(3600));
        keep_free_percents.iter().map(|percent| Disk::new(dir, abilities, health(), *percent, false)).collect()
    }

    fn chosen(disks: &[Arc<Disk>], block: u32) -> usize {
        let disk = choose(disks.iter(), block).unwrap();
        disks.iter().position(|other| Arc::ptr_eq(other, disk)).unwrap()
    }

    #[test]
    fn a_disk_that_is_full_failed_or_busy_gets_no_blocks_and_any_disk_is_better_than_none() {
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), &[0, 100, 0]);
        let chooses = |allowed: &[usize]| (0..200).all(|block| allowed.contains(&chosen(&disks, block)));
        assert!(chooses(&[0, 2]));
        let writing: Vec<Writing<'_>> = (0..WRITERS_MOST).map(|_| disks[0].write()).collect();
        assert!(chooses(&[1, 2]));
        // The others have as many.
        let others: Vec<Writing<'_>> = (0..2 * WRITERS_MOST).map(|nth| disks[1 + nth % 2].write()).collect();
        assert!(chooses(&[0, 2]) && (0..200).any(|block| chosen(&disks, block) == 0));
        disks[0].stall();
        assert!((0..200).all(|block| {
            // Writes to these two do end.
            drop((disks[1].write(), disks[2].write()));
            chosen(&disks, block) == 2
        }));
        drop(others);
        assert!(chooses(&[1, 2]));
        drop(writing);
        assert!(chooses(&[0, 2]));
        disks[2].health.failed("test", Instant::now());
        assert!(chooses(&[0, 1]));
        disks[2].health.end_pause(Instant::now());
        assert_eq!(chosen(&disks, 0), 2, "it is tried again");
        assert!(chooses(&[0, 1]));
        for disk in &disks {
            disk.health.failed("test", Instant::now());
        }
        assert!(chooses(&[0, 1, 2]));
        disks[1].health.end_pause(Instant::now());
        assert!(disks[1].health.may_write(Instant::now()), "an admission asks");
        assert!(chooses(&[1]));
        disks[1].health.failed("test", Instant::now());
        // Nothing watches these disks, so they stay silent.
        disks[0].silence();
        assert!(chooses(&[1, 2]));
        disks[2].silence();
        assert!(chooses(&[1]));
        disks[1].silence();
        assert!(chooses(&[0, 1, 2]));
    }

    // SEMANTICS: C20
    #[test]
    fn a_disk_on_which_writes_hang_gets_none_of_the_writers_of_a_busy_one() {
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), &[0, 0]);
        let write = |disk: usize, count: usize| (0..count).map(|_| disks[disk].write()).collect::<Vec<Writing<'_>>>();
        let (_hung, _busy) = (write(0, WRITERS_MOST + 1), write(1, WRITERS_MOST));
        assert!((0..200).all(|block| chosen(&disks, block) == 1));
    }

    #[test]
    fn few_threads_that_answer_the_kernel_wait_for_one_of_several_disks() {
        let dir = tempfile::tempdir().unwrap();
        let disks = disks(dir.path(), &[0]);
        let disk = &disks[0];
        let read = |count: usize| (0..count).map(|_| disk.read().unwrap()).collect::<Vec<Reading<'_>>>();
        let reading = read(readers_most(THREADS));
        assert!(disk.read().is_none());
        drop(reading);
        for (threads, most) in [(8, 6), (1, 1)] {
            disk.set_threads(threads);
            let _reading = read(most);
            assert!(disk.read().is_none());
        }
    }
}
