//! The server's clock, if it differs from this machine's.
//!
//! S3 refuses requests that were signed more than 15 minutes before or after its own time. The first such refusal
//! contains the server's time. From then on, all requests of the origin are signed with that time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::DATE;
use http::{HeaderMap, StatusCode};

/// The error code of such a refusal.
const CODE: &[u8] = b"<Code>RequestTimeTooSkewed</Code>";
/// The difference of the clocks above which a refusal without a body, for example of a HEAD, has this cause. S3 accepts
/// up to 15 minutes.
const TOO_SKEWED: Duration = Duration::from_secs(14 * 60);

/// How far the server's clock is ahead of this machine's.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    ahead_ms: AtomicI64,
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl ServerClock {
    /// The current time by the server's clock.
    pub(super) fn now(&self) -> SystemTime {
        let now = milliseconds(SystemTime::now()).saturating_add(self.ahead_ms.load(Ordering::Relaxed));
        UNIX_EPOCH + Duration::from_millis(now.max(0).cast_unsigned())
    }

    /// If this answer refuses a request because of its signing time, returns how far the server's clock is ahead of
    /// this machine's, in milliseconds; 0 if the answer does not contain the time. `None` for any other answer.
    pub(super) fn refusal(
        &self,
        signed: SystemTime,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Option<i64> {
        if status != StatusCode::FORBIDDEN {
            return None;
        }
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let there = date.and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok());
        let there = there.map(|there| there.timestamp_millis());
        let from_signed = there.map_or(0, |there| there.abs_diff(milliseconds(signed)));
        let named = body.windows(CODE.len()).any(|part| part == CODE);
        let meant = named || body.is_empty() && u128::from(from_signed) > TOO_SKEWED.as_millis();
        meant.then(|| there.map_or(0, |there| there - milliseconds(SystemTime::now())))
    }

    /// Signs with the server's time from now on. False if the clock was already corrected by this much, so that another
    /// attempt would fail too.
    pub(super) fn follow(&self, ahead_ms: i64) -> bool {
        let before = self.ahead_ms.swap(ahead_ms, Ordering::Relaxed);
        before.abs_diff(ahead_ms) > 60_000
    }
}

/// Formats a duration for messages.
pub(super) fn shown(ahead_ms: i64) -> String {
    let (seconds, side) = (ahead_ms.unsigned_abs() / 1000, if ahead_ms > 0 { "behind" } else { "ahead of" });
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let length = match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {seconds} s"),
        _ => format!("{hours} h {minutes} min"),
    };
    format!("{length} {side}")
}
