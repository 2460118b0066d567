//! Bounds how often something is logged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Each kind of trouble is logged at most this often.
const LOG_EVERY_SECONDS: u64 = 10;

/// Bounds how often something is logged.
#[derive(Debug)]
pub(crate) struct LogPace {
    started: Instant,
    /// When it was last logged, in seconds since `started` plus [`LOG_EVERY_SECONDS`]; 0 if never.
    last: AtomicU64,
}

impl LogPace {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), last: AtomicU64::new(0) }
    }

    /// True for one caller in [`LOG_EVERY_SECONDS`].
    pub(crate) fn is_due(&self) -> bool {
        let now = self.started.elapsed().as_secs() + LOG_EVERY_SECONDS;
        let last = self.last.load(Ordering::Relaxed);
        let is_due = now >= last + LOG_EVERY_SECONDS;
        is_due && self.last.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
