//! A cap on bytes per second: the generic cell rate algorithm, which is a token bucket that keeps one point in time.
//!
//! A call waits until all bytes before it are paid for, and then charges its own. Calls for which somebody waits
//! ([`Urgency`]) take turns in order; the others charge only while none of those waits. A call that gives up has
//! charged nothing. The invariant: in any time `t`, at most `t` and [`BURST`] times the rate are charged, and one
//! call's bytes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as TurnMutex;
use tokio::time::Instant;

use crate::urgency::Urgency;

/// How much of a pause may be made up for.
const BURST: Duration = Duration::from_millis(100);

/// How often a call that lets others go first checks whether it may go.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// A cap on the bytes per second of all calls that share it.
#[derive(Debug)]
pub struct Rate {
    bytes_per_second: u64,
    /// When everything that was charged is paid for.
    paid: Mutex<Instant>,
    /// Held by the call that is next, of those that are waited for.
    turn: TurnMutex<()>,
    /// Held by the call that is next, of the others.
    low_turn: TurnMutex<()>,
}

impl Rate {
    /// A cap of this many bytes per second (at least one).
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            paid: Mutex::new(Instant::now()),
            turn: TurnMutex::new(()),
            low_turn: TurnMutex::new(()),
        }
    }

    /// Waits until the rate allows a call, and charges its bytes. Cancel-safe.
    pub async fn wait(&self, bytes: u64, urgency: &Urgency) {
        self.wait_for(|| bytes, urgency).await;
    }

    /// The same for a call whose bytes are known when it is its turn. Cancel-safe.
    pub async fn wait_for(&self, bytes: impl Fn() -> u64, urgency: &Urgency) {
        if !urgency.is_high() {
            tokio::select! {
                biased;
                () = self.wait_for_others(&bytes) => return,
                () = urgency.high() => {}
            }
        }
        let _turn = self.turn.lock().await;
        let paid = *self.paid();
        tokio::time::sleep_until(paid).await;
        self.charge(bytes());
    }

    /// As [`Self::wait_for`], for a call for which nobody waits.
    async fn wait_for_others(&self, bytes: &impl Fn() -> u64) {
        let _turn = self.low_turn.lock().await;
        loop {
            let (now, paid) = (Instant::now(), *self.paid());
            // Somebody has the turn while anybody who is waited for is here.
            if paid <= now && self.turn.try_lock().is_ok() {
                return self.charge(bytes());
            }
            tokio::time::sleep_until(paid.max(now + POLL_EVERY)).await;
        }
    }

    /// Charges bytes without a wait: those after them wait.
    pub fn charge(&self, bytes: u64) {
        let now = Instant::now();
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut paid = self.paid();
        *paid = now.checked_sub(BURST).map_or(*paid, |earliest| earliest.max(*paid)) + cost;
    }

    fn paid(&self) -> MutexGuard<'_, Instant> {
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MIB: u64 = 1 << 20;

    static HIGH: Urgency = Urgency::HIGH;

    // SEMANTICS: O10
    #[tokio::test(start_paused = true)]
    async fn many_calls_together_take_the_time_that_the_rate_gives_them() {
        let rate = Rate::new(10 * MIB);
        let started = Instant::now();
        futures::future::join_all((0..100).map(|_| rate.wait(MIB, &HIGH))).await;
        // 100 MiB, of which the last call's is not waited for.
        let took = started.elapsed();
        assert!((Duration::from_millis(9_800)..=Duration::from_millis(9_910)).contains(&took), "{took:?}");
        // An hour's pause is not made up for.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let started = Instant::now();
        futures::future::join_all((0..10).map(|_| rate.wait(MIB, &HIGH))).await;
        assert!(started.elapsed() >= Duration::from_millis(790), "{:?}", started.elapsed());
    }

    // SEMANTICS: O10
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_waited_for_go_before_those_that_came_earlier_and_are_not() {
        let (rate, warmed) = (Arc::new(Rate::new(MIB)), Arc::new(AtomicUsize::new(0)));
        let warming: Vec<_> = (0..50)
            .map(|_| {
                let (rate, warmed) = (Arc::clone(&rate), Arc::clone(&warmed));
                tokio::spawn(async move {
                    rate.wait(MIB, &Urgency::low()).await;
                    warmed.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let before = warmed.load(Ordering::Relaxed);
        assert!((2..=4).contains(&before), "{before}");
        futures::future::join_all((0..20).map(|_| rate.wait(MIB, &HIGH))).await;
        assert_eq!(warmed.load(Ordering::Relaxed), before, "no warm-up while a reader waits");
        for warming in warming {
            warming.await.expect("it ends when the readers have gone");
        }
        assert_eq!(warmed.load(Ordering::Relaxed), 50);
    }

    // SEMANTICS: O10
    #[tokio::test(start_paused = true)]
    async fn a_call_that_gives_up_has_charged_nothing_and_one_that_is_raised_goes_on() {
        let rate = Rate::new(MIB);
        rate.wait(10 * MIB, &Urgency::HIGH).await;
        for _ in 0..100 {
            let gave_up = tokio::time::timeout(Duration::from_millis(10), rate.wait(MIB, &Urgency::HIGH)).await;
            assert!(gave_up.is_err());
        }
        let (started, urgency) = (Instant::now(), Urgency::low());
        let turn = rate.turn.lock().await;
        let raise = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            urgency.raise();
            drop(turn);
        };
        tokio::join!(rate.wait(MIB, &urgency), raise);
        assert!(started.elapsed() <= Duration::from_millis(9_100), "{:?}", started.elapsed());
    }
}
