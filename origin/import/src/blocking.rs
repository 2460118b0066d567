//! The one place where this crate's CPU and disk work leaves the async runtime.

/// Runs blocking work on a thread of its own. A panic in the work resumes in the caller.
pub(crate) async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
