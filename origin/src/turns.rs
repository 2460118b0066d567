//! Turns of callers in a queue: the order in which a queue that is not first come, first served, serves its requests.
//!
//! [`Turns`] gives each request a number when it joins, and the queue serves the lowest number first (start-time fair
//! queueing). A request begins where the caller's last one ended, or now if that was served. So the backlog of one
//! caller stretches into the future, and a caller without one is next.
//!
//! Invariant: callers that all wait get equal parts of what is handed out, whatever the number of their requests. Pure:
//! it knows neither the queue nor the time.

use std::collections::HashMap;

use crate::caller::Caller;

/// The least number of callers that are remembered before those without requests are forgotten.
const REMEMBERED_LEAST: usize = 64;

/// Gives the requests of a queue their numbers.
#[derive(Debug, Default)]
pub struct Turns {
    /// The number of the request that was served last.
    now: u64,
    /// Where the next request of a caller begins, unless that is in the past.
    next: HashMap<Caller, u64>,
    /// How many of them there are before those in the past are forgotten.
    remembered: usize,
}

impl Turns {
    /// The number of a request that joins the queue and takes `cost` of what is handed out. Requests with the same
    /// number are served in the order in which they came.
    pub fn join(&mut self, caller: Caller, cost: u64) -> u64 {
        if self.next.len() >= self.remembered {
            let now = self.now;
            self.next.retain(|_, next| *next > now);
            self.remembered = REMEMBERED_LEAST.max(2 * self.next.len());
        }
        let next = self.next.entry(caller).or_default();
        let turn = self.now.max(*next);
        *next = turn + cost;
        turn
    }

    /// The request with this number, the lowest of the queue, is served.
    pub fn serve(&mut self, turn: u64) {
        self.now = self.now.max(turn);
    }

    /// The queue is empty, so nobody has a backlog.
    pub fn clear(&mut self) {
        self.now = 0;
        self.next.clear();
    }

    /// A request leaves the queue without being served: its caller does not pay for it.
    pub fn leave(&mut self, caller: Caller, cost: u64) {
        if let Some(next) = self.next.get_mut(&caller) {
            *next = next.saturating_sub(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn caller(process: u32) -> Caller {
        Caller::new(1, process)
    }

    /// A queue of requests, by number and arrival, with their callers.
    #[derive(Default)]
    struct Queue {
        turns: Turns,
        waiting: BTreeMap<(u64, u64), u32>,
        count: u64,
    }

    impl Queue {
        fn join(&mut self, process: u32, cost: u64) {
            let turn = self.turns.join(caller(process), cost);
            self.waiting.insert((turn, self.count), process);
            self.count += 1;
        }

        /// Serves so many requests. Returns whose they were.
        fn serve(&mut self, requests: usize) -> Vec<u32> {
            let mut served = Vec::new();
            for _ in 0..requests {
                let ((turn, _), process) = self.waiting.pop_first().unwrap();
                self.turns.serve(turn);
                served.push(process);
            }
            served
        }
    }

    #[test]
    fn requests_of_a_caller_without_a_backlog_alternate_with_those_of_a_flood() {
        let mut queue = Queue::default();
        (0..1_000).for_each(|_| queue.join(1, 1));
        assert_eq!(queue.serve(500), [1; 500]);
        (0..10).for_each(|_| queue.join(2, 1));
        let next = queue.serve(21);
        assert_eq!(next.iter().filter(|&&process| process == 2).count(), 10, "{next:?}");
        // A caller saves no turns while it has no requests.
        assert_eq!(queue.serve(400), [1; 400]);
        (0..100).for_each(|_| queue.join(2, 1));
        let next = queue.serve(100);
        assert!(next.iter().filter(|&&process| process == 2).count() <= 51, "{next:?}");
    }

    #[test]
    fn a_caller_pays_for_what_its_requests_take_and_not_for_those_that_leave() {
        let mut queue = Queue::default();
        (0..100).for_each(|_| queue.join(1, 10));
        (0..100).for_each(|_| queue.join(2, 1));
        let next = queue.serve(55);
        assert!((48..=50).contains(&next.iter().filter(|&&process| process == 2).count()), "{next:?}");
        let mut turns = Turns::default();
        for _ in 0..50 {
            turns.join(caller(1), 1);
        }
        for _ in 0..50 {
            turns.leave(caller(1), 1);
        }
        assert_eq!(turns.join(caller(1), 1), turns.join(caller(2), 1));
    }

    #[test]
    fn callers_without_requests_are_forgotten() {
        let mut queue = Queue::default();
        queue.join(0, 1);
        for process in 1..100_000 {
            queue.join(process, 1);
            queue.join(process, 1);
            queue.serve(2);
        }
        assert!(queue.turns.next.len() <= 2 * REMEMBERED_LEAST, "{}", queue.turns.next.len());
        queue.serve(1);
        queue.turns.clear();
        assert!(queue.turns.next.is_empty());
    }

    #[tokio::test]
    async fn a_task_works_for_the_caller_for_whom_it_was_begun() {
        assert_eq!(Caller::current(), Caller::default());
        let within = caller(7).run(async {
            tokio::task::yield_now().await;
            Caller::current()
        });
        assert_eq!(tokio::spawn(within).await.unwrap(), caller(7));
        assert_eq!(caller(8).run_now(Caller::current), caller(8));
        assert_eq!(Caller::current(), Caller::default());
    }
}
