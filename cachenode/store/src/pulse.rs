//! Whether a disk answers. A thread reads a page from it once a second, past the page cache; a disk that leaves such a
//! read unanswered for [`SILENT_AFTER`] is silent, and nobody else waits for it until it answers again.
//!
//! A disk that answers with errors is not silent: reads of it fail at once. Nor is a frozen file system, which answers
//! reads and takes no writes. [`Progress`] therefore says whether writes end.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pause between two reads.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// A busy disk answers within this time. The kernel takes at least 30 s to give up a request.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// When the disk was last asked.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    /// When the read began that is not answered yet, as [`now`](Self::now) counts; 0 if there is none.
    asked_ms: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), asked_ms: AtomicU64::new(0) }
    }

    /// True if the disk does not answer. Costs one load while no read is unanswered.
    pub(crate) fn is_silent(&self) -> bool {
        match self.asked_ms.load(Ordering::Relaxed) {
            0 => false,
            asked_ms => is_silent(asked_ms, self.now()),
        }
    }

    /// Runs `read`, which returns when the disk has answered.
    pub(crate) fn ask(&self, read: impl FnOnce()) {
        self.asked_ms.store(self.now(), Ordering::Relaxed);
        read();
        self.asked_ms.store(0, Ordering::Relaxed);
    }

    /// Milliseconds since the start. The clock begins at 1, and late enough that a read can be overdue at once.
    fn now(&self) -> u64 {
        // The cast truncates after 500 million years.
        (SILENT_AFTER + self.start.elapsed()).as_millis() as u64 + 1
    }

    /// Lets the disk appear silent.
    #[cfg(test)]
    pub(crate) fn silence(&self) {
        self.asked_ms.store(1, Ordering::Relaxed);
    }
}

/// The writes in flight, and when the last of them made progress.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    writes: AtomicUsize,
    /// When a write ended, or began while there was none, in milliseconds since the start.
    at_ms: AtomicU64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), writes: AtomicUsize::new(0), at_ms: AtomicU64::new(0) }
    }

    pub(crate) fn begin(&self) {
        if self.writes.load(Ordering::Relaxed) == 0 {
            self.note();
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.note();
        self.writes.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of writes in flight.
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }

    /// True if writes wait and none has ended for as long as makes a disk silent.
    pub(crate) fn is_stalled(&self) -> bool {
        self.writes() > 0 && is_silent(self.at_ms.load(Ordering::Relaxed), self.now())
    }

    fn note(&self) {
        self.at_ms.store(self.now(), Ordering::Relaxed);
    }

    /// Late enough that a write can be overdue at once.
    fn now(&self) -> u64 {
        // The cast truncates after 500 million years.
        (SILENT_AFTER + self.start.elapsed()).as_millis() as u64
    }

    /// Lets the writes in flight appear stalled.
    #[cfg(test)]
    pub(crate) fn stall(&self) {
        self.at_ms.store(0, Ordering::Relaxed);
    }
}

fn is_silent(asked_ms: u64, now_ms: u64) -> bool {
    Duration::from_millis(now_ms.saturating_sub(asked_ms)) >= SILENT_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_silent_from_the_moment_that_an_answer_is_overdue_until_it_comes() {
        let pulse = Pulse::new();
        assert!(!pulse.is_silent());
        pulse.ask(|| {
            let asked_ms = pulse.asked_ms.load(Ordering::Relaxed);
            let silent_ms = SILENT_AFTER.as_millis() as u64;
            assert!(!is_silent(asked_ms, asked_ms + silent_ms - 1) && is_silent(asked_ms, asked_ms + silent_ms));
            pulse.silence();
            assert!(pulse.is_silent());
        });
        assert!(!pulse.is_silent());
    }

    #[test]
    fn writes_are_stalled_while_there_are_some_of_which_none_ends() {
        let progress = Progress::new();
        progress.stall();
        assert!(!progress.is_stalled(), "there are none");
        progress.begin();
        progress.begin();
        assert!(!progress.is_stalled(), "they have just begun");
        progress.stall();
        progress.begin();
        assert!(progress.is_stalled());
        progress.end();
        assert_eq!((progress.is_stalled(), progress.writes()), (false, 2), "one has ended");
    }
}
