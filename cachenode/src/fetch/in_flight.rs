//! Both ends of a block in flight.
//!
//! The cast: an [`InFlight`] is the end of the consumers, which wait for the outcome or subscribe to the bytes; a
//! [`PendingBlock`] is the end of the fetch, which passes the bytes on and completes the block.
//!
//! Invariant: each pending block is completed exactly once, at the latest when it is dropped.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{BlockPart, FileIndex};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::end::End;
use super::error::FetchError;
use super::outcome::Outcome;
use super::subscribers::{Pieces, Subscriber, Subscribers};

/// How long a waiter with the deadline of its fetch waits beyond it, so that the fetch says itself why it failed.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;

/// A block in flight, as its consumers see it. Each copy counts as a waiter.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    outcome: watch::Receiver<Option<Outcome>>,
    subscribers: Arc<Subscribers>,
    /// Closed when the fetch has left the table of blocks in flight.
    in_table: watch::Receiver<()>,
    /// The fetch asks peers, which must not wait for it in turn.
    pub(super) asks_peers: bool,
    /// When the fetch ends at the latest.
    pub(super) end: End,
}

impl InFlight {
    /// The two ends of a block whose fetch starts now. The sender of `in_table` is dropped when the fetch leaves the
    /// table.
    pub(super) fn start(
        file: FileIndex,
        part: BlockPart,
        asks_peers: bool,
        end: End,
        in_table: watch::Receiver<()>,
    ) -> (Self, PendingBlock) {
        let (sender, outcome) = watch::channel(None);
        let subscribers = Arc::<Subscribers>::default();
        let pending = PendingBlock { file, part, outcome: sender, subscribers: Arc::clone(&subscribers) };
        (Self { outcome, subscribers, in_table, asks_peers, end }, pending)
    }

    /// Waits until the fetch has ended and its blocks were written to the store, or could not be. Does not count as a
    /// waiter. Cancel-safe.
    pub(super) fn written(&self) -> impl Future<Output = ()> + use<> {
        let mut in_table = self.in_table.clone();
        async move {
            // An error: the sender, which sends nothing, was dropped.
            let _ = in_table.changed().await;
        }
    }

    /// Waits until the fetch of the block has ended. Cancel-safe.
    pub(super) async fn outcome(mut self) -> Outcome {
        let outcome = self.outcome.wait_for(Option::is_some).await;
        // A pending block is not dropped before it is completed.
        outcome.ok().and_then(|outcome| outcome.clone()).unwrap_or(Outcome::Failed(FetchError::Stopped))
    }

    /// Waits for the outcome until `deadline`. None if the fetch has not ended by then. Cancel-safe.
    pub(super) async fn outcome_until(self, deadline: Instant) -> Option<Outcome> {
        let ends_before = self.end.deadline().is_some_and(|end| end <= deadline);
        let until = if ends_before { deadline + ENDS_WITHIN } else { deadline };
        timeout_at(until, self.outcome()).await.ok()
    }

    /// The bytes of `range` of the block as they arrive, all from its start, whenever this is called.
    pub(super) fn subscribe(&self, range: Range<usize>) -> Pieces {
        let (subscriber, pieces) = Subscriber::new(range);
        let mut subscribers = self.subscribers.lock();
        // A block is completed under this lock, so no subscriber misses the outcome.
        match &*self.outcome.borrow() {
            None => subscribers.push(subscriber),
            Some(outcome) => subscriber.finish(outcome),
        }
        pieces
    }
}

/// A block in flight, as the fetch sees it.
#[derive(Debug)]
pub(super) struct PendingBlock {
    pub(super) file: FileIndex,
    /// The whole block.
    pub(super) part: BlockPart,
    outcome: watch::Sender<Option<Outcome>>,
    subscribers: Arc<Subscribers>,
}

impl PendingBlock {
    /// How many waiters and subscribers the block has now.
    pub(super) fn waiters(&self) -> usize {
        // One receiver is in the table of blocks in flight.
        self.outcome.receiver_count().saturating_sub(1) + self.subscribers.lock().len()
    }

    /// More of the block has arrived. Its checksum was not checked yet.
    pub(super) fn arrived(&self, block_so_far: &[u8]) {
        self.subscribers.lock().retain_mut(|subscriber| subscriber.send(block_so_far));
    }

    /// The bytes that arrived have the wrong checksum and are fetched again. Subscribers that have received some of
    /// them get an error: they must not get the rest of the right ones.
    pub(super) fn restart(&self) {
        self.subscribers.lock().retain(|subscriber| {
            let has_started = subscriber.has_started();
            if has_started {
                subscriber.finish(&Outcome::Failed(FetchError::Corrupt { block: self.part.block }));
            }
            !has_started
        });
    }

    /// Ends the fetch of the block.
    pub(super) fn complete(self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&self, outcome: Outcome) {
        let mut subscribers = self.subscribers.lock();
        for subscriber in subscribers.drain(..) {
            subscriber.finish(&outcome);
        }
        self.outcome.send_replace(Some(outcome));
    }
}

impl Drop for PendingBlock {
    /// Without an outcome, the task panicked or the runtime is shutting down.
    fn drop(&mut self) {
        if self.outcome.borrow().is_none() {
            self.end(Outcome::Failed(FetchError::Stopped));
        }
    }
}
