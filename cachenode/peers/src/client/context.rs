//! State shared by the connections to all peers.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::config::PeersConfig;
use crate::buffers::Buffers;
use crate::counters::PeerCounters;
use crate::tls::Security;

/// State shared by the connections to all peers.
#[derive(Debug)]
pub(super) struct ClientContext {
    pub(super) config: PeersConfig,
    pub(super) security: Security,
    pub(super) counters: Arc<PeerCounters>,
    /// The buffers that received ranges are read into.
    pub(super) buffers: Arc<Buffers>,
    /// Notified when a peer goes down.
    pub(super) went_down: Notify,
    /// Notified when a peer refuses a dataset, or serves one that it refused.
    pub(super) refusals: Notify,
    /// The tasks that drive connections. Each ends with its connection.
    pub(super) tasks: TaskTracker,
}

impl ClientContext {
    pub(super) fn new(config: PeersConfig, security: Security, counters: Arc<PeerCounters>) -> Self {
        Self {
            config,
            security,
            counters,
            buffers: Arc::default(),
            went_down: Notify::new(),
            refusals: Notify::new(),
            tasks: TaskTracker::new(),
        }
    }
}
