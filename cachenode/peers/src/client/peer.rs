//! One peer: whether it can be read from, and what that is found out by.
//!
//! A peer is *up*, *down* or *on trial*. Any failure that is the peer's own takes it down: reads of it that are under way fail
//! then too, and new ones fail at once. In the background it is probed, after a pause that doubles; a probe that succeeds,
//! which is a lane and the peer's hello, puts it on trial: one read at a time is let through, and the first that
//! ends well brings it up. So a peer that is dead, or answers probes but not reads, costs one timeout for each pause, never
//! one for each read. What a peer refuses is not a failure: it says so, and so it works.
//!
//! Invariant: no lock is held across an await but the one that makes one connection for all who want it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_dataset::SnapshotId;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::connection::{ConnectError, Connection, Slot};
use super::error::{Failure, Miss, PeerError, shortened};
use super::lane::Lane;
use super::link::Link;
use super::{PeerStatus, Shared};
use crate::blocks::ReadError;
use crate::counters::Cause;
use crate::membership::Node;

/// Datasets whose refusal is remembered, for each peer.
const REFUSALS_MOST: usize = 1024;

/// Whether a peer can be read from.
#[derive(Debug)]
enum Health {
    Up,
    /// A probe went well. One read at a time is let through, and this says if one is under way.
    Trial {
        busy: bool,
    },
    Down {
        next_probe: Instant,
        probing: bool,
    },
    /// Not a member any more.
    Gone,
}

#[derive(Debug)]
struct State {
    health: Health,
    /// Cancelled when the peer goes down, and another one from then on.
    period: CancellationToken,
    /// Failures since it last worked.
    failures: u32,
    /// Reads in a row that it refused as timed out.
    slow: u32,
    failure: Option<(Cause, String)>,
}

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// For blocks.
    lanes: Vec<Slot<Lane>>,
    /// For all else.
    pub(super) link: Slot<Link>,
    /// Which datasets it refused to us, and when.
    refusals: Mutex<HashMap<SnapshotId, (ReadError, Instant)>>,
}

/// Leave to ask a peer.
struct Pass<'a> {
    peer: &'a Peer,
    period: CancellationToken,
    on_trial: bool,
    judged: AtomicBool,
}

impl Peer {
    pub(super) fn new(node: &Node, shared: Arc<Shared>) -> Self {
        let state = State { health: Health::Up, period: CancellationToken::new(), failures: 0, slow: 0, failure: None };
        let lanes = (0..shared.config.lanes.max(1)).map(|_| Slot::default()).collect();
        Self {
            name: node.name.clone(),
            address: node.address,
            shared,
            state: Mutex::new(state),
            lanes,
            link: Slot::default(),
            refusals: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refusals(&self) -> MutexGuard<'_, HashMap<SnapshotId, (ReadError, Instant)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.lock().health, Health::Up | Health::Trial { busy: false })
    }

    pub(super) fn status(&self) -> PeerStatus {
        let up = self.is_up();
        PeerStatus { name: self.name.clone(), address: self.address, up, failure: self.lock().failure.clone() }
    }

    fn bypassed(&self) -> PeerError {
        self.shared.counters.bypassed.fetch_add(1, Ordering::Relaxed);
        PeerError::Bypassed { node: self.name.clone() }
    }

    /// It is no member any more: what is under way fails.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.health = Health::Gone;
        state.period.cancel();
        drop(state);
        self.close_connections();
    }

    fn close_connections(&self) {
        self.lanes.iter().for_each(Slot::close);
        self.link.close();
    }

    /// The place of the lane that has least to do. One that is not made yet counts for a read under way.
    pub(super) fn lane(&self) -> &Slot<Lane> {
        self.lanes.iter().min_by_key(|slot| slot.load()).expect("there is one at least")
    }

