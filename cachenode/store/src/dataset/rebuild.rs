//! Counting the blocks of an earlier run, while hits are already served.
//!
//! One pass over the slots, in their order, which is that of the manifest's files: the length of each block is the next
//! one and no search.
//!
//! Invariant: until the count ends there is no policy, so nothing is admitted or evicted, and only this thread changes
//! slots. Flaws that reads find meanwhile are kept for the end.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::{info, warn};

use super::shared::Shared;
use crate::policy::{Policy, build_policy};
use crate::record;
use crate::segment::SegmentTable;
use crate::slots::Place;

/// Blocks evicted under one hold of the lock.
const EVICTED_AT_ONCE: usize = 256;

/// The work of a rebuild besides counting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Restore the slots that only the index has.
    pub(super) refill: bool,
    /// Write all blocks to the index.
    pub(super) reindex: bool,
}

/// A block that has a slot, ordered by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cached {
    place: Place,
    block: BlockIndex,
    len: u32,
}

impl Cached {
    fn end(&self) -> u64 {
        self.place.offset() + record::extent_bytes(self.len) as u64
    }
}

/// A segment according to its slots.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentCount {
    live: u32,
    /// Where its last record ends; u64::MAX if that cannot be known.
    end: u64,
}

impl Shared {
    /// Runs on a thread of its own.
    pub(super) fn rebuild(&self, work: Work) {
        // However it ends, nobody waits for it any longer.
        let _ended = Ended(self);
        let started = Instant::now();
        let is_damaged = !work.refill && self.find_damage();
        let refilled = if work.refill || is_damaged { self.refill() } else { 0 };
        let config = &self.config;
        let mut policy = build_policy(config.policy, config.reservation_bytes, config.blocks, config.seed);
        if !self.count(&mut *policy) {
            return;
        }
        let mut victims = Vec::new();
        policy.trim(&mut victims);
        for victims in victims.chunks(EVICTED_AT_ONCE) {
            let mut state = self.lock();
            for &victim in victims {
                self.evict(&mut state, victim, Instant::now());
            }
            drop(state);
            self.free_room(true);
        }
        let segments = Arc::clone(&self.space.segments());
        let mut state = self.lock();
        for segment in segments.iter().filter(|segment| segment.live() == 0) {
            // The evictions above may have deleted it already.
            if self.space.segments().get(segment.number).is_some() {
                state.allocator.delete(&self.space, Arc::clone(segment));
            }
        }
        drop(state);
        if work.reindex && !self.reindex() {
            return;
        }
        self.finish_rebuild(policy);
        let took_ms = started.elapsed().as_millis() as u64;
        info!(
            dataset = config.name,
            blocks = self.blocks_cached.load(Ordering::Relaxed),
            refilled,
            took_ms,
            "cached blocks counted"
        );
        self.free_room(true);
        if !config.policy.evicts() {
            let _adopted_room = self.adopted_room.lock().unwrap_or_else(PoisonError::into_inner);
            self.free_unused();
        }
        for lost in self.space.lost() {
            // No slot points to it. The next start tries again to remove a file that cannot be removed now.
            let _ = std::fs::remove_file(&lost.path);
        }
    }

    /// True if the disk fails to read a part of the slot table. Touches all of it.
    fn find_damage(&self) -> bool {
        for page in self.pages() {
            let _ = self.slots.get(BlockIndex(page.start));
        }
        let is_damaged = self.slots.is_damaged();
        if is_damaged {
            warn!(
                dataset = self.config.name,
                "a part of the slot table cannot be read: its blocks are looked up in the index"
            );
        }
        is_damaged
    }

    /// The pages of the slot table, until the dataset is closed.
    fn pages(&self) -> impl Iterator<Item = Range<u32>> {
        self.slots.pages(0).take_while(|_| !self.is_stopped())
    }

    /// The blocks that have a slot, in order, until the dataset is closed.
    pub(super) fn cached(&self) -> impl Iterator<Item = (BlockIndex, Place)> {
        self.pages().flat_map(|page| self.slots.present(page))
    }

