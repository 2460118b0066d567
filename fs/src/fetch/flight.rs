//! A flight as those see it who sit on it, wait for it, or look it up in the list.
//!
//! Invariant: a block is on the list from before anybody waits for it until [`Listed`] lets go of it, at the latest when the
//! task ends, however it does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart, FileIndex};
use tokio::sync::watch;

use super::{FetchError, Fetcher, Tier};
use crate::stats::StatsCounters;

/// How a flight ended.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    Bytes(Bytes, Tier),
    /// A warming flight that the store had no room for; nothing was fetched.
    NotKept,
    /// A flight that was to bring the block along, and did not.
    LeftOut,
    Failed(FetchError),
}

/// A flight under way, as those see it who wait for it.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) landed: watch::Receiver<Option<Landed>>,
    /// It asks other nodes, which must not wait for it in turn.
    pub(super) asks_peers: bool,
}

/// A block on a flight, and how those hear of it who wait.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) file: FileIndex,
    /// The whole block.
    pub(super) part: BlockPart,
    pub(super) sender: watch::Sender<Option<Landed>>,
}

impl Seat {
    /// How many wait for the block, or did.
    pub(super) fn riders(&self) -> usize {
        // One is on the list of flights.
        self.sender.receiver_count().saturating_sub(1)
    }

    pub(super) fn land(&self, landed: Landed) {
        self.sender.send_replace(Some(landed));
    }
}

/// Waits until a flight has landed.
pub(super) async fn landed(mut flight: Flight) -> Landed {
    match flight.landed.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(landed)) => landed.clone(),
        // The sender was dropped: the task panicked, or the runtime is shutting down.
        Ok(None) | Err(_) => Landed::Failed(FetchError::Stopped),
    }
}

/// Takes a flight off the list when it is over, however it ended.
pub(super) struct Listed {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) blocks: Vec<BlockIndex>,
}

impl Listed {
    /// Blocks that are not brought after all. Who waits for one may start a flight of its own from now on.
    pub(super) fn leave(&mut self, seats: Vec<Seat>) {
        let mut flights = self.fetcher.lock_flights();
        for seat in &seats {
            flights.remove(&seat.part.block);
        }
        drop(flights);
        self.blocks.retain(|block| seats.iter().all(|seat| seat.part.block != *block));
        for seat in seats {
            seat.land(Landed::LeftOut);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut flights = self.fetcher.lock_flights();
        for block in &self.blocks {
            flights.remove(block);
        }
    }
}

/// Counts a fetch as running until it is over.
pub(super) struct Running(Arc<StatsCounters>);

impl Running {
    pub(super) fn new(counters: &Arc<StatsCounters>) -> Self {
        counters.fetches_running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counters))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetches_running.fetch_sub(1, Ordering::Relaxed);
    }
}
