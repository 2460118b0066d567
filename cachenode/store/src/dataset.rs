//! One dataset's part of the store: reads, and how a block gets into it.
//!
//! Its parts: [`DatasetCache`] is what callers hold; `files` opens its files; `shared` is the state behind the one lock
//! that admissions share; `admission` is how blocks enter and leave the cache; `permit` is the space granted to a block
//! between the decision to keep it and the write of its bytes; `flaws` drops blocks that cannot be read; `large` is
//! about blocks of large files, which may be cached in part; `checks` and `scrub` find damage in them before the kernel
//! reads them by itself; `disowned` holds the blocks that other nodes own now, and
//! `search` finds them; `owners` tracks the users of the cache, each of which is a [`CacheUser`]; `space` is the space
//! in the segments; `rebuild` counts the blocks of an earlier run, `salvage` finds those that have lost their slots,
//! and `rebuilt` waits for that count; `touches` carries hits to policies that need them.
//!
//! Invariant: a read takes no lock that is held across I/O. It allocates nothing once its thread's buffer has grown
//! and, of a large file, once the file is open. A slot is set after its record is written and cleared before its record
//! is freed. A reader that finds a flaw in a record and sees the slot unchanged has therefore found a real flaw, not an
//! eviction in progress. Pages of a large file may be freed and written again: a flaw in them is looked at once more by
//! the thread to which the block is pending.
//!
//! Invariant: the admission lock is never held while the disk is written to or a file is created. Calls that do not
//! block on the disk take no lock that is held meanwhile.
//!
//! Invariant: no answer waits for the count of the blocks of an earlier run.

mod admission;
mod adopting;
mod adoption;
mod ancestor;
mod checks;
mod disowned;
mod files;
mod flaws;
mod granted;
mod large;
mod owners;
mod permit;
mod rebuild;
mod rebuilt;
mod salvage;
mod scrub;
mod search;
mod shared;
mod space;
#[cfg(test)]
mod tests;
mod touches;
mod user;
mod waiting;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_dataset::{BlockIndex, CacheId, CacheKey, Chain};
use tracing::{debug, info, warn};

use crate::base::Base;
use crate::buffer;
use crate::config::{CacheConfig, FileSpan};
use crate::disk::Disk;
use crate::draft::{Draft, Record};
use crate::error::StoreError;
use crate::folder::Folder;
use crate::key_file;
use crate::large_file::PageTrouble;
use crate::lookup::{Lookup, PartBytes};
use crate::ownership::Ownership;
use crate::pages::{PAGE_BYTES, PagePart};
use crate::policy::{Sizes, Wish};
use crate::record::{ALIGN_BYTES, Header, Part};
use crate::reservations::{Known, Reservation};
use crate::slots::{Found, Place};
use crate::usage::Usage;
use crate::uses::InUse;
use crate::write_error::WriteError;
use admission::{NotKept, is_full};
use files::Files;
use rebuild::Work;
use shared::Shared;
use space::Trouble;

pub use permit::AdmissionPermit;
pub use user::CacheUser;

/// A dataset's cache. Any number of readers and writers may share it.
#[derive(Debug)]
pub struct DatasetCache {
    shared: Arc<Shared>,
    /// Why the cache has no files; None if it has them.
    fault: Option<&'static str>,
    /// The threads that run the rebuild, the adoption and the checks of files.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Declared last, so that it is dropped after all work of this cache has ended.
    _in_use: InUse,
}

