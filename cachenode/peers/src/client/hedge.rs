//! Reads from one of several peers. If a peer fails, the next one is asked. If the first peer does not begin to answer,
//! a second one is asked at the same time: a *hedge*.
//!
//! A hedge asks only for what the second peer has cached. It therefore causes no request to the origin, to a third
//! node, or to a node that may be waiting for this one. A read makes at most one hedge: when the answer has not begun
//! after about as long as 99 of 100 answers of that peer take, or when it has begun and stalls. The budget limits how
//! often reads hedge.
//!
//! Invariants: at most two peers are asked at a time. The read ends with the first right bytes. A peer whose answer is
//! no longer needed is notified, and is judged by its reaction. A dead peer is therefore found although no reader
//! waited for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use larder_dataset::Chain;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::error::PeerError;
use super::peers::Peers;
use super::progress::ReadProgress;
use crate::read::ReadRequest;

/// The counters of a reader that reads from one of several peers.
#[derive(Clone, Copy, Debug)]
pub struct HedgeCounts<'a> {
    /// Peers that failed, refused, or returned wrong bytes.
    pub failed: &'a AtomicU64,
    /// Reads for which a second peer was asked before the first had failed.
    pub hedges: &'a AtomicU64,
    /// Hedged reads that the second peer answered first.
    pub hedges_won: &'a AtomicU64,
}

/// A read that has ended.
struct Ended {
    /// The index of the peer that was read from.
    peer: usize,
    is_hedge: bool,
    outcome: Result<Bytes, PeerError>,
}

type Reads = FuturesUnordered<BoxFuture<'static, Ended>>;

impl Peers {
    /// Reads a range from one of `peers`, which are asked in this order, and returns the first right bytes. `None` if
    /// no peer has them. Each read is bounded in time like [`read`](Self::read), and is as cancel-safe.
    pub async fn read_from_any(
        self: &Arc<Self>,
        peers: &[(&str, ReadRequest)],
        is_right: impl Fn(&Bytes) -> bool,
        counts: HedgeCounts<'_>,
    ) -> Option<Bytes> {
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        if let [(name, request)] = peers {
            let bytes = right(name, self.read(name, request).await, &is_right);
            if bytes.is_none() {
                add(counts.failed);
            }
            return bytes;
        }
        self.hedges.earn();
        let mut reads = Reads::default();
        let mut next = 0;
        let (mut first, mut hedge) = (None::<Arc<ReadProgress>>, None::<Arc<ReadProgress>>);
        let mut hedge_at = None;
        loop {
            if reads.is_empty() {
                let (name, request) = peers.get(next)?;
                let (read, progress) = self.start(next, name, request.clone(), false);
                next += 1;
                if hedge.is_none() && next < peers.len() {
                    hedge_at = Some(progress.started + self.hedge_after(&progress));
                }
                reads.push(read);
                first = Some(progress);
            }
            tokio::select! {
                biased;
                Some(Ended { peer, is_hedge, outcome }) = reads.next() => {
                    // A hedge that is refused is no failure: the second peer just does not have the block cached.
                    let has_failed = !(is_hedge && matches!(outcome, Err(PeerError::Refused { .. })));
                    let Some(bytes) = right(peers[peer].0, outcome, &is_right) else {
                        counts.failed.fetch_add(has_failed.into(), Ordering::Relaxed);
                        if !is_hedge {
                            hedge_at = None;
                        }
                        continue;
                    };
                    if is_hedge {
                        add(counts.hedges_won);
                        first.iter().for_each(|progress| progress.overtaken());
                    } else {
                        hedge.iter().for_each(|progress| progress.give_up());
                    }
                    if !reads.is_empty() {
                        self.context.tasks.spawn(async move { while reads.next().await.is_some() {} });
                    }
                    return Some(bytes);
                }
                () = until(hedge_at) => {
                    hedge_at = None;
                    let (name, request) = &peers[next];
                    if let Some(progress) = first.as_ref().filter(|progress| progress.has_begun()) {
                        let config = &self.context.config;
                        let stalls = progress.started + config.hedge_after_most + config.transfer(request.range.len);
                        if Instant::now() < stalls {
                            hedge_at = Some(stalls);
                            continue;
                        }
                    }
                    // Do not hedge to a peer that is down or on trial: it may fail this read too.
                    if !self.peer(name).is_ok_and(|peer| peer.works()) {
                        continue;
                    }
                    if !self.hedges.spend() {
                        add(&self.context.counters.hedges_held_back);
                        continue;
                    }
                    add(counts.hedges);
                    let request = ReadRequest { forwarded: true, cached_only: true, ..request.clone() };
                    let (read, progress) = self.start(next, name, request, true);
                    reads.push(read);
                    hedge = Some(progress);
                }
            }
        }
    }

    /// Starts a read from the peer at position `at`. Another read may overtake it.
    fn start(
        self: &Arc<Self>,
        at: usize,
        name: &str,
        request: ReadRequest,
        is_hedge: bool,
    ) -> (BoxFuture<'static, Ended>, Arc<ReadProgress>) {
        let peer = self.peer(name);
        let first_bytes = peer.as_ref().map(|peer| Arc::clone(&peer.first_bytes)).unwrap_or_default();
        let progress = ReadProgress::new(first_bytes);
        let (peers, own_progress) = (Arc::clone(self), Arc::clone(&progress));
        let read = async move {
            let outcome = match peer {
                Ok(peer) => peers.read_over(&peer, &request, Some(&own_progress)).await,
                Err(error) => Err(error),
            };
            Ended { peer: at, is_hedge, outcome }
        };
        (Box::pin(read), progress)
    }

    /// How long to wait for the first bytes of this read before a second peer is asked.
    fn hedge_after(&self, progress: &ReadProgress) -> Duration {
        let config = &self.context.config;
        let usual = progress.usual().unwrap_or(config.hedge_after_most);
        usual.max(config.hedge_after_least).min(config.hedge_after_most)
    }
}

/// Returns the bytes if they are right. Otherwise logs the reason and returns `None`.
fn right(peer: &str, outcome: Result<Bytes, PeerError>, is_right: impl Fn(&Bytes) -> bool) -> Option<Bytes> {
    match outcome {
        Ok(bytes) if is_right(&bytes) => return Some(bytes),
        Ok(_) => warn!(peer, "a peer served bytes whose checksum is not the manifest's"),
        Err(error) => debug!(peer, error = %Chain(&error), "cannot read a range from a peer"),
    }
    None
}

/// Waits until `at`, or forever if it is `None`.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
