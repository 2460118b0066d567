//! Retries: jittered exponential back-off under one deadline for all attempts of a call.
//!
//! A call creates a [`Retry`], bounds each wait of an attempt with [`Retry::progress`], and passes a failed attempt to
//! [`Retry::pause`], which either sleeps or returns the failure as final. The invariant: a call returns within its
//! deadline, even if the origin never answers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key::Key;
use crate::limit::OriginLimit;
use crate::watch::{self, Attempt, WaitsFor};

/// How long attempts and calls may take.
#[derive(Debug, Clone)]
pub(crate) struct RetryPolicy {
    /// The limit to which the outcome of each attempt is reported.
    pub(crate) limit: Arc<OriginLimit>,
    /// An attempt that makes no progress for this long is cancelled.
    pub(crate) attempt_timeout: Duration,
    /// The limit for all attempts of a call together.
    pub(crate) deadline: Duration,
}

impl RetryPolicy {
    pub(crate) fn new(config: &OriginConfig, limit: &Arc<OriginLimit>) -> Self {
        Self { limit: Arc::clone(limit), attempt_timeout: config.attempt_timeout, deadline: config.deadline }
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// Another attempt would fail the same way.
    Final(OriginError),
    /// Another attempt may succeed.
    Retryable(OriginError),
}

impl From<OriginError> for AttemptError {
    fn from(error: OriginError) -> Self {
        Self::Final(error)
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The state of one call's attempts.
#[derive(Debug)]
pub(crate) struct Retry {
    key: Key,
    policy: RetryPolicy,
    end: Instant,
    attempts: u32,
    /// When the attempt began.
    began: Instant,
    /// The time to the head of its answer.
    answered: OnceLock<Duration>,
    /// Why the attempt before failed.
    failure: Option<OriginError>,
}

impl Retry {
    pub(crate) fn new(policy: &RetryPolicy, key: &[u8]) -> Self {
        let (began, answered) = (Instant::now(), OnceLock::new());
        let end = began + policy.deadline;
        Self { key: Key::from(key), policy: policy.clone(), end, attempts: 0, began, answered, failure: None }
    }

    /// Waits for one step of an attempt. Cancels the step after the attempt's timeout or at the deadline.
    pub(crate) async fn progress<T>(&self, step: impl Future<Output = T>) -> Result<T, AttemptError> {
        let left = self.end.saturating_duration_since(Instant::now());
        let wait = left.min(self.policy.attempt_timeout);
        tokio::time::timeout(wait, step)
            .await
            .map_err(|_| AttemptError::Retryable(OriginError::TimedOut { key: self.key.clone(), after: wait }))
    }

    /// Like `progress`, for the head of an answer. Also reports its duration, which shows how busy the origin is. An
    /// error shows nothing: beside a connection that is refused at once, every answer would seem slow.
    pub(crate) async fn answer<T, E>(
        &self,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, AttemptError> {
        let sent = Instant::now();
        let answer = self.progress(step).await?;
        if answer.is_ok() {
            let took = sent.elapsed();
            self.policy.limit.answered(took);
            // The first one of an attempt is the origin's.
            let _ = self.answered.set(took);
        }
        Ok(answer)
    }

    /// Sleeps before the next attempt, or returns the error if it is final or the deadline would pass.
    pub(crate) async fn pause(&mut self, failure: AttemptError) -> Result<(), OriginError> {
        let (AttemptError::Final(error) | AttemptError::Retryable(error)) = &failure;
        let attempt = Attempt::failed(error);
        let took = self.answered.take().unwrap_or_else(|| self.began.elapsed());
        watch::report(|watch| watch.attempted(attempt, took));
        let error = match failure {
            AttemptError::Final(error) => return Err(error),
            AttemptError::Retryable(error) => error,
        };
        match error {
            OriginError::Busy { .. } => self.policy.limit.refused(),
            OriginError::TimedOut { .. } => self.policy.limit.unanswered(),
            _ => {}
        }
        let ceiling = FIRST_PAUSE.saturating_mul(1 << self.attempts.min(10)).min(LONGEST_PAUSE);
        let pause = ceiling.mul_f64(rand::random_range(0.5..=1.0));
        if Instant::now() + pause >= self.end {
            let cut = cut_after(&error).is_some_and(|after| after < self.policy.attempt_timeout);
            return Err(match (error, self.failure.take()) {
                // The deadline cut the last attempt short. An answer to the one before says more about the origin.
                (_, Some(failure)) if cut && is_answer(&failure) => failure,
                (OriginError::TimedOut { key, .. }, _) => OriginError::TimedOut { key, after: self.policy.deadline },
                (error, _) => error,
            });
        }
        self.attempts += 1;
        tracing::debug!(
            key = %self.key, attempts = self.attempts, error = &error as &dyn std::error::Error,
            "retry at the origin"
        );
        self.failure = Some(error);
        let waits_for = if attempt == Attempt::Throttled { WaitsFor::Capacity } else { WaitsFor::Recovery };
        watch::report(|watch| {
            watch.retries(attempt);
            watch.waits_for(waits_for);
        });
        tokio::time::sleep(pause).await;
        self.began = Instant::now();
        Ok(())
    }
}

impl Drop for Retry {
    /// An answer to an attempt that did not fail, as far as the call went.
    fn drop(&mut self) {
        if let Some(took) = self.answered.take() {
            watch::report(|watch| watch.attempted(Attempt::Answered, took));
        }
    }
}

/// How long the origin, or the server that gives the keys, was waited for in vain. `None` if it answered.
fn cut_after(error: &OriginError) -> Option<Duration> {
    match error {
        OriginError::TimedOut { after, .. } => Some(*after),
        OriginError::Denied { source, .. } => cut_after(source.downcast_ref()?),
        _ => None,
    }
}

/// True if the origin answered, if only with a part or a refusal, or if there are no keys to ask it with.
fn is_answer(failure: &OriginError) -> bool {
    matches!(failure, OriginError::Busy { .. } | OriginError::Truncated { .. } | OriginError::Denied { .. })
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::urgency::Urgency;

    fn policy() -> RetryPolicy {
        RetryPolicy::new(&OriginConfig::default(), &OriginLimit::adaptive(64, None))
    }

    fn busy() -> AttemptError {
        AttemptError::Retryable(OriginError::Busy { source: "slow down".into() })
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_not_hidden_by_an_attempt_that_the_deadline_cut_short_and_silence_is_a_timeout() {
        let policy = policy();
        let end_after = async |failure| {
            let mut retry = Retry::new(&policy, b"k");
            tokio::time::advance(policy.deadline.saturating_sub(policy.attempt_timeout / 2)).await;
            retry.pause(failure).await.expect("time for another attempt");
            let cut = retry.progress(pending::<()>()).await.unwrap_err();
            retry.pause(cut).await.unwrap_err()
        };
        let error = end_after(busy()).await;
        assert!(matches!(error, OriginError::Busy { .. }), "{error:?}");
        // As with a link that is cut: no route at first, and then no answer.
        let unreachable = OriginError::Unavailable { source: "no route to host".into() };
        let error = end_after(AttemptError::Retryable(unreachable)).await;
        assert!(matches!(error, OriginError::TimedOut { after, .. } if after == policy.deadline), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_failure_ends_within_the_deadline_and_not_at_once() {
        let start = Instant::now();
        let mut retry = Retry::new(&policy(), b"k");
        let error = loop {
            if let Err(error) = retry.pause(busy()).await {
                break error;
            }
        };
        assert!(matches!(error, OriginError::Busy { .. }));
        assert!(start.elapsed() <= Duration::from_secs(60));
        assert!(start.elapsed() >= Duration::from_secs(50), "gave up after {:?}", start.elapsed());
        assert!(retry.attempts > 8, "{} attempts", retry.attempts);
    }

    #[derive(Debug, Default)]
    struct Seen(std::sync::Mutex<Vec<String>>);

    impl watch::Watch for Seen {
        fn waits_for(&self, what: WaitsFor) {
            self.0.lock().unwrap().push(format!("{what:?}"));
        }

        fn attempted(&self, attempt: Attempt, took: Duration) {
            self.0.lock().unwrap().push(format!("{} {}ms", attempt.name(), took.as_millis()));
        }

        fn retries(&self, after: Attempt) {
            self.0.lock().unwrap().push(format!("again after {}", after.name()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_attempt_of_a_call_is_reported_once_with_its_outcome_and_time() {
        let (policy, seen) = (policy(), Arc::new(Seen::default()));
        let head = async |retry: &Retry, millis| {
            let head = async {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok::<_, ()>(())
            };
            retry.answer(head).await.expect("no timeout").expect("an answer");
        };
        let call = async {
            let mut retry = Retry::new(&policy, b"k");
            head(&retry, 30).await;
            retry.pause(busy()).await.expect("time for another attempt");
            let cut = retry.progress(pending::<()>()).await.unwrap_err();
            retry.pause(cut).await.expect("time for another attempt");
            head(&retry, 40).await;
            // Its body.
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        watch::watched(Arc::clone(&seen) as Arc<dyn watch::Watch>, call).await;
        assert_eq!(
            *seen.0.lock().unwrap(),
            [
                "throttled 30ms",
                "again after throttled",
                "Capacity",
                "timeout 10000ms",
                "again after timeout",
                "Recovery",
                "ok 40ms"
            ]
        );
    }

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn after_an_outage_with_refused_connections_an_origin_gets_as_many_requests_as_before() {
        let policy = policy();
        let (is_up, succeeded) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let (policy, is_up, succeeded) = (policy.clone(), Arc::clone(&is_up), Arc::clone(&succeeded));
            callers.spawn(async move {
                loop {
                    let permit = policy.limit.acquire(1, &Urgency::HIGH).await;
                    let retry = Retry::new(&policy, b"k");
                    let head = async {
                        if !is_up.load(Ordering::Relaxed) {
                            return Err("connection refused");
                        }
                        tokio::time::sleep(Duration::from_millis(60)).await;
                        Ok(())
                    };
                    match retry.answer(head).await.expect("no timeout") {
                        Ok(()) => {
                            succeeded.fetch_add(1, Ordering::Relaxed);
                            permit.succeeded(100_000);
                        }
                        Err(_) => tokio::time::sleep(FIRST_PAUSE).await,
                    }
                }
            });
        }
        for (seconds, up) in [(10, false), (60, true)] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            is_up.store(up, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = succeeded.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let calls = succeeded.load(Ordering::Relaxed) - before;
        // 64 at a time are about 2,100, and 32 half of that.
        assert!(calls >= 1_900, "{calls}");
    }

    #[tokio::test(start_paused = true)]
    async fn final_failure_is_not_asked_again() {
        let mut retry = Retry::new(&policy(), b"k");
        let failure = AttemptError::Final(OriginError::NotFound { key: Key::from(b"k".as_slice()) });
        assert!(matches!(retry.pause(failure).await, Err(OriginError::NotFound { .. })));
        assert_eq!(retry.attempts, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_step_is_cut_after_the_attempt_time() {
        let retry = Retry::new(&policy(), b"k");
        let start = Instant::now();
        let cut = retry.progress(std::future::pending::<()>()).await;
        assert!(matches!(cut, Err(AttemptError::Retryable(OriginError::TimedOut { .. }))));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }
}
