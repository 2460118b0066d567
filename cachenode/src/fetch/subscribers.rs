//! The subscribers of a block in flight. Each receives a part of the block in pieces while the block arrives, to pass
//! them on to a peer, which checks them.
//!
//! Invariant: a subscriber gets the bytes of one attempt only, or an error.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_dataset::BLOCK_BYTES;
use tokio::sync::mpsc;

use super::error::FetchError;
use super::outcome::Outcome;

/// The size of a piece. Smaller ones are sent only at the end of a part.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// The most pieces of a block, with the outcome.
const PIECES_MOST: usize = BLOCK_BYTES as usize / PIECE_BYTES + 1;

/// A part of a block, piece by piece, or the error that ends it. If it is closed early without an error, the fetch does
/// not include the block.
pub(super) type Pieces = mpsc::Receiver<Result<Bytes, FetchError>>;

/// All subscribers of a block in flight.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Subscriber>>);

impl Subscribers {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Subscriber>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscriber of a part of a block.
#[derive(Debug)]
pub(super) struct Subscriber {
    /// The part, as a range of the block.
    range: Range<usize>,
    /// The end of what was sent.
    sent: usize,
    /// Has room for all pieces.
    pieces: mpsc::Sender<Result<Bytes, FetchError>>,
}

impl Subscriber {
    /// A subscriber of `range`, and its pieces.
    pub(super) fn new(range: Range<usize>) -> (Self, Pieces) {
        let (pieces, receiver) = mpsc::channel(PIECES_MOST);
        (Self { sent: range.start, range, pieces }, receiver)
    }

    /// True if it has received bytes.
    pub(super) fn has_started(&self) -> bool {
        self.sent > self.range.start
    }

    /// Sends the next piece once enough has arrived; false if the receiver is gone. The end of the part is not sent
    /// before the block's checksum was checked.
    pub(super) fn send(&mut self, block_so_far: &[u8]) -> bool {
        let end = self.range.end.min(block_so_far.len());
        if end < self.sent + PIECE_BYTES || end == self.range.end {
            return true;
        }
        let piece = Bytes::copy_from_slice(&block_so_far[self.sent..end]);
        self.sent = end;
        self.pieces.try_send(Ok(piece)).is_ok()
    }

    /// Sends the rest of the part, or the error.
    pub(super) fn finish(&self, outcome: &Outcome) {
        let last = match outcome {
            Outcome::Fetched(block, _) => Ok(block.slice(self.sent..self.range.end)),
            Outcome::Failed(error) => Err(error.clone()),
            Outcome::NotAdmitted | Outcome::InPieces | Outcome::Skipped => return,
        };
        // An error means that the receiver is gone.
        let _ = self.pieces.try_send(last);
    }
}
