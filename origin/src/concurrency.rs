//! The number of concurrent requests to an origin: a limit that adapts to the origin's answers.
//!
//! [`ConcurrencyLimit`] issues permits. Their number doubles with each window of answers until the origin shows signs
//! of overload. After that it grows by one per window, but only while a call waits for a permit. A refusal (503, 429,
//! or an answer that never came) halves the number. Answers that take four times as long as the origin's best reduce it
//! by a quarter. TCP does the same for the same reason: a node that shares an origin with a thousand other nodes must
//! find its share without asking them.
//!
//! Its parts: `Rule` computes the limit; it is pure and has no clock. [`ConcurrencyLimit`] is the semaphore that
//! follows the rule. [`Permit`] allows one call. The invariant: there are [`LEAST`] to `most` permits, and a waiting
//! call gets one when another call ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

/// The initial and the smallest number of permits. A call keeps its permit while it pauses between attempts, so a few
/// calls that cannot succeed must not block all others.
const LEAST: usize = 32;

/// The smallest number of answers in a window, so that a single slow answer does not change the limit.
const WINDOW_LEAST: usize = 16;

/// A mean of this many times the best mean indicates a queue at the origin.
const SLOW: u32 = 4;

/// A mean below this is not a sign of overload: it may come from a busy loopback or a cache in memory.
const SLOW_LEAST: Duration = Duration::from_millis(50);

/// The rule that computes the limit. It knows neither clock nor semaphore.
#[derive(Debug)]
struct Rule {
    limit: usize,
    least: usize,
    most: usize,
    /// True until the first sign of overload; the limit doubles until then.
    doubling: bool,
    /// The best mean of a window. It rises slowly, so that an origin that became permanently slower is eventually
    /// accepted.
    best: Option<Duration>,
    /// The number of answers in this window.
    answers: usize,
    /// The sum of the times of these answers.
    total: Duration,
    /// True if a call had to wait for a permit in this window.
    wanted: bool,
    /// How many more refusals are attributed to the cause of the last cut.
    forgiven: usize,
}

impl Rule {
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
        // The cast cannot truncate: a window has at least 16 answers and at most as many as a semaphore has permits.
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
        // Requests in flight were sent before the cut and may be refused for the same reason.
        self.forgiven = self.limit;
        self.doubling = false;
        self.limit = (self.limit / 2).max(self.least);
        (self.answers, self.total, self.wanted) = (0, Duration::ZERO, false);
    }
}

/// The permits of an origin. All of its callers share them.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    permits: Semaphore,
    /// The number of permits that must be withdrawn when they are returned.
    owed: AtomicUsize,
    rule: Mutex<Rule>,
}

/// Allows one call. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a ConcurrencyLimit);

impl ConcurrencyLimit {
    /// A limit that adapts, up to `most` permits.
    pub(crate) fn adaptive(most: usize) -> Arc<Self> {
        Self::of(Rule::new(most))
    }

    /// A limit of always `permits` permits.
    pub(crate) fn fixed(permits: usize) -> Arc<Self> {
        let rule = Rule::new(permits);
        Self::of(Rule { limit: rule.most, ..rule })
    }

    fn of(rule: Rule) -> Arc<Self> {
        Arc::new(Self { permits: Semaphore::new(rule.limit), owed: AtomicUsize::new(0), rule: Mutex::new(rule) })
    }

