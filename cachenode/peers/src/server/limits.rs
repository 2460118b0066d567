//! Bounds the resources that peers can take from a node: bytes of blocks in flight to them, and requests in flight.
//!
//! Invariant: everything that a request takes is released when the request ends, in any way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_cachenode_api::frame::RANGE_BYTES_MOST;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::counters::PeerCounters;

/// How long after its deadline a request may remain before its connection is closed, because the peer has stopped
/// reading. A working peer has given up the request by then.
pub(super) const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// How often overdue requests are searched for.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Converts bytes to permits of one byte each. There are at least enough for one range.
fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.max(RANGE_BYTES_MOST.into()))
        .map_or(Semaphore::MAX_PERMITS, |bytes| bytes.min(Semaphore::MAX_PERMITS))
}

/// The limits of all peers together, and of each peer.
pub(super) struct AnswerLimits {
    all: Arc<Semaphore>,
    share_bytes: u64,
    /// The share of the bytes in flight of each peer that has a lane.
    shares: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    requests: Arc<Semaphore>,
    /// The deadline of each request in flight, and the token that closes its connection.
    in_flight: Mutex<HashMap<u64, (Instant, CancellationToken)>>,
    next_request: AtomicU64,
    counters: Arc<PeerCounters>,
}

impl AnswerLimits {
    pub(super) fn new(bytes: u64, share_bytes: u64, requests: usize, counters: Arc<PeerCounters>) -> Self {
        Self {
            all: Arc::new(Semaphore::new(permits(bytes))),
            share_bytes,
            shares: Mutex::default(),
            requests: Arc::new(Semaphore::new(requests.clamp(1, Semaphore::MAX_PERMITS))),
            in_flight: Mutex::default(),
            next_request: AtomicU64::new(0),
            counters,
        }
    }

    fn lock_in_flight(&self) -> MutexGuard<'_, HashMap<u64, (Instant, CancellationToken)>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The share of a peer. All its lanes use it together.
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

    /// Admits a request; dropping the permit ends it. `None` if too many requests are in flight.
    pub(super) fn admit(self: &Arc<Self>, deadline: Instant, cancel: &CancellationToken) -> Option<RequestPermit> {
        let permit = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        self.lock_in_flight().insert(number, (deadline, cancel.clone()));
        Some(RequestPermit { limits: Arc::clone(self), number, _permit: permit })
    }

    /// Reserves a range's bytes. Waits first for the peer's share, then for the total, so that a request that waits for
    /// the total delays only its own peer. `None` if the limits are closed.
    pub(super) async fn reserve(&self, share: Arc<Semaphore>, bytes: u32) -> Option<BytesPermit> {
        let share = share.acquire_many_owned(bytes).await.ok()?;
        let all = Arc::clone(&self.all).acquire_many_owned(bytes).await.ok()?;
        let now = self.counters.under_way_bytes.fetch_add(bytes.into(), Ordering::Relaxed) + u64::from(bytes);
        self.counters.under_way_bytes_most.fetch_max(now, Ordering::Relaxed);
        Some(BytesPermit { counters: Arc::clone(&self.counters), bytes, _share: share, _all: all })
    }

    /// Closes the connections of peers that stopped reading. Never returns.
    pub(super) async fn close_overdue(&self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let now = Instant::now();
            for (deadline, cancel) in self.lock_in_flight().values() {
                if now > *deadline + OVERDUE_AFTER && !cancel.is_cancelled() {
                    self.counters.cut.fetch_add(1, Ordering::Relaxed);
                    cancel.cancel();
                }
            }
        }
    }
}

/// A request in flight; dropping it ends the count.
pub(super) struct RequestPermit {
    limits: Arc<AnswerLimits>,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.limits.lock_in_flight().remove(&self.number);
    }
}

/// Bytes in flight; dropping the permit returns them to both limits.
pub(super) struct BytesPermit {
    counters: Arc<PeerCounters>,
    bytes: u32,
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Drop for BytesPermit {
    fn drop(&mut self) {
        self.counters.under_way_bytes.fetch_sub(self.bytes.into(), Ordering::Relaxed);
    }
}
