//! Follows the calls of a task: what each waits for, and how its attempts end. The [`Watch`] is a task-local, because
//! many functions of several crates are between the one who waits and the request.

use std::sync::Arc;
use std::time::Duration;

use crate::error::OriginError;

/// The cause for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// A place among the requests in flight, or the rate.
    Turn,
    /// The answer to its first request, and the bytes of that answer.
    Answer,
    /// The origin, which has refused a request of the call for lack of capacity.
    Capacity,
    /// The origin, of which a request of the call has failed in another way.
    Recovery,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// With an answer.
    Answered,
    /// The origin refused it for lack of capacity.
    Throttled,
    /// It made no progress in time.
    TimedOut,
    /// It failed in another way, which includes answers such as that the object does not exist.
    Failed,
}

impl Attempt {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Answered, Self::Throttled, Self::TimedOut, Self::Failed];

    /// The outcome's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "ok",
            Self::Throttled => "throttled",
            Self::TimedOut => "timeout",
            Self::Failed => "error",
        }
    }

    /// The outcome of an attempt that ended with this error.
    pub(crate) fn failed(error: &OriginError) -> Self {
        match error {
            OriginError::Busy { .. } => Self::Throttled,
            OriginError::TimedOut { .. } => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// Follows the calls of a task. Its functions are called on the path of a request and must not block.
pub trait Watch: Send + Sync {
    /// A call waits for something else from now on.
    fn waits_for(&self, what: WaitsFor);

    /// An attempt has ended. `took` is the time to the head of its answer, or to its failure if it had none.
    fn attempted(&self, attempt: Attempt, took: Duration);

    /// An attempt that ended so is repeated.
    fn retries(&self, after: Attempt);
}

tokio::task_local! {
    static WATCH: Arc<dyn Watch>;
}

/// Runs `work`, whose calls `watch` follows. Tasks that it starts are not part of it.
pub fn watched<F: Future>(watch: Arc<dyn Watch>, work: F) -> impl Future<Output = F::Output> {
    WATCH.scope(watch, work)
}

/// Reports to the watch of this task, if it has one.
pub(crate) fn report(report: impl FnOnce(&dyn Watch)) {
    // Err: nobody follows the calls of this task.
    let _ = WATCH.try_with(|watch| report(&**watch));
}
