//! One dataset's part of the store: reads, and the way of a block into it.
//!
//! The cast: [`DatasetSpec`] says what a dataset wants; [`DatasetCache`] is what callers hold; [`Reservation`] is the promise of room between the decision to keep
//! a block and its bytes; `admission` is the state behind the one lock that admissions share; `rebuild` counts what an
//! earlier run left; `touches` carries hits to policies that want to know of them.
//!
//! Invariant: a read takes no lock that is held across I/O and allocates nothing once its thread's buffer has grown. A
//! slot is set after its record is written, cleared before its record is freed, and changed under the admission lock
//! only (or by the rebuild, before there are admissions). So who finds a flaw in a record and the slot unchanged has
//! found a true flaw, and not an eviction under its eyes.

mod admission;
mod rebuild;
#[cfg(test)]
mod tests;
mod touches;

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_dataset::{BlockIndex, SnapshotId};
use tracing::{info, warn};

use crate::base::Base;
use crate::buffer;
use crate::error::StoreError;
use crate::index::{DatasetRow, EpochRecord};
use crate::record::{Draft, Flaw, Header, Part, Record};
use crate::slots::{Place, Slots};
use admission::Shared;
use larder_dataset::PolicyKind;

/// Tells the length of each block of a snapshot.
pub type Lens = Arc<dyn Fn(BlockIndex) -> u32 + Send + Sync>;

/// What a dataset wants of the store.
#[derive(Clone)]
pub struct DatasetSpec {
    /// Whose blocks.
    pub snapshot: SnapshotId,
    /// For people; at most 1 KiB of it is kept.
    pub name: String,
    /// Blocks of the snapshot.
    pub blocks: u32,
    /// Bytes of blocks that may be cached.
    pub reservation_bytes: u64,
    /// What is kept when not all fit.
    pub policy: PolicyKind,
    /// For the random policy.
    pub seed: u64,
    /// The length of each block; asked when blocks of an earlier run are counted and when one leaves.
    pub lens: Lens,
}

impl std::fmt::Debug for DatasetSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatasetSpec")
            .field("snapshot", &self.snapshot)
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .field("reservation_bytes", &self.reservation_bytes)
            .field("policy", &self.policy)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Bytes of a block, and what they were read into.
#[derive(Debug)]
pub struct InMemory {
    /// It holds the bytes, and what lies around them on the disk.
    pub memory: Vec<u8>,
    /// Where they are in it.
    pub range: Range<usize>,
    /// Their CRC32C.
    pub crc: u32,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The bytes were there; this is what the caller made of them.
    Hit(R),
    /// Not cached, or not usable: fetch it.
    Miss,
}

impl<R> Lookup<R> {
    /// The hit, if it is one.
    pub fn hit(self) -> Option<R> {
        match self {
            Self::Hit(found) => Some(found),
            Self::Miss => None,
        }
    }
}

/// How full a dataset's cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blocks that may be cached: the reservation.
    pub capacity_bytes: u64,
    /// Bytes of blocks cached, or promised to a reservation. Disk use is up to 4 KiB and 320 bytes a block more, and
    /// while blocks are admitted a 16th of the capacity more, within 1 to 64 MiB, that is taken ahead.
    pub used_bytes: u64,
    /// Blocks cached.
    pub blocks_cached: u64,
    /// What is kept when not all fit.
    pub policy: PolicyKind,
    /// Why nothing is admitted, if the disk fails.
    pub degraded: Option<&'static str>,
    /// True while the blocks of an earlier run are being counted: the two counts above grow, nothing is admitted.
    pub rebuilding: bool,
}