    fn enter(&self) -> Result<Pass<'_>, PeerError> {
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
        Ok(Pass { peer: self, period: state.period.clone(), on_trial, judged: AtomicBool::new(false) })
    }

    /// Asks the peer, if it is fit to be asked: makes `attempt` over the slot's connection, and again over a new one if it
    /// broke under a connection that had worked before, as one does whose peer was started anew. Judges the peer by the
    /// outcome.
    pub(super) async fn ask<C: Connection, T, A: Future<Output = Result<T, Miss>>>(
        &self,
        slot: &Slot<C>,
        snapshot: Option<SnapshotId>,
        attempt: impl Fn(Arc<C>) -> A,
    ) -> Result<T, PeerError> {
        if let Some(source) = snapshot.and_then(|snapshot| self.known_refusal(snapshot)) {
            return Err(PeerError::Refused { node: self.name.clone(), source });
        }
        let pass = self.enter()?;
        self.shared.counters.reads.fetch_add(1, Ordering::Relaxed);
        let work = async {
            let _user = slot.enter();
            let connection = self.connection(slot).await?;
            let had_worked = connection.has_worked();
            match attempt(Arc::clone(&connection)).await {
                Err(Miss::Failed(Failure { cause: Cause::Broken, what })) if had_worked => {
                    debug!(node = %self.name, what, "the connection broke; try a new one");
                    slot.forget(&connection);
                    let connection = self.connection(slot).await?;
                    attempt(Arc::clone(&connection)).await.inspect(|_| connection.worked())
                }
                outcome => outcome.inspect(|_| connection.worked()),
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = pass.period.cancelled() => return Err(self.bypassed()),
        };
        match outcome {
            Ok(outcome) => {
                pass.went_well();
                Ok(outcome)
            }
            Err(Miss::Refused(ReadError::Stopping)) => {
                let failure = Failure { cause: Cause::Stopping, what: "it is stopping".to_owned() };
                Err(pass.failed(failure))
            }
            Err(Miss::Refused(source)) => {
                pass.went_well();
                Err(PeerError::Refused { node: self.name.clone(), source })
            }
            Err(Miss::Invalid(what)) => {
                pass.went_well();
                Err(PeerError::Invalid { what })
            }
            Err(Miss::Failed(failure)) => Err(pass.failed(failure)),
        }
    }

    /// The slot's connection, after making it if there is none.
    async fn connection<C: Connection>(&self, slot: &Slot<C>) -> Result<Arc<C>, Miss> {
        slot.get(|| self.connect()).await.map_err(Miss::Failed)
    }

    async fn connect<C: Connection>(&self) -> Result<C, Failure> {
        let (cause, what) = match C::connect(self.address, &self.shared).await {
            Ok(connection) => {
                self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
                return Ok(connection);
            }
            Err(ConnectError::Connect { what }) => (Cause::Connect, what),
            Err(error @ ConnectError::TimedOut { .. }) => (Cause::TimedOut, error.to_string()),
            Err(error @ ConnectError::Protocol { .. }) => (Cause::OtherProtocol, error.to_string()),
        };
        Err(Failure { cause, what })
    }

    /// Takes note of a refusal of a dataset's range.
    pub(super) fn refused(&self, snapshot: SnapshotId, error: &ReadError) {
        self.shared.counters.refused_by_peers.add(error);
        if matches!(error, ReadError::UnknownDataset | ReadError::Denied) {
            let mut refusals = self.lock_refusals();
            if refusals.len() >= REFUSALS_MOST {
                refusals.clear();
            }
            refusals.insert(snapshot, (error.clone(), Instant::now()));
        }
    }

    fn known_refusal(&self, snapshot: SnapshotId) -> Option<ReadError> {
        let mut refusals = self.lock_refusals();
        let (error, since) = refusals.get(&snapshot)?;
        if since.elapsed() < self.shared.config.refusal_memory {
            return Some(error.clone());
        }
        refusals.remove(&snapshot);
        None
    }

    /// Takes note of whether a read was refused because it took too long; a peer that does so again and again is down.
    pub(super) fn was_slow(&self, timed_out: bool) {
        let mut state = self.lock();
        if !timed_out {
            state.slow = 0;
            if matches!(state.health, Health::Up) {
                state.failures = 0;
            }
            return;
        }
        let most = self.shared.config.slow_in_a_row.max(1);
        state.slow = (state.slow + 1).min(most);
        if state.slow == most && matches!(state.health, Health::Up) {
            // One more is enough, as long as none goes well.
            state.slow = most - 1;
            let what = "it has what is wanted too late, again and again".to_owned();
            self.go_down(state, Failure { cause: Cause::TimedOut, what }, true);
        }
    }

    /// Takes the peer down.
    fn go_down(&self, mut state: MutexGuard<'_, State>, failure: Failure, cut: bool) {
        let Failure { cause, what } = failure;
        self.shared.counters.add_error(cause);
        state.failures = state.failures.saturating_add(1);
        let pause = self.shared.config.backoff(state.failures);
        let first = state.failure.is_none();
        state.failure = Some((cause, what.clone()));
        state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
        let period = std::mem::replace(&mut state.period, CancellationToken::new());
        drop(state);
        // What a stopping peer has begun it ends well.
        if cut {
            period.cancel();
            self.close_connections();
        }
        if first {
            self.shared.counters.went_down.fetch_add(1, Ordering::Relaxed);
            warn!(node = %self.name, address = %self.address, cause = cause.name(), what, "bypass a peer");
        } else {
            debug!(node = %self.name, cause = cause.name(), what, "the peer fails again");
        }
        self.shared.went_down.notify_one();
    }

    /// When it is to be probed next, if it is down.
    pub(super) fn probe_due(&self, now: Instant) -> Option<Instant> {
        match &mut self.lock().health {
            Health::Down { next_probe, probing } if !*probing => {
                *probing = *next_probe <= now;
                Some(*next_probe)
            }
            Health::Up | Health::Trial { .. } | Health::Down { .. } | Health::Gone => None,
        }
    }

    /// Connects anew, which the peer must answer; then it is on trial.
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
                let pause = self.shared.config.backoff(state.failures);
                state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
                debug!(node = %self.name, cause = cause.name(), what, "the peer is still unfit");
                state.failure = Some((cause, what));
            }
        }
    }
}

