//! The places for requests in flight to an origin.
//!
//! An [`OriginLimit`] has as many places as its [`Rule`] says; a [`Permit`] is one of them. Calls wait in a queue, those
//! first for which somebody waits ([`Urgency`]), and among these the callers take turns ([`Turns`]). The others wait in
//! order and never take the last places, so that the next reader need not wait for one. All bytes of an origin pass its
//! [`Rate`], if it has one.
//!
//! The invariant: no call waits while there is a place that it may have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::rate::Rate;
use crate::rule::Rule;
use crate::turns::Turns;
use crate::urgency::Urgency;

/// One of this many places is left to calls for which somebody waits.
const READERS_PART: usize = 16;

/// How many requests an origin may have, has, and lets wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUsage {
    /// The places for requests in flight.
    pub places: usize,
    /// The requests in flight.
    pub in_flight: usize,
    /// The requests that wait for a place.
    pub waiting: usize,
}

/// The places and the rate of an origin. All of its callers share them.
#[derive(Debug)]
pub(crate) struct OriginLimit {
    state: Mutex<State>,
    pub(crate) rate: Option<Rate>,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    in_flight: usize,
    /// Those of them for which nobody waits.
    low_in_flight: usize,
    /// The calls that wait.
    queue: BTreeMap<Position, oneshot::Sender<Permit>>,
    /// Of the calls for which somebody waits.
    turns: Turns,
    arrivals: u64,
}

/// Where a call is in the queue: first come those for which somebody waits, by turn and arrival.
type Position = (Class, (u64, u64));

/// Whether somebody waited for a call when it got its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    High,
    Low,
}

impl State {
    fn has_place(&self, class: Class) -> bool {
        let limit = self.rule.limit();
        // At least one, so that an origin that allows a single request is warmed too.
        let low_most = (limit - limit.div_ceil(READERS_PART)).max(1);
        self.in_flight < limit && (class == Class::High || self.low_in_flight < low_most)
    }

    /// The turn of a call that joins the queue.
    fn turn(&mut self, class: Class, caller: Caller) -> u64 {
        match class {
            Class::High => self.turns.join(caller, 1),
            Class::Low => 0,
        }
    }

    fn take_place(&mut self, class: Class) {
        if self.in_flight == 0 {
            self.rule.begins(Instant::now());
        }
        self.in_flight += 1;
        self.low_in_flight += usize::from(class == Class::Low);
    }
}

/// A place for one call. Dropping it gives the place to the next.
#[derive(Debug)]
pub(crate) struct Permit {
    limit: Arc<OriginLimit>,
    class: Class,
}

impl Permit {
    /// Reports that the call succeeded, with so many bytes.
    pub(crate) fn succeeded(self, bytes: u64) {
        self.limit.apply(|rule| rule.ended(bytes, Instant::now()));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        state.in_flight -= 1;
        state.low_in_flight -= usize::from(self.class == Class::Low);
        drop(state);
        self.limit.grant();
    }
}

/// A call in the queue, which it leaves when this is dropped.
struct Waiting<'a> {
    limit: &'a Arc<OriginLimit>,
    position: Position,
    caller: Caller,
}

impl Waiting<'_> {
    /// Somebody waits for the call now.
    fn raise(&mut self) {
        let mut state = self.limit.state();
        if let Some(call) = state.queue.remove(&self.position) {
            let (_, (_, arrival)) = self.position;
            self.position = (Class::High, (state.turn(Class::High, self.caller), arrival));
            state.queue.insert(self.position, call);
        }
        drop(state);
        self.limit.grant();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.limit.state();
        if state.queue.remove(&self.position).is_some() && self.position.0 == Class::High {
            state.turns.leave(self.caller, 1);
        }
    }
}

impl OriginLimit {
    /// A limit that adapts, up to `most` places.
    pub(crate) fn adaptive(most: usize, rate: Option<Rate>) -> Arc<Self> {
        Self::of(Rule::adaptive(most, Instant::now()), rate)
    }

    /// A limit of always `places` places.
    pub(crate) fn fixed(places: usize, rate: Option<Rate>) -> Arc<Self> {
        Self::of(Rule::fixed(places, Instant::now()), rate)
    }

    fn of(rule: Rule, rate: Option<Rate>) -> Arc<Self> {
        let (queue, turns) = (BTreeMap::new(), Turns::default());
        let state = State { rule, in_flight: 0, low_in_flight: 0, queue, turns, arrivals: 0 };
        Arc::new(Self { state: Mutex::new(state), rate })
    }

    /// Waits until the rate allows so many bytes, and for a place. Cancel-safe.
    pub(crate) async fn acquire(self: &Arc<Self>, bytes: u64, urgency: &Urgency) -> Permit {
        if let Some(rate) = &self.rate {
            rate.wait(bytes, urgency).await;
        }
        let class = if urgency.is_high() { Class::High } else { Class::Low };
        let (mut waiting, mut granted) = {
            let mut state = self.state();
            let is_next = state.queue.keys().next().is_none_or(|(first, _)| *first > class);
            if is_next && state.has_place(class) {
                state.take_place(class);
                return Permit { limit: Arc::clone(self), class };
            }
            state.rule.waits(Instant::now());
            let (call, granted) = oneshot::channel();
            let caller = Caller::current();
            let position = (class, (state.turn(class, caller), state.arrivals));
            state.arrivals += 1;
            state.queue.insert(position, call);
            (Waiting { limit: self, position, caller }, granted)
        };
        if class == Class::Low {
            tokio::select! {
                biased;
                permit = &mut granted => return permit.expect("a call leaves the queue with a permit"),
                () = urgency.high() => waiting.raise(),
            }
        }
        granted.await.expect("a call leaves the queue with a permit")
    }

    /// How many places there are now.
    pub(crate) fn places(&self) -> usize {
        self.state().rule.limit()
    }

    /// How it is used now.
    pub(crate) fn usage(&self) -> LimitUsage {
        let state = self.state();
        LimitUsage { places: state.rule.limit(), in_flight: state.in_flight, waiting: state.queue.len() }
    }

    /// Reports that the head of an answer arrived `after` its request was sent.
    pub(crate) fn answered(self: &Arc<Self>, after: Duration) {
        self.apply(|rule| rule.answered(after));
    }

    /// Reports that the origin refused a request for lack of capacity.
    pub(crate) fn refused(self: &Arc<Self>) {
        self.apply(|rule| rule.refused(Instant::now()));
    }

    /// Reports that the origin did not answer a request in time.
    pub(crate) fn unanswered(self: &Arc<Self>) {
        self.apply(|rule| rule.unanswered(Instant::now()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(self: &Arc<Self>, change: impl FnOnce(&mut Rule)) {
        let mut state = self.state();
        let before = state.rule.limit();
        change(&mut state.rule);
        let after = state.rule.limit();
        drop(state);
        if after != before {
            tracing::debug!(before, after, "concurrent requests");
            self.grant();
        }
    }

    /// Gives the places that are free to the calls that wait.
    fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        let mut state = self.state();
        while let Some((class, (turn, arrival))) = state.queue.keys().next().copied()
            && state.has_place(class)
        {
            if let Some(call) = state.queue.remove(&(class, (turn, arrival))) {
                state.take_place(class);
                state.turns.serve(turn);
                granted.push((class, call));
            }
        }
        if state.queue.is_empty() {
            state.turns.clear();
        }
        drop(state);
        for (class, call) in granted {
            // The permit of a call that has left comes back here, and its place goes to the next.
            drop(call.send(Permit { limit: Arc::clone(self), class }));
        }
    }
}

#[cfg(test)]
mod tests;
