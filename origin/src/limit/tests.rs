//! The limit and its rule, with simulated origins.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// The bytes of a call.
const CALL: u64 = 100_000;

/// How long callers ask before a test measures: far longer than any limit needs.
const SETTLED: Duration = Duration::from_secs(10);

/// An origin that is `delay` away and sends at most so many bytes per second.
struct Simulated {
    limit: Arc<OriginLimit>,
    delay: Duration,
    line: Rate,
    refuses: AtomicBool,
    hangs: AtomicBool,
    succeeded: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Simulated {
    fn new(most: usize, delay: Duration, bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: OriginLimit::adaptive(most, None),
            delay,
            line: Rate::new(bytes_per_second),
            refuses: AtomicBool::default(),
            hangs: AtomicBool::default(),
            succeeded: AtomicUsize::default(),
            in_flight: AtomicUsize::default(),
            most_in_flight: AtomicUsize::default(),
        })
    }

    /// One call, as those of an origin behave.
    async fn call(&self, urgency: &Urgency) {
        let permit = self.limit.acquire(CALL, urgency).await;
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Ordering::Relaxed);
        let sent = Instant::now();
        if self.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(10)).await;
            self.limit.unanswered();
        } else {
            tokio::time::sleep(self.delay).await;
            if self.refuses.load(Ordering::Relaxed) {
                self.limit.refused();
            } else {
                self.limit.answered(sent.elapsed());
                self.line.wait(CALL, &Urgency::HIGH).await;
                self.succeeded.fetch_add(1, Ordering::Relaxed);
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
                return permit.succeeded(CALL);
            }
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Starts callers that never stop. Dropping them stops them.
    fn callers(self: &Arc<Self>, count: usize, urgency: fn() -> Urgency) -> tokio::task::JoinSet<()> {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..count {
            let origin = Arc::clone(self);
            callers.spawn(async move {
                loop {
                    origin.call(&urgency()).await;
                }
            });
        }
        callers
    }

    /// The bytes per second of the next two seconds.
    async fn bytes_per_second(&self) -> f64 {
        let before = self.succeeded.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        (self.succeeded.load(Ordering::Relaxed) - before) as f64 * CALL as f64 / 2.0
    }

    fn places(&self) -> usize {
        self.limit.state().rule.limit()
    }
}

fn high() -> Urgency {
    Urgency::HIGH
}

// SEMANTICS: O7
#[tokio::test(start_paused = true)]
async fn bandwidth_and_delay_are_in_flight_near_and_far() {
    for (delay_ms, bytes_per_second) in [(1, 100_000_000), (40, 100_000_000), (40, 700_000_000), (40, 1_000_000_000)] {
        let origin = Simulated::new(1024, Duration::from_millis(delay_ms), bytes_per_second);
        let _callers = origin.callers(1200, high);
        tokio::time::sleep(SETTLED).await;
        let reached = origin.bytes_per_second().await / bytes_per_second as f64;
        assert!(reached >= 0.9, "{delay_ms} ms, {bytes_per_second}: {reached} with {}", origin.places());
        // Twice as many as the line holds bring nothing more.
        let needed = (bytes_per_second as usize / 1_000 * delay_ms as usize).div_ceil(CALL as usize);
        assert!(origin.places() <= (needed * 5 / 2).max(64), "{delay_ms} ms: {} of {needed}", origin.places());
    }
}

// SEMANTICS: O7
#[tokio::test(start_paused = true)]
async fn an_origin_without_a_limit_of_its_own_gets_the_most_and_no_more() {
    let origin = Simulated::new(512, Duration::from_millis(40), 100_000_000_000);
    let _callers = origin.callers(1000, high);
    tokio::time::sleep(SETTLED).await;
    assert_eq!((origin.places(), origin.most_in_flight.load(Ordering::Relaxed)), (512, 512));
}

// SEMANTICS: O7
#[tokio::test(start_paused = true)]
async fn an_origin_that_refuses_everything_gets_four_and_is_used_again_when_it_recovers() {
    let origin = Simulated::new(1024, Duration::from_millis(40), 1_000_000_000);
    let _callers = origin.callers(1200, high);
    tokio::time::sleep(SETTLED).await;
    origin.refuses.store(true, Ordering::Relaxed);
    tokio::time::sleep(SETTLED).await;
    assert_eq!((origin.places(), origin.limit.state().in_flight), (4, 4));
    origin.refuses.store(false, Ordering::Relaxed);
    tokio::time::sleep(SETTLED).await;
    let reached = origin.bytes_per_second().await / 1e9;
    assert!(reached >= 0.9, "{reached} with {}", origin.places());
}

