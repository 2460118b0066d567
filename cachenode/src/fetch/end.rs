//! When a fetch must have ended.

use std::sync::{Arc, OnceLock};

use larder_origin::Urgency;
use tokio::time::Instant;

/// When a fetch must have ended: by the deadline of the first that waits for it. A fetch that only fills the store has
/// none until somebody does. Copies are of the same fetch.
#[derive(Clone, Debug)]
pub(super) struct End {
    deadline: Arc<OnceLock<Instant>>,
    urgency: Urgency,
}

impl End {
    /// Somebody waits until `deadline`.
    pub(super) fn by(deadline: Instant) -> Self {
        Self { deadline: Arc::new(OnceLock::from(deadline)), urgency: Urgency::HIGH }
    }

    /// Nobody waits yet.
    pub(super) fn open() -> Self {
        Self { deadline: Arc::default(), urgency: Urgency::low() }
    }

    /// If somebody waits until `other`, somebody waits for this fetch from now on.
    pub(super) fn join(&self, other: &Self) {
        if let Some(deadline) = other.deadline() {
            // The deadline first: a task that sees the urgency then finds it.
            self.deadline.get_or_init(|| deadline);
            self.urgency.raise();
        }
    }

    /// None: nobody waits yet.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.get().copied()
    }

    /// Whether somebody waits.
    pub(super) fn urgency(&self) -> &Urgency {
        &self.urgency
    }
}
