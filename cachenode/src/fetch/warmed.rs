//! Fetches blocks to fill the store, and reports the outcome of each.

use std::sync::Arc;

use larder_dataset::{BlockPart, FileIndex};
use larder_origin::Urgency;
use tokio::sync::OwnedSemaphorePermit;

use super::Fetcher;
use super::end::End;
use super::error::FetchError;
use super::outcome::{Outcome, Warmed};
use super::purpose::Purpose;
use crate::extent::EXTENT_BYTES;
use crate::sharing::Asker;

/// A fetch that was joined may have been a reader's, whose block the store did not admit. The next one is for the
/// store.
const FETCHES_MOST: u32 = 2;

impl Fetcher {
    /// True if the store has room for the whole dataset.
    pub(crate) fn keeps_all(&self) -> bool {
        self.context.cache.usage().capacity_bytes >= self.context.manifest.totals().bytes
    }

    /// True while the store admits nothing, because its disk failed.
    pub(crate) fn is_degraded(&self) -> bool {
        self.context.cache.usage().degraded.is_some()
    }

    /// Lets the next block try a disk that failed, although the pause after its failure has not ended.
    pub(crate) fn try_disk_again(&self) {
        self.context.cache.try_disk_again();
    }

    /// Fetches a block into the store, unless the store does not admit it. `alone`: without neighbours in its pack.
    /// Drops `turn` when the store has decided about the block. Returns when the block was written.
    pub(crate) async fn warm(
        self: &Arc<Self>,
        file: FileIndex,
        whole: BlockPart,
        alone: bool,
        mut turn: Option<OwnedSemaphorePermit>,
    ) -> Warmed {
        let purpose = if alone { Purpose::WarmAlone } else { Purpose::Warm };
        // Before there is a fetch that a reader could join.
        self.keeper.store_is_counted().await;
        self.keeper.blocks_are_adopted().await;
        // Another fetch may have brought the block, or be about to, when it is its turn to be paid for.
        let unpaid_bytes = || {
            let is_here = matches!(self.warmed(file, &whole), Warmed::Kept | Warmed::NotOurs);
            let is_coming = is_here || self.in_flight.get(whole.block).is_some();
            if is_coming { 0 } else { u64::from(whole.block_len) }
        };
        let neighbours = if alone || !self.context.manifest.is_packed() { 0 } else { EXTENT_BYTES as u32 };
        let kib_most = ((whole.block_len + neighbours) >> 10) + 1;
        let (mut fetches, mut memory) = (0, None);
        loop {
            let state = self.warmed(file, &whole);
            let is_left_out = state == Warmed::LeftOut && purpose == Purpose::Warm;
            if matches!(state, Warmed::Kept | Warmed::NotOurs) || is_left_out || fetches == FETCHES_MOST {
                return state;
            }
            let joined = self.in_flight.get(whole.block);
            let was_joined = joined.is_some();
            let in_flight = match joined {
                Some(in_flight) => {
                    // The blocks that follow can use them.
                    (turn, memory) = (None, None);
                    in_flight
                }
                None if memory.is_none() => {
                    // Before there is a fetch that a reader could join, since this waits for the disk. The rate comes
                    // first: that may take long, and nothing is held meanwhile.
                    if let Some(rate) = &self.context.config.warm_rate {
                        rate.wait_for(unpaid_bytes, &Urgency::low()).await;
                    }
                    memory = Some(self.keeper.memory_to_warm(kib_most).await);
                    continue;
                }
                None => self.join_or_start_in_turn(file, whole, purpose, End::open(), turn.take()).0,
            };
            let written = in_flight.written();
            match in_flight.outcome().await {
                Outcome::Fetched(..) => {
                    written.await;
                    fetches += 1;
                }
                Outcome::NotAdmitted => return self.warmed(file, &whole),
                // It began earlier. The next one has the whole time.
                Outcome::Failed(FetchError::TimedOut { .. }) if was_joined && fetches == 0 => fetches += 1,
                Outcome::Failed(_) => return Warmed::Failed,
                // The fetch that was joined was for a reader.
                Outcome::InPieces | Outcome::Skipped => {}
            }
        }
    }

    /// The result to report for a block for which nothing more is done.
    pub(crate) fn warmed(&self, file: FileIndex, whole: &BlockPart) -> Warmed {
        let cache = &self.context.cache;
        if cache.contains(whole.block) {
            return Warmed::Kept;
        }
        if !self.peers.route(file, whole.block, Asker::Here).keep {
            return Warmed::NotOurs;
        }
        match cache.usage().degraded {
            Some(why) => Warmed::Unkept(why),
            None if cache.leaves_out(whole.block, whole.block_len) => Warmed::LeftOut,
            None => Warmed::NoRoom,
        }
    }
}
