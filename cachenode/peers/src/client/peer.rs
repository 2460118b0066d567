//! One peer: whether it can be read from, and how the client finds out.
//!
//! A peer is *up*, *down* or *on trial*. A failure of the peer takes it down: reads in flight fail, and new ones fail
//! immediately. A background task probes the peer after a pause that doubles with each failure. A successful probe (a
//! lane and the peer's hello) puts the peer on trial: one read at a time is sent, and the first that succeeds brings
//! the peer up. A dead peer, or one that answers probes but not reads, therefore costs one timeout per pause instead of
//! one per read. A refusal is not a failure: a peer that refuses works.
//!
//! Invariant: no lock is held across an await, except the lock under which one connection is opened for all requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_dataset::CacheId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::connection::{ConnectError, Connection, ConnectionSlot};
use super::context::ClientContext;
use super::error::{Failure, PeerError, RequestError, shortened};
use super::first_bytes::FirstBytes;
use super::lane::Lane;
use super::link::Link;
use super::status::PeerStatus;
use crate::counters::Cause;
use crate::membership::Node;
use crate::read::ReadError;
use refusals::RefusedDatasets;

mod refusals;

/// Whether a peer can be read from.
#[derive(Debug)]
enum Health {
    Up,
    /// A probe succeeded. One read at a time is sent.
    Trial {
        /// True while that read is in flight.
        busy: bool,
    },
    Down {
        next_probe: Instant,
        probing: bool,
    },
    /// The node is no longer a member.
    Gone,
}

#[derive(Debug)]
struct State {
    health: Health,
    /// Cancelled when the peer goes down, and then replaced with a new token.
    abandon: CancellationToken,
    /// Failures since the peer last worked.
    failures: u32,
    /// Consecutive reads that the peer refused as timed out.
    slow: u32,
    failure: Option<(Cause, String)>,
}

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    context: Arc<ClientContext>,
    state: Mutex<State>,
    /// Connections for blocks.
    lanes: Vec<ConnectionSlot<Lane>>,
    /// The connection for gRPC requests.
    pub(super) link: ConnectionSlot<Link>,
    refused: RefusedDatasets,
    /// How soon the peer's answers began.
    pub(super) first_bytes: Arc<FirstBytes>,
}

/// A request that may be sent to a peer. Its outcome decides the peer's health.
struct Attempt<'a> {
    peer: &'a Peer,
    abandon: CancellationToken,
    on_trial: bool,
    judged: AtomicBool,
}

impl Peer {
    pub(super) fn new(node: &Node, context: Arc<ClientContext>) -> Self {
        let state =
            State { health: Health::Up, abandon: CancellationToken::new(), failures: 0, slow: 0, failure: None };
        let lanes = (0..context.config.lanes.max(1)).map(|_| ConnectionSlot::default()).collect();
        Self {
            name: node.name.clone(),
            address: node.address,
            context,
            state: Mutex::new(state),
            lanes,
            link: ConnectionSlot::default(),
            refused: RefusedDatasets::default(),
            first_bytes: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.lock().health, Health::Up | Health::Trial { busy: false })
    }

    /// True if the peer is up and not on trial.
    pub(super) fn works(&self) -> bool {
        matches!(self.lock().health, Health::Up)
    }

    pub(super) fn status(&self) -> PeerStatus {
        let up = self.is_up();
        PeerStatus { name: self.name.clone(), address: self.address, up, failure: self.lock().failure.clone() }
    }

    fn bypassed(&self) -> PeerError {
        self.context.counters.bypassed.fetch_add(1, Ordering::Relaxed);
        PeerError::Bypassed { peer: self.name.clone() }
    }

