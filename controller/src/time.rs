//! The two clocks of the controller, each a type, so that a time of one is never taken for a time of the other.
//!
//! The loop measures with [`Millis`], which nobody sets; objects of the API name [`Seconds`]. A length of time is a plain
//! integer in the unit of its clock. Arithmetic stops at the ends of the range: times come from objects that anybody may
//! have written.

use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A time in milliseconds since the process started, on a clock that never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// A time in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub i64);

impl Seconds {
    /// Later than any other time.
    pub const NEVER: Self = Self(i64::MAX);
}

impl Add<u64> for Millis {
    type Output = Self;

    fn add(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

impl Sub for Millis {
    type Output = u64;

    /// The milliseconds since `earlier`; 0 if that is later.
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

    /// The seconds since `earlier`; negative if that is later.
    fn sub(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The earliest of the times that were noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Earliest(Option<Seconds>);

impl Earliest {
    /// Notes a time. [`Seconds::NEVER`] does not count.
    pub fn note(&mut self, at: Seconds) {
        if at != Seconds::NEVER {
            self.0 = Some(self.0.map_or(at, |before| before.min(at)));
        }
    }

    /// The earliest time, if any was noted.
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
