//! Failed reads: the disk returned an error, or the record is torn, foreign or rotten.
//!
//! Invariant: a block whose record is flawed is dropped once, and only while its slot still points to that record.

use std::sync::atomic::Ordering;

use larder_dataset::BlockIndex;
use tracing::warn;

use super::shared::Shared;
use super::space::Trouble;
use crate::record::Flaw;
use crate::slots::Place;

impl Shared {
    /// Handles a failed read of a block: counts the failure, logs it, and drops a flawed block.
    pub(super) fn found_trouble(&self, block: BlockIndex, place: Place, trouble: Trouble) {
        if self.slots.get(block) != Some(place) {
            // The block was evicted during the read, which is a plain miss.
            return;
        }
        match trouble {
            Trouble::Unreadable(error) => {
                self.base.counters.read_errors.add(1);
                if !self.base.logged.unreadable.swap(true, Ordering::Relaxed) {
                    warn!(dataset = self.config.name, %block, %error, "the disk failed to read a cached block");
                }
            }
            Trouble::Flaw(flaw) => self.discard(block, place, flaw),
        }
    }

    /// Drops a block whose record is flawed, unless another thread has dropped it already or is about to. Blocks on the
    /// disk.
    pub(super) fn discard(&self, block: BlockIndex, place: Place, flaw: Flaw) {
        let len = self.config.block_lens.len_of(block);
        let mut state = self.lock();
        if state.policy.is_none() {
            state.flawed.insert(block, (place, flaw));
            return;
        }
        let is_there = self.slots.get(block) == Some(place) && !state.pending.contains_key(&block);
        if !is_there || !state.leaving.insert(block) {
            return;
        }
        self.forget(&mut state, block, len.unwrap_or_default());
        drop(state);
        self.count_flaw(block, flaw);
        // A corrupt slot may point into another block's record. The space is freed only if the header proves that the
        // record is this block's.
        self.take_out(block, len.filter(|_| flaw == Flaw::RottenData));
    }

    pub(super) fn count_flaw(&self, block: BlockIndex, flaw: Flaw) {
        let (counters, logged) = (&self.base.counters, &self.base.logged);
        let (counter, logged, reason) = match flaw {
            Flaw::Torn => (&counters.corrupt_torn, &logged.torn, "torn"),
            Flaw::Foreign => (&counters.corrupt_foreign, &logged.foreign, "foreign"),
            Flaw::RottenHeader | Flaw::RottenData => (&counters.corrupt_rotten, &logged.rotten, "rotten"),
        };
        counter.add(1);
        if !logged.swap(true, Ordering::Relaxed) {
            warn!(dataset = self.config.name, %block, reason, "drop a corrupt block: it is fetched again");
        }
    }
}