    /// Removes a peer that is no longer a member: requests in flight fail.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.health = Health::Gone;
        state.abandon.cancel();
        drop(state);
        self.close_connections();
    }

    fn close_connections(&self) {
        self.lanes.iter().for_each(ConnectionSlot::close);
        self.link.close();
    }

    /// The slot of the lane with the fewest reads. A lane that is not open yet counts as half a read more.
    pub(super) fn lane(&self) -> &ConnectionSlot<Lane> {
        self.lanes.iter().min_by_key(|slot| slot.load()).expect("a peer has at least one lane")
    }

    fn begin(&self) -> Result<Attempt<'_>, PeerError> {
        let mut state = self.lock();
        let on_trial = match &mut state.health {
            Health::Up => false,
            Health::Trial { busy } if !*busy => {
                *busy = true;
                true
            }
            Health::Trial { .. } | Health::Down { .. } | Health::Gone => {
                drop(state);
                return Err(self.bypassed());
            }
        };
        Ok(Attempt { peer: self, abandon: state.abandon.clone(), on_trial, judged: AtomicBool::new(false) })
    }

    /// Sends a request if the peer's health allows it: runs `request` over the slot's connection. If a connection that
    /// worked before breaks, as it does when the peer restarts, runs `request` again over a new one. Updates the peer's
    /// health by the outcome.
    pub(super) async fn ask<C: Connection, T, A: Future<Output = Result<T, RequestError>>>(
        &self,
        slot: &ConnectionSlot<C>,
        cache: Option<CacheId>,
        request: impl Fn(Arc<C>) -> A,
    ) -> Result<T, PeerError> {
        let memory = self.context.config.refusal_memory;
        if let Some(source) = cache.and_then(|cache| self.refused.known(cache, memory)) {
            return Err(PeerError::Refused { peer: self.name.clone(), source });
        }
        let attempt = self.begin()?;
        self.context.counters.reads.fetch_add(1, Ordering::Relaxed);
        let work = async {
            let _user = slot.enter();
            let connection = self.connection(slot).await?;
            let had_worked = connection.has_worked();
            match request(Arc::clone(&connection)).await {
                Err(RequestError::Failed(Failure { cause: Cause::Broken, what })) if had_worked => {
                    debug!(peer = %self.name, what, "the connection broke; retrying over a new one");
                    slot.forget(&connection);
                    let connection = self.connection(slot).await?;
                    request(Arc::clone(&connection)).await.inspect(|_| connection.worked())
                }
                outcome => outcome.inspect(|_| connection.worked()),
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = attempt.abandon.cancelled() => return Err(self.bypassed()),
        };
        match outcome {
            Ok(outcome) => {
                attempt.succeeded();
                Ok(outcome)
            }
            Err(RequestError::Refused(ReadError::Stopping)) => {
                let failure = Failure { cause: Cause::Stopping, what: "it is stopping".to_owned() };
                Err(attempt.failed(failure))
            }
            Err(RequestError::Refused(source)) => {
                attempt.succeeded();
                Err(PeerError::Refused { peer: self.name.clone(), source })
            }
            Err(RequestError::GivenUp) => Err(PeerError::GivenUp { peer: self.name.clone() }),
            Err(RequestError::Invalid(what)) => {
                attempt.succeeded();
                Err(PeerError::Invalid { what })
            }
            Err(RequestError::Failed(failure)) => Err(attempt.failed(failure)),
        }
    }

    /// Returns the slot's connection; opens one if there is none.
    async fn connection<C: Connection>(&self, slot: &ConnectionSlot<C>) -> Result<Arc<C>, RequestError> {
        slot.get(|| self.connect()).await.map_err(RequestError::Failed)
    }

    async fn connect<C: Connection>(&self) -> Result<C, Failure> {
        let (cause, what) = match C::connect(self.address, &self.context).await {
            Ok(connection) => {
                self.context.counters.connections.fetch_add(1, Ordering::Relaxed);
                return Ok(connection);
            }
            Err(ConnectError::Connect { what }) => (Cause::Connect, what),
            Err(error @ ConnectError::TimedOut { .. }) => (Cause::TimedOut, error.to_string()),
            Err(error @ ConnectError::Protocol { .. }) => (Cause::OtherProtocol, error.to_string()),
        };
        Err(Failure { cause, what })
    }

    /// Records that the peer refused a range.
    pub(super) fn refused(&self, cache: CacheId, error: &ReadError) {
        self.context.counters.refused_by_peers.add(error);
        if self.refused.note(cache, error) {
            info!(
                peer = %self.name, %cache, %error,
                "a peer does not serve a dataset to this node: reading from the origin instead"
            );
        }
        if self.refuses(cache) {
            self.context.refusals.notify_one();
        }
    }

    /// Records that the peer returned a range.
    pub(super) fn served(&self, cache: CacheId) {
        if self.refused.clear(cache) {
            self.context.refusals.notify_one();
        }
    }

    /// True if the peer refused the dataset at the last request for it.
    pub(super) fn refuses(&self, cache: CacheId) -> bool {
        self.refused.contains(cache)
    }

    /// Records whether a read was refused because it timed out. Several such reads in a row take the peer down.
    pub(super) fn was_slow(&self, timed_out: bool) {
        let mut state = self.lock();
        if !timed_out {
            state.slow = 0;
            if matches!(state.health, Health::Up) {
                state.failures = 0;
            }
            return;
        }
        let most = self.context.config.slow_in_a_row.max(1);
        state.slow = (state.slow + 1).min(most);
        if state.slow == most && matches!(state.health, Health::Up) {
            // One more slow read takes the peer down again, until a read succeeds.
            state.slow = most - 1;
            let what = "several reads in a row timed out".to_owned();
            self.go_down(state, Failure { cause: Cause::TimedOut, what }, true);
        }
    }

    /// Takes the peer down. With `abandon`, fails the requests in flight.
    fn go_down(&self, mut state: MutexGuard<'_, State>, failure: Failure, abandon: bool) {
        let Failure { cause, what } = failure;
        self.context.counters.add_error(cause);
        state.failures = state.failures.saturating_add(1);
        let pause = self.context.config.backoff(state.failures);
        let first = state.failure.is_none();
        state.failure = Some((cause, what.clone()));
        state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
        let in_flight = std::mem::replace(&mut state.abandon, CancellationToken::new());
        drop(state);
        if abandon {
            in_flight.cancel();
            self.close_connections();
        }
        if first {
            self.context.counters.went_down.fetch_add(1, Ordering::Relaxed);
            warn!(
                peer = %self.name, address = %self.address, cause = cause.name(), what,
                "a peer failed and is bypassed"
            );
        } else {
            debug!(peer = %self.name, cause = cause.name(), what, "the peer failed again");
        }
        self.context.went_down.notify_one();
    }

    /// When the next probe is due, if the peer is down and not being probed. A probe that is due counts as started.
    pub(super) fn probe_due(&self, now: Instant) -> Option<Instant> {
        match &mut self.lock().health {
            Health::Down { next_probe, probing } if !*probing => {
                *probing = *next_probe <= now;
                Some(*next_probe)
            }
            Health::Up | Health::Trial { .. } | Health::Down { .. } | Health::Gone => None,
        }
    }

    /// Opens a new lane, on which the peer must answer. Success puts the peer on trial.
    pub(super) async fn probe(self: Arc<Self>) {
        let outcome = self.connect().await;
        let mut state = self.lock();
        if !matches!(state.health, Health::Down { .. }) {
            return;
        }
        match outcome {
            Ok(lane) => {
                state.health = Health::Trial { busy: false };
                self.lanes[0].put(lane);
            }
            Err(Failure { cause, what }) => {
                state.failures = state.failures.saturating_add(1);
                let pause = self.context.config.backoff(state.failures);
                state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
                debug!(peer = %self.name, cause = cause.name(), what, "the peer is still down");
                state.failure = Some((cause, what));
            }
        }
    }
}