impl DatasetCache {
    /// `in_use` keeps the dataset from being opened twice.
    pub(crate) fn open(base: Arc<Base>, config: CacheConfig, in_use: InUse) -> Result<Self, StoreError> {
        let opened = base.folder.as_ref().map(|folder| {
            let open = || {
                claim(&base, folder, &config)?;
                base.more.iter().for_each(|folder| claim_segments(folder, &config));
                Files::open(&base, &folder.dataset(&config.key.id()), &config)
            };
            open().or_else(|error| {
                if base.answering_folders().all(|folder| folder.dropped_bytes() == 0) {
                    return Err(error);
                }
                // This dataset may need the space of a dataset that was released to make room for it.
                base.answering_folders().for_each(Folder::finish_removing);
                open()
            })
        });
        let (files, fault) = match opened {
            Some(Ok(files)) => (files, None),
            Some(Err(error)) => {
                warn!(
                    dataset = config.name, error = %Chain(&error),
                    "the dataset is served without a cache until it is opened again"
                );
                (Files::none(&base, &config)?, Some("no cache: disk error"))
            }
            None => (Files::none(&base, &config)?, Some("no cache: folder not usable")),
        };
        let Files { slots, found, space, large } = files;
        let id = config.key.id();
        // Opening a dataset again, as a restart does for each, writes nothing unless its promise has changed.
        let known = base.change_news(&config.key.id(), used_now(&config, config.promised, |_| ()));
        note_used(&base, &config, None);
        let number = base.index.register(&id, known.row(0));
        let work = Work {
            refill: base.index.is_doubtful(&id) || slots.has_lost_slots(),
            reindex: found == Found::Kept && base.last_run.index_is_new,
            is_table_new: slots.has_lost_slots(),
        };
        let has_blocks = space.0.segments().len() > 0 || !space.0.lost().is_empty() || large.has_some();
        let is_new = found != Found::Kept && !has_blocks;
        if is_new && slots.has_lost_slots() {
            // If this fails, the next start looks for slots that never were.
            let _ = slots.found_lost_slots();
        }
        let shared = Arc::new(Shared::new(base, config, number, slots, space, large, is_new));
        shared.stale.mark();
        shared.change_owners(|owners| owners.wait_for(known.connections.unwrap_or_default()));
        let mut threads = Vec::new();
        if !is_new {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("larder-rebuild".into());
            let failed = |source| StoreError::Dataset { id, step: "start the rebuild", source };
            threads.push(thread.spawn(move || shared.rebuild(work)).map_err(failed)?);
        }
        Ok(Self { shared, fault, threads: Mutex::new(threads), _in_use: in_use })
    }

    /// The snapshot whose blocks are cached, and for whom.
    pub fn key(&self) -> &CacheKey {
        &self.shared.config.key
    }

    /// Adds a user of the cache. With an `ownership`, the user owns the blocks that the ownership names; without one,
    /// it owns all blocks. A block can be disowned only while the cache has users and none of them owns the block.
    pub fn join(&self, ownership: Option<Arc<dyn Ownership>>) -> CacheUser {
        CacheUser::new(&self.shared, ownership)
    }

