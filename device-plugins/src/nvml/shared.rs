//! The state that the two threads share with each other and with their watcher.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;

/// The GPUs to receive events from, by UUID, with the number of failures of each: a GPU that has failed is registered again.
pub(super) type Wanted = BTreeMap<String, u64>;

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The thread that asks.
    pub(super) asking: Pulse,
    /// The thread that listens.
    pub(super) listening: Pulse,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// The session to listen to. The thread that asks opens and closes sessions.
    driver: Option<Arc<Nvml>>,
    wanted: Wanted,
    /// The thread that asks should ask now.
    ask_now: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, timeout: Duration, idle: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.state(), timeout, |state| !state.stopped && idle(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Sets the session and the GPUs to listen to.
    pub(super) fn listen_to(&self, driver: Option<Arc<Nvml>>, wanted: Wanted) {
        let mut state = self.state();
        (state.driver, state.wanted) = (driver, wanted);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn ask_now(&self) {
        self.state().ask_now = true;
        self.changed.notify_all();
    }

    /// Waits until `timeout` or [`Self::ask_now`], but at least `least`. False if the threads must stop.
    pub(super) fn pause_asking(&self, least: Duration, timeout: Duration) -> bool {
        drop(self.wait_while(least, |_| true));
        let mut state = self.wait_while(timeout.saturating_sub(least), |state| !state.ask_now);
        state.ask_now = false;
        !state.stopped
    }

    /// Waits for a session; `None` if the threads must stop.
    pub(super) fn next_driver(&self) -> Option<Arc<Nvml>> {
        let state = self.wait_while(Duration::MAX, |state| state.driver.is_none());
        state.driver.clone().filter(|_| !state.stopped)
    }

    /// The GPUs to listen to; `None` if this session is over.
    pub(super) fn wanted(&self, driver: &Arc<Nvml>) -> Option<Wanted> {
        let state = self.state();
        let is_current = !state.stopped && state.driver.as_ref().is_some_and(|current| Arc::ptr_eq(current, driver));
        is_current.then(|| state.wanted.clone())
    }

    /// Waits until `timeout`, or until the session or its GPUs change.
    pub(super) fn pause_listening(&self, timeout: Duration, driver: &Arc<Nvml>, wanted: &Wanted) {
        let same = |state: &State| state.driver.as_ref().is_some_and(|current| Arc::ptr_eq(current, driver));
        drop(self.wait_while(timeout, |state| same(state) && state.wanted == *wanted));
    }

    /// The overdue calls that were not reported before.
    pub(super) fn newly_overdue(&self, silent_after: Duration) -> impl Iterator<Item = &'static str> {
        [&self.asking, &self.listening].into_iter().filter_map(move |pulse| pulse.newly_overdue(silent_after))
    }
}

/// The driver call that a thread is in, and since when.
#[derive(Default)]
pub(super) struct Pulse(Mutex<Option<Call>>);

struct Call {
    since: Instant,
    what: &'static str,
    reported: bool,
}

impl Pulse {
    fn call(&self) -> MutexGuard<'_, Option<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn during<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        *self.call() = Some(Call { since: Instant::now(), what, reported: false });
        let result = call();
        *self.call() = None;
        result
    }

    pub(super) fn is_overdue(&self, silent_after: Duration) -> bool {
        self.call().as_ref().is_some_and(|call| call.since.elapsed() >= silent_after)
    }

    fn newly_overdue(&self, silent_after: Duration) -> Option<&'static str> {
        let mut call = self.call();
        let call = call.as_mut().filter(|call| !call.reported && call.since.elapsed() >= silent_after)?;
        call.reported = true;
        Some(call.what)
    }
}
