//! Asking again: jittered exponential back-off under one deadline for all attempts of a call.
//!
//! A call makes a [`Retry`], bounds each wait of an attempt with [`Retry::progress`], and hands a failed attempt to
//! [`Retry::pause`], which sleeps or gives the failure back as final. The invariant: a call returns within its
//! deadline whatever the origin does.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Key, OriginError};
use crate::pace::Pace;

/// How patient calls are, out of the [`OriginConfig`](crate::OriginConfig).
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// Hears how attempts end.
    pub(crate) pace: Arc<Pace>,
    /// An attempt that makes no progress for this long is cut.
    pub(crate) attempt: Duration,
    /// All attempts of a call end by then.
    pub(crate) deadline: Duration,
}

/// Why an attempt failed: for good, or so that the next may succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    Final(OriginError),
    Again(OriginError),
}

impl From<OriginError> for Failure {
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
    patience: Patience,
    end: Instant,
    attempts: u32,
}

impl Retry {
    pub(crate) fn new(patience: &Patience, key: &[u8]) -> Self {
        let end = Instant::now() + patience.deadline;
        Self { key: Key::from(key), patience: patience.clone(), end, attempts: 0 }
    }

    /// Waits for one step of an attempt, which is cut when nothing comes for the attempt's time or at the deadline.
    pub(crate) async fn progress<T>(&self, step: impl Future<Output = T>) -> Result<T, Failure> {
        let left = self.end.saturating_duration_since(Instant::now());
        let wait = left.min(self.patience.attempt);
        tokio::time::timeout(wait, step)
            .await
            .map_err(|_| Failure::Again(OriginError::TimedOut { key: self.key.clone(), after: wait }))
    }

    /// The same for the head of an answer; how long it took says how busy the origin is.
    pub(crate) async fn answer<T>(&self, step: impl Future<Output = T>) -> Result<T, Failure> {
        let asked = Instant::now();
        let answer = self.progress(step).await?;
        self.patience.pace.answered(asked.elapsed());
        Ok(answer)
    }

    /// Sleeps before the next attempt, or gives the failure back if it was final or the deadline would pass.
    pub(crate) async fn pause(&mut self, failure: Failure) -> Result<(), OriginError> {
        let error = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Again(error) => error,
        };
        if matches!(error, OriginError::Busy { .. } | OriginError::TimedOut { .. }) {
            self.patience.pace.refused();
        }
        let ceiling = FIRST_PAUSE.saturating_mul(1 << self.attempts.min(10)).min(LONGEST_PAUSE);
        let pause = ceiling.mul_f64(rand::random_range(0.5..=1.0));
        if Instant::now() + pause >= self.end {
            return Err(error);
        }
        self.attempts += 1;
        tracing::debug!(key = %self.key, attempts = self.attempts, error = &error as &dyn std::error::Error, "ask the origin again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        Patience { pace: Pace::new(64), attempt: Duration::from_secs(10), deadline: Duration::from_secs(60) }
    }

    fn busy() -> Failure {
        Failure::Again(OriginError::Busy { source: "slow down".into() })
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_failure_ends_within_the_deadline_and_not_at_once() {
        let start = Instant::now();
        let mut retry = Retry::new(&patience(), b"k");
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

    #[tokio::test(start_paused = true)]
    async fn final_failure_is_not_asked_again() {
        let mut retry = Retry::new(&patience(), b"k");
        let failure = Failure::Final(OriginError::NotFound { key: Key::from(b"k".as_slice()) });
        assert!(matches!(retry.pause(failure).await, Err(OriginError::NotFound { .. })));
        assert_eq!(retry.attempts, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_step_is_cut_after_the_attempt_time() {
        let retry = Retry::new(&patience(), b"k");
        let start = Instant::now();
        let cut = retry.progress(std::future::pending::<()>()).await;
        assert!(matches!(cut, Err(Failure::Again(OriginError::TimedOut { .. }))));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    }
}
