//! What the two threads share, and whoever watches them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;

/// The GPUs whose events are wanted, by UUID, with how often each has failed: events of one that has failed are asked for anew.
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
    /// The session to listen to. The thread that asks begins and ends sessions.
    driver: Option<Arc<Nvml>>,
    wanted: Wanted,
    /// Something has happened that the thread that asks should look at now.
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

    /// What to listen to from now on.
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

    /// Waits for so long, or until it is [time to ask](Self::ask_now), but for `least` at least. False if the threads are to end.
    pub(super) fn pause_asking(&self, least: Duration, timeout: Duration) -> bool {
        drop(self.wait_while(least, |_| true));
        let mut state = self.wait_while(timeout.saturating_sub(least), |state| !state.ask_now);
        state.ask_now = false;
        !state.stopped
    }

    /// Waits for a session; `None` if the threads are to end.
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

    /// Waits for so long, or until there is something else to listen to.
    pub(super) fn pause_listening(&self, timeout: Duration, driver: &Arc<Nvml>, wanted: &Wanted) {
        let same = |state: &State| state.driver.as_ref().is_some_and(|current| Arc::ptr_eq(current, driver));
        drop(self.wait_while(timeout, |state| same(state) && state.wanted == *wanted));
    }

    /// The calls that have not returned for so long and were not told before.
    pub(super) fn newly_overdue(&self, silent_after: Duration) -> impl Iterator<Item = &'static str> {
        [&self.asking, &self.listening].into_iter().filter_map(move |pulse| pulse.newly_overdue(silent_after))
    }
}

/// Tells others that a thread is in a call of the driver, and since when.
#[derive(Default)]
pub(super) struct Pulse(Mutex<Option<Call>>);

struct Call {
    since: Instant,
    what: &'static str,
    told: bool,
}

impl Pulse {
    fn call(&self) -> MutexGuard<'_, Option<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn during<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        *self.call() = Some(Call { since: Instant::now(), what, told: false });
        let result = call();
        *self.call() = None;
        result
    }

    pub(super) fn is_overdue(&self, silent_after: Duration) -> bool {
        self.call().as_ref().is_some_and(|call| call.since.elapsed() >= silent_after)
    }

    fn newly_overdue(&self, silent_after: Duration) -> Option<&'static str> {
        let mut call = self.call();
        let call = call.as_mut().filter(|call| !call.told && call.since.elapsed() >= silent_after)?;
        call.told = true;
        Some(call.what)
    }
}