    /// Calls `use_bytes` with exactly `len` bytes of the block from `start`, checked against their CRCs, or returns a
    /// miss. `block_len` is the length of the whole block. Blocks on the disk for one read; takes no lock and allocates
    /// nothing. A part that is empty or not within the block is a miss.
    ///
    /// A torn, foreign or rotten record is dropped from the cache and counted; the read is a miss. A read that fails on
    /// the disk is counted and is a miss too, but the block stays: the disk may recover. Of a store with several disks,
    /// a read of one that does not answer, or that many threads wait for, is a miss at once that is not counted:
    /// [`read_into`](Self::read_into) may find the block.
    pub fn read<R>(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> Lookup<R> {
        let Some(found) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let shared = &*self.shared;
        let (place, part) = match found {
            Cached::Record(place, part) => (place, part),
            Cached::Pages(place, span, part) => {
                let file = match shared.large.opened(&span) {
                    Some(file) => file,
                    None => {
                        // Opening it may take as long as reading it.
                        let disk = shared.large.disk_of(block);
                        let Some(_opening) = disk.map_or(Some(None), |disk| disk.read().map(Some)) else {
                            return Lookup::Miss;
                        };
                        let Some(file) = shared.large_file(&span, block, place) else {
                            return self.counted(block, len, None);
                        };
                        file
                    }
                };
                let Some(_reading) = file.disk.read() else { return Lookup::Miss };
                let result = buffer::with(part.buffer_bytes(), |buffer| {
                    file.read(block, &part, buffer).map(|range| use_bytes(&buffer[range]))
                });
                return self.looked_up_pages(block, place, len, result);
            }
        };
        let segments = shared.space.segments();
        let segment = segments.get(place.segment);
        // Of several disks, one that is slow must not have all threads that answer the kernel.
        let Some(_reading) = segment.map_or(Some(None), |segment| segment.disk.read().map(Some)) else {
            return Lookup::Miss;
        };
        let result = buffer::with(part.buffer_bytes(), |buffer| {
            shared.space.read(segment, &shared.key, block, place, &part, buffer).map(|range| use_bytes(&buffer[range]))
        });
        self.looked_up(block, place, len, result)
    }

    /// Reads the same bytes into memory from `memory`, without a copy, and returns them with their CRC32C. `memory` is
    /// called with the number of bytes needed. It may return memory with any content; memory that is too small is
    /// extended. Blocks on the disk as [`read`](Self::read) does.
    pub fn read_into(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        memory: impl FnOnce(usize) -> Vec<u8>,
    ) -> Lookup<PartBytes> {
        let Some(found) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let shared = &*self.shared;
        let buffer_bytes = match &found {
            Cached::Record(_, part) => part.buffer_bytes(),
            Cached::Pages(_, _, part) => part.buffer_bytes(),
        };
        let bytes = buffer::bytes_for(buffer_bytes);
        let mut memory = memory(bytes);
        memory.resize(bytes.max(memory.len()), 0);
        let aligned = buffer::aligned(&memory, buffer_bytes);
        let begin = aligned.start;
        let (place, part) = match found {
            Cached::Record(place, part) => (place, part),
            Cached::Pages(place, span, part) => {
                let Some(file) = shared.large_file(&span, block, place) else {
                    return self.counted(block, len, None);
                };
                let result = file
                    .read(block, &part, &mut memory[aligned])
                    .map(|found| PartBytes::new(memory, begin + found.start..begin + found.end));
                return self.looked_up_pages(block, place, len, result);
            }
        };
        let segments = shared.space.segments();
        let result = shared
            .space
            .read(segments.get(place.segment), &shared.key, block, place, &part, &mut memory[aligned])
            .map(|found| PartBytes::new(memory, begin + found.start..begin + found.end));
        self.looked_up(block, place, len, result)
    }

    /// Finds where a part of a block is. Counts a miss if the block is not cached.
    fn find(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> Option<Cached> {
        let shared = &*self.shared;
        let find = || {
            let place = shared.slots.get(block)?;
            if place.is_in_file() {
                Some(Cached::Pages(place, shared.span_of(block)?, PagePart::new(block_len, start, len)?))
            } else {
                Some(Cached::Record(place, Part::new(block_len, start, len)?))
            }
        };
        let found = find();
        if found.is_none() {
            shared.base.counters.misses.add(1);
        }
        found
    }

    /// Counts a finished read, and drops the block if its record is flawed.
    fn looked_up<R>(&self, block: BlockIndex, place: Place, len: u32, result: Result<R, Trouble>) -> Lookup<R> {
        let found = result.map_err(|trouble| self.shared.found_trouble(block, place, trouble));
        self.counted(block, len, found.ok())
    }

    /// Counts a finished read, and drops pages that are wrong.
    fn looked_up_pages<R>(
        &self,
        block: BlockIndex,
        place: Place,
        len: u32,
        result: Result<R, PageTrouble>,
    ) -> Lookup<R> {
        let found = result.map_err(|trouble| self.shared.found_page_trouble(block, place, trouble));
        self.counted(block, len, found.ok())
    }

    /// Counts a finished read.
    fn counted<R>(&self, block: BlockIndex, len: u32, found: Option<R>) -> Lookup<R> {
        let counters = &self.shared.base.counters;
        let Some(used) = found else {
            counters.misses.add(1);
            return Lookup::Miss;
        };
        counters.hits.add(1);
        counters.hit_bytes.add(u64::from(len));
        self.shared.touch(block);
        Lookup::Hit(used)
    }

    /// True if the slot table shows the whole block as cached. Costs one load and does not verify the block.
    pub fn contains(&self, block: BlockIndex) -> bool {
        self.shared.slots.get(block).is_some_and(|place| !place.is_part())
    }

    /// True if a part of a block is cached, as far as the tables show. Costs a few hundred loads at most, and verifies
    /// nothing.
    pub fn contains_part(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> bool {
        let Some(place) = self.shared.slots.get(block) else { return false };
        if !place.is_part() {
            return true;
        }
        PagePart::new(block_len, start, len).is_some_and(|part| self.shared.large.holds(block, &part.pages))
    }

    /// How many disks the store has.
    pub fn disks(&self) -> usize {
        self.shared.base.disks.len()
    }

    /// The number of the disk with a cached block, or a part of it, below [`disks`](Self::disks). None if the block is
    /// not cached, or its disk does not answer. Costs a few hundred loads at most, and does not verify the block.
    pub fn disk_of(&self, block: BlockIndex) -> Option<usize> {
        let place = self.shared.slots.get(block)?;
        if place.is_in_file() {
            // If its pages are gone, a read finds that out.
            return self.shared.large.disk_of(block).map_or(Some(0), |disk| self.shared.base.answering(disk));
        }
        let segments = self.shared.space.segments();
        // If the segment was deleted, a read finds that out.
        segments.get(place.segment).map_or(Some(0), |segment| self.shared.base.answering(&segment.disk))
    }

    /// Decides, before the fetch, whether the block will be kept, and takes space for it. Does not wait for the disk.
    ///
    /// A block of a large file may be cached in part: the permit is then for the rest of it, which takes no more space.
    /// Returns None if the whole block is cached, the block has a permit already, the policy refuses the block, the
    /// disk fails, the store is closed, or the store is still counting the blocks of an earlier run (see
    /// [`DatasetCache::wait_rebuilt`]).
    ///
    /// Blocks evicted for this admission stay hits until the block is written, or, if it never is, until another one
    /// is; later writes free their disk space. [`Usage`] states how far disk use may exceed the capacity, not counting
    /// blocks whose permits are in flight.
    pub fn admit(&self, block: BlockIndex, len: u32) -> Option<AdmissionPermit> {
        self.permit(block, len, Wish::Missed)
    }

    /// Like [`DatasetCache::admit`], but returns None where that would evict a block that this node owns.
    pub fn admit_without_evicting(&self, block: BlockIndex, len: u32) -> Option<AdmissionPermit> {
        self.permit(block, len, Wish::Fill)
    }

    /// The same for a block that a list names: the policy keeps it whatever its size.
    pub fn admit_listed(&self, block: BlockIndex, len: u32) -> Option<AdmissionPermit> {
        self.permit(block, len, Wish::Listed)
    }

    /// True if the block has a permit, or its pages are being checked. Then [`admit`](Self::admit) returns None,
    /// however much room there is.
    pub fn is_pending(&self, block: BlockIndex) -> bool {
        self.shared.lock().pending.contains_key(&block)
    }

    /// True if the policy leaves a block out although there may be room for it, because it keeps smaller blocks. Of one
    /// that is cached in part, it counts the rest already.
    pub fn leaves_out(&self, block: BlockIndex, len: u32) -> bool {
        self.shared.slots.get(block).is_none()
            && self.shared.lock().policy.as_mut().is_some_and(|policy| !policy.wants(block, len, Wish::Fill))
    }

    /// Sets how many bytes the blocks of each size that this node may cache have together. The policy `smallest`, which
    /// must know them, admits any block until then; others ignore them.
    pub fn set_sizes(&self, sizes: Sizes) {
        let mut state = self.shared.lock();
        if let Some(policy) = &mut state.policy {
            policy.set_sizes(&sizes);
        }
        state.sizes = Some(sizes);
    }

    fn permit(&self, block: BlockIndex, len: u32, wish: Wish) -> Option<AdmissionPermit> {
        let victims = self.shared.admit(block, len, wish, Instant::now())?;
        Some(AdmissionPermit { shared: Arc::clone(&self.shared), block, len, victims })
    }

    /// Memory for the record of a block of `len` bytes that is being fetched. Takes 4 KiB and a little more than the
    /// block's length.
    pub fn draft(&self, block: BlockIndex, len: u32) -> Draft {
        let header = Header { key: self.shared.key, block, len };
        match self.shared.kept_in(block) {
            Some(span) if span.len_of(block) == len => Draft::bare(header),
            Some(_) | None => Draft::new(header),
        }
    }

    /// Builds the record of a block whose bytes are all in memory.
    pub fn record(&self, block: BlockIndex, bytes: &[u8]) -> Record {
        Record::of(self.draft(block, bytes.len() as u32), bytes)
    }

    /// Writes a block. The block is a hit once this returns, unless the policy has evicted it before then. Blocks on
    /// the disk; call it off an async runtime.
    ///
    /// A disk failure is counted, logged once, and pauses admissions.
    pub fn write(&self, permit: AdmissionPermit, record: &Record) -> Result<(), WriteError> {
        let Header { key, block, len } = *record.header();
        if key != self.shared.key {
            return Err(WriteError::WrongDataset);
        }
        if (block, len) != (permit.block, permit.len) {
            let (permitted, permitted_bytes) = (permit.block, permit.len);
            return Err(WriteError::WrongBlock { permitted, permitted_bytes, got: block, got_bytes: len });
        }
        self.keep(permit, true, || self.shared.keep(record))
    }

    /// True if parts of the block can be written one by one: it is of a large file.
    pub fn takes_parts(&self, block: BlockIndex) -> bool {
        self.shared.kept_in(block).is_some()
    }

    /// Writes a part of a block of which parts [can be written](Self::takes_parts). `start` is a multiple of
    /// [`PART_BYTES`](Self::PART_BYTES), and so is the length, unless the part ends with the block. The part is a hit
    /// once this returns, unless the policy has evicted the block before then; whatever else of the block is cached
    /// stays. Blocks on the disk and fails as [`write`](Self::write) does.
    pub fn write_part(&self, permit: AdmissionPermit, start: u32, bytes: &[u8]) -> Result<(), WriteError> {
        let (block, len) = (permit.block, permit.len);
        let end = u64::from(start) + bytes.len() as u64;
        let is_aligned = start.is_multiple_of(PAGE_BYTES)
            && (end == u64::from(len) || end < u64::from(len) && end.is_multiple_of(PAGE_BYTES.into()));
        let is_of_block = self.shared.kept_in(block).is_some_and(|span| span.len_of(block) == len);
        if !is_aligned || !is_of_block || bytes.is_empty() {
            let got_bytes = bytes.len() as u32;
            return Err(WriteError::WrongBlock { permitted: block, permitted_bytes: len, got: block, got_bytes });
        }
        let written = buffer::with(bytes.len().next_multiple_of(ALIGN_BYTES), |padded| {
            let (part, zeros) = padded.split_at_mut(bytes.len());
            part.copy_from_slice(bytes);
            zeros.fill(0);
            let padded = &*padded;
            self.keep(permit, false, || self.shared.keep_pages(block, start, bytes.len(), padded))
        });
        // A runtime has hundreds of threads that may block, and uses all of them in turn.
        buffer::release();
        written
    }

    /// The unit of the parts of a block: see [`write_part`](Self::write_part).
    pub const PART_BYTES: u32 = PAGE_BYTES;

    /// A file with exactly the bytes of the file that a block is of, for the kernel to read by itself: all of it is
    /// cached, and was written or found right since the cache was opened. If it was not checked yet, returns None, and
    /// has it checked before all others. None also if the policy evicts, or if the file's blocks are records. Whatever
    /// leaves the cache later, the bytes of a returned file stay until the machine boots again or nobody has it open.
    /// Opens a file.
    pub fn lend(&self, block: BlockIndex) -> Option<File> {
        let shared = &self.shared;
        let span = shared.kept_in(block).filter(|span| shared.may_lend(span))?;
        if shared.large.is_checked(&span) {
            return shared.lend(&span);
        }
        if shared.checks.ask(span) {
            self.start_checks();
        }
        None
    }

    /// Has the files that may be lent checked in the background, slowly, so that they are when they are opened. Does
    /// this once, whatever is cached later.
    pub fn scrub(&self) {
        if !self.shared.config.policy.evicts() && self.shared.checks.ask_scrub() {
            self.start_checks();
        }
    }

    fn start_checks(&self) {
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("larder-check".into()).spawn(move || shared.run_checks()) {
            Ok(thread) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(_) => self.shared.checks.not_started(),
        }
    }

    /// Calls `keep`, which writes to a disk, and once more after a failure: if the disk is full, once dead records were
    /// freed, and if what is written may go to `another` disk, until no disk is sound.
    fn keep(
        &self,
        mut permit: AdmissionPermit,
        another: bool,
        keep: impl Fn() -> Result<Option<Arc<Disk>>, NotKept>,
    ) -> Result<(), WriteError> {
        let shared = &*self.shared;
        if !Arc::ptr_eq(&self.shared, &permit.shared) {
            return Err(WriteError::WrongDataset);
        }
        shared.clear(std::mem::take(&mut permit.victims));
        shared.free_room(false);
        let mut kept = keep();
        if kept.as_ref().is_err_and(|failed| is_full(&failed.source)) {
            // Freeing dead records is batched, but the disk is full now: free all of them.
            shared.free_room(true);
            kept = keep();
        }
        loop {
            let NotKept { disk, source } = match kept {
                Ok(disk) => {
                    let was_failing = disk.as_ref().is_some_and(|disk| disk.health.worked());
                    if (disk.is_some() && shared.base.tables.worked()) || was_failing {
                        info!(dir = ?disk.as_ref().map(|disk| disk.dir()), "the cache's disk takes writes again");
                    }
                    return Ok(());
                }
                Err(failed) => failed,
            };
            let error = WriteError::of(source);
            shared.base.counters.write_errors.add(1);
            let health = disk.as_ref().map_or(&shared.base.tables, |disk| &disk.health);
            if health.failed(error.reason(), Instant::now()) {
                let dir = disk.as_ref().map(|disk| disk.dir());
                warn!(dataset = shared.config.name, ?dir, %error, "admissions to the cache pause");
            }
            shared.free_room(true);
            if !another || disk.is_none() || !shared.base.has_sound_disk() {
                return Err(error);
            }
            // Another disk takes the block. Each disk fails once before none is sound.
            kept = keep();
        }
    }

    /// Counts a block that was fetched and is not written, because too many wait for the disk already.
    pub fn count_unwritten(&self) {
        self.shared.base.counters.unwritten.add(1);
    }

    /// Ends the pause after a disk failure, so that the next admission tries the disk again.
    pub fn try_disk_again(&self) {
        self.shared.base.end_pauses(Instant::now());
    }

    /// How full the cache is. Cheap enough to call often: it reads a few numbers.
    pub fn usage(&self) -> Usage {
        let shared = &*self.shared;
        let used_bytes = shared.used_bytes.load(Ordering::Relaxed);
        let capacity_bytes = shared.granted.capacity_bytes();
        Usage {
            capacity_bytes,
            wanted_bytes: shared.granted.promised().wanted_bytes,
            used_bytes,
            room_bytes: (capacity_bytes + shared.disowned.bytes()).saturating_sub(used_bytes),
            blocks_cached: shared.blocks_cached.load(Ordering::Relaxed),
            policy: shared.config.policy,
            degraded: self.fault.or_else(|| shared.base.degraded()),
            rebuilding: shared.is_rebuilding(),
        }
    }

    /// Changes how many bytes may be cached from now on, and the promise that is stored for a later process. Evicts
    /// nothing now; see [`Policy::set_capacity`](crate::Policy::set_capacity). Blocks on the disk.
    pub fn resize(&self, capacity_bytes: u64, promised: Reservation) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        shared.granted.change(capacity_bytes, promised);
        if let Some(policy) = &mut state.policy {
            policy.set_capacity(capacity_bytes);
        }
        drop(state);
        remember(&shared.base, &shared.config, promised, |_| ());
    }

    /// Records that a connection shows the dataset, so that a later process keeps the dataset for that connection.
    /// Blocks on the disk.
    pub fn hold(&self, connection: &str) {
        let shared = &*self.shared;
        let change = used_now(&shared.config, shared.granted.promised(), |connections| {
            connections.insert(connection.to_owned());
        });
        shared.base.change_news(&shared.config.key.id(), change);
        shared.change_owners(|owners| owners.arrived(connection));
    }

    /// Records which namespace pays for the room. Blocks on the disk if it is news.
    pub fn set_payer(&self, payer: &str) {
        let (base, id) = (&self.shared.base, self.shared.config.key.id());
        if base.reservations.get(&id).is_none_or(|known| known.payer != payer) {
            let folder = base.folder.as_ref().map(|folder| folder.dataset(&id));
            base.reservations.put_payer(&id, folder.as_deref(), payer);
        }
    }

    /// True while some connection that showed the dataset when the last process ended is neither held nor known to have
    /// closed. Such a connection may be a user that owns all blocks.
    pub fn awaits_connections(&self) -> bool {
        self.shared.lock().owners.is_awaiting()
    }

    /// Stops awaiting the connections for which `is_left` is false. True if none is awaited any more. Blocks on the
    /// disk.
    pub(crate) fn keep_connections(&self, is_left: impl Fn(&str) -> bool) -> bool {
        let shared = &*self.shared;
        let gone = shared.change_owners(|owners| owners.give_up(is_left));
        if !gone.is_empty() {
            remember(&shared.base, &shared.config, shared.granted.promised(), |connections| {
                connections.retain(|connection| !gone.contains(connection));
            });
        }
        !gone.is_empty() && !self.awaits_connections()
    }

    /// Records that a connection no longer shows the dataset. The change is written when the dataset is closed.
    pub fn let_go(&self, connection: &str) {
        self.shared.base.reservations.note(&self.shared.config.key.id(), |known| {
            known.connections.get_or_insert_default().remove(connection);
        });
    }

    /// True if an admission found too little space and blocks that other nodes own now may be cached here;
    /// [`search_disowned`](Self::search_disowned) finds them. Costs one load.
    pub fn wants_search(&self) -> bool {
        self.shared.disowned.wants_search()
    }

    /// Searches for blocks that other nodes own now, so that later admissions can take their space. Does nothing unless
    /// [`wants_search`](Self::wants_search) is true. One call visits at most a million blocks. Call it off an async
    /// runtime.
    pub fn search_disowned(&self) {
        self.shared.search_disowned();
    }

    /// True while the blocks of an earlier run are being counted; nothing is admitted until that ends.
    pub fn is_rebuilding(&self) -> bool {
        self.shared.is_rebuilding()
    }

    /// Calls `call` once the blocks of an earlier run are counted, or immediately if they already are. `call` must not
    /// block.
    pub fn when_rebuilt(&self, call: impl FnOnce() + Send + 'static) {
        self.shared.when_rebuilt(Box::new(call));
    }

    /// Waits until the blocks of an earlier run are counted and admissions are open. Returns false after `timeout`.
    pub fn wait_rebuilt(&self, timeout: Duration) -> bool {
        self.shared.wait_rebuilt(timeout)
    }

    /// Makes every cached block survive a power loss.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        self.stop();
        let shared = &*self.shared;
        shared.lock().allocator.leave_all(&shared.space);
        shared.free_room(true);
        let failed = |step| move |source| StoreError::Dataset { id: shared.config.key.id(), step, source };
        shared.space.sync().map_err(failed("sync the segments"))?;
        shared.large.sync().map_err(failed("sync the large files"))?;
        shared.slots.sync().map_err(failed("sync the slot table"))
    }

    /// Stops the background threads.
    fn stop(&self) {
        self.shared.stop();
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            if thread.join().is_err() {
                let dataset = &self.shared.config.name;
                warn!(
                    dataset,
                    "a background thread of the cache panicked: until a restart, blocks may not be admitted"
                );
            }
        }
    }
}

