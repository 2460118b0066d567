//! The rule that computes how many requests an origin may get at once. It is pure: the caller passes the time.
//!
//! The number grows in trials. A trial doubles it (after the first sign of overload: adds a quarter), lets a window of
//! calls pass, and compares what the next window brought with what came before. If more requests brought no more, the
//! origin's bandwidth × delay is in flight, the number goes back, and the next trial comes a while later. So it is not
//! a constant that fits one distance. A refusal (503, 429) halves the number, and so does a request that is never
//! answered; the last quarter of the way to the number that was refused is walked one by one. Answers that take four
//! times as long as the origin's best reduce it too. TCP does the same for the same reason: a node that shares an
//! origin with a thousand other nodes must find its share without asking them.
//!
//! The invariant: the number is between [`LEAST`] and `most`.

use std::time::Duration;

use tokio::time::Instant;

/// The number at the start, and the least for an origin that is slow or does not answer: a request that is never
/// answered holds its place for as long as it lasts, and a few objects that hang must not block all others.
const START: usize = 32;

/// The least number, for an origin that refuses everything.
const LEAST: usize = 4;

/// The smallest number of calls in a window, so that a single slow answer does not change the number.
const WINDOW_LEAST: usize = 16;

/// The shortest window. A near origin answers 16 calls in a time that says nothing.
const WINDOW_TIME_LEAST: Duration = Duration::from_millis(10);

/// A mean of this many times the best mean indicates a queue at the origin.
const SLOW: u32 = 4;

/// A mean below this is not a sign of overload: it may come from a busy loopback or a cache in memory.
const SLOW_LEAST: Duration = Duration::from_millis(50);

/// A trial has to bring this part of what as many more requests would bring if nothing but the distance limited them.
const GAIN: f64 = 0.25;

/// Windows between a trial that brought nothing and the next.
const PATIENCE: u32 = 16;

/// Counted for each call in addition to its bytes, so that calls without a body count too.
const CALL_BYTES: u64 = 16 << 10;

/// The rule.
#[derive(Debug)]
pub(crate) struct Rule {
    limit: usize,
    least: usize,
    most: usize,
    /// True until the first sign of overload.
    doubling: bool,
    trial: Option<Trial>,
    /// Windows to pass before the next trial.
    patience: u32,
    /// The number at the last cut.
    refused_at: Option<usize>,
    /// How many more refusals are attributed to the cause of the last cut.
    forgiven: usize,
    /// The best mean time of the answers of a window. It rises slowly, so that an origin that became permanently slower
    /// is eventually accepted.
    best: Option<Duration>,
    window: Window,
}

/// A larger number that is being tried.
#[derive(Debug)]
struct Trial {
    from: usize,
    /// The bytes per second before it.
    rate: f64,
}

/// The calls and bytes since some time.
#[derive(Debug)]
struct Window {
    since: Instant,
    /// True if a call had to wait for a place: only then do the bytes show what the number allows.
    wanted: bool,
    /// True right after a change, whose effect is not there yet.
    settles: bool,
    calls: usize,
    bytes: u64,
    answers: u32,
    /// The sum of the times of these answers.
    times: Duration,
}

impl Window {
    fn starting(since: Instant, settles: bool) -> Self {
        Self { since, settles, wanted: false, calls: 0, bytes: 0, answers: 0, times: Duration::ZERO }
    }
}

impl Rule {
    /// A number that adapts, up to `most` (at least one).
    pub(crate) fn adaptive(most: usize, now: Instant) -> Self {
        let most = most.max(1);
        Self {
            limit: START.min(most),
            least: LEAST.min(most),
            most,
            doubling: true,
            trial: None,
            patience: 0,
            refused_at: None,
            forgiven: 0,
            best: None,
            window: Window::starting(now, false),
        }
    }

    /// A number that stays (at least one).
    pub(crate) fn fixed(limit: usize, now: Instant) -> Self {
        let limit = limit.max(1);
        Self { limit, least: limit, ..Self::adaptive(limit, now) }
    }

