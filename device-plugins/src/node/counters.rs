//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::XidAction;

/// The counters of the program.
#[derive(Debug, Default)]
pub struct Counters {
    /// Events that were made.
    pub events: AtomicU64,
    /// Events that were not made: there were too many, they were refused, or the API was away for too long.
    pub events_dropped: AtomicU64,
    /// Requests to the API that failed.
    pub api_errors: AtomicU64,
    /// Writes of the node's labels and of its condition.
    pub node_writes: AtomicU64,
    /// Xids, by what follows from them.
    xids: [AtomicU64; 5],
}

impl Counters {
    /// Counts an Xid.
    pub fn count_xid(&self, action: XidAction) {
        self.xids[action as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of Xids with this action.
    pub fn xids(&self, action: XidAction) -> u64 {
        self.xids[action as usize].load(Ordering::Relaxed)
    }
}
