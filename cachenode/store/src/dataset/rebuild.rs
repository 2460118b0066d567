//! Counting the blocks of an earlier run, while hits are already served.
//!
//! The rebuild is one pass over the slots in order. Slots have the order of the manifest's files, so each block's
//! length is the next one in the manifest and needs no search.
//!
//! Invariant: until the count ends there is no policy, so nothing is admitted or evicted, and only this thread changes
//! slots. Flaws that reads find during the count are kept and handled at its end.
//!
//! Space that the last run left is freed when admissions are open: a disk that hangs keeps blocks from no other disk.
//! Nothing uses that space meanwhile. New records go to new segments, and no block is adopted.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::{info, warn};

use super::shared::{Cause, Shared, Victim};
use crate::policy::{Policy, build_policy};
use crate::record;
use crate::segment::Segment;
use crate::slots::Place;

/// The work of a rebuild besides counting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Restore from the index the slots that were lost.
    pub(super) refill: bool,
    /// Write all blocks to the index, which has lost them.
    pub(super) reindex: bool,
    /// The slot table is new, or has lost slots: segments without slots may hold blocks.
    pub(super) is_table_new: bool,
}

/// A block that has a slot. The field order sorts such blocks by their place.
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

/// The blocks that the last run may have left in the segments that no other dataset shares.
#[derive(Debug, Default)]
struct Left {
    /// These segments, and where the last record of each ends.
    segments: Vec<(Arc<Segment>, u64)>,
    /// The blocks in the order of their places. None if the space between them is not known to be unused.
    blocks: Option<Vec<Cached>>,
}

/// Totals for one segment, computed from the slots.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentCount {
    live: u32,
    /// Where the segment's last record ends; u64::MAX if a block's length is unknown.
    end: u64,
}

impl Shared {
    /// Runs the rebuild. Called on a thread of its own.
    pub(super) fn rebuild(&self, work: Work) {
        // Releases the waiters even if the rebuild stops early or panics.
        let _ended = Ended(self);
        let started = Instant::now();
        let is_damaged = !work.refill && self.find_damage();
        let (refilled, is_refilled) = if work.refill || is_damaged { self.refill() } else { (0, false) };
        let config = &self.config;
        let mut policy = build_policy(config.policy, config.reservation_bytes, config.blocks, config.seed);
        let Some(left) = self.count(&mut *policy, work.is_table_new) else { return };
        // Not before the segments without slots were read: a start after a kill meanwhile would delete them.
        if is_refilled && self.slots.has_lost_slots() {
            // If this fails, the next start looks the lost slots up again.
            let _ = self.slots.found_lost_slots();
        }
        let mut victims = Vec::new();
        policy.trim(&mut victims);
        self.clear(victims.into_iter().map(|block| Victim { block, cause: Cause::Evicted }));
        let segments = Arc::clone(&self.space.segments());
        let mut state = self.lock();
        for segment in segments.iter().filter(|segment| segment.live() == 0) {
            // The evictions above may have deleted the segment already.
            if self.space.segments().get(segment.number).is_some() {
                state.allocator.delete(&self.space, Arc::clone(segment));
            }
        }
        drop(state);
        if work.reindex && !self.reindex() {
            return;
        }
        // An adoption that waits for the rebuild must not find records in space that is about to be freed.
        let adopted_room = self.adopted_room.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.free_left(&left);
        if !config.policy.evicts() {
            self.free_unused();
        }
        drop(adopted_room);
        for lost in self.space.lost() {
            // No slot points to this file. If it cannot be removed now, the next start tries again.
            let _ = std::fs::remove_file(&lost.path);
        }
        // Opening the dataset did not wait for this write.
        self.base.write_use(&config.key.id());
    }

    /// True if the disk fails to read a part of the slot table. Reads every page of the table.
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

    /// The pages of the slot table. Ends early when the dataset is closed.
    fn pages(&self) -> impl Iterator<Item = Range<u32>> {
        self.slots.pages(0).take_while(|_| !self.is_stopped())
    }

    /// The blocks that have a slot, in order. Ends early when the dataset is closed.
    pub(super) fn cached(&self) -> impl Iterator<Item = (BlockIndex, Place)> {
        self.pages().flat_map(|page| self.slots.present(page))
    }

