//! The end of a rebuild, and the wait for it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shared::{Shared, State};
use crate::policy::Policy;

impl Shared {
    pub(super) fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::Relaxed)
    }

    pub(super) fn wait_rebuilt(&self, timeout: Duration) -> bool {
        let unfinished = |_: &mut State| self.is_rebuilding();
        let waiting = self.rebuilt.wait_timeout_while(self.lock(), timeout, unfinished);
        waiting.unwrap_or_else(PoisonError::into_inner).0.policy.is_some()
    }

    /// Calls `call` when the rebuild has ended, or immediately if it already has.
    pub(super) fn when_rebuilt(&self, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        if self.is_rebuilding() {
            state.waiting.0.push(call);
        } else {
            drop(state);
            call();
        }
    }

    /// Releases all waiters. If the rebuild has not finished, there is no policy and nothing is admitted.
    pub(super) fn end_rebuild(&self) {
        let mut state = self.lock();
        self.rebuilding.store(false, Ordering::Relaxed);
        self.stale.mark();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.rebuilt.notify_all();
        for call in waiting.0 {
            call();
        }
    }

    /// Opens admissions with a policy that has counted the cached blocks.
    pub(super) fn finish_rebuild(&self, mut policy: Box<dyn Policy>) {
        let mut state = self.lock();
        policy.set_capacity(self.granted.capacity_bytes());
        if let Some(sizes) = &state.sizes {
            policy.set_sizes(sizes);
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        state.policy = Some(policy);
        let flawed = std::mem::take(&mut state.flawed);
        drop(state);
        for (block, (place, flaw)) in flawed {
            self.discard(block, place, flaw);
        }
        self.end_rebuild();
    }
}
