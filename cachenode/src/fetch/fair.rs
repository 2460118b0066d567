//! A semaphore at which callers take turns ([`Turns`]), so that a caller with a few requests does not wait for the
//! backlog of another.
//!
//! Invariants: a request whose turn it is waits for no later one, so a request for many permits is not starved by
//! requests for few. No request waits if there are permits for it and none is before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_origin::{Caller, Turns};
use tokio::sync::oneshot;

/// A fair semaphore.
#[derive(Debug)]
pub(super) struct FairSemaphore(Mutex<State>);

/// Permits of a [`FairSemaphore`], which gets them back when this is dropped.
#[derive(Debug)]
pub(super) struct FairPermit {
    semaphore: Arc<FairSemaphore>,
    permits: u32,
}

#[derive(Debug)]
struct State {
    free: u64,
    turns: Turns,
    /// The requests that wait, by turn and arrival.
    queue: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiter {
    caller: Caller,
    permits: u32,
    granted: oneshot::Sender<FairPermit>,
}

impl FairSemaphore {
    /// A semaphore of so many permits.
    pub(super) fn new(permits: u64) -> Arc<Self> {
        let state = State { free: permits, turns: Turns::default(), queue: BTreeMap::new(), arrivals: 0 };
        Arc::new(Self(Mutex::new(state)))
    }

    /// The permits that nobody holds.
    #[cfg(test)]
    pub(super) fn available(&self) -> u64 {
        self.lock().free
    }

    /// Takes permits if they are free and nobody waits.
    pub(super) fn try_acquire(self: &Arc<Self>, permits: u32) -> Option<FairPermit> {
        let mut state = self.lock();
        let free = state.free.checked_sub(permits.into()).filter(|_| state.queue.is_empty())?;
        state.free = free;
        Some(FairPermit { semaphore: Arc::clone(self), permits })
    }

    /// Waits until it is the turn of [`Caller::current`], and these permits are free. The semaphore must have as many.
    /// Cancel-safe.
    pub(super) async fn acquire(self: &Arc<Self>, permits: u32) -> FairPermit {
        if let Some(permit) = self.try_acquire(permits) {
            return permit;
        }
        let (granted, permit) = oneshot::channel();
        self.lock().join(Waiter { caller: Caller::current(), permits, granted });
        // Those before it may have left.
        self.serve();
        permit.await.expect("a request leaves the queue with its permit, or when nobody waits for it")
    }

    /// Serves the requests for which there are permits.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.lock().next();
            let Some(Waiter { permits, granted, .. }) = next else { return };
            // If nobody waits for it any more, it is dropped here, and goes back: not under the lock.
            drop(granted.send(FairPermit { semaphore: Arc::clone(self), permits }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.semaphore.lock().free += u64::from(self.permits);
        self.semaphore.serve();
    }
}

impl State {
    fn join(&mut self, waiter: Waiter) {
        self.drop_left();
        let turn = self.turns.join(waiter.caller, waiter.permits.into());
        self.queue.insert((turn, self.arrivals), waiter);
        self.arrivals += 1;
    }

    /// Takes the next request out of the queue, with its permits. None: there are too few, or none waits.
    fn next(&mut self) -> Option<Waiter> {
        self.drop_left();
        let next = self.queue.first_entry()?;
        self.free = self.free.checked_sub(next.get().permits.into())?;
        let ((turn, _), waiter) = next.remove_entry();
        self.turns.serve(turn);
        if self.queue.is_empty() {
            self.turns.clear();
        }
        Some(waiter)
    }

    /// Drops requests from the front for which nobody waits any more.
    fn drop_left(&mut self) {
        while let Some(next) = self.queue.first_entry().filter(|next| next.get().granted.is_closed()) {
            let Waiter { caller, permits, .. } = next.remove();
            self.turns.leave(caller, permits.into());
        }
    }
}

#[cfg(test)]
mod tests;