    /// Restores from the index the slots that were lost. Returns how many, and whether these are all.
    fn refill(&self) -> (u64, bool) {
        let segments = self.space.segments();
        let (mut refilled, mut failed) = (0, 0);
        let is_complete = self.base.index.each_block(self.number, |block, place| {
            let is_lost = block.0 < self.slots.blocks() && self.slots.get(block).is_none();
            if is_lost && segments.get(place.segment).is_some() {
                match self.slots.set(block, Some(place)) {
                    Ok(()) => refilled += 1,
                    // The block is a miss and will be fetched.
                    Err(_) => failed += 1,
                }
            }
            !self.is_stopped()
        });
        let are_all = is_complete && failed == 0 && !self.is_stopped();
        if are_all {
            self.base.index.end_doubt(&self.config.key.id());
        }
        (refilled, are_all)
    }

    /// Gives the policy every block that has a slot, oldest first, and sets each segment's count of live blocks.
    /// Returns what may be freed. None if it was stopped before the end.
    fn count(&self, policy: &mut dyn Policy, is_table_new: bool) -> Option<Left> {
        let segments = self.space.segments();
        // NR ignores the order and frees nothing, so no list of blocks is needed.
        let sorted = self.config.policy.evicts();
        let mut found: Vec<Cached> = Vec::new();
        let mut counts = vec![SegmentCount::default(); segments.len()];
        let mut len_of = self.config.block_lens.in_order();
        let mut unknown = 0_u64;
        for (block, place) in self.cached() {
            let Some(at) = segments.position(place.segment) else {
                // The block's segment was deleted, or is on a disk that is away. If the slot cannot be cleared, a later
                // read finds the flaw.
                let _ = self.slots.set(block, None);
                continue;
            };
            let count = &mut counts[at];
            count.live += 1;
            let Some(len) = len_of(block).filter(|&len| len > 0 && u64::from(len) <= BLOCK_BYTES) else {
                // The manifest is unreadable for this block. The block stays, but is not counted and will not be
                // evicted.
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
            return None;
        }
        if unknown > 0 {
            warn!(
                dataset = self.config.name,
                blocks = unknown,
                "the manifest is damaged: cached blocks are not counted"
            );
        }
        for (segment, count) in segments.iter().zip(&mut counts) {
            if count.live > 0 || !self.may_salvage(segment, is_table_new) {
                continue;
            }
            for (place, block, len) in self.salvage(segment) {
                let cached = Cached { place, block, len };
                count.live += 1;
                count.end = count.end.max(cached.end());
                self.blocks_cached.fetch_add(1, Ordering::Relaxed);
                match sorted {
                    true => found.push(cached),
                    false => policy.restore(block, len),
                }
            }
        }
        if self.is_stopped() {
            return None;
        }
        let mut left = Left::default();
        for (segment, count) in segments.iter().zip(counts) {
            segment.add_live(count.live);
            // Not asked later: a dataset that adopts blocks meanwhile uses none of the space that is freed.
            if !segment.is_shared().unwrap_or(true) {
                left.segments.push((Arc::clone(segment), count.end));
            }
        }
        // Blocks were admitted in the order of their places. That is FIFO's order, and LRU's until blocks are used.
        found.sort_unstable();
        for cached in &found {
            policy.restore(cached.block, cached.len);
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        left.blocks = (sorted && unknown == 0).then_some(found);
        Some(left)
    }

    /// Frees what the last run left. Space that cannot be freed now is freed with its segment. The caller holds
    /// `adopted_room`.
    fn free_left(&self, left: &Left) {
        self.cut_ends(&left.segments);
        if let Some(blocks) = &left.blocks {
            self.free_gaps(&left.segments, blocks);
        }
        self.stale.mark();
    }

    /// Cuts off space that the last run preallocated, and records whose slots it did not set before it ended.
    fn cut_ends(&self, segments: &[(Arc<Segment>, u64)]) {
        for (segment, end) in segments {
            if !self.is_stopped() && segment.bytes().is_ok_and(|bytes| bytes > *end) {
                let _ = segment.cut(*end);
            }
        }
    }

    /// Frees the gaps between live records: records of evicted blocks that the last run did not free before it ended.
    fn free_gaps(&self, segments: &[(Arc<Segment>, u64)], sorted: &[Cached]) {
        for (segment, _) in segments.iter().filter(|(segment, _)| segment.can_free()) {
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

    /// Writes all blocks to an index that has lost them. Returns false if it was stopped before the end.
    fn reindex(&self) -> bool {
        for (block, place) in self.cached() {
            self.base.index.put_waiting(self.number, block, place);
        }
        !self.is_stopped()
    }
}

/// Ends the wait for a rebuild when dropped, including a rebuild that was stopped or panicked.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_rebuild();
    }
}
