//! Into how many ranges, each a GET of its own, the fetch of a block of a large file is split.
//!
//! Some origins limit the bytes per second of each connection. There, several ranges of a block arrive sooner than the
//! block does, and fewer blocks in flight, with less memory, fill the link. Where the link is the limit, ranges would
//! only be more GETs. So this compares what a GET brings beside few others with what it brings beside many: if that is
//! about the same, its connection is the limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The most ranges of a block, and the smallest range.
const RANGES_MOST: u64 = 4;
const RANGE_BYTES: u64 = 1 << 20;

/// A range takes this long at least, so that what it saves is more than its request costs.
const RANGE_TIME: Duration = Duration::from_millis(16);

/// A GET whose bytes took less says nothing: they were in a buffer.
const TIME_LEAST: Duration = Duration::from_millis(1);

/// This many times as many GETs at once are many, and up to this many times as many are still few.
const MANY: f64 = 2.0;
const FEW: f64 = 1.25;

/// A GET that brings this part of what one beside few others brought is limited by its connection.
const SAME: f64 = 0.75;

/// How much larger the number grows that counts as few, with each GET beside more: the origin may have changed since.
const FORGET: f64 = 1.0 + 1.0 / 256.0;

/// Measures the GETs of the large files of a dataset.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The bytes of all GETs so far.
    arrived: AtomicU64,
    rates: Mutex<Rates>,
}

/// The body of a GET that is being received.
#[derive(Debug, Default)]
pub(super) struct Body {
    bytes: u64,
    begun: Option<Begun>,
}

/// When the first bytes of a body had arrived.
#[derive(Debug)]
struct Begun {
    at: Instant,
    /// The bytes until then, of this GET and of all.
    own: u64,
    all: u64,
}

/// The rates of GETs, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    /// Of one beside the fewest others. 0: none has ended yet.
    bytes_per_second: f64,
    /// How many these were, with itself.
    few: f64,
    /// Its connection is the limit.
    is_by_connection: bool,
}

impl Rates {
    /// Notes the bytes per second of a GET and of all GETs meanwhile.
    fn note(&mut self, one: f64, all: f64) {
        let at_once = all / one;
        if self.bytes_per_second == 0.0 || at_once <= self.few * FEW {
            (self.bytes_per_second, self.few) = (one, at_once);
            return;
        }
        if at_once >= self.few * MANY {
            self.is_by_connection = one >= self.bytes_per_second * SAME;
        }
        self.few *= FORGET;
    }

    fn ranges(&self, bytes: u64) -> u64 {
        if !self.is_by_connection {
            return 1;
        }
        let time = bytes as f64 / self.bytes_per_second;
        ((time / RANGE_TIME.as_secs_f64()) as u64).min(bytes / RANGE_BYTES).clamp(1, RANGES_MOST)
    }
}

impl Ranges {
    /// Into how many ranges a fetch of so many bytes is split.
    pub(super) fn of(&self, bytes: u64) -> u64 {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).ranges(bytes)
    }

    /// More of a body has arrived.
    pub(super) fn arrived(&self, body: &mut Body, bytes: usize) {
        let bytes = bytes as u64;
        body.bytes += bytes;
        let all = self.arrived.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let own = body.bytes;
        body.begun.get_or_insert_with(|| Begun { at: Instant::now(), own, all });
    }

    /// A body has arrived. Small ones say nothing about a connection.
    pub(super) fn ended(&self, body: &Body) {
        let Some(Begun { at, own, all }) = body.begun.as_ref().filter(|_| body.bytes >= RANGE_BYTES) else { return };
        let time = at.elapsed();
        let (own, all) = (body.bytes - own, self.arrived.load(Ordering::Relaxed) - all);
        if time >= TIME_LEAST && own > 0 {
            let per_second = |bytes: u64| bytes as f64 / time.as_secs_f64();
            let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.note(per_second(own), per_second(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4 << 20;
    const MB: f64 = 1e6;

    /// Notes GETs that came at the same time over connections of 60 MB/s and a link of this rate.
    fn note(rates: &mut Rates, gets: u32, link: f64) {
        let one = (60.0 * MB).min(link / f64::from(gets));
        (0..gets).for_each(|_| rates.note(one, one * f64::from(gets)));
    }

    #[test]
    fn a_block_is_split_once_more_connections_are_known_to_bring_more() {
        for few in [1, 3] {
            let mut rates = Rates::default();
            assert_eq!(rates.ranges(BLOCK), 1, "nothing is known");
            note(&mut rates, few, 750.0 * MB);
            assert_eq!(rates.ranges(BLOCK), 1, "they may be all that the link bears");
            note(&mut rates, 3 * few, 750.0 * MB);
            assert_eq!(
                (rates.ranges(BLOCK), rates.ranges(3 << 20), rates.ranges(1 << 20), rates.ranges(1)),
                (4, 3, 1, 1)
            );
        }
    }

    #[test]
    fn a_block_is_not_split_where_the_link_is_the_limit() {
        for few in [1, 3] {
            let mut rates = Rates::default();
            note(&mut rates, few, 50.0 * MB);
            for gets in [2, 4, 16] {
                note(&mut rates, few * gets, 50.0 * MB);
                assert_eq!(rates.ranges(BLOCK), 1, "{few} and {gets} times as many");
            }
        }
    }

    #[test]
    fn a_block_that_comes_in_no_time_is_not_split() {
        let mut rates = Rates::default();
        rates.note(600.0 * MB, 600.0 * MB);
        rates.note(600.0 * MB, 1_800.0 * MB);
        assert!(rates.is_by_connection);
        assert_eq!(rates.ranges(BLOCK), 1);
    }

    #[test]
    fn an_origin_that_is_never_read_by_few_again_is_judged_anew() {
        let mut rates = Rates::default();
        note(&mut rates, 1, 750.0 * MB);
        (0..1_000).for_each(|_| note(&mut rates, 4, 40.0 * MB));
        assert!((rates.bytes_per_second - 10.0 * MB).abs() < 1.0, "{rates:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_rates_are_those_after_the_first_bytes_of_a_body() {
        let ranges = Ranges::default();
        let (mut first, mut second) = (Body::default(), Body::default());
        ranges.arrived(&mut first, 100_000);
        ranges.arrived(&mut second, 100_000);
        tokio::time::advance(Duration::from_millis(100)).await;
        ranges.arrived(&mut first, 4_000_000);
        ranges.arrived(&mut second, 4_000_000);
        let mut small = Body::default();
        ranges.arrived(&mut small, 1_000);
        ranges.ended(&small);
        assert_eq!(*ranges.rates.lock().unwrap(), Rates::default(), "it came at once, and is small");
        ranges.ended(&first);
        let Rates { bytes_per_second, few, .. } = *ranges.rates.lock().unwrap();
        // The first bytes of the others came after its own.
        assert!((bytes_per_second - 40.0 * MB).abs() < 1.0, "{bytes_per_second}");
        assert!((few - 8.101 / 4.0).abs() < 1e-6, "{few}");
    }
}
