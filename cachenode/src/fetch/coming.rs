//! The pieces of blocks that are being fetched, so that a reader of one that comes joins it.
//!
//! Invariant: a piece is here until it is in the window, or its fetch has failed or was given up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_dataset::BlockPart;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::stalls::Phase;

/// The pieces that are being fetched.
#[derive(Debug, Default)]
pub(super) struct ComingPieces(Mutex<Vec<ComingPiece>>);

/// A piece that is being fetched, as its other readers see it.
#[derive(Clone, Debug)]
pub(super) struct ComingPiece {
    piece: BlockPart,
    bytes: watch::Receiver<Option<Bytes>>,
    phase: Arc<Phase>,
}

/// A piece that is being fetched, as its fetch sees it. Dropping it ends the wait of the others.
#[derive(Debug)]
pub(super) struct Landing {
    pieces: Arc<ComingPieces>,
    bytes: watch::Sender<Option<Bytes>>,
    phase: Arc<Phase>,
}

impl ComingPieces {
    fn lock(&self) -> MutexGuard<'_, Vec<ComingPiece>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a piece is being fetched from now on.
    pub(super) fn begin(self: &Arc<Self>, piece: BlockPart) -> Landing {
        let (sender, receiver) = watch::channel(None);
        let phase = Arc::<Phase>::default();
        self.lock().push(ComingPiece { piece, bytes: receiver, phase: Arc::clone(&phase) });
        Landing { pieces: Arc::clone(self), bytes: sender, phase }
    }

    /// The piece that will have all of this part, if one is being fetched.
    pub(super) fn find(&self, part: &BlockPart) -> Option<ComingPiece> {
        let has_it = |coming: &&ComingPiece| {
            let BlockPart { block, start, len, .. } = coming.piece;
            block == part.block && start <= part.start && part.start + part.len <= start + len
        };
        self.lock().iter().find(has_it).cloned()
    }
}

impl ComingPiece {
    /// The thing that its fetch waits for.
    pub(super) fn phase(&self) -> &Arc<Phase> {
        &self.phase
    }

    /// The bytes of a part of the piece. None: the fetch has failed, or has not ended by `deadline`. Cancel-safe.
    pub(super) async fn bytes_of(mut self, part: BlockPart, deadline: Instant) -> Option<Bytes> {
        let landed = timeout_at(deadline, self.bytes.wait_for(Option::is_some)).await;
        let bytes = landed.ok()?.ok()?.clone()?;
        let start = (part.start - self.piece.start) as usize;
        Some(bytes.slice(start..start + part.len as usize))
    }
}

impl Landing {
    /// The thing that the fetch waits for.
    pub(super) fn phase(&self) -> &Arc<Phase> {
        &self.phase
    }

    /// Hands the bytes of the piece to those that wait for them. The window has them.
    pub(super) fn land(self, bytes: Bytes) {
        self.bytes.send_replace(Some(bytes));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let own = self.bytes.subscribe();
        self.pieces.lock().retain(|coming| !coming.bytes.same_channel(&own));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_dataset::BlockIndex;

    use super::*;

    fn part(block: u32, start: u32, len: u32) -> BlockPart {
        BlockPart { block: BlockIndex(block), file_offset: 0, block_len: 1 << 20, start, len }
    }

    #[tokio::test]
    async fn readers_of_a_piece_that_comes_get_its_bytes_or_learn_that_it_does_not() {
        let pieces = Arc::new(ComingPieces::default());
        let deadline = Instant::now() + Duration::from_secs(3600);
        let [landing, other] = [(1, 100), (1, 500)].map(|(block, start)| pieces.begin(part(block, start, 100)));
        for absent in [part(1, 99, 2), part(1, 199, 2), part(2, 100, 1)] {
            assert!(pieces.find(&absent).is_none());
        }
        let [one, late] = [(); 2].map(|()| pieces.find(&part(1, 110, 3)).unwrap());
        let wait = tokio::spawn(one.bytes_of(part(1, 110, 3), deadline));
        landing.land((0..100).collect::<Vec<u8>>().into());
        let expected = Some(Bytes::from_static(&[10, 11, 12]));
        assert_eq!(wait.await.unwrap(), expected);
        assert_eq!(late.bytes_of(part(1, 110, 3), deadline).await, expected);
        assert!(pieces.find(&part(1, 110, 3)).is_none());
        let wait = pieces.find(&part(1, 500, 100)).unwrap();
        drop(other);
        assert_eq!(wait.bytes_of(part(1, 500, 100), deadline).await, None);
        assert!(pieces.lock().is_empty());
    }
}
