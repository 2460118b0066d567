//! The two clocks of the controller, each with its own type, so that their times cannot be mixed up.
//!
//! The loop measures with [`Millis`], a monotonic clock. API objects contain [`Seconds`], wall-clock time. A duration
//! is a plain integer in the unit of its clock. Arithmetic saturates, because any user may have written the times in
//! objects.

use std::ops::{Add, AddAssign, Sub};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// Milliseconds since the process started, on a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub i64);

impl Seconds {
    /// Later than any other time.
    pub const NEVER: Self = Self(i64::MAX);

    /// A time in an object.
    pub fn of(time: &Time) -> Self {
        Self(time.0.as_second())
    }
}

impl Add<u64> for Millis {
    type Output = Self;

    fn add(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

impl Sub for Millis {
    type Output = u64;

    /// The milliseconds since `earlier`; 0 if `earlier` is later.
    fn sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<i64> for Seconds {
    type Output = Self;

    fn add(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}

impl AddAssign<i64> for Seconds {
    fn add_assign(&mut self, seconds: i64) {
        *self = *self + seconds;
    }
}

impl Sub<i64> for Seconds {
    type Output = Self;

    fn sub(self, seconds: i64) -> Self {
        Self(self.0.saturating_sub(seconds))
    }
}

impl Sub for Seconds {
    type Output = i64;

    /// The seconds since `earlier`; negative if `earlier` is later.
    fn sub(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Collects times and keeps the earliest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earliest(Option<Seconds>);

impl Earliest {
    /// Adds a time. [`Seconds::NEVER`] is ignored.
    pub fn note(&mut self, at: Seconds) {
        if at != Seconds::NEVER {
            self.0 = Some(self.0.map_or(at, |before| before.min(at)));
        }
    }

    /// The earliest time; `None` if none was added.
    pub fn at(self) -> Option<Seconds> {
        self.0
    }
}

impl Extend<Seconds> for Earliest {
    fn extend<T: IntoIterator<Item = Seconds>>(&mut self, times: T) {
        times.into_iter().for_each(|at| self.note(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_the_ends_of_the_range() {
        assert_eq!(Millis(u64::MAX) + 1, Millis(u64::MAX));
        assert_eq!(Millis(5) - Millis(7), 0);
        assert_eq!(Seconds(i64::MAX - 1) + 5, Seconds::NEVER);
        assert_eq!(Seconds(10) - Seconds(25), -15);
    }

    #[test]
    fn the_earliest_time_is_kept_and_never_is_no_time() {
        let mut earliest = Earliest::default();
        earliest.note(Seconds::NEVER);
        assert_eq!(earliest.at(), None);
        earliest.extend([Seconds(7), Seconds(3), Seconds(5)]);
        assert_eq!(earliest.at(), Some(Seconds(3)));
    }
}
