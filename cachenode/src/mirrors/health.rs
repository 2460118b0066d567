//! Whether an origin answers.
//!
//! Invariant: an origin counts as left once it gave nothing for [`LEFT_AFTER`] while a read waited, or failed all calls
//! for that long, until it was seen to answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// An origin that gives nothing for this long is left.
pub(super) const LEFT_AFTER: Duration = Duration::from_secs(10);

/// The signs of life of an origin. Times are milliseconds since its creation, from 1 on.
#[derive(Debug)]
pub(super) struct Health {
    created: Instant,
    alive: AtomicU64,
    /// Since when all calls have failed; 0: the last one has not.
    failing: AtomicU64,
    left: watch::Sender<bool>,
}

impl Health {
    pub(super) fn new() -> Self {
        let (alive, failing) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { created: Instant::now(), alive, failing, left: watch::Sender::new(false) }
    }

    /// The time now.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    pub(super) fn is_left(&self) -> bool {
        *self.left.borrow()
    }

    /// Notes that the origin answered, or sent bytes.
    pub(super) fn is_alive(&self) {
        self.alive.store(self.now(), Ordering::Relaxed);
        self.failing.store(0, Ordering::Relaxed);
    }

    /// Notes a call that failed. True if all have for so long that the origin is to be left.
    pub(super) fn has_failed(&self) -> bool {
        let now = self.now();
        match self.failing.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(since) => now.saturating_sub(since) >= LEFT_AFTER.as_millis() as u64,
        }
    }

    /// Leaves the origin, and ends [`Self::silent`] of all who wait for it. True if it was not left yet.
    pub(super) fn leave(&self) -> bool {
        !self.left.send_replace(true)
    }

    /// Uses the origin again.
    pub(super) fn is_back(&self) {
        self.is_alive();
        self.left.send_replace(false);
    }

    /// Waits until the origin is left, or has given nothing for [`LEFT_AFTER`] since a call `began`. Of an origin that
    /// was left before the call, only the latter counts. Cancel-safe.
    pub(super) async fn silent(&self, began: u64) {
        let mut left = self.left.subscribe();
        let was_left = *left.borrow_and_update();
        loop {
            let since = self.alive.load(Ordering::Relaxed).max(began);
            let due = self.created + Duration::from_millis(since) + LEFT_AFTER;
            tokio::select! {
                _ = left.changed(), if !was_left => return,
                () = sleep_until(due) => {
                    if self.alive.load(Ordering::Relaxed) <= since {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silence_ends_waits_and_each_sign_of_life_puts_it_off() {
        let health = Health::new();
        let began = Instant::now();
        health.silent(health.now()).await;
        assert!((LEFT_AFTER..LEFT_AFTER * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
        let (began, at) = (Instant::now(), health.now());
        let life = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(6)).await;
                health.is_alive();
            }
        };
        tokio::join!(health.silent(at), life);
        let waited = began.elapsed();
        assert!((Duration::from_secs(40)..Duration::from_secs(41)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_leave_with_the_first() {
        let health = Arc::new(Health::new());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let waiting = tokio::spawn({
            let health = Arc::clone(&health);
            async move { health.silent(health.now()).await }
        });
        tokio::task::yield_now().await;
        assert!(health.leave() && health.is_left());
        assert!(!health.leave(), "it was left already");
        let began = Instant::now();
        waiting.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        health.is_back();
        assert!(!health.is_left());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_count_from_the_first_since_the_last_answer() {
        let health = Health::new();
        assert!(!health.has_failed());
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!health.has_failed());
        health.is_alive();
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!health.has_failed(), "this one is the first");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(health.has_failed());
    }
}
