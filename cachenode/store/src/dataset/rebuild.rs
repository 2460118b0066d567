//! Counting the blocks of an earlier run, while hits are already served.
//!
//! Invariant: until it ends there is no policy, so nothing is admitted or evicted, and only this thread changes slots.
//! Flaws that reads find meanwhile are kept for the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::info;

use super::admission::Shared;
use crate::policy::{Policy, build_policy};
use crate::record;
use crate::slots::Place;

/// Blocks evicted under one hold of the lock.
const EVICTED_AT_ONCE: usize = 256;

/// What a rebuild does besides counting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Restore the slots that only the index has.
    pub(super) refill: bool,
    /// Write all blocks to the index.
    pub(super) reindex: bool,
}

impl Shared {
    /// Runs on a thread of its own.
    pub(super) fn rebuild(&self, work: Work) {
        let started = Instant::now();
        let refilled = if work.refill { self.refill() } else { 0 };
        let config = &self.config;
        let mut policy = build_policy(config.policy, config.reservation_bytes, config.blocks, config.seed);
        if !self.count(&mut *policy, work.reindex) {
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
        self.finish_rebuild(policy);
        self.free_room(true);
        info!(
            dataset = self.config.name,
            blocks = self.blocks_cached.load(Ordering::Relaxed),
            refilled,
            took_ms = started.elapsed().as_millis() as u64,
            "cached blocks counted"
        );
    }

    /// Restores the slots that only the index has.
    fn refill(&self) -> u64 {
        let segments = self.space.segments();
        let mut refilled = 0;
        self.base.index.each_block(self.number, |block, place| {
            let is_lost = block.0 < self.slots.blocks() && self.slots.get(block).is_none();
            // A slot that cannot be set costs a fetch.
            if is_lost && segments.get(place.segment).is_some() && self.slots.set(block, Some(place)).is_ok() {
                refilled += 1;
            }
            !self.is_stopped()
        });
        refilled
    }

    /// Gives the policy every block that has a slot, oldest first; false if it was stopped before the end.
    fn count(&self, policy: &mut dyn Policy, reindex: bool) -> bool {
        let segments = self.space.segments();
        // NR ignores the order and frees nothing: it needs no memory for each block.
        let sorted = self.config.policy.evicts();
        let mut found: Vec<(Place, BlockIndex)> = Vec::new();
        let mut ends: HashMap<u32, u64> = segments.iter().map(|segment| (segment.number, 0)).collect();
        let mut next = self.slots.next_written(0);
        while let Some(number) = next {
            // One system call for each page of slots.
            next = if (number + 1).is_multiple_of(512) {
                self.slots.next_written(number + 1)
            } else {
                Some(number + 1).filter(|&next| next < self.slots.blocks())
            };
            if number.is_multiple_of(512) && self.is_stopped() {
                return false;
            }
            let block = BlockIndex(number);
            let Some(place) = self.slots.get(block) else { continue };
            let len = (self.config.block_len)(block);
            let segment = segments.get(place.segment).filter(|_| len > 0 && u64::from(len) <= BLOCK_BYTES);
            let Some(segment) = segment else {
                // Its segment is gone. If the slot cannot be cleared, a read will find out.
                let _ = self.slots.set(block, None);
                continue;
            };
            segment.add_live();
            let end = ends.entry(place.segment).or_default();
            *end = (*end).max(place.offset() + record::extent_bytes(len) as u64);
            self.blocks_cached.fetch_add(1, Ordering::Relaxed);
            if reindex {
                self.base.index.put_waiting(self.number, block, place);
            }
            if sorted {
                found.push((place, block));
            } else {
                policy.restore(block, len);
                self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
            }
        }
        // Room that the last run prepared, and records whose slots it did not live to set. What cannot be cut off now is
        // freed with its segment, like the gaps below.
        for segment in segments.iter() {
            let end = ends.get(&segment.number).copied().unwrap_or_default();
            if segment.bytes().is_ok_and(|bytes| bytes > end) {
                let _ = segment.cut(end);
            }
        }
        // Blocks were admitted in the order of their places: FIFO's order, and LRU's until blocks are used.
        found.sort_unstable();
        if sorted && self.space.can_free() {
            self.free_gaps(&found);
        }
        for (_, block) in found {
            policy.restore(block, (self.config.block_len)(block));
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        true
    }

    /// Frees the room between the records of blocks that have a slot: records of evicted blocks that the last run did not
    /// live to free.
    fn free_gaps(&self, sorted: &[(Place, BlockIndex)]) {
        for segment in self.space.segments().iter() {
            let from = sorted.partition_point(|(place, _)| place.segment < segment.number);
            let to = sorted.partition_point(|(place, _)| place.segment <= segment.number);
            let mut end = 0;
            let ends = sorted[from..to].iter().map(|&(place, block)| {
                (place.offset(), place.offset() + record::extent_bytes((self.config.block_len)(block)) as u64)
            });
            for (start, next_end) in ends {
                if start > end && !self.is_stopped() {
                    let _ = segment.free(end, start - end);
                }
                end = end.max(next_end);
            }
        }
    }
}
