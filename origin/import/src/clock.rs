//! The wall clock, for the creation times in headers.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current time in nanoseconds since the epoch. 0 if the clock is set before the epoch.
pub(crate) fn nanoseconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
