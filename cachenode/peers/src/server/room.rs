//! What a node's peers may take of it: bytes of blocks on their way to them, and requests under way.
//!
//! Invariant: what a request takes ends with it, however it ends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_cachenode_api::frame::RANGE_BYTES_MOST;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::counters::PeerCounters;

/// After its deadline a request whose peer takes nothing is left alone for so long, then its connection is cut. Peers that
/// work have given it up by then.
pub(super) const CUT_AFTER: Duration = Duration::from_secs(5);

/// How often requests are looked through for those that are overdue.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The room for so many bytes, in permits of one byte; a range fits at least.
fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.max(RANGE_BYTES_MOST.into()))
        .map_or(Semaphore::MAX_PERMITS, |bytes| bytes.min(Semaphore::MAX_PERMITS))
}

/// What all peers have together.
pub(super) struct Room {
    all: Arc<Semaphore>,
    share_bytes: u64,
    /// What each has that has a lane.
    shares: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    requests: Arc<Semaphore>,
    /// When each request that is under way is overdue, and what cuts its connection.
    under_way: Mutex<HashMap<u64, (Instant, CancellationToken)>>,
    next_request: AtomicU64,
    counters: Arc<PeerCounters>,
}

impl Room {
    pub(super) fn new(bytes: u64, share_bytes: u64, requests: usize, counters: Arc<PeerCounters>) -> Self {
        Self {
            all: Arc::new(Semaphore::new(permits(bytes))),
            share_bytes,
            shares: Mutex::default(),
            requests: Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS))),
            under_way: Mutex::default(),
            next_request: AtomicU64::new(0),
            counters,
        }
    }

    fn lock_under_way(&self) -> MutexGuard<'_, HashMap<u64, (Instant, CancellationToken)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The share of a peer, which all its lanes have together.
    pub(super) fn share(&self, peer: IpAddr) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&peer).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(permits(self.share_bytes)));
        shares.insert(peer, Arc::downgrade(&share));
        share
    }

    /// Lets a request in, unless there are too many. It is over when what is returned is dropped.
    pub(super) fn enter(self: &Arc<Self>, deadline: Instant, cut: &CancellationToken) -> Option<Entered> {
        let place = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        self.lock_under_way().insert(number, (deadline, cut.clone()));
        Some(Entered { room: Arc::clone(self), number, _place: place })
    }

    /// Room for a range, first in the peer's share, then in that of all: who waits for the second keeps only its own peer
    /// waiting. `None` if there is none any more.
    pub(super) async fn lease(&self, share: Arc<Semaphore>, bytes: u32) -> Option<Lease> {
        let share = share.acquire_many_owned(bytes).await.ok()?;
        let all = Arc::clone(&self.all).acquire_many_owned(bytes).await.ok()?;
        let now = self.counters.under_way_bytes.fetch_add(bytes.into(), Ordering::Relaxed) + u64::from(bytes);
        self.counters.under_way_bytes_most.fetch_max(now, Ordering::Relaxed);
        Some(Lease { counters: Arc::clone(&self.counters), bytes, _share: share, _all: all })
    }

    /// Cuts the connections of those who do not take what they asked for. Runs until it is dropped.
    pub(super) async fn cut_overdue(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = Instant::now();
            for (due, cut) in self.lock_under_way().values() {
                if now > *due + CUT_AFTER && !cut.is_cancelled() {
                    self.counters.cut.fetch_add(1, Ordering::Relaxed);
                    cut.cancel();
                }
            }
        }
    }
}

/// A request that is under way.
pub(super) struct Entered {
    room: Arc<Room>,
    number: u64,
    _place: OwnedSemaphorePermit,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.room.lock_under_way().remove(&self.number);
    }
}

/// Room that is taken.
pub(super) struct Lease {
    counters: Arc<PeerCounters>,
    bytes: u32,
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.counters.under_way_bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
    }
}
