//! When a failed request is tried again.

use std::time::Duration;

/// Twice as long after each failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);

    pub(crate) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// The pause after a failure.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::LONGEST);
        pause
    }
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
        let mut backoff = Backoff::new();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn nodes_ask_at_different_times() {
        let most = Duration::from_secs(30);
        let parts: std::collections::BTreeSet<Duration> =
            (0..100).map(|node| part(&format!("n{node}"), most)).collect();
        assert!(parts.len() > 50 && parts.iter().all(|part| *part < most), "{parts:?}");
    }
}
