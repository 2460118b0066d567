//! State shared by the datasets of one store: its folders with their locks, its disks, the index, the counters.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use larder_dataset::CacheId;
use tracing::warn;

use crate::counters::StoreCounters;
use crate::disk::Disk;
use crate::folder::{DiskUse, Folder};
use crate::health::Health;
use crate::index::{Index, LastRun};
use crate::measured::Measured;
use crate::promises::Promises;
use crate::quotas::Quotas;
use crate::reservations::{Known, Reservations};
use crate::segment::SegmentFolder;
use crate::uses::Uses;

/// State shared by a store's datasets.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) counters: Arc<StoreCounters>,
    /// The health of the first disk as far as the slot tables are concerned: no block is kept without its slot. Each
    /// disk has a health of its own for blocks.
    pub(crate) tables: Health,
    /// The disks of the folders that can be used, in their order; the first is that of `folder`.
    pub(crate) disks: Vec<Arc<Disk>>,
    pub(crate) index: Index,
    pub(crate) reservations: Reservations,
    pub(crate) promises: Promises,
    pub(crate) quotas: Quotas,
    pub(crate) uses: Arc<Uses>,
    pub(crate) measured: Measured,
    pub(crate) last_run: LastRun,
    pub(crate) segment_bytes: u64,
    /// The id of the machine's boot; empty if it is unknown.
    pub(crate) boot_id: String,
    pub(crate) closed: AtomicBool,
    /// Held by the dataset whose turn it is to check a block of a file that nobody waits for.
    pub(crate) scrubbing: Mutex<()>,
    pub(crate) logged: LoggedFlaws,
    /// The first folder that can be used, which has the tables. None if there is none; datasets then have no cache.
    /// Declared last: fields drop in order, so RocksDB closes before the folder's lock is released.
    pub(crate) folder: Option<Folder>,
    /// The other folders, which have segments only.
    pub(crate) more: Vec<Folder>,
}

/// Which kinds of flaws were logged. Each kind is logged once; the counters hold the totals.
#[derive(Debug, Default)]
pub(crate) struct LoggedFlaws {
    pub(crate) torn: AtomicBool,
    pub(crate) foreign: AtomicBool,
    pub(crate) rotten: AtomicBool,
    pub(crate) unreadable: AtomicBool,
}

impl Base {
    /// All folders that can be used.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Folder> {
        self.folder.iter().chain(&self.more)
    }

    /// The folders on disks that answer.
    pub(crate) fn answering_folders(&self) -> impl Iterator<Item = &Folder> {
        self.folders().zip(&self.disks).filter(|(_, disk)| !disk.is_silent()).map(|(folder, _)| folder)
    }

    /// The disk use of a dataset; while a disk does not answer, as it was measured last.
    pub(crate) fn used(&self, id: &CacheId) -> DiskUse {
        if self.disks.iter().any(|disk| disk.is_silent()) {
            return self.measured.last(id);
        }
        self.measured.of(id, || self.folders().map(|folder| folder.dataset(id)).collect())
    }

    /// The folders of a dataset's segments.
    pub(crate) fn segment_folders(&self, id: &CacheId) -> Vec<SegmentFolder> {
        let folder = |(folder, disk): (&Folder, &Arc<Disk>)| SegmentFolder {
            path: folder.dataset(id).join("segments"),
            disk: Arc::clone(disk),
        };
        self.folders().zip(&self.disks).map(folder).collect()
    }

    /// True if a block may be written now: a disk works, or the pause of one that failed has ended and it answers.
    pub(crate) fn may_write(&self, now: Instant) -> bool {
        let is_due = |disk: &Arc<Disk>| !disk.holds_writers() && disk.health.may_write(now);
        self.tables.may_write(now) && (self.has_sound_disk() || self.disks.iter().any(is_due))
    }

    /// True if a disk takes blocks, as far as is known.
    pub(crate) fn has_sound_disk(&self) -> bool {
        self.disks.iter().any(|disk| !disk.health.is_failing() && !disk.holds_writers())
    }

    /// The number of a disk, if it answers.
    pub(crate) fn answering(&self, disk: &Arc<Disk>) -> Option<usize> {
        self.disks.iter().position(|other| Arc::ptr_eq(other, disk)).filter(|_| !disk.is_silent())
    }

    /// Why no block is written. None if one may be.
    pub(crate) fn degraded(&self) -> Option<&'static str> {
        let of_disks = || self.disks.iter().find_map(|disk| disk.health.reason()).unwrap_or("disk does not answer");
        self.tables.reason().or_else(|| (!self.has_sound_disk()).then(of_disks))
    }

    /// Ends the pauses after failures: the next block is an attempt.
    pub(crate) fn end_pauses(&self, now: Instant) {
        self.tables.end_pause(now);
        self.disks.iter().for_each(|disk| disk.health.end_pause(now));
    }

    /// Removes a dataset's folders. False if it has none. Returns before their disk space is free. Leaves one on a disk
    /// that does not answer: its blocks are found again, or released, like those of a disk that was away. Errors: that
    /// in the first folder cannot be removed.
    pub(crate) fn remove(&self, id: &CacheId) -> io::Result<bool> {
        let shared = self.used(id).shared;
        let mut had_some = false;
        for (folder, disk) in self.folders().zip(&self.disks).skip(1) {
            let removed = if disk.holds_writers() { Err(io::ErrorKind::TimedOut.into()) } else { folder.remove(id) };
            match removed {
                Ok(()) => had_some = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(dir = ?folder.dir(), %id, %error, "cannot remove blocks of a released dataset from a disk");
                }
            }
        }
        let removed = self.folder.as_ref().map_or(Ok(()), |folder| folder.remove(id));
        self.measured.forget(id, &shared);
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(had_some),
            removed => removed.map(|()| true),
        }
    }

    /// Changes what is known about a dataset. Blocks on the disk.
    pub(crate) fn change(&self, id: &CacheId, change: impl FnOnce(&mut Known)) -> Known {
        self.reservations.put(id, self.dataset(id).as_deref(), change)
    }

    /// The same, but a change of the time of the last use alone may be lost.
    pub(crate) fn change_news(&self, id: &CacheId, change: impl FnOnce(&mut Known)) -> Known {
        self.reservations.put_news(id, self.dataset(id).as_deref(), change)
    }

    /// Writes the time of a dataset's last use, if that is in memory only. Blocks on the disk.
    pub(crate) fn write_use(&self, id: &CacheId) {
        self.reservations.put_use(id, self.dataset(id).as_deref());
    }

    /// The folder of a dataset.
    fn dataset(&self, id: &CacheId) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.dataset(id))
    }
}
