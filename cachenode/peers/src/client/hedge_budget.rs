//! Limits how often a second peer may be asked: a few times for each hundred reads.
//!
//! Invariant: the number of hedges is at most the burst plus the configured percentage of the reads, even if many reads
//! start at the same time.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a hedge. Each read earns as many units as hedges are allowed per hundred reads.
const HEDGE: u32 = 100;

/// The remaining budget for hedges. All reads of a node share it.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    left: AtomicU32,
    most: u32,
    percent: u32,
}

impl HedgeBudget {
    /// Allows `burst` hedges immediately, and `percent` more for each hundred reads.
    pub(super) fn new(burst: u32, percent: u32) -> Self {
        let most = burst.saturating_mul(HEDGE);
        Self { left: AtomicU32::new(most), most, percent }
    }

    /// Adds what one read earns. Call it for each read that could be hedged.
    pub(super) fn earn(&self) {
        let earned = |left: u32| Some(left.saturating_add(self.percent).min(self.most));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earned);
    }

    /// Takes the cost of one hedge. False if the budget is too low.
    pub(super) fn spend(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(HEDGE)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_than_the_burst_and_what_reads_earn() {
        let budget = HedgeBudget::new(10, 5);
        assert_eq!((0..50).filter(|_| budget.spend()).count(), 10);
        let hedges = (0..1000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert_eq!(hedges.count(), 50, "one read in twenty");
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..50).filter(|_| budget.spend()).count(), 10, "a pause saves up a burst and no more");
        assert!(!HedgeBudget::new(0, 5).spend());
    }
}