/// Why a block was not kept. Its room is given back in every case.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The caller's mistake: not the block that was reserved, or not of its length.
    #[error("block {got} of {got_bytes} bytes where block {reserved} of {reserved_bytes} was reserved")]
    WrongBlock {
        /// The block reserved.
        reserved: BlockIndex,
        /// Its bytes.
        reserved_bytes: u32,
        /// The block given.
        got: BlockIndex,
        /// Its bytes.
        got_bytes: u32,
    },
    /// The caller's mistake: a reservation or a record of another dataset's.
    #[error("reservation or record of another dataset")]
    WrongDataset,
    /// No room on the disk.
    #[error("write to the cache: {source}")]
    Full {
        /// What the system said.
        source: io::Error,
    },
    /// The disk takes no writes.
    #[error("write to the cache: {source}")]
    ReadOnly {
        /// What the system said.
        source: io::Error,
    },
    /// The cache folder was deleted.
    #[error("write to the cache: its folder was deleted: {source}")]
    Gone {
        /// What the system said.
        source: io::Error,
    },
    /// Anything else that the disk may do.
    #[error("write to the cache: {source}")]
    Disk {
        /// What the system said.
        source: io::Error,
    },
}

impl WriteError {
    fn of(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { source },
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Gone { source },
            _ => Self::Disk { source },
        }
    }

    const fn reason(&self) -> &'static str {
        match self {
            Self::WrongBlock { .. } | Self::WrongDataset => "misuse",
            Self::Full { .. } => "disk full",
            Self::ReadOnly { .. } => "disk read-only",
            Self::Gone { .. } => "cache folder deleted",
            Self::Disk { .. } => "disk error",
        }
    }
}

/// The promise that a block will be kept. Dropped unused it gives the room back; never blocks.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct Reservation {
    shared: Arc<Shared>,
    block: BlockIndex,
    len: u32,
    ticket: u64,
}

impl Reservation {
    /// Which block.
    pub const fn block(&self) -> BlockIndex {
        self.block
    }

    /// Bytes of the block.
    pub const fn block_len(&self) -> u32 {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Does nothing if the block was written: its ticket is no longer known.
        self.shared.cancel(self.block, self.len, self.ticket);
    }
}

/// A dataset's cache. Shared by any number of readers and writers.
#[derive(Debug)]
pub struct DatasetCache {
    shared: Arc<Shared>,
    rebuild: Mutex<Option<JoinHandle<()>>>,
}

impl DatasetCache {
    pub(crate) fn open(base: Arc<Base>, spec: DatasetSpec) -> Result<Self, StoreError> {
        let failed = |step| move |source| StoreError::Dataset { snapshot: spec.snapshot, step, source };
        let folder = base.folder.dataset(&spec.snapshot);
        let segments = folder.join("segments");
        fs::create_dir_all(&segments).map_err(failed("make the folder"))?;
        let (slots, found) =
            Slots::open(&folder.join("slots"), &spec.snapshot, spec.blocks).map_err(failed("open the slot table"))?;
        let (shared, work) = Shared::open(base, spec, segments, slots, found)?;
        let shared = Arc::new(shared);
        let rebuild = match work {
            None => None,
            Some(work) => {
                let shared = Arc::clone(&shared);
                let snapshot = shared.spec.snapshot;
                let thread = std::thread::Builder::new().name("larder-rebuild".into());
                let thread = thread.spawn(move || shared.rebuild(work));
                Some(thread.map_err(|source| StoreError::Dataset { snapshot, step: "start the rebuild", source })?)
            }
        };
        Ok(Self { shared, rebuild: Mutex::new(rebuild) })
    }

