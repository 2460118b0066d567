//! The progress of a read that another may overtake: whether its answer has begun, and whether it is still needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::first_bytes::FirstBytes;

/// The progress of a read. Shared by the read, its lane and the reader that may give it up.
#[derive(Debug)]
pub(super) struct ReadProgress {
    pub(super) started: Instant,
    has_begun: AtomicBool,
    given_up: CancellationToken,
    /// The recent answers of the read's peer.
    first_bytes: Arc<FirstBytes>,
}

impl ReadProgress {
    /// The progress of a read that starts now.
    pub(super) fn new(first_bytes: Arc<FirstBytes>) -> Arc<Self> {
        let (has_begun, given_up) = (AtomicBool::new(false), CancellationToken::new());
        Arc::new(Self { started: Instant::now(), has_begun, given_up, first_bytes })
    }

    /// Records that bytes arrived.
    pub(super) fn arrives(&self) {
        if !self.has_begun.swap(true, Ordering::Relaxed) && !self.is_given_up() {
            self.first_bytes.note(self.started.elapsed());
        }
    }

    /// True if bytes have arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// The time within which 99 of 100 recent answers of the peer began, if known.
    pub(super) fn usual(&self) -> Option<Duration> {
        self.first_bytes.p99()
    }

    /// Records that another read was faster and this one is no longer needed.
    pub(super) fn overtaken(&self) {
        if !self.has_begun() {
            // The answer would have taken even longer. If such reads were not counted, a slow peer would seem as fast
            // as its fast answers.
            self.first_bytes.note(self.started.elapsed());
        }
        self.give_up();
    }

    /// Marks the read as no longer needed; the lane notifies the peer.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Waits until the read is given up.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}