    /// The number.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A call starts, and no other is in flight: what came before it was limited by nothing.
    pub(crate) fn begins(&mut self, now: Instant) {
        self.window = Window::starting(now, self.window.settles);
    }

    /// A call has to wait for a place.
    pub(crate) fn waits(&mut self, now: Instant) {
        if !self.window.wanted {
            self.window = Window { wanted: true, ..Window::starting(now, self.window.settles) };
        }
    }

    /// The head of an answer arrived `after` its request was sent.
    pub(crate) fn answered(&mut self, after: Duration) {
        self.window.answers += 1;
        self.window.times += after;
    }

    /// A call succeeded.
    pub(crate) fn ended(&mut self, bytes: u64, now: Instant) {
        self.forgiven = self.forgiven.saturating_sub(1);
        let window = &mut self.window;
        window.calls += 1;
        window.bytes += CALL_BYTES.saturating_add(bytes);
        let time = now.saturating_duration_since(window.since);
        // Calls that started together end together: only whole rounds of them show how many come in a time.
        let is_round = window.calls.is_multiple_of(self.limit);
        if !is_round || window.calls < WINDOW_LEAST || time < WINDOW_TIME_LEAST {
            return;
        }
        let before = self.limit;
        let Window { wanted, settles, bytes, .. } = *window;
        if self.is_slow() {
            // If a trial is under way, its requests are the likely cause.
            let less = self.trial.take().map_or(before - before / 4, |trial| trial.from);
            self.limit = less.max(self.least.max(START)).min(before);
            self.doubling = false;
        } else if wanted && !settles {
            self.judge(bytes as f64 / time.as_secs_f64());
        }
        self.window = Window::starting(now, self.limit != before);
    }

