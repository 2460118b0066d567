//! State shared by the connections of a server.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use larder_dataset::CacheId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::config::ServerConfig;
use super::limits::AnswerLimits;
use crate::blocks::Blocks;
use crate::counters::PeerCounters;
use crate::tls::Security;

/// The most entries that a set of logged peers remembers.
const LOGGED_MOST: usize = 1024;

/// State shared by the connections of a server.
pub(super) struct ServerState {
    pub(super) config: ServerConfig,
    pub(super) security: Security,
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) counters: Arc<PeerCounters>,
    pub(super) limits: Arc<AnswerLimits>,
    pub(super) lanes: TaskTracker,
    pub(super) stopping: CancellationToken,
    /// Addresses whose connections were rejected, with a warning in the log.
    rejected: Mutex<HashSet<IpAddr>>,
    /// Peers and datasets whose denial was logged.
    denied: Mutex<HashSet<(IpAddr, CacheId)>>,
}

impl ServerState {
    pub(super) fn new(
        config: ServerConfig,
        security: Security,
        blocks: Arc<dyn Blocks>,
        counters: Arc<PeerCounters>,
        stopping: CancellationToken,
    ) -> Self {
        let limits = AnswerLimits::new(
            config.in_flight_bytes,
            config.peer_in_flight_bytes,
            config.requests_most,
            Arc::clone(&counters),
        );
        Self {
            config,
            security,
            blocks,
            counters,
            limits: Arc::new(limits),
            lanes: TaskTracker::new(),
            stopping,
            rejected: Mutex::default(),
            denied: Mutex::default(),
        }
    }

    /// Logs a warning at the first rejection of each peer, and again after the peer was accepted.
    pub(super) fn log_rejected(&self, address: SocketAddr, reason: &str) {
        if is_new(&self.rejected, address.ip()) {
            warn!(peer = %address.ip(), reason, "rejected the connection of a peer");
        } else {
            debug!(peer = %address.ip(), reason, "rejected the connection of a peer");
        }
    }

    /// Makes the peer's next rejection a warning again.
    pub(super) fn forget_rejected(&self, address: SocketAddr) {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner).remove(&address.ip());
    }

    /// Logs a warning once for each peer and dataset.
    pub(super) fn log_denied(&self, peer: IpAddr, cache: CacheId) {
        if is_new(&self.denied, (peer, cache)) {
            let dataset = self.blocks.name(cache);
            warn!(
                %peer,
                dataset,
                %cache,
                "a peer did not show the dataset's token and reads from the origin instead: set the same \
                 LARDER_PEER_TOKEN on all nodes"
            );
        }
    }
}

/// Adds `entry`. False if it is already in the set.
fn is_new<T: Eq + Hash>(logged: &Mutex<HashSet<T>>, entry: T) -> bool {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() >= LOGGED_MOST {
        logged.clear();
    }
    logged.insert(entry)
}