impl Drop for DatasetCache {
    fn drop(&mut self) {
        self.stop();
        let shared = &*self.shared;
        shared.lock().allocator.leave_all(&shared.space);
        shared.free_room(true);
        shared.remember_adopted();
        let known = remember(&shared.base, &shared.config, shared.granted.promised(), |_| ());
        shared.base.index.update(&shared.config.key.id(), known.row(shared.number));
        if self.fault.is_none() && !shared.is_rebuilding() {
            note_used(&shared.base, &shared.config, Some(shared.used_bytes.load(Ordering::Relaxed)));
        }
        shared.stale.mark();
    }
}

/// Where a part of a block is.
#[derive(Debug)]
enum Cached {
    Record(Place, Part),
    Pages(Place, FileSpan, PagePart),
}

/// Makes the folder the one of the configured key. An earlier version stored no keys, so its blocks may be those of
/// anyone who read the snapshot: they stay only if the configuration knows them as its own.
fn claim(base: &Base, folder: &Folder, config: &CacheConfig) -> Result<(), StoreError> {
    let (id, dir) = (config.key.id(), folder.dataset(&config.key.id()));
    let failed = |step| move |source| StoreError::Dataset { id, step, source };
    if key_file::read(&dir, id).map_err(failed("read the key"))?.is_some() {
        return Ok(());
    }
    let is_there = dir.try_exists().map_err(failed("find the folder"))?;
    let may_be_earlier = is_there && id == CacheId::from(config.key.snapshot());
    if may_be_earlier && !config.is_known_as_ours {
        info!(
            dataset = config.name,
            "an earlier version cached the snapshot and did not store for whom: its blocks are dropped and fetched again"
        );
        if base.uses.of(&id).adoptions > 0 {
            return Err(StoreError::DatasetInUse { id });
        }
        base.index.release(&id);
        base.reservations.note(&id, |known| known.adopted_disk_bytes = 0);
        base.remove(&id).map_err(failed("remove the folder"))?;
    }
    std::fs::create_dir_all(&dir).map_err(failed("create the folder"))?;
    match key_file::write(&dir, &config.key) {
        // Its blocks can be read, and the next opening decides again.
        Err(error) if is_there && config.is_known_as_ours => {
            debug!(dataset = config.name, %error, "cannot write the key of a cache");
            Ok(())
        }
        written => written.map_err(failed("write the key")),
    }
}

