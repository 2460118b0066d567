//! Counting what an earlier run left, while hits are served already.
//!
//! Invariant: until it ends there is no policy, so nothing is admitted or evicted, and the slots are changed from here
//! only. What reads find flawed meanwhile is kept aside for the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::info;

use super::add;
use super::admission::Shared;
use crate::policy::Policy;
use crate::policy::build_policy;
use crate::record;
use crate::slots::Place;

/// Blocks evicted in one go, so that the lock is held shortly.
const EVICTED_AT_ONCE: usize = 256;

/// What else is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Blocks that the index knows and the slots do not are put back.
    pub(super) refill: bool,
    /// The index is told of all blocks.
    pub(super) reindex: bool,
}

impl Shared {
    /// Runs on a thread of its own.
    pub(super) fn rebuild(&self, work: Work) {
        let begun = Instant::now();
        let refilled = if work.refill { self.refill() } else { 0 };
        let mut policy = build_policy(self.spec.policy, self.spec.reservation_bytes, self.spec.blocks, self.spec.seed);
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
            self.collect_garbage();
        }
        let segments = Arc::clone(&self.segments.load());
        let mut state = self.lock();
        for segment in segments.iter().filter(|segment| segment.live() == 0) {
            // Evictions above may have sent it off already.
            if self.segments.load().get(segment.number).is_some() {
                self.delete_segment(&mut state, Arc::clone(segment));
            }
        }
        drop(state);
        self.finish_rebuild(policy);
        self.collect_garbage();
        info!(
            dataset = self.spec.name,
            blocks = self.blocks_cached.load(Ordering::Relaxed),
            refilled,
            took_ms = begun.elapsed().as_millis() as u64,
            "cached blocks counted"
        );
    }

    /// Puts back what only the index knows.
    fn refill(&self) -> u64 {
        let segments = self.segments.load();
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

    /// Tells the policy of every block that has a slot, oldest first; false if it was stopped before the end.
    fn count(&self, policy: &mut dyn Policy, reindex: bool) -> bool {
        let segments = self.segments.load();
        // For NR the order means nothing and nothing is ever freed: no memory for a block.
        let sorted = self.spec.policy.evicts();
        let mut found: Vec<(Place, BlockIndex)> = Vec::new();
        let mut ends: HashMap<u32, u64> = segments.iter().map(|segment| (segment.number, 0)).collect();
        let mut next = self.slots.next_written(0);
        while let Some(number) = next {
            // Asked once for each page of slots.
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
            let len = (self.spec.lens)(block);
            let segment = segments.get(place.segment).filter(|_| len > 0 && u64::from(len) <= BLOCK_BYTES);
            let Some(segment) = segment else {
                // Its segment is gone. If the slot cannot be cleared, reads find out.
                let _ = self.slots.set(block, None);
                continue;
            };
            segment.add_live();
            let end = ends.entry(place.segment).or_default();
            *end = (*end).max(place.offset() + record::extent_bytes(len) as u64);
            add(&self.blocks_cached, 1);
            if reindex {
                self.base.index.put_all(self.number, block, place);
            }
            if sorted {
                found.push((place, block));
            } else {
                policy.restore(block, len);
                self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
            }
        }
        // What the last run prepared, and records that it did not live to show. What cannot be cut off now goes with its
        // segment, like the gaps below.
        for segment in segments.iter() {
            let end = ends.get(&segment.number).copied().unwrap_or_default();
            if segment.bytes().is_ok_and(|bytes| bytes > end) {
                let _ = segment.cut(end);
            }
        }
        // Blocks were admitted in the order of their places, which is what FIFO goes by, and LRU until blocks are used.
        found.sort_unstable();
        if sorted && self.base.abilities.free {
            self.free_gaps(&found);
        }
        for (_, block) in found {
            policy.restore(block, (self.spec.lens)(block));
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        true
    }

    /// Frees what lies between the records of blocks that have a slot: records whose block had left when the last run
    /// was cut off, before they were freed.
    fn free_gaps(&self, sorted: &[(Place, BlockIndex)]) {
        for segment in self.segments.load().iter() {
            let from = sorted.partition_point(|(place, _)| place.segment < segment.number);
            let to = sorted.partition_point(|(place, _)| place.segment <= segment.number);
            let mut end = 0;
            let ends = sorted[from..to].iter().map(|&(place, block)| {
                (place.offset(), place.offset() + record::extent_bytes((self.spec.lens)(block)) as u64)
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
