//! How many requests an origin is sent at a time, found by itself.
//!
//! [`Pace`] hands out turns. Their number doubles with each window of answers until the origin shows that it is too much,
//! and grows by one a window from then on, but only while somebody waits for a turn. A refusal (503, 429, an answer that
//! never came) halves it; answers that take four times as long as the origin's best make it a quarter smaller. As TCP
//! does, and for the same reason: who shares an origin with a thousand other nodes must find their share without asking.
//!
//! The cast: `Law` is the rule, pure and without a clock; [`Pace`] is the semaphore that follows it; [`Turn`] is the right
//! to one call. The invariant: [`LEAST`] to `most` turns, and a waiting call gets one when another ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Turns to begin with, and at least: a call keeps its turn while it pauses between attempts, and some that cannot succeed
/// must not stand in the way of all others.
const LEAST: usize = 32;

/// Answers in a window at least, so that one slow answer decides nothing.
const WINDOW_LEAST: usize = 16;

/// Answers that take this many times the best are a sign of a queue.
const SLOW: u32 = 4;

/// A mean below this is no sign of anything: a busy loopback, a cache in memory.
const SLOW_LEAST: Duration = Duration::from_millis(50);

/// The rule. Knows no clock and no semaphore.
#[derive(Debug)]
struct Law {
    limit: usize,
    least: usize,
    most: usize,
    /// Doubling; until the first sign of too much.
    doubling: bool,
    /// The best window mean, which rises slowly so that an origin that became slower for good is believed in the end.
    best: Option<Duration>,
    /// This window.
    answers: usize,
    total: Duration,
    /// Somebody had to wait for a turn.
    wanted: bool,
    /// Refusals that belong to the cause of the last cut.
    forgiven: usize,
}

impl Law {
    fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            limit: LEAST.min(most),
            least: LEAST.min(most),
            most,
            doubling: true,
            best: None,
            answers: 0,
            total: Duration::ZERO,
            wanted: false,
            forgiven: 0,
        }
    }

    fn answered(&mut self, after: Duration) {
        self.answers += 1;
        self.total += after;
        self.forgiven = self.forgiven.saturating_sub(1);
        if self.answers < self.limit.max(WINDOW_LEAST) {
            return;
        }
        // At least 16 answers, at most a semaphore's permits; the mean of a window.
        let mean = self.total / self.answers as u32;
        let best = self.best.map_or(mean, |best| mean.min(best + best / 64));
        self.best = Some(best);
        if mean >= SLOW_LEAST && mean > best * SLOW {
            self.doubling = false;
            self.limit = (self.limit - self.limit / 4).max(self.least);
        } else if self.wanted {
            let more = if self.doubling { self.limit } else { 1 };
            self.limit = (self.limit + more).min(self.most);
        }
        (self.answers, self.total, self.wanted) = (0, Duration::ZERO, false);
    }

    fn refused(&mut self) {
        if self.forgiven > 0 {
            self.forgiven -= 1;
            return;
        }
        // Those under way now were sent before the cut, and may be refused for the same reason.
        self.forgiven = self.limit;
        self.doubling = false;
        self.limit = (self.limit / 2).max(self.least);
        (self.answers, self.total, self.wanted) = (0, Duration::ZERO, false);
    }
}

/// Turns at an origin. Shared by all of its callers.
#[derive(Debug)]
pub(crate) struct Pace {
    turns: Semaphore,
    /// Turns that are to go as soon as they are given back.
    owed: AtomicUsize,
    law: Mutex<Law>,
}

/// The right to one call; given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Pace);