    /// Waits at most `wait` for a permit, first come, first served. `None` after that time.
    pub(crate) async fn acquire(&self, wait: Duration) -> Option<Permit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            permit.forget();
            return Some(Permit(self));
        }
        self.rule().wanted = true;
        // The semaphore is never closed, so only the timeout can fail.
        tokio::time::timeout(wait, self.permits.acquire()).await.ok()?.ok()?.forget();
        Some(Permit(self))
    }

    /// Reports that the head of an answer arrived `after` its request was sent.
    pub(crate) fn answered(&self, after: Duration) {
        self.apply(|rule| rule.answered(after));
    }

    /// Reports that the origin refused a request for lack of capacity, or never answered it.
    pub(crate) fn refused(&self) {
        self.apply(Rule::refused);
    }

    fn rule(&self) -> MutexGuard<'_, Rule> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, change: impl FnOnce(&mut Rule)) {
        let mut rule = self.rule();
        let before = rule.limit;
        change(&mut rule);
        let after = rule.limit;
        // Done under the lock, so that changes reach the semaphore in order.
        if after > before {
            (before..after).for_each(|_| self.release());
        } else if after < before {
            let taken = self.permits.forget_permits(before - after);
            self.owed.fetch_add(before - after - taken, Ordering::Relaxed);
        }
        drop(rule);
        if after != before {
            tracing::debug!(before, after, "concurrent requests");
        }
    }

    /// Adds one permit, unless a permit must be withdrawn.
    fn release(&self) {
        let paid = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| owed.checked_sub(1));
        if paid.is_err() {
            self.permits.add_permits(1);
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of answers that took `each`, while a call waited for a permit.
    fn window(rule: &mut Rule, each: Duration) {
        rule.wanted = true;
        for _ in 0..rule.limit.max(WINDOW_LEAST) {
            rule.answered(each);
        }
    }

    // SEMANTICS: O7
    #[test]
    fn it_doubles_to_the_most_and_only_while_somebody_waits() {
        let mut rule = Rule::new(100);
        for expected in [64, 100, 100] {
            window(&mut rule, Duration::from_millis(20));
            assert_eq!(rule.limit, expected);
        }
        let mut rule = Rule::new(100);
        (0..1000).for_each(|_| rule.answered(Duration::from_millis(20)));
        assert_eq!(rule.limit, LEAST);
    }

    // SEMANTICS: O7
    #[test]
    fn a_storm_of_refusals_is_one_sign_and_lasting_refusals_lead_to_the_least() {
        let mut rule = Rule::new(256);
        (0..4).for_each(|_| window(&mut rule, Duration::from_millis(20)));
        assert_eq!(rule.limit, 256);
        (0..256).for_each(|_| rule.refused());
        assert_eq!(rule.limit, 128);
        (0..1000).for_each(|_| rule.refused());
        assert_eq!(rule.limit, LEAST);
        window(&mut rule, Duration::from_millis(20));
        assert_eq!(rule.limit, LEAST + 1, "one more per window after the first sign");
        assert_eq!(Rule::new(4).limit, 4, "never more than configured");
    }

    // SEMANTICS: O7
    #[test]
    fn a_queue_at_the_origin_is_seen_and_an_origin_that_became_slower_for_good_is_believed() {
        let mut rule = Rule::new(256);
        (0..4).for_each(|_| window(&mut rule, Duration::from_millis(20)));
        assert_eq!(rule.limit, 256);
        window(&mut rule, Duration::from_millis(200));
        assert_eq!(rule.limit, 192);
        for _ in 0..400 {
            window(&mut rule, Duration::from_millis(200));
        }
        assert_eq!(rule.limit, 256, "the slower times are normal now");
    }

    #[test]
    fn a_fast_origin_that_is_ten_times_slower_for_a_moment_is_no_sign() {
        let mut rule = Rule::new(64);
        window(&mut rule, Duration::from_micros(200));
        window(&mut rule, Duration::from_millis(2));
        assert_eq!(rule.limit, 64);
    }

    #[tokio::test]
    async fn turns_follow_the_law_and_those_taken_are_owed() {
        let limit = ConcurrencyLimit::of(Rule { limit: 2 * LEAST, ..Rule::new(128) });
        let mut permits = Vec::new();
        for _ in 0..2 * LEAST {
            permits.push(limit.acquire(Duration::from_secs(1)).await.unwrap());
        }
        assert!(limit.acquire(Duration::from_millis(10)).await.is_none());
        limit.refused();
        permits.truncate(LEAST);
        assert!(limit.acquire(Duration::from_millis(10)).await.is_none(), "the returned permits were owed");
        permits.pop();
        assert!(limit.acquire(Duration::from_millis(10)).await.is_some());
        permits.clear();
        assert_eq!(limit.permits.available_permits(), LEAST);
    }

    #[tokio::test]
    async fn a_fixed_pace_starts_with_all_its_turns() {
        let limit = ConcurrencyLimit::fixed(40);
        assert_eq!(limit.permits.available_permits(), 40);
    }
}