impl Attempt<'_> {
    /// Handles a success: the peer works.
    fn succeeded(&self) {
        self.judged.store(true, Ordering::Relaxed);
        let mut state = self.peer.lock();
        if self.on_trial && matches!(state.health, Health::Trial { .. }) {
            state.health = Health::Up;
            if state.slow == 0 {
                state.failures = 0;
            }
            state.failure = None;
            drop(state);
            self.peer.context.counters.came_back.fetch_add(1, Ordering::Relaxed);
            info!(peer = %self.peer.name, "a bypassed peer works again");
        }
    }

    /// Handles a failure. If several reads fail together, the first takes the peer down.
    fn failed(&self, failure: Failure) -> PeerError {
        self.judged.store(true, Ordering::Relaxed);
        if self.abandon.is_cancelled() {
            return self.peer.bypassed();
        }
        let error =
            PeerError::Failed { peer: self.peer.name.clone(), cause: failure.cause, what: shortened(&failure.what) };
        let state = self.peer.lock();
        if matches!(state.health, Health::Up | Health::Trial { .. }) {
            // A stopping peer may still finish the requests that it has started.
            let abandon = failure.cause != Cause::Stopping;
            self.peer.go_down(state, failure, abandon);
        } else {
            drop(state);
            self.peer.context.counters.add_error(failure.cause);
        }
        error
    }
}

impl Drop for Attempt<'_> {
    /// A trial whose reader was dropped does not show whether the peer works; another read may try.
    fn drop(&mut self) {
        if self.on_trial
            && !self.judged.load(Ordering::Relaxed)
            && let Health::Trial { busy } = &mut self.peer.lock().health
        {
            *busy = false;
        }
    }
}
