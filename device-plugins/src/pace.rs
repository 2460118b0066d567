//! When a failed request is tried again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The pauses after failures: a second, then twice as long after each, up to a minute. They never end.
pub(crate) fn pauses() -> ExponentialBackoff {
    let builder =
        ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)).with_max_delay(Duration::from_secs(60));
    builder.without_max_times().build()
}

/// A part of `most` for each name, so that the nodes of a cluster do not all ask at once.
pub(crate) fn part(name: &str, most: Duration) -> Duration {
    let sum = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    most * (sum % 1000) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let first: Vec<u64> = pauses().take(8).map(|pause| pause.as_secs()).collect();
        assert_eq!(first, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses().nth(1000), Some(Duration::from_secs(60)));
    }

    #[test]
    fn nodes_ask_at_different_times() {
        let most = Duration::from_secs(30);
        let parts: std::collections::BTreeSet<Duration> =
            (0..100).map(|node| part(&format!("n{node}"), most)).collect();
        assert!(parts.len() > 50 && parts.iter().all(|part| *part < most), "{parts:?}");
    }
}