    /// Calls `use_bytes` with exactly `len` bytes of the block from `start`, checked against their CRCs, or says that it
    /// is a miss. `block_len` is the length of the whole block. Blocks on the disk for one read; takes no lock and
    /// allocates nothing. A part that is empty or not within the block is a miss.
    ///
    /// A torn, foreign or rotten record is counted, dropped from the cache, and a miss. A read that the disk fails is
    /// counted and a miss, and the block stays: the disk may come back.
    pub fn read<R>(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> Lookup<R> {
        let Some((place, part)) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let result = buffer::with(part.buffer_bytes(), |buffer| {
            load(&self.shared, block, place, &part, buffer).map(|range| use_bytes(&buffer[range]))
        });
        self.looked_up(block, place, len, result)
    }

    /// The same bytes and their CRC32C, in memory that `memory` gives, nothing copied: best as many bytes as it is asked for,
    /// which may hold anything. Blocks on the disk as [`read`](Self::read) does.
    pub fn read_into(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        memory: impl FnOnce(usize) -> Vec<u8>,
    ) -> Lookup<InMemory> {
        let Some((place, part)) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let bytes = buffer::bytes_for(part.buffer_bytes());
        let mut memory = memory(bytes);
        memory.resize(bytes.max(memory.len()), 0);
        let aligned = buffer::aligned(&memory, part.buffer_bytes());
        let begin = aligned.start;
        let result = load(&self.shared, block, place, &part, &mut memory[aligned]).map(|found| {
            let range = begin + found.start..begin + found.end;
            let crc = larder_dataset::crc32c(&memory[range.clone()]);
            InMemory { memory, range, crc }
        });
        self.looked_up(block, place, len, result)
    }

    /// Where a part of a block is, or a miss that is counted.
    fn find(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> Option<(Place, Part)> {
        let found = self.shared.slots.get(block).zip(Part::new(block_len, start, len));
        if found.is_none() {
            self.shared.base.counters.misses.add(1);
        }
        found
    }

    /// Counts a read that came to this, and drops a block that was found wrong.
    fn looked_up<R>(&self, block: BlockIndex, place: Place, len: u32, result: Result<R, Trouble>) -> Lookup<R> {
        let (shared, counters) = (&*self.shared, &self.shared.base.counters);
        match result {
            Ok(used) => {
                counters.hits.add(1);
                counters.hit_bytes.add(u64::from(len));
                shared.touch(block);
                Lookup::Hit(used)
            }
            Err(trouble) => {
                shared.found_trouble(block, place, trouble);
                counters.misses.add(1);
                Lookup::Miss
            }
        }
    }

    /// True if the block is cached, as far as the slot table knows; one load.
    pub fn contains(&self, block: BlockIndex) -> bool {
        self.shared.slots.get(block).is_some()
    }

    /// Decides, before the fetch, whether the block will be kept, and keeps its room. Never blocks on the disk but for
    /// one write to the page cache per evicted block.
    ///
    /// None if the block is cached or promised already, the policy refuses, the disk fails, the store is closed or still
    /// counts the blocks of an earlier run (see [`DatasetCache::wait_rebuilt`]).
    ///
    /// What must leave for it leaves now: its slot is cleared here, its room on the disk freed by the next write. So the
    /// disk holds at most the blocks of the reservations under way more than the capacity.
    pub fn reserve(&self, block: BlockIndex, len: u32) -> Option<Reservation> {
        self.reserve_room(block, len, true)
    }

    /// Like [`DatasetCache::reserve`], but also None if a block would have to leave, whatever the policy.
    pub fn reserve_free(&self, block: BlockIndex, len: u32) -> Option<Reservation> {
        self.reserve_room(block, len, false)
    }

    fn reserve_room(&self, block: BlockIndex, len: u32, may_evict: bool) -> Option<Reservation> {
        let ticket = self.shared.reserve(block, len, may_evict, Instant::now())?;
        Some(Reservation { shared: Arc::clone(&self.shared), block, len, ticket })
    }

    /// Room in memory for a block of `len` bytes on its way into the cache, 4 KiB and a little more than that.
    pub fn draft(&self, block: BlockIndex, len: u32) -> Draft {
        Draft::new(Header { key: self.shared.key, block, len })
    }

    /// The record of a block whose bytes are all here.
    pub fn record(&self, block: BlockIndex, bytes: &[u8]) -> Record {
        Record::new(self.shared.key, block, bytes)
    }

    /// Keeps a block: it is a hit from the moment this returns, unless the policy evicted it meanwhile. Blocks on the
    /// disk; call it off an async runtime.
    ///
    /// A disk that fails is counted, logged once per failure, and pauses admissions for a while.
    pub fn write(&self, reservation: Reservation, record: &Record) -> Result<(), WriteError> {
        let shared = &*self.shared;
        let Header { key, block, len } = *record.header();
        if !Arc::ptr_eq(&self.shared, &reservation.shared) || key != shared.key {
            return Err(WriteError::WrongDataset);
        }
        if (block, len) != (reservation.block, reservation.len) {
            let (reserved, reserved_bytes) = (reservation.block, reservation.len);
            return Err(WriteError::WrongBlock { reserved, reserved_bytes, got: block, got_bytes: len });
        }
        shared.collect_garbage();
        match shared.keep(reservation.ticket, record) {
            Ok(()) => {
                if shared.base.health.worked() {
                    info!("the cache's disk takes writes again");
                }
                Ok(())
            }
            Err(source) => {
                let error = WriteError::of(source);
                shared.base.counters.write_errors.add(1);
                if shared.base.health.failed(error.reason(), Instant::now()) {
                    warn!(dataset = shared.spec.name, %error, "admissions to the cache pause");
                }
                shared.collect_garbage();
                Err(error)
            }
        }
    }

    /// How full the cache is. Reads a few numbers; may be called often.
    pub fn usage(&self) -> Usage {
        let shared = &*self.shared;
        Usage {
            capacity_bytes: shared.spec.reservation_bytes,
            used_bytes: shared.used_bytes.load(Ordering::Relaxed),
            blocks_cached: shared.blocks_cached.load(Ordering::Relaxed),
            policy: shared.spec.policy,
            degraded: shared.base.health.reason(),
            rebuilding: shared.is_rebuilding(),
        }
    }

    /// Waits until the blocks of an earlier run are counted, so that admissions are open; false if that takes longer.
    pub fn wait_rebuilt(&self, patience: Duration) -> bool {
        self.shared.wait_rebuilt(patience)
    }

    /// Adds an epoch to the dataset's history. Never blocks; dropped and counted when the index cannot keep up.
    pub fn record_epoch(&self, epoch: EpochRecord) {
        self.shared.base.index.record_epoch(self.shared.number, epoch);
    }

    /// The dataset's last 1,000 epochs, oldest first. Asks RocksDB.
    pub fn epochs(&self) -> Vec<EpochRecord> {
        self.shared.base.index.epochs(self.shared.number)
    }

    /// Makes everything kept outlive a power loss.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        self.stop_rebuild();
        let shared = &*self.shared;
        shared.leave_current(&mut shared.lock());
        shared.collect_garbage();
        let failed = |step| move |source| StoreError::Dataset { snapshot: shared.spec.snapshot, step, source };
        shared.sync_segments().map_err(failed("sync the segments"))?;
        shared.slots.sync().map_err(failed("sync the slot table"))
    }

    fn stop_rebuild(&self) {
        self.shared.stop();
        let thread = self.rebuild.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            warn!(dataset = self.shared.spec.name, "the rebuild panicked: nothing is admitted until a restart");
        }
    }
}