    /// Restores the slots that only the index has.
    fn refill(&self) -> u64 {
        let segments = self.space.segments();
        let (mut refilled, mut failed) = (0, 0);
        self.base.index.each_block(self.number, |block, place| {
            let is_lost = block.0 < self.slots.blocks() && self.slots.get(block).is_none();
            if is_lost && segments.get(place.segment).is_some() {
                match self.slots.set(block, Some(place)) {
                    Ok(()) => refilled += 1,
                    // It costs a fetch.
                    Err(_) => failed += 1,
                }
            }
            !self.is_stopped()
        });
        if failed == 0 && !self.is_stopped() && self.slots.has_lost_slots() {
            // If this fails, the next start looks them up again.
            let _ = self.slots.found_lost_slots();
        }
        refilled
    }

    /// Gives the policy every block that has a slot, oldest first; false if it was stopped before the end.
    fn count(&self, policy: &mut dyn Policy) -> bool {
        let segments = self.space.segments();
        // NR ignores the order and frees nothing: it needs no memory for each block.
        let sorted = self.config.policy.evicts();
        let mut found: Vec<Cached> = Vec::new();
        let mut counts = vec![SegmentCount::default(); segments.len()];
        let mut len_of = self.config.block_lens.in_order();
        let mut unknown = 0_u64;
        for (block, place) in self.cached() {
            let Some(at) = segments.position(place.segment) else {
                // Its segment is gone. If the slot cannot be cleared, a read will find out.
                let _ = self.slots.set(block, None);
                continue;
            };
            let count = &mut counts[at];
            count.live += 1;
            let Some(len) = len_of(block).filter(|&len| len > 0 && u64::from(len) <= BLOCK_BYTES) else {
                // The manifest cannot be read there. The block stays, is not counted and will not be evicted.
                count.end = u64::MAX;
                unknown += 1;
                continue;
            };
            let cached = Cached { place, block, len };
            count.end = count.end.max(cached.end());
            self.blocks_cached.fetch_add(1, Ordering::Relaxed);
            if self.space.is_adopted(place) {
                self.adopted_disk_bytes.fetch_add(record::extent_bytes(len) as u64, Ordering::Relaxed);
            }
            if sorted {
                found.push(cached);
            } else {
                policy.restore(block, len);
                self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
            }
        }
        if self.is_stopped() {
            return false;
        }
        if unknown > 0 {
            warn!(
                dataset = self.config.name,
                blocks = unknown,
                "the manifest is damaged: cached blocks are not counted"
            );
        }
        self.trust(&segments, &counts);
        // Blocks were admitted in the order of their places: FIFO's order, and LRU's until blocks are used.
        found.sort_unstable();
        if sorted && unknown == 0 && self.space.can_free() {
            self.free_gaps(&segments, &found);
        }
        for cached in found {
            policy.restore(cached.block, cached.len);
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        true
    }

    /// Gives each segment its count of live blocks, and cuts off the room that the last run preallocated and the
    /// records whose slots it did not live to set. Room that cannot be cut off now is freed with its segment, like the
    /// gaps below.
    fn trust(&self, segments: &SegmentTable, counts: &[SegmentCount]) {
        for (segment, count) in segments.iter().zip(counts) {
            segment.add_live(count.live);
            let is_shared = segment.is_shared().unwrap_or(true);
            if !is_shared && segment.bytes().is_ok_and(|bytes| bytes > count.end) {
                let _ = segment.cut(count.end);
            }
        }
    }

    /// Frees the room between the records of blocks that have a slot: records of evicted blocks that the last run did
    /// not live to free.
    fn free_gaps(&self, segments: &SegmentTable, sorted: &[Cached]) {
        for segment in segments.iter() {
            let from = sorted.partition_point(|cached| cached.place.segment < segment.number);
            let to = sorted.partition_point(|cached| cached.place.segment <= segment.number);
            let mut end = 0;
            for cached in &sorted[from..to] {
                let start = cached.place.offset();
                if start > end && !self.is_stopped() {
                    let _ = segment.free(end, start - end);
                }
                end = end.max(cached.end());
            }
        }
    }

    /// Writes all blocks to an index that has lost them; false if it was stopped before the end.
    fn reindex(&self) -> bool {
        for (block, place) in self.cached() {
            self.base.index.put_waiting(self.number, block, place);
        }
        !self.is_stopped()
    }
}

/// Ends the wait for a rebuild, also for one that was stopped or panicked.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_rebuild();
    }
}
