//! A flight as those see it who sit on it, wait for it, or look it up in the list.
//!
//! The cast: a [`Flight`] is what waits are made of, a [`Seat`] has the other end; a [`Follower`] takes a part of the block as
//! it comes, to pass it on to another node, which checks it.
//!
//! Invariants: a block is on the list from before anybody waits for it until [`Listed`] lets go of it, at the latest when the
//! task ends, however it does. A follower gets bytes of one attempt alone, or an error.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use tokio::sync::{mpsc, watch};

use super::{FetchError, Fetcher, Tier};
use crate::counters::StatsCounters;

/// How a flight ended.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    Bytes(Bytes, Tier),
    /// A warming flight that the store had no room for; nothing was fetched.
    NotKept,
    /// A flight that was to bring the block along, and did not.
    LeftOut,
    Failed(FetchError),
}

/// Who follows a block is told when so much more of it is there.
const PIECE_BYTES: usize = 256 << 10;

/// The most pieces that a block comes in, and how it ends.
const PIECES_MOST: usize = BLOCK_BYTES as usize / PIECE_BYTES + 1;

/// A flight under way, as those see it who wait for it.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) landed: watch::Receiver<Option<Landed>>,
    followers: Arc<Followers>,
    /// It asks other nodes, which must not wait for it in turn.
    pub(super) asks_peers: bool,
}

/// What comes of a part of a block: its bytes, piece after piece, or why there are no more. Closed before all is there, and
/// without a reason: the block is not on this flight.
pub(super) type Pieces = mpsc::Receiver<Result<Bytes, FetchError>>;

impl Flight {
    /// A flight, and the seat of its block.
    pub(super) fn new(file: FileIndex, part: BlockPart, asks_peers: bool) -> (Self, Seat) {
        let (sender, landed) = watch::channel(None);
        let followers = Arc::<Followers>::default();
        let seat = Seat { file, part, sender, followers: Arc::clone(&followers) };
        (Self { landed, followers, asks_peers }, seat)
    }

    /// The bytes of `range` of the block as they come, from its start on whenever this is called.
    pub(super) fn follow(&self, range: Range<usize>) -> Pieces {
        let (pieces, receiver) = mpsc::channel(PIECES_MOST);
        let follower = Follower { sent: range.start, range, pieces };
        let mut followers = self.followers.lock();
        // Landing happens under this lock: whoever comes later is told here.
        match &*self.landed.borrow() {
            None => followers.push(follower),
            Some(landed) => follower.end(landed),
        }
        receiver
    }
}

#[derive(Debug, Default)]
struct Followers(Mutex<Vec<Follower>>);

impl Followers {
    fn lock(&self) -> MutexGuard<'_, Vec<Follower>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Follower {
    /// What it wants of the block.
    range: Range<usize>,
    /// Up to here it has it.
    sent: usize,
    /// Has room for all that can come.
    pieces: mpsc::Sender<Result<Bytes, FetchError>>,
}

impl Follower {
    /// Passes on what came, if that is much; false if nobody listens any more.
    fn tell(&mut self, block_so_far: &[u8]) -> bool {
        let end = self.range.end.min(block_so_far.len());
        if end < self.sent + PIECE_BYTES || end == self.range.end {
            return true;
        }
        let piece = Bytes::copy_from_slice(&block_so_far[self.sent..end]);
        self.sent = end;
        self.pieces.try_send(Ok(piece)).is_ok()
    }

    fn end(&self, landed: &Landed) {
        let last = match landed {
            Landed::Bytes(block, _) => Ok(block.slice(self.sent..self.range.end)),
            Landed::Failed(error) => Err(error.clone()),
            Landed::NotKept | Landed::LeftOut => return,
        };
        // Nobody listens any more.
        let _ = self.pieces.try_send(last);
    }
}

/// A block on a flight, and how those hear of it who wait.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) file: FileIndex,
    /// The whole block.
    pub(super) part: BlockPart,
    sender: watch::Sender<Option<Landed>>,
    followers: Arc<Followers>,
}

impl Seat {
    /// How many wait for the block, or did.
    pub(super) fn riders(&self) -> usize {
        // One is on the list of flights.
        self.sender.receiver_count().saturating_sub(1) + self.followers.lock().len()
    }

    /// More of the block has come; none of it was looked at.
    pub(super) fn tell(&self, block_so_far: &[u8]) {
        self.followers.lock().retain_mut(|follower| follower.tell(block_so_far));
    }

    /// What has come is not the block: it comes once more, and who has some of it must not get the rest of that.
    pub(super) fn begins_again(&self) {
        self.followers.lock().retain(|follower| {
            let clean = follower.sent == follower.range.start;
            if !clean {
                follower.end(&Landed::Failed(FetchError::Corrupt { block: self.part.block }));
            }
            clean
        });
    }

    pub(super) fn land(&self, landed: Landed) {
        let mut followers = self.followers.lock();
        for follower in followers.drain(..) {
            follower.end(&landed);
        }
        self.sender.send_replace(Some(landed));
    }
}

