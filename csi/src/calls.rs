//! Runs each call in its own task: a call continues when the kubelet cancels it, a panic fails only its own call, and a
//! stop waits for running calls.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_telemetry::Histogram;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tonic::{Code, Response, Status};
use tracing::{Instrument, Span, error, info, warn};

/// The most concurrent calls. Excess calls are rejected, and the kubelet retries them.
const CALLS: usize = 256;

/// The running calls. Clones share them.
#[derive(Clone, Debug)]
pub struct Calls {
    running: TaskTracker,
    permits: Arc<Semaphore>,
    panics: Arc<AtomicU64>,
    published: Arc<[Histogram; 2]>,
}

impl Default for Calls {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(CALLS));
        Self { running: TaskTracker::new(), permits, panics: Arc::default(), published: Arc::default() }
    }
}

impl Calls {
    /// Runs `call` to completion, and logs its failure within `span`.
    pub async fn run<T, E, F>(&self, span: Span, call: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        E: Into<Status>,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return Err(Status::unavailable(format!("{CALLS} calls are already running; retry later")));
        };
        let call = async move {
            let _permit = permit;
            let outcome = call.await.map(Response::new).map_err(Into::into);
            match &outcome {
                Ok(_) => {}
                // An administrator must look at our own errors. The caller sees its own mistakes and temporary
                // conditions.
                Err(status) if status.code() == Code::Internal => error!(error = status.message(), "the call failed"),
                Err(status) if status.code() == Code::Unavailable => {
                    info!(why = status.message(), "the call cannot succeed yet")
                }
                Err(status) => warn!(code = ?status.code(), error = status.message(), "the call is refused"),
            }
            outcome
        };
        match self.running.spawn(call.instrument(span)).await {
            Ok(outcome) => outcome,
            Err(failed) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                error!(panicked = failed.is_panic(), "a call ended early");
                Err(Status::internal("the call ended early; see the log of larder-csi"))
            }
        }
    }

    /// Waits until no call runs. No new call may begin.
    pub async fn finish(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// The times of the calls that published a volume, and of those that did not.
    pub(crate) fn published(&self) -> &Arc<[Histogram; 2]> {
        &self.published
    }

    /// The number of calls that panicked.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

/// Runs blocking work off the runtime. A panic continues in the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let span = Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(value) => value,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Blocking work is cancelled only when the runtime shuts down, which also ends the caller.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_internal_and_the_next_call_runs() {
        let calls = Calls::default();
        let failed = calls
            .run(Span::none(), async {
                blocking(|| panic!("on purpose")).await;
                Ok::<(), Status>(())
            })
            .await;
        assert_eq!(failed.expect_err("it panicked").code(), Code::Internal);
        assert_eq!(calls.panics(), 1);
        calls.run(Span::none(), async { Ok::<(), Status>(()) }).await.expect("runs");
        calls.finish().await;
    }
}
