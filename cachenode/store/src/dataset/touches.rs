//! Hits on their way to a policy that orders blocks by use. Readers write to a ring without a lock; a thread that holds
//! the admission lock drains it.
//!
//! Invariant: a reader never waits here. If more hits arrive than the ring holds between two drains, the oldest are
//! lost and the policy's order becomes that much less exact.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use larder_dataset::BlockIndex;

use crate::policy::Policy;

const RING: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Touches {
    /// Block numbers plus one; 0 marks an empty entry. Empty if the policy does not use hits.
    ring: Box<[AtomicU32]>,
    head: AtomicU64,
}

impl Touches {
    pub(super) fn new(wanted: bool) -> Self {
        let ring = if wanted { RING } else { 0 };
        Self { ring: (0..ring).map(|_| AtomicU32::new(0)).collect(), head: AtomicU64::new(0) }
    }

    /// Records a hit. True when the ring should be drained.
    pub(super) fn push(&self, block: BlockIndex) -> bool {
        if self.ring.is_empty() {
            return false;
        }
        let at = self.head.fetch_add(1, Ordering::Relaxed);
        self.ring[at as usize % RING].store(block.0.wrapping_add(1), Ordering::Relaxed);
        (at + 1).is_multiple_of(RING as u64 / 2)
    }

    /// Passes all hits since `tail` to the policy, in order. Only one caller at a time.
    pub(super) fn drain(&self, tail: &mut u64, policy: &mut dyn Policy) {
        if self.ring.is_empty() {
            return;
        }
        let head = self.head.load(Ordering::Relaxed);
        for at in (*tail).max(head.saturating_sub(RING as u64))..head {
            if let Some(block) = self.ring[at as usize % RING].swap(0, Ordering::Relaxed).checked_sub(1) {
                policy.touch(BlockIndex(block));
            }
        }
        *tail = head;
    }
}