impl Pace {
    /// Finds its number, up to `most`.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Self::of(Law::new(most))
    }

    /// Always `turns`.
    pub(crate) fn fixed(turns: usize) -> Arc<Self> {
        let law = Law::new(turns);
        Self::of(Law { limit: law.most, ..law })
    }

    fn of(law: Law) -> Arc<Self> {
        Arc::new(Self { turns: Semaphore::new(law.limit), owed: AtomicUsize::new(0), law: Mutex::new(law) })
    }

    /// Waits for a turn, in order of asking, for at most `wait`.
    pub(crate) async fn turn(&self, wait: Duration) -> Option<Turn<'_>> {
        if let Ok(permit) = self.turns.try_acquire() {
            permit.forget();
            return Some(Turn(self));
        }
        self.law().wanted = true;
        // The semaphore is never closed, so the only failure is the clock's.
        tokio::time::timeout(wait, self.turns.acquire()).await.ok()?.ok()?.forget();
        Some(Turn(self))
    }

    /// An answer's head came, so long after the question.
    pub(crate) fn answered(&self, after: Duration) {
        self.follow(|law| law.answered(after));
    }

    /// The origin refused a request for being one too many, or never answered.
    pub(crate) fn refused(&self) {
        self.follow(Law::refused);
    }

    fn law(&self) -> MutexGuard<'_, Law> {
        self.law.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, change: impl FnOnce(&mut Law)) {
        let mut law = self.law();
        let before = law.limit;
        change(&mut law);
        let after = law.limit;
        // Within the lock, so that changes reach the semaphore in their order.
        if after > before {
            (before..after).for_each(|_| self.give_back());
        } else if after < before {
            let taken = self.turns.forget_permits(before - after);
            self.owed.fetch_add(before - after - taken, Ordering::Relaxed);
        }
        drop(law);
        if after != before {
            tracing::debug!(before, after, "requests at a time");
        }
    }

    /// One turn more, unless one is owed.
    fn give_back(&self) {
        let paid = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| owed.checked_sub(1));
        if paid.is_err() {
            self.turns.add_permits(1);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of answers that took this long, with somebody waiting.
    fn window(law: &mut Law, each: Duration) {
        law.wanted = true;
        for _ in 0..law.limit.max(WINDOW_LEAST) {
            law.answered(each);
        }
    }

    #[test]
    fn it_doubles_to_the_most_and_only_while_somebody_waits() {
        let mut law = Law::new(100);
        for expected in [64, 100, 100] {
            window(&mut law, Duration::from_millis(20));
            assert_eq!(law.limit, expected);
        }
        let mut law = Law::new(100);
        (0..1000).for_each(|_| law.answered(Duration::from_millis(20)));
        assert_eq!(law.limit, LEAST);
    }

    #[test]
    fn a_storm_of_refusals_is_one_sign_and_lasting_refusals_lead_to_the_least() {
        let mut law = Law::new(256);
        (0..4).for_each(|_| window(&mut law, Duration::from_millis(20)));
        assert_eq!(law.limit, 256);
        (0..256).for_each(|_| law.refused());
        assert_eq!(law.limit, 128);
        (0..1000).for_each(|_| law.refused());
        assert_eq!(law.limit, LEAST);
        window(&mut law, Duration::from_millis(20));
        assert_eq!(law.limit, LEAST + 1, "one at a time after the first sign");
        assert_eq!(Law::new(4).limit, 4, "never more than allowed");
    }

    #[test]
    fn a_queue_at_the_origin_is_seen_and_an_origin_that_became_slower_for_good_is_believed() {
        let mut law = Law::new(256);
        (0..4).for_each(|_| window(&mut law, Duration::from_millis(20)));
        assert_eq!(law.limit, 256);
        window(&mut law, Duration::from_millis(200));
        assert_eq!(law.limit, 192);
        for _ in 0..400 {
            window(&mut law, Duration::from_millis(200));
        }
        assert_eq!(law.limit, 256, "what was slow is normal now");
    }

    #[test]
    fn a_fast_origin_that_is_ten_times_slower_for_a_moment_is_no_sign() {
        let mut law = Law::new(64);
        window(&mut law, Duration::from_micros(200));
        window(&mut law, Duration::from_millis(2));
        assert_eq!(law.limit, 64);
    }

    #[tokio::test]
    async fn turns_follow_the_law_and_those_taken_are_owed() {
        let pace = Pace::of(Law { limit: 2 * LEAST, ..Law::new(128) });
        let mut turns = Vec::new();
        for _ in 0..2 * LEAST {
            turns.push(pace.turn(Duration::from_secs(1)).await.unwrap());
        }
        assert!(pace.turn(Duration::from_millis(10)).await.is_none());
        pace.refused();
        turns.truncate(LEAST);
        assert!(pace.turn(Duration::from_millis(10)).await.is_none(), "those given back were owed");
        turns.pop();
        assert!(pace.turn(Duration::from_millis(10)).await.is_some());
        turns.clear();
        assert_eq!(pace.turns.available_permits(), LEAST);
    }

    #[tokio::test]
    async fn a_fixed_pace_starts_with_all_its_turns() {
        let pace = Pace::fixed(40);
        assert_eq!(pace.turns.available_permits(), 40);
    }
}
