//! Checks of large files that an earlier process wrote, before the kernel reads them by itself.
//!
//! One thread makes all checks of a dataset (`checks`), so that a file is checked by one at a time. A
//! file that somebody opens comes first, at the speed of the disk. The scrub of all others reads a block at a time and
//! rests for seven times as long as that took. So it takes an eighth of the time of a disk, however fast that is and
//! however much others read. The datasets of a store take turns at it.

use std::sync::TryLockError;
use std::time::{Duration, Instant};

use larder_dataset::BlockIndex;
use tracing::info;

use super::checks::Next;
use super::shared::Shared;
use crate::config::FileSpan;
use crate::slots::Place;

/// How long a scrub rests after each block, as a multiple of the time that the block took, and at most.
const REST: u32 = 7;
const REST_MOST: Duration = Duration::from_secs(10);

/// Interval between two attempts of a scrub that cannot begin, or whose turn has not come.
const RETRY: Duration = Duration::from_millis(100);

impl Shared {
    /// Checks files until none is to be checked. Called on a thread of its own.
    pub(super) fn run_checks(&self) {
        while let Some(next) = self.checks.next() {
            match next {
                Next::File(span) => self.check(&span),
                Next::Scrub => self.scrub(),
            }
        }
    }

    /// Checks all files that may be lent.
    fn scrub(&self) {
        while self.is_rebuilding() && !self.is_stopped() {
            self.rest(RETRY);
        }
        let (mut right, mut others) = (0_u64, 0_u64);
        for (first, _, _) in self.large.all() {
            let span = self.span_of(first).filter(|span| span.first == first && self.may_lend(span));
            let Some(span) = span.filter(|span| !self.large.is_checked(span)) else { continue };
            let Ok(Some(file)) = self.large.find(&span) else { continue };
            let Ok(identity) = file.identity() else { continue };
            // All blocks, since a wrong one is found sooner here than by its reader.
            let is_right = span.blocks().filter(|block| !self.scrub_block(&span, *block)).count() == 0;
            if self.is_stopped() {
                return;
            }
            if is_right {
                self.large.note_checked(&span, identity);
                right += 1;
            } else {
                others += 1;
            }
        }
        if right + others > 0 {
            info!(dataset = self.config.name, right, others, "large files of earlier processes checked");
        }
    }

    /// Checks a block of a file when it is the turn of this dataset, and rests. Files that somebody has opened
    /// come first.
    fn scrub_block(&self, span: &FileSpan, block: BlockIndex) -> bool {
        let _turn = loop {
            while let Some(span) = self.checks.next_asked() {
                self.check(&span);
            }
            if self.large.is_checked(span) {
                return true;
            }
            if self.is_stopped() {
                return false;
            }
            match self.base.scrubbing.try_lock() {
                Ok(turn) => break turn,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => self.rest(RETRY),
            }
        };
        let begun = Instant::now();
        let is_right = self.mend(block, Place::in_file(true));
        self.rest((begun.elapsed() * REST).min(REST_MOST));
        is_right
    }

    /// Waits, unless a file is asked for or the dataset is being closed.
    fn rest(&self, time: Duration) {
        self.checks.rest(time, || !self.is_stopped());
    }
}
