//! The pause after a failed write: a full or failing disk is retried after a pause, not for every block.
//!
//! Invariant: while the disk fails, at most one admission in each pause tries the disk. The pause doubles with each
//! failed attempt up to its limit, and a successful attempt ends it. Reads are not affected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Health {
    /// True while the disk fails. Checked first, so that a healthy disk needs no lock.
    failing: AtomicBool,
    failure: Mutex<Option<Failure>>,
    first: Duration,
    most: Duration,
}

#[derive(Debug)]
struct Failure {
    reason: &'static str,
    pause: Duration,
    until: Instant,
    tried: bool,
}

impl Health {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { failing: AtomicBool::new(false), failure: Mutex::new(None), first, most }
    }

    /// True if an admission may write to the disk now.
    pub(crate) fn may_write(&self, now: Instant) -> bool {
        if !self.failing.load(Ordering::Relaxed) {
            return true;
        }
        match &mut *self.lock() {
            None => true,
            Some(failure) if now < failure.until => false,
            Some(failure) => {
                // The attempt may never write, because its fetch failed. The next attempt is then allowed one pause
                // later.
                failure.until = now + failure.pause;
                failure.tried = true;
                true
            }
        }
    }

    /// Records a failed write. True if it is the first of a failure.
    pub(crate) fn failed(&self, reason: &'static str, now: Instant) -> bool {
        self.failing.store(true, Ordering::Relaxed);
        match &mut *self.lock() {
            empty @ None => {
                *empty = Some(Failure { reason, pause: self.first, until: now + self.first, tried: false });
                true
            }
            Some(failure) => {
                failure.reason = reason;
                // Writes that were already in flight at the first failure must not double the pause.
                if failure.tried {
                    failure.pause = (failure.pause * 2).min(self.most);
                    failure.until = now + failure.pause;
                    failure.tried = false;
                }
                false
            }
        }
    }

    /// Records a successful write. True if it ends a failure.
    pub(crate) fn worked(&self) -> bool {
        if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let mut failure = self.lock();
        // Only a success after an attempt counts: on a full disk, small writes in flight may succeed between large ones
        // that fail.
        let over = failure.as_ref().is_some_and(|failure| failure.tried);
        if over {
            *failure = None;
            self.failing.store(false, Ordering::Relaxed);
        }
        over
    }

    /// True while the disk fails, whether or not its pause has ended.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// True if an admission may try the disk, and has not failed yet.
    pub(crate) fn is_being_tried(&self) -> bool {
        self.is_failing() && self.lock().as_ref().is_some_and(|failure| failure.tried)
    }

    /// Ends the pause but not the failure: the next admission is an attempt.
    pub(crate) fn end_pause(&self, now: Instant) {
        if let Some(failure) = &mut *self.lock() {
            failure.until = now;
        }
    }

    /// Why admissions are paused. None if they are not.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        self.failing.load(Ordering::Relaxed).then(|| self.lock().as_ref().map(|failure| failure.reason)).flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_disk_is_tried_once_a_pause_and_the_pause_doubles_to_its_limit() {
        let health = Health::new(Duration::from_secs(10), Duration::from_secs(25));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(health.may_write(at(0)));
        assert!(health.failed("full", at(0)));
        assert!(!health.failed("full", at(0)), "a second failure of the same time is no news");
        assert!(!health.may_write(at(9)));
        assert!(health.may_write(at(10)) && !health.may_write(at(10)), "one try");
        assert!(!health.failed("full", at(10)));
        assert!(!health.may_write(at(29)) && health.may_write(at(30)));
        health.failed("full", at(30));
        assert!(!health.may_write(at(54)) && health.may_write(at(55)), "25 s is the limit");
        assert_eq!(health.reason(), Some("full"));
        assert!(health.worked());
        assert_eq!(health.reason(), None);
        assert!(health.may_write(at(55)) && health.may_write(at(55)));
    }

    #[test]
    fn a_pause_that_is_ended_lets_one_admission_try_and_the_failure_lasts_until_that_worked() {
        let health = Health::new(Duration::from_secs(10), Duration::from_secs(300));
        let start = Instant::now();
        health.end_pause(start);
        assert!(health.may_write(start), "nothing failed");
        health.failed("disk full", start);
        assert!(!health.may_write(start + Duration::from_secs(1)));
        health.end_pause(start + Duration::from_secs(2));
        assert_eq!(health.reason(), Some("disk full"));
        assert!(health.may_write(start + Duration::from_secs(2)) && !health.may_write(start + Duration::from_secs(2)));
        assert!(health.worked() && health.reason().is_none());
    }

    #[test]
    fn a_try_that_never_wrote_does_not_stop_later_ones() {
        let health = Health::new(Duration::from_secs(10), Duration::from_secs(300));
        let start = Instant::now();
        health.failed("gone", start);
        assert!(health.may_write(start + Duration::from_secs(10)));
        assert!(health.may_write(start + Duration::from_secs(20)));
    }

    #[test]
    fn a_late_success_does_not_end_the_pause() {
        let health = Health::new(Duration::from_secs(10), Duration::from_secs(300));
        let now = Instant::now();
        health.failed("full", now);
        assert!(!health.worked());
        assert!(!health.may_write(now));
    }
}
