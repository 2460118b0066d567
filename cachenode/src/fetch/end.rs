//! When a fetch must have ended, and who waits for it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_origin::{Caller, Urgency};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::stalls::Phase;

/// The most readers of a fetch that are known. The turns of more would come hardly sooner than those of these.
const CALLERS_MOST: usize = 64;

/// When a fetch must have ended: by the deadline of the first that waits for it. A fetch that only fills the store has
/// none until somebody does. Copies are of the same fetch.
#[derive(Clone, Debug)]
pub(super) struct End {
    waited_for: Arc<WaitedFor>,
    urgency: Urgency,
}

/// The part of an [`End`] that its copies share.
#[derive(Debug, Default)]
struct WaitedFor {
    deadline: OnceLock<Instant>,
    /// The first readers that wait, each once.
    callers: Mutex<Vec<Caller>>,
    /// Another reader waits.
    joined: Notify,
    /// The thing that the fetch waits for.
    phase: Arc<Phase>,
}

impl End {
    /// The current reader waits until `deadline`.
    pub(super) fn by(deadline: Instant) -> Self {
        let (deadline, callers) = (OnceLock::from(deadline), Mutex::new(vec![Caller::current()]));
        let waited_for = WaitedFor { deadline, callers, ..WaitedFor::default() };
        Self { waited_for: Arc::new(waited_for), urgency: Urgency::HIGH }
    }

    /// Nobody waits yet.
    pub(super) fn open() -> Self {
        Self { waited_for: Arc::default(), urgency: Urgency::low() }
    }

    /// If somebody waits until `other`, they wait for this fetch from now on.
    pub(super) fn join(&self, other: &Self) {
        if let Some(deadline) = other.deadline() {
            // Before it is raised, so that whatever sees the urgency finds the deadline.
            self.waited_for.deadline.get_or_init(|| deadline);
            self.urgency.raise();
            self.waited_for.join(other.waited_for.callers());
        }
    }

    /// None: nobody waits yet.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waited_for.deadline.get().copied()
    }

    /// Whether somebody waits.
    pub(super) fn urgency(&self) -> &Urgency {
        &self.urgency
    }

    /// The thing that the fetch waits for.
    pub(super) fn phase(&self) -> &Arc<Phase> {
        &self.waited_for.phase
    }

    /// The first readers that wait, each once, in the order in which they came.
    pub(super) fn callers(&self) -> Vec<Caller> {
        self.waited_for.callers()
    }

    /// Waits until another reader waits than when this was called last. For one task. Cancel-safe.
    pub(super) async fn joined(&self) {
        self.waited_for.joined.notified().await;
    }
}

impl WaitedFor {
    fn callers(&self) -> Vec<Caller> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn join(&self, others: Vec<Caller>) {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = callers.len();
        for other in others {
            if callers.len() < CALLERS_MOST && !callers.contains(&other) {
                callers.push(other);
            }
        }
        if callers.len() > before {
            self.joined.notify_one();
        }
    }
}
