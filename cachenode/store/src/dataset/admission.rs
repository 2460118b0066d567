//! How a block enters and leaves the cache: a permit takes space for it, a write sets its slot, an eviction clears the
//! slot.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};

use super::shared::{Shared, State};
use super::space::{Allotment, Garbage};
use crate::draft::Record;
use crate::record::Header;

/// The most disowned blocks that are dropped under one hold of the lock.
const TAKEN_OUT_AT_ONCE: usize = 256;

impl Shared {
    /// Takes space for a block: free space, then the space of disowned blocks, then, if it `may_evict`, that of blocks
    /// the policy evicts. Returns the number of the permit to write the block.
    pub(super) fn admit(&self, block: BlockIndex, len: u32, may_evict: bool, now: Instant) -> Option<u64> {
        let counters = &self.base.counters;
        if block.0 >= self.slots.blocks() || len == 0 || u64::from(len) > BLOCK_BYTES {
            return None;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.slots.get(block).is_some() || state.pending.contains_key(&block) {
            return None;
        }
        if self.base.closed.load(Ordering::Relaxed) || state.policy.is_none() || !self.base.health.may_write(now) {
            counters.refused.add(1);
            return None;
        }
        self.drain_touches(state);
        self.make_room(state, len, now);
        let is_free = state.has_room(len);
        let mut victims = Vec::new();
        let policy = state.policy.as_mut()?;
        if !(is_free || may_evict) || !policy.admit(block, len, &mut victims) {
            counters.refused.add(1);
            return None;
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        for victim in victims {
            self.evict(state, victim, now);
        }
        state.last_permit += 1;
        state.pending.insert(block, state.last_permit);
        Some(state.last_permit)
    }

    /// Drops disowned blocks until `len` bytes are free, no disowned block is known, or [`TAKEN_OUT_AT_ONCE`] blocks
    /// were dropped.
    fn make_room(&self, state: &mut State, len: u32, now: Instant) {
        let could_fit = state.policy.as_ref().is_some_and(|policy| u64::from(len) <= policy.capacity_bytes());
        if !could_fit || state.has_room(len) {
            return;
        }
        let version = state.owners.version();
        state.disowned.follow(version);
        for _ in 0..TAKEN_OUT_AT_ONCE {
            if state.has_room(len) {
                break;
            }
            let Some((victim, victim_len)) = state.disowned.pop() else { break };
            // A disowned block has no slot if a reader found its record flawed and dropped it.
            if let Some(place) = self.slots.get(victim) {
                if !self.take_out(state, victim, place, Some(victim_len), now) {
                    break;
                }
                self.forget(state, victim, victim_len);
                self.base.counters.disowned.add(1);
            }
        }
        self.disowned.show(&state.disowned, self.is_stopped());
    }

    /// Gives back the space of a block that was not written. Does nothing if the permit is no longer valid.
    pub(super) fn cancel(&self, block: BlockIndex, len: u32, permit: u64) {
        let mut state = self.lock();
        if state.pending.get(&block) == Some(&permit) {
            state.pending.remove(&block);
            self.forget(&mut state, block, len);
        }
    }

    /// Removes a block that the policy has evicted.
    pub(super) fn evict(&self, state: &mut State, victim: BlockIndex, now: Instant) {
        if state.pending.remove(&victim).is_some() {
            // The block is still being written. Its writer will find the permit invalid and free the record.
            return;
        }
        let Some(place) = self.slots.get(victim) else { return };
        let len = self.config.block_lens.len_of(victim);
        // If the disk fails to clear the slot, the block stays cached but uncounted until a restart.
        if self.take_out(state, victim, place, len, now) {
            self.base.counters.evicted.add(1);
            self.base.counters.evicted_bytes.add(len.unwrap_or_default().into());
        }
    }

    /// Writes a block, then sets its slot.
    pub(super) fn keep(&self, permit: u64, record: &Record) -> io::Result<()> {
        let Header { block, len, .. } = *record.header();
        let extent = record.as_bytes().len();
        self.base.free_share.take(extent as u64, Instant::now())?;
        let Allotment { segment, place, prepare } = {
            let mut state = self.lock();
            if state.pending.get(&block) != Some(&permit) {
                // The policy evicted the block before this write.
                return Ok(());
            }
            state.allocator.allocate(&self.space, extent)?
        };
        if let Some(range) = prepare {
            segment.prepare(range.start, range.end - range.start);
        }
        let written = segment.write(place.offset(), record.as_bytes()).and_then(|()| match segment.is_deleted()? {
            false => Ok(()),
            true => Err(io::Error::new(io::ErrorKind::NotFound, "segment was deleted")),
        });
        let mut guard = self.lock();
        let state = &mut *guard;
        let wanted = state.pending.get(&block) == Some(&permit);
        let shown = match written {
            Ok(()) if wanted => self.slots.set(block, Some(place)),
            other => other,
        };
        if wanted && shown.is_ok() {
            state.pending.remove(&block);
            self.base.index.put(self.number, block, place);
            self.blocks_cached.fetch_add(1, Ordering::Relaxed);
            self.base.counters.admitted.add(1);
            self.base.counters.admitted_bytes.add(u64::from(len));
        } else {
            state.allocator.retire(&self.space, place, Some(len));
        }
        if let Err(error) = &shown
            && !is_full(error)
            && state.allocator.is_current(segment.number)
        {
            // After a failed write, the next attempt starts a new segment file.
            state.allocator.leave_current(&self.space);
        }
        // If the slot was not set, dropping the permit gives the space back.
        shown
    }

    /// Frees unused space: whole segments immediately, single records in batches unless `all`. Blocks on the disk.
    pub(super) fn free_room(&self, all: bool) {
        let (whole, is_due) = self.lock().allocator.take_whole(&self.space);
        self.free_each(whole.iter());
        drop(whole);
        if all || is_due {
            let _one_at_a_time = self.space.freeing().lock().unwrap_or_else(PoisonError::into_inner);
            let dead = self.lock().allocator.take_dead(&self.space, all);
            self.free_each(dead.iter());
        }
    }

    fn free_each<'a>(&self, garbage: impl Iterator<Item = &'a Garbage>) {
        for error in garbage.filter_map(|garbage| garbage.free().err()) {
            self.disk_failed("free room", &error, Instant::now());
        }
    }
}

/// True if a write failed because the disk had no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