/// Makes the folder of the configured key's segments on a disk that has no tables. Segments without a key are dropped:
/// they are of an earlier version, which used that folder alone, and it is unknown whose blocks they hold. If the
/// folder cannot be made, the disk gets no blocks of the dataset.
fn claim_segments(folder: &Folder, config: &CacheConfig) {
    let (id, dir) = (config.key.id(), folder.dataset(&config.key.id()));
    let make = || {
        if key_file::read(&dir, id)?.is_none() {
            match folder.remove(&id) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::fs::create_dir_all(&dir)?;
            key_file::write(&dir, &config.key)?;
        }
        std::fs::create_dir_all(dir.join("segments"))
    };
    if let Err(error) = make() {
        warn!(dataset = config.name, ?dir, %error, "a disk of the cache gets no blocks of the dataset");
    }
}

/// Stores how many bytes are cached, or with `None` that this number changes from now on.
fn note_used(base: &Base, config: &CacheConfig, used_bytes: Option<u64>) {
    if let Some(folder) = &base.folder {
        base.reservations.put_used(&config.key.id(), &folder.dataset(&config.key.id()), used_bytes);
    }
}

/// Stores the dataset's promise and marks the dataset as used now.
fn remember(
    base: &Base,
    config: &CacheConfig,
    promised: Reservation,
    change: impl FnOnce(&mut BTreeSet<String>),
) -> Known {
    base.change(&config.key.id(), used_now(config, promised, change))
}

/// The change of what is known about a dataset that is used now, has this promise, and whose connections `change`.
fn used_now(
    config: &CacheConfig,
    promised: Reservation,
    change: impl FnOnce(&mut BTreeSet<String>),
) -> impl FnOnce(&mut Known) {
    move |known| {
        known.key = Some(config.key.clone());
        known.name.clone_from(&config.name);
        known.reservation = Some(promised);
        known.policy = config.policy;
        known.use_now();
        change(known.connections.get_or_insert_default());
    }
}
