//! The reads of a lane that wait for their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_cachenode_api::frame::WireRange;
use tokio::sync::{Notify, oneshot};

use crate::client::error::{Failure, RequestError};
use crate::client::progress::ReadProgress;
use crate::counters::Cause;

/// A read that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) range: WireRange,
    /// The bytes of the range received so far, and their CRC32C.
    pub(super) received: Option<(Vec<u8>, u32)>,
    /// Records the arrival of bytes, if another read may overtake this one.
    pub(super) progress: Option<Arc<ReadProgress>>,
    /// Closed when the reader no longer waits.
    pub(super) answer: oneshot::Sender<Result<Bytes, RequestError>>,
}

#[derive(Debug, Default)]
struct Reads {
    by_tag: HashMap<u32, PendingRead>,
    next_tag: u32,
    /// The peer sent a goodbye: it answers the reads that it has received and accepts no more.
    leaving: bool,
    /// The failure that ended the lane, if it has ended.
    ended: Option<Failure>,
}

/// State shared by readers and the lane's task.
#[derive(Debug, Default)]
pub(super) struct PendingReads {
    reads: Mutex<Reads>,
    /// Notified when a read is added to an empty set.
    added: Notify,
    /// Increases whenever bytes arrive.
    arrivals: AtomicU64,
}

impl PendingReads {
    fn lock(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, reads: &mut Reads, tag: u32, read: PendingRead) {
        if reads.by_tag.is_empty() {
            self.added.notify_one();
        }
        reads.by_tag.insert(tag, read);
    }

    /// Adds a read and returns its tag.
    pub(super) fn add(&self, read: PendingRead) -> Result<u32, Failure> {
        let mut reads = self.lock();
        if let Some(failure) = &reads.ended {
            return Err(failure.clone());
        }
        if reads.leaving {
            return Err(Failure::new(Cause::Broken, "the peer is closing the connection"));
        }
        let tag = reads.next_tag;
        reads.next_tag = tag.wrapping_add(1);
        self.insert(&mut reads, tag, read);
        Ok(tag)
    }

    /// Removes a read, in order to deliver its answer or a piece of it.
    pub(super) fn take(&self, tag: u32) -> Result<PendingRead, Failure> {
        let read = self.lock().by_tag.remove(&tag);
        read.ok_or_else(|| Failure::new(Cause::WrongBlock, "the peer answered a read that was not sent"))
    }

    /// Puts a read back that waits for another piece.
    pub(super) fn put_back(&self, tag: u32, read: PendingRead) {
        let mut reads = self.lock();
        self.insert(&mut reads, tag, read);
    }

    /// Accepts no more reads, because the peer sent a goodbye.
    pub(super) fn leave(&self) {
        self.lock().leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// True if the peer sent a goodbye and has answered every read.
    pub(super) fn has_left(&self) -> bool {
        let reads = self.lock();
        reads.leaving && reads.by_tag.is_empty()
    }

    /// True if no more reads can be added.
    pub(super) fn is_closed(&self) -> bool {
        let reads = self.lock();
        reads.leaving || reads.ended.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().by_tag.is_empty()
    }

    /// Waits until a read is added to an empty set.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Notes that bytes arrived.
    pub(super) fn arrived(&self) {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that increases whenever bytes arrive.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Ends the lane: fails every pending read and every later one.
    pub(super) fn end(&self, failure: Failure) {
        let mut reads = self.lock();
        let pending = std::mem::take(&mut reads.by_tag);
        reads.ended = Some(failure.clone());
        drop(reads);
        for read in pending.into_values() {
            // The reader may have been dropped.
            let _ = read.answer.send(Err(RequestError::Failed(failure.clone())));
        }
    }
}

/// Ends the lane when dropped, even if the lane's task is dropped early.
pub(super) struct EndOnDrop(pub(super) Arc<PendingReads>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.0.lock().ended.is_none() {
            self.0.end(Failure::new(Cause::Broken, "the connection was closed"));
        }
    }
}