impl Drop for Seat {
    /// The task panicked, or the runtime is shutting down.
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            self.land(Landed::Failed(FetchError::Stopped));
        }
    }
}

/// Waits until a flight has landed.
pub(super) async fn landed(mut flight: Flight) -> Landed {
    let landed = flight.landed.wait_for(Option::is_some).await;
    // A seat does not go before it has landed.
    landed.ok().and_then(|landed| landed.clone()).unwrap_or(Landed::Failed(FetchError::Stopped))
}

/// Takes a flight off the list when it is over, however it ended.
pub(super) struct Listed {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) blocks: Vec<BlockIndex>,
}

impl Listed {
    /// Blocks that are not brought after all. Who waits for one may start a flight of its own from now on.
    pub(super) fn leave(&mut self, seats: Vec<Seat>) {
        let mut flights = self.fetcher.lock_flights();
        for seat in &seats {
            flights.remove(&seat.part.block);
        }
        drop(flights);
        self.blocks.retain(|block| seats.iter().all(|seat| seat.part.block != *block));
        for seat in seats {
            seat.land(Landed::LeftOut);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut flights = self.fetcher.lock_flights();
        for block in &self.blocks {
            flights.remove(block);
        }
    }
}

/// Counts a fetch as running until it is over.
pub(super) struct Running(Arc<StatsCounters>);

impl Running {
    pub(super) fn new(counters: &Arc<StatsCounters>) -> Self {
        counters.fetches_running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counters))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetches_running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1_000_000;

    fn flight() -> (Flight, Seat, Bytes) {
        let block = BlockIndex(1);
        let part = BlockPart { block, block_len: LEN as u32, start: 0, len: LEN as u32, file_offset: 0 };
        let (flight, seat) = Flight::new(FileIndex(0), part, false);
        (flight, seat, (0..LEN).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect())
    }

    fn next(pieces: &mut Pieces) -> Bytes {
        pieces.try_recv().unwrap().unwrap()
    }

    #[test]
    fn who_follows_has_its_part_piece_by_piece_whenever_it_came() {
        let (flight, seat, block) = flight();
        let mut whole = flight.follow(0..LEN);
        let mut part = flight.follow(100..400_000);
        seat.tell(&block[..PIECE_BYTES - 1]);
        assert!(whole.try_recv().is_err(), "so little is not worth it");
        seat.tell(&block[..300_000]);
        assert_eq!((next(&mut whole), next(&mut part)), (block.slice(..300_000), block.slice(100..300_000)));
        let mut late = flight.follow(0..LEN);
        seat.tell(&block[..600_000]);
        assert_eq!((next(&mut whole), next(&mut late)), (block.slice(300_000..600_000), block.slice(..600_000)));
        assert!(part.try_recv().is_err(), "its end waits until the block was looked at");
        assert_eq!(seat.riders(), 3);
        seat.land(Landed::Bytes(block.clone(), Tier::Origin));
        assert_eq!((next(&mut whole), next(&mut late)), (block.slice(600_000..), block.slice(600_000..)));
        assert_eq!(next(&mut part), block.slice(300_000..400_000));
        assert_eq!(next(&mut flight.follow(5..LEN)), block.slice(5..), "it has landed");
        for mut pieces in [whole, part, late] {
            assert_eq!(pieces.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected));
        }
    }

    #[test]
    fn who_has_some_of_wrong_bytes_does_not_get_the_rest_of_right_ones() {
        let (flight, seat, block) = flight();
        let (mut some, mut none) = (flight.follow(0..LEN), flight.follow(900_000..LEN));
        let wrong = vec![0; LEN];
        seat.tell(&wrong[..600_000]);
        seat.begins_again();
        assert!(some.try_recv().unwrap().is_ok());
        assert!(matches!(some.try_recv().unwrap(), Err(FetchError::Corrupt { .. })));
        assert!(some.try_recv().is_err());
        seat.tell(&block[..300_000]);
        seat.land(Landed::Bytes(block.clone(), Tier::Origin));
        assert_eq!(next(&mut none), block.slice(900_000..));
    }

    #[test]
    fn whoever_waits_hears_of_the_end_however_it_comes() {
        let (flight, seat, _) = flight();
        let mut pieces = flight.follow(0..LEN);
        drop(seat);
        assert!(matches!(pieces.try_recv().unwrap(), Err(FetchError::Stopped)));
        assert!(matches!(flight.follow(0..LEN).try_recv().unwrap(), Err(FetchError::Stopped)));
        assert!(matches!(*flight.landed.borrow(), Some(Landed::Failed(FetchError::Stopped))));

        let (flight, seat, _) = self::flight();
        let mut pieces = flight.follow(0..LEN);
        seat.land(Landed::LeftOut);
        assert_eq!(pieces.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected), "another flight has it");
    }

    #[test]
    fn who_went_away_is_forgotten() {
        let (flight, seat, block) = flight();
        drop(flight.follow(0..LEN));
        assert_eq!(seat.riders(), 1);
        seat.tell(&block[..600_000]);
        assert_eq!(seat.riders(), 0);
    }
}
