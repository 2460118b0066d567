//! How a block enters and leaves the cache: a permit takes space for it, a write sets its slot, an eviction clears the
//! slot.
//!
//! An admission only decides. The slots of the blocks that it evicts are cleared by the write of the admitted block,
//! and until then they are hits. If that block is never written, another write clears them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::warn;

use super::shared::{Cause, Pending, Shared, State, Victim};
use super::space::{Allotment, Garbage};
use crate::disk::{self, Disk};
use crate::draft::Record;
use crate::policy::Wish;
use crate::record::Header;
use crate::segment::{Segment, SegmentFolder};

/// The most disowned blocks that are dropped under one hold of the lock.
const TAKEN_OUT_AT_ONCE: usize = 256;

/// Why a block was not kept.
#[derive(Debug)]
pub(super) struct NotKept {
    /// The disk that failed. None: the slot could not be set.
    pub(super) disk: Option<Arc<Disk>>,
    pub(super) source: io::Error,
}

impl Shared {
    /// Takes space for a block that the policy wants: free space, then the space of disowned blocks, then, if a reader
    /// missed the block, that of blocks the policy evicts. Returns the blocks to clear before the block is written.
    /// Never waits for the disk.
    pub(super) fn admit(&self, block: BlockIndex, len: u32, wish: Wish, now: Instant) -> Option<Vec<Victim>> {
        let counters = &self.base.counters;
        if block.0 >= self.slots.blocks() || len == 0 || u64::from(len) > BLOCK_BYTES {
            return None;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let cached = self.slots.get(block);
        if state.pending.contains_key(&block) || state.leaving.contains(&block) {
            return None;
        }
        if cached.is_some_and(|place| !place.is_part()) {
            return None;
        }
        if self.base.closed.load(Ordering::Relaxed) || state.policy.is_none() || !self.base.may_write(now) {
            counters.refused.add(1);
            return None;
        }
        if cached.is_some() {
            // The policy counts the block, with the pages that are missing.
            state.pending.insert(block, Pending::Growing);
            return Some(Vec::new());
        }
        self.drain_touches(state);
        if !state.policy.as_mut()?.wants(block, len, wish) {
            counters.refused.add(1);
            return None;
        }
        let mut victims = self.make_room(state, len);
        let may_evict = wish == Wish::Missed;
        let is_free = state.has_room(len);
        let mut evicted = Vec::new();
        let policy = state.policy.as_mut()?;
        if !(is_free || may_evict) || !policy.admit(block, len, &mut evicted) {
            counters.refused.add(1);
            state.unclaimed.append(&mut victims);
            return None;
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        victims.extend(evicted.into_iter().filter_map(|victim| state.evict(victim)));
        state.pending.insert(block, Pending::Valid);
        Some(victims)
    }

    /// Takes disowned blocks out of the policy until `len` bytes are free, no disowned block is known, or
    /// [`TAKEN_OUT_AT_ONCE`] blocks were taken.
    fn make_room(&self, state: &mut State, len: u32) -> Vec<Victim> {
        let mut victims = Vec::new();
        let could_fit = state.policy.as_ref().is_some_and(|policy| u64::from(len) <= policy.capacity_bytes());
        if !could_fit || state.has_room(len) {
            return victims;
        }
        let version = state.owners.version();
        state.disowned.follow(version);
        for _ in 0..TAKEN_OUT_AT_ONCE {
            if state.has_room(len) {
                break;
            }
            let Some((victim, victim_len)) = state.disowned.pop() else { break };
            // A disowned block has no slot if a reader found its record flawed and dropped it.
            let is_cached = self.slots.get(victim).is_some() && !state.pending.contains_key(&victim);
            if is_cached && state.leaving.insert(victim) {
                self.forget(state, victim, victim_len);
                victims.push(Victim { block: victim, cause: Cause::Disowned });
            }
        }
        self.disowned.show(&state.disowned, self.is_stopped());
        victims
    }

    /// Ends a permit. Gives back the space of a block that was not written. The slots of the permit's `victims` that
    /// were not cleared are cleared later. Never waits for the disk.
    pub(super) fn end_permit(&self, block: BlockIndex, len: u32, mut victims: Vec<Victim>) {
        let mut state = self.lock();
        state.unclaimed.append(&mut victims);
        match state.pending.remove(&block) {
            Some(Pending::Valid) => self.forget(&mut state, block, len),
            Some(Pending::Outgrown) => {
                let victim = state.evict(block);
                state.unclaimed.extend(victim);
            }
            Some(Pending::Evicted | Pending::Written | Pending::Growing) | None => {}
        }
    }

    /// Notes that bytes of a block were written and that the block has its slot. Blocks on the disk.
    pub(super) fn written(&self, block: BlockIndex, bytes: u64, is_new: bool) {
        let mut state = self.lock();
        if is_new {
            self.blocks_cached.fetch_add(1, Ordering::Relaxed);
            self.base.counters.admitted.add(1);
        }
        self.base.counters.admitted_bytes.add(bytes);
        let before = state.pending.insert(block, Pending::Written);
        if matches!(before, Some(Pending::Evicted | Pending::Outgrown)) {
            // The policy evicted the block while it was being written.
            let victim = state.evict(block);
            drop(state);
            self.clear(victim);
        }
    }

    /// Clears the slots of leaving blocks. Blocks on the disk.
    pub(super) fn clear(&self, victims: impl IntoIterator<Item = Victim>) {
        let counters = &self.base.counters;
        for Victim { block, cause } in victims {
            // Lengths come from the manifest on disk, so they are looked up without the lock.
            let len = self.config.block_lens.len_of(block);
            if !self.take_out(block, len) {
                continue;
            }
            match cause {
                Cause::Evicted => {
                    counters.evicted.add(1);
                    counters.evicted_bytes.add(len.unwrap_or_default().into());
                }
                Cause::Disowned => counters.disowned.add(1),
            }
        }
    }

    /// Allocates a place on a disk for the record of a block. None if the policy has evicted the block since its
    /// admission.
    fn allocate(&self, disk: &Arc<Disk>, block: BlockIndex, extent: usize) -> io::Result<Option<Allotment>> {
        loop {
            let mut state = self.lock();
            if !matches!(state.pending.get(&block), Some(Pending::Valid | Pending::Growing)) {
                return Ok(None);
            }
            if let Some(allotment) = state.allocator.allocate(&self.space, disk, extent) {
                return Ok(Some(allotment));
            }
            drop(state);
            let creating = self.space.creating(disk);
            let _one_at_a_time = creating.map(|creating| creating.lock().unwrap_or_else(PoisonError::into_inner));
            // Another writer may have started a segment meanwhile.
            if !self.lock().allocator.has_room(&self.space, disk, extent) {
                let segment = self.new_segment(disk, Segment::create)?;
                self.lock().allocator.start(&self.space, segment);
            }
        }
    }

    /// Makes the file of a segment on a disk under the next free number; `create` makes it in the folder. Blocks on the
    /// disk.
    pub(super) fn new_segment(
        &self,
        disk: &Arc<Disk>,
        create: impl Fn(&SegmentFolder, u32) -> io::Result<Segment>,
    ) -> io::Result<Arc<Segment>> {
        loop {
            let number = self.lock().allocator.take_number()?;
            // If this fails, a start without this disk may give the number again. Its records verify themselves.
            let _ = self.slots.raise_highest_segment(number);
            match self.space.create(disk, number, &create) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(Arc::new),
            }
        }
    }

    /// Writes a block to its large file, or else to one of the disks, then sets its slot. Returns the disk; None if the
    /// policy has evicted the block since its admission.
    pub(super) fn keep(&self, record: &Record) -> Result<Option<Arc<Disk>>, NotKept> {
        let Header { key, block, len } = *record.header();
        if !record.is_bare() {
            self.keep_record(record)
        } else if self.is_file_stuck(block) {
            self.keep_record(&Record::new(key, block, &record.data()))
        } else {
            self.keep_pages(block, 0, len as usize, record.as_bytes())
        }
    }

    fn keep_record(&self, record: &Record) -> Result<Option<Arc<Disk>>, NotKept> {
        let Header { block, len, .. } = *record.header();
        let extent = record.as_bytes().len();
        let disk = disk::choose(self.space.disks(), block.0);
        let disk = disk.ok_or_else(|| NotKept { disk: None, source: io::ErrorKind::NotFound.into() })?;
        let failed = |source| NotKept { disk: Some(Arc::clone(disk)), source };
        let writing = disk.write();
        disk.free_share.take(extent as u64, Instant::now()).map_err(failed)?;
        let Some(allotment) = self.allocate(disk, block, extent).map_err(failed)? else { return Ok(None) };
        let Allotment { segment, place, prepare } = allotment;
        if let Some(range) = prepare {
            segment.prepare(range.start, range.end - range.start);
        }
        let written = segment.write(place.offset(), record.as_bytes()).and_then(|()| match segment.is_deleted()? {
            false => Ok(()),
            true => Err(io::Error::new(io::ErrorKind::NotFound, "segment was deleted")),
        });
        // The slot is on the disk with the tables, which may be another one.
        drop(writing);
        // No other thread sets or clears the slot of a pending block. A block of which pages are in a large file has one;
        // these pages are freed after the next start.
        let before = self.slots.get(block);
        let set = || self.slots.set(block, Some(place)).map_err(|source| NotKept { disk: None, source });
        let shown = written.map_err(failed).and_then(|()| set());
        self.stale.mark();
        if let Err(not_kept) = shown {
            let mut state = self.lock();
            state.allocator.retire(&self.space, place, Some(len));
            if !is_full(&not_kept.source) {
                // After a failed write, the next attempt starts a new segment file.
                state.allocator.leave_current(&self.space, segment.number);
            }
            // Dropping the permit gives the space back.
            return Err(not_kept);
        }
        self.base.index.put(self.number, block, place);
        self.written(block, len.into(), before.is_none());
        Ok(Some(Arc::clone(disk)))
    }

    /// Clears the slots of evicted blocks that no permit has. Blocks on the disk with the tables.
    pub(super) fn clear_unclaimed(&self) {
        let unclaimed = std::mem::take(&mut self.lock().unclaimed);
        self.clear(unclaimed);
    }

    /// Frees unused space: whole segments immediately, single records in batches unless `all`. Clears the slots of
    /// evicted blocks first. Blocks on the disk.
    pub(super) fn free_room(&self, all: bool) {
        self.clear_unclaimed();
        let (whole, is_due) = self.lock().allocator.take_whole(&self.space);
        self.free_each(whole.iter());
        drop(whole);
        if all || is_due {
            for disk in self.space.disks() {
                let Some(_turn) = self.space.turn_to_free(disk) else { continue };
                let dead = self.lock().allocator.take_dead(&self.space, disk, all);
                self.free_each(dead.iter());
            }
        }
    }

    fn free_each<'a>(&self, garbage: impl Iterator<Item = &'a Garbage>) {
        for garbage in garbage {
            if let Err(error) = garbage.free() {
                self.not_freed(garbage.disk(), &error);
            }
        }
        self.stale.mark();
    }

    /// Records that a disk did not free space.
    pub(super) fn not_freed(&self, disk: &Disk, error: &io::Error) {
        self.base.counters.write_errors.add(1);
        if disk.health.failed("disk error", Instant::now()) {
            let (dataset, step) = (&self.config.name, "free room");
            warn!(dataset, step, dir = ?disk.dir(), %error, "admissions to the cache pause");
        }
    }
}

/// True if a write failed because the disk had no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
