//! A driver, or one GPU, that does not answer: it becomes a fault only after a grace period.

use std::time::{Duration, Instant};

use super::event::Now;
use super::fault::{Fault, Reason};

#[derive(Clone, Debug, Default)]
pub(super) struct Silence {
    /// When the failures began, and the last reason.
    failing: Option<(Now, String)>,
    /// True once the failures have lasted for the grace period.
    out: bool,
}

impl Silence {
    pub(super) fn answer(&mut self) {
        *self = Self::default();
    }

    pub(super) fn fail(&mut self, why: String, now: Now) {
        let since = self.failing.take().map_or(now, |(since, _)| since);
        self.failing = Some((since, why));
    }

    pub(super) fn answers(&self) -> bool {
        self.failing.is_none()
    }

    pub(super) fn settle(&mut self, limit: Duration, now: Now) {
        if self.next(limit).is_some_and(|due| due <= now.instant) {
            self.out = true;
        }
    }

    pub(super) fn next(&self, limit: Duration) -> Option<Instant> {
        let (since, _) = self.failing.as_ref().filter(|_| !self.out)?;
        Some(since.instant + limit)
    }

    pub(super) fn fault(&self, who: &str) -> Option<Fault> {
        let (since, why) = self.failing.as_ref().filter(|_| self.out)?;
        Some(Fault {
            reason: Reason::DriverSilent,
            message: format!("{who}: {why}"),
            since: since.wall,
            recovery: "NVML answers".to_owned(),
        })
    }
}