impl Drop for DatasetCache {
    fn drop(&mut self) {
        self.stop_rebuild();
        self.shared.leave_current(&mut self.shared.lock());
        self.shared.collect_garbage();
        let shared = &*self.shared;
        shared.base.index.note(&shared.spec.snapshot, dataset_row(&shared.spec, shared.number));
    }
}

/// What is in the way of a hit.
#[derive(Debug)]
enum Trouble {
    /// The record is not usable.
    Flaw(Flaw),
    /// The disk did not give it.
    Unreadable(io::Error),
}

fn load(
    shared: &Shared,
    block: BlockIndex,
    place: Place,
    part: &Part,
    buffer: &mut [u8],
) -> Result<Range<usize>, Trouble> {
    let segments = shared.segments.load();
    // A segment that is not there was deleted with the last of its records.
    let segment = segments.get(place.segment).ok_or(Trouble::Flaw(Flaw::Torn))?;
    match segment.read(place, part, buffer) {
        Ok(true) => part.check(&shared.key, block, buffer).map_err(Trouble::Flaw),
        Ok(false) => Err(Trouble::Flaw(Flaw::Torn)),
        Err(error) => Err(Trouble::Unreadable(error)),
    }
}

/// A count that readers see without the lock under which it changes.
fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn dataset_row(spec: &DatasetSpec, number: u32) -> DatasetRow {
    DatasetRow {
        number,
        policy: spec.policy,
        reservation_bytes: spec.reservation_bytes,
        // A clock before 1970 counts as 0.
        last_use_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        name: spec.name.clone(),
    }
}