// SEMANTICS: O7
#[tokio::test(start_paused = true)]
async fn an_origin_that_hangs_is_used_again_when_it_answers() {
    let origin = Simulated::new(1024, Duration::from_millis(40), 1_000_000_000);
    let _callers = origin.callers(1200, high);
    tokio::time::sleep(SETTLED).await;
    origin.hangs.store(true, Ordering::Relaxed);
    tokio::time::sleep(SETTLED * 10).await;
    assert_eq!((origin.places(), origin.limit.state().in_flight), (32, 32));
    origin.hangs.store(false, Ordering::Relaxed);
    tokio::time::sleep(SETTLED * 2).await;
    let reached = origin.bytes_per_second().await / 1e9;
    assert!(reached >= 0.9, "{reached} with {}", origin.places());
}

// SEMANTICS: O11
#[tokio::test(start_paused = true)]
async fn calls_for_which_nobody_waits_reach_the_same_rate_alone() {
    let origin = Simulated::new(1024, Duration::from_millis(40), 1_000_000_000);
    let _callers = origin.callers(1200, Urgency::low);
    tokio::time::sleep(SETTLED).await;
    let reached = origin.bytes_per_second().await / 1e9;
    assert!(reached >= 0.9, "{reached} with {}", origin.places());
}

// SEMANTICS: O11
#[tokio::test(start_paused = true)]
async fn a_reader_gets_its_place_at_once_while_a_warm_up_wants_all() {
    let delay = Duration::from_millis(40);
    let origin = Simulated::new(64, delay, 100_000_000_000);
    let _callers = origin.callers(1000, Urgency::low);
    tokio::time::sleep(SETTLED).await;
    for _ in 0..20 {
        let asked = Instant::now();
        origin.call(&Urgency::HIGH).await;
        assert!(asked.elapsed() < delay + Duration::from_millis(10), "{:?}", asked.elapsed());
    }
}

// SEMANTICS: O11
#[tokio::test(start_paused = true)]
async fn places_go_to_readers_first_and_a_call_that_is_raised_is_a_readers() {
    let limit = OriginLimit::fixed(2, None);
    let held = [limit.acquire(1, &Urgency::HIGH).await, limit.acquire(1, &Urgency::HIGH).await];
    let order = Arc::new(Mutex::new(Vec::new()));
    let wait = |name: &'static str, urgency: Urgency| {
        let (limit, order) = (Arc::clone(&limit), Arc::clone(&order));
        // Those that come first are a warm-up's.
        let caller = if urgency.is_high() { Caller::new(1, 1) } else { Caller::default() };
        tokio::spawn(caller.run(async move {
            let permit = limit.acquire(1, &urgency).await;
            order.lock().expect("the lock").push(name);
            drop(permit);
        }))
    };
    let raised = Urgency::low();
    let mut calls = vec![wait("low", Urgency::low()), wait("raised", raised.clone())];
    tokio::task::yield_now().await;
    calls.extend([wait("first", Urgency::HIGH), wait("second", Urgency::HIGH)]);
    let gone = wait("gone", Urgency::HIGH);
    tokio::task::yield_now().await;
    gone.abort();
    raised.raise();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let [one, _other] = held;
    drop(one);
    for call in calls {
        call.await.expect("a place for each");
    }
    assert_eq!(*order.lock().expect("the lock"), ["raised", "first", "second", "low"]);
    let state = limit.state();
    assert_eq!((state.in_flight, state.low_in_flight, state.queue.len()), (1, 0, 0));
}

// SEMANTICS: O9
#[tokio::test(start_paused = true)]
async fn a_reader_with_a_few_calls_does_not_wait_for_the_backlog_of_another() {
    let limit = OriginLimit::fixed(1, None);
    let held = limit.acquire(1, &Urgency::HIGH).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let call = |thread: u32| {
        let (limit, order) = (Arc::clone(&limit), Arc::clone(&order));
        tokio::spawn(Caller::new(1, thread).run(async move {
            let permit = limit.acquire(1, &Urgency::HIGH).await;
            order.lock().expect("the lock").push(thread);
            drop(permit);
        }))
    };
    let mut calls: Vec<_> = (0..500).map(|_| call(1)).collect();
    // Until all of them wait.
    tokio::time::sleep(Duration::from_millis(1)).await;
    calls.extend((0..10).map(|_| call(2)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(held);
    for call in calls {
        call.await.expect("a place for each");
    }
    let order = order.lock().expect("the lock");
    assert_eq!(order[..20].iter().filter(|&&thread| thread == 2).count(), 10, "{order:?}");
    assert_eq!(order.len(), 510);
}

#[tokio::test]
async fn a_smaller_limit_grants_nothing_until_enough_places_came_back() {
    let limit = OriginLimit::adaptive(128, None);
    let mut permits = Vec::new();
    for _ in 0..32 {
        permits.push(limit.acquire(1, &Urgency::HIGH).await);
    }
    limit.refused();
    permits.truncate(16);
    let no_more = tokio::time::timeout(Duration::from_millis(10), limit.acquire(1, &Urgency::HIGH)).await;
    assert!(no_more.is_err());
    permits.pop();
    permits.push(limit.acquire(1, &Urgency::HIGH).await);
    drop(permits);
    assert_eq!(limit.state().in_flight, 0);
}