    /// The origin refused a request for lack of capacity.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.cut(self.least, now);
    }

    /// A request was never answered.
    pub(crate) fn unanswered(&mut self, now: Instant) {
        self.cut(self.least.max(START), now);
    }

    fn is_slow(&mut self) -> bool {
        let Window { answers, times, .. } = self.window;
        if answers == 0 {
            return false;
        }
        let mean = times / answers;
        let best = self.best.map_or(mean, |best| mean.min(best + best / 64));
        self.best = Some(best);
        mean >= SLOW_LEAST && mean > best * SLOW
    }

    /// Ends a trial and starts the next, by the bytes per second that the number brought.
    fn judge(&mut self, rate: f64) {
        if let Some(Trial { from, rate: before }) = self.trial.take() {
            let more = self.limit as f64 / from as f64 - 1.0;
            if rate < before * (1.0 + more * GAIN) {
                (self.limit, self.doubling, self.patience) = (from, false, PATIENCE);
                return;
            }
        }
        if self.patience > 0 {
            self.patience -= 1;
            return;
        }
        let step = if self.doubling { self.limit } else { (self.limit / 4).max(1) };
        let next = match self.refused_at {
            Some(at) if self.limit < at && self.limit + step > at - at / 4 => self.limit + 1,
            _ => self.limit.saturating_add(step),
        };
        if self.limit < self.most {
            self.trial = Some(Trial { from: self.limit, rate });
            self.limit = next.min(self.most);
        }
    }

    fn cut(&mut self, least: usize, now: Instant) {
        // The bytes that come while requests are refused show nothing.
        self.window = Window::starting(now, true);
        if self.forgiven > 0 {
            self.forgiven -= 1;
            return;
        }
        // Requests in flight were sent before the cut and may be refused for the same reason.
        self.forgiven = self.limit;
        self.refused_at = Some(self.limit);
        self.limit = (self.limit / 2).max(least).min(self.limit);
        (self.trial, self.doubling, self.patience) = (None, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: u64 = 100_000;

    /// A window of calls whose answers took `each`, while another call waited, at so many bytes per second.
    fn window(rule: &mut Rule, now: &mut Instant, each: Duration, bytes_per_second: f64) {
        let calls = rule.limit * WINDOW_LEAST.div_ceil(rule.limit);
        let time = Duration::from_secs_f64(calls as f64 * (CALL + CALL_BYTES) as f64 / bytes_per_second);
        rule.waits(*now);
        for _ in 1..calls {
            rule.answered(each);
            rule.ended(CALL, *now);
        }
        *now += time.max(WINDOW_TIME_LEAST);
        rule.answered(each);
        rule.ended(CALL, *now);
    }

    /// Windows of an origin that is so far away and no more.
    fn far(rule: &mut Rule, now: &mut Instant, delay: Duration, windows: usize) {
        for _ in 0..windows {
            let bytes_per_second = rule.limit as f64 * (CALL + CALL_BYTES) as f64 / delay.as_secs_f64();
            window(rule, now, delay, bytes_per_second);
        }
    }

    const FAR: Duration = Duration::from_millis(40);

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn it_doubles_to_the_most_and_only_while_somebody_waits() {
        let mut now = Instant::now();
        let mut rule = Rule::adaptive(100, now);
        far(&mut rule, &mut now, FAR, 20);
        assert_eq!(rule.limit, 100);
        let mut rule = Rule::adaptive(100, now);
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            rule.ended(CALL, now);
        }
        assert_eq!(rule.limit, START);
        assert_eq!((Rule::adaptive(2, now).limit, Rule::adaptive(0, now).limit), (2, 1), "never more than configured");
    }

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn a_storm_of_refusals_is_one_sign_and_lasting_refusals_lead_to_the_least() {
        let mut now = Instant::now();
        let mut rule = Rule::adaptive(256, now);
        far(&mut rule, &mut now, FAR, 20);
        assert_eq!(rule.limit, 256);
        (0..256).for_each(|_| rule.refused(now));
        assert_eq!(rule.limit, 128);
        (0..1000).for_each(|_| rule.refused(now));
        assert_eq!(rule.limit, LEAST);
    }

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn requests_that_are_never_answered_leave_places_for_others() {
        let now = Instant::now();
        let mut rule = Rule::adaptive(256, now);
        (0..1000).for_each(|_| rule.unanswered(now));
        assert_eq!(rule.limit, START);
        (0..1000).for_each(|_| rule.refused(now));
        assert_eq!(rule.limit, LEAST);
        (0..1000).for_each(|_| rule.unanswered(now));
        assert_eq!(rule.limit, LEAST, "a cut never raises the number");
    }

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn a_number_that_was_refused_is_approached_one_by_one() {
        let mut now = Instant::now();
        let mut rule = Rule::adaptive(400, now);
        far(&mut rule, &mut now, FAR, 20);
        assert_eq!(rule.limit, 400);
        rule.refused(now);
        assert_eq!(rule.limit, 200);
        let mut windows = 0;
        while rule.limit < 400 {
            far(&mut rule, &mut now, FAR, 1);
            windows += 1;
            assert!(windows < 1_000, "it comes back: {}", rule.limit);
        }
        assert!(windows > 100, "the last hundred takes its time: {windows}");
    }

    // SEMANTICS: O7
    #[tokio::test(start_paused = true)]
    async fn a_queue_at_the_origin_is_seen_and_an_origin_that_became_slower_for_good_is_believed() {
        let mut now = Instant::now();
        let mut rule = Rule::adaptive(256, now);
        far(&mut rule, &mut now, FAR, 20);
        window(&mut rule, &mut now, FAR * 5, 1e9);
        assert_eq!(rule.limit, 192);
        far(&mut rule, &mut now, FAR * 5, 800);
        assert_eq!(rule.limit, 256, "the slower times are normal now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_origin_that_is_ten_times_slower_for_a_moment_is_no_sign() {
        let mut now = Instant::now();
        let mut rule = Rule::adaptive(32, now);
        window(&mut rule, &mut now, Duration::from_micros(200), 1e9);
        window(&mut rule, &mut now, Duration::from_millis(2), 1e8);
        assert_eq!(rule.limit, 32);
    }
}
