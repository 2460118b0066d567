//! Whether a program's main loop still runs, for `/healthz`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A loop that has not beaten for this long has stopped. It is far longer than any step of a loop takes on a machine
/// that is short of CPU or memory, because the kubelet kills a program whose loop has stopped.
const STOPPED: Duration = Duration::from_secs(120);

/// The heartbeat of a loop: the loop beats in each pass, and `/healthz` fails when it has not beaten for two minutes.
/// Time is the process's monotonic clock. Creating it counts as the first beat. Clones share the heartbeat.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Last>);

#[derive(Debug)]
struct Last {
    created: Instant,
    /// Milliseconds after `created`.
    beat: AtomicU64,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Last { created: Instant::now(), beat: AtomicU64::new(0) }))
    }
}

impl Heartbeat {
    /// The longest that a loop may wait for its next event before it beats again.
    pub const EVERY: Duration = Duration::from_secs(10);

    /// Records that the loop runs.
    pub fn beat(&self) {
        self.0.beat.store(self.now(), Ordering::Relaxed);
    }

    /// `Ok` while the loop runs; otherwise the reason, which names `what` has stopped.
    pub fn check(&self, what: &str) -> Result<(), String> {
        let silent = Duration::from_millis(self.now().saturating_sub(self.0.beat.load(Ordering::Relaxed)));
        if silent < STOPPED { Ok(()) } else { Err(format!("{what} stopped {} s ago", silent.as_secs())) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.created.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: P7
    #[tokio::test(start_paused = true)]
    async fn a_loop_is_dead_after_two_minutes_without_a_beat_and_alive_with_the_next() {
        let heartbeat = Heartbeat::default();
        for _ in 0..3 {
            tokio::time::advance(STOPPED - Duration::from_millis(1)).await;
            assert_eq!(heartbeat.check("the loop"), Ok(()));
            heartbeat.clone().beat();
        }
        tokio::time::advance(STOPPED).await;
        assert_eq!(heartbeat.check("the loop"), Err("the loop stopped 120 s ago".to_owned()));
        heartbeat.beat();
        assert_eq!(heartbeat.check("the loop"), Ok(()));
    }
}