impl Pass<'_> {
    /// The peer works.
    fn went_well(&self) {
        self.judged.store(true, Ordering::Relaxed);
        let mut state = self.peer.lock();
        if self.on_trial && matches!(state.health, Health::Trial { .. }) {
            state.health = Health::Up;
            if state.slow == 0 {
                state.failures = 0;
            }
            state.failure = None;
            drop(state);
            self.peer.shared.counters.came_back.fetch_add(1, Ordering::Relaxed);
            info!(node = %self.peer.name, "a bypassed peer works again");
        }
    }

    /// The peer does not work. Of several reads that fail with it, the first takes it down.
    fn failed(&self, failure: Failure) -> PeerError {
        self.judged.store(true, Ordering::Relaxed);
        if self.period.is_cancelled() {
            return self.peer.bypassed();
        }
        let error =
            PeerError::Failed { node: self.peer.name.clone(), cause: failure.cause, what: shortened(&failure.what) };
        let state = self.peer.lock();
        if matches!(state.health, Health::Up | Health::Trial { .. }) {
            let cut = failure.cause != Cause::Stopping;
            self.peer.go_down(state, failure, cut);
        } else {
            drop(state);
            self.peer.shared.counters.add_error(failure.cause);
        }
        error
    }
}

impl Drop for Pass<'_> {
    /// A trial whose reader went away says nothing of the peer: another may try.
    fn drop(&mut self) {
        if self.on_trial
            && !self.judged.load(Ordering::Relaxed)
            && let Health::Trial { busy } = &mut self.peer.lock().health
        {
            *busy = false;
        }
    }
}
