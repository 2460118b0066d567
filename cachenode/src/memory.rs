//! The memory of a process for data in flight, which all of its datasets share.
//!
//! Each thing for which a dataset waits has an [`Account`]: its origin, its peers, the cache's disk, its readers. An
//! account can always take up to its least. Above that it may hold as much as it leaves to all others together, and at
//! most its own limit. So one account alone may hold half of the [`MemoryBudget`]. Where `n` accounts want more than
//! that, each gets one part of `n + 1`, and one part is left for the next that comes. The memory of what hangs is
//! therefore no more than its part, however long it hangs. (Buffers that the ports of a network switch share are
//! divided by the same rule, known as dynamic thresholds.)
//!
//! The callers of an account take turns ([`Turns`]), so that one with a few requests does not wait for the backlog of
//! another. Of the accounts, the one that holds the least is next.
//!
//! Invariants: all accounts together hold at most the budget, what they hold within their least, and one request each
//! that was granted to an empty account. An account that holds nothing is granted any request within its limit at once,
//! so every dataset makes progress. A request whose turn it is waits for no later one of its account. No code waits for
//! anything under the lock.

mod target;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_origin::{Caller, Turns};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use crate::log_pace::LogPace;

pub(crate) use target::{default_target, memory_limit};

/// A request that waits for longer is logged.
const LONG: Duration = Duration::from_secs(5);

/// More than any process has. A sum of a few such budgets overflows nothing.
const UNLIMITED_KIB: u64 = u64::MAX >> 12;

/// The memory of a process for data in flight.
pub struct MemoryBudget {
    state: Mutex<State>,
    long_waits: LogPace,
}

/// The memory of a dataset for one purpose.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<MemoryBudget>,
    number: u64,
}

/// Memory of an [`Account`], which gets it back when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<MemoryBudget>,
    account: u64,
    kib: u32,
}

/// Serves those that wait when this is dropped.
struct Leaving<'a>(&'a Arc<MemoryBudget>);

#[derive(Debug)]
struct State {
    kib: u64,
    used_kib: u64,
    /// Those that are open or hold memory.
    accounts: BTreeMap<u64, Books>,
    /// The accounts of which requests wait.
    waiting: BTreeSet<u64>,
    /// How many accounts were ever opened.
    opened: u64,
}

/// The state of an account.
#[derive(Debug)]
struct Books {
    least_kib: u64,
    most_kib: u64,
    used_kib: u64,
    is_closed: bool,
    turns: Turns,
    /// The requests that wait, by turn and arrival.
    queue: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiter {
    caller: Caller,
    kib: u32,
    granted: oneshot::Sender<Permit>,
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.values()).finish()
    }
}

impl Default for MemoryBudget {
    /// A budget without a limit: accounts have their own limits alone.
    fn default() -> Self {
        Self::of_kib(UNLIMITED_KIB)
    }
}

impl MemoryBudget {
    /// A budget of this size.
    pub fn new(bytes: u64) -> Self {
        Self::of_kib((bytes >> 10).min(UNLIMITED_KIB))
    }

    fn of_kib(kib: u64) -> Self {
        let (accounts, waiting) = (BTreeMap::new(), BTreeSet::new());
        let state = Mutex::new(State { kib, used_kib: 0, accounts, waiting, opened: 0 });
        Self { state, long_waits: LogPace::new() }
    }

    /// Its size and what is held of it, by the names of `telemetry`'s table.
    pub(crate) fn values(&self) -> [(&'static str, u64); 2] {
        let state = self.lock();
        [("fs_memory_target_bytes", state.kib << 10), ("fs_memory_used_bytes", state.used_kib << 10)]
    }

    /// Opens an account that can always take up to `least_kib`, and never more than `most_kib`.
    pub(crate) fn account(self: &Arc<Self>, least_kib: u64, most_kib: u64) -> Account {
        let mut state = self.lock();
        let number = state.opened;
        state.opened += 1;
        let (turns, queue) = (Turns::default(), BTreeMap::new());
        let books = Books { least_kib, most_kib, used_kib: 0, is_closed: false, turns, queue, arrivals: 0 };
        state.accounts.insert(number, books);
        drop(state);
        Account { budget: Arc::clone(self), number }
    }

    fn permit(self: &Arc<Self>, account: u64, kib: u32) -> Permit {
        Permit { budget: Arc::clone(self), account, kib }
    }

    /// Serves the requests for which there is memory.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.lock().next();
            let Some((account, Waiter { kib, granted, .. })) = next else { return };
            // If nobody waits for it any more, it is dropped here, and goes back: not under the lock.
            drop(granted.send(self.permit(account, kib)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// The budget of which it takes.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The part of its limit that it does not hold.
    #[cfg(test)]
    pub(crate) fn available(&self) -> u64 {
        let mut state = self.budget.lock();
        let books = state.books(self.number);
        books.most_kib - books.used_kib
    }

    /// Takes memory if there is some and nobody waits.
    pub(crate) fn try_acquire(&self, kib: u32) -> Option<Permit> {
        let mut state = self.budget.lock();
        let is_free = state.books(self.number).queue.is_empty() && state.has_room(self.number, kib);
        is_free.then(|| {
            state.take(self.number, kib);
            self.budget.permit(self.number, kib)
        })
    }

    /// True if the account, with this much more, would still leave half of what it may hold to others that wait.
    pub(crate) fn leaves_half(&self, kib: u64) -> bool {
        let mut state = self.budget.lock();
        let left_kib = state.kib.saturating_sub(state.used_kib + kib);
        let Books { least_kib, most_kib, used_kib, ref queue, .. } = *state.books(self.number);
        let doubled = 2 * (used_kib + kib);
        queue.is_empty() && doubled <= most_kib && (doubled <= least_kib || doubled <= left_kib)
    }

    /// Takes memory whether or not there is some.
    pub(crate) fn take(&self, kib: u32) -> Permit {
        self.budget.lock().take(self.number, kib);
        self.budget.permit(self.number, kib)
    }

    /// Waits until it is the turn of [`Caller::current`], and there is memory. The account's limit must be as large.
    /// Cancel-safe.
    pub(crate) async fn acquire(&self, kib: u32) -> Permit {
        match self.try_acquire(kib) {
            Some(permit) => permit,
            // On the heap, so that the thousands of fetches that may wait are small.
            None => Box::pin(self.wait(kib)).await,
        }
    }

    async fn wait(&self, kib: u32) -> Permit {
        // Dropped last: without this request, there may be memory for those behind it.
        let _leaving = Leaving(&self.budget);
        let (granted, mut receiver) = oneshot::channel();
        self.budget.lock().join(self.number, Waiter { caller: Caller::current(), kib, granted });
        // Those before it may have left.
        self.budget.serve();
        let in_time = timeout(LONG, &mut receiver).await;
        let permit = match in_time {
            Ok(permit) => permit,
            Err(_) => {
                self.note_long_wait(kib);
                receiver.await
            }
        };
        permit.expect("a request leaves the queue with its permit, or when nobody waits for it")
    }

    /// Logs that a request waits for other accounts.
    fn note_long_wait(&self, kib: u32) {
        let mut state = self.budget.lock();
        let (target_bytes, used_bytes) = (state.kib << 10, state.used_kib << 10);
        let books = state.books(self.number);
        let is_at_own_limit = books.used_kib + u64::from(kib) > books.most_kib;
        drop(state);
        if !is_at_own_limit && self.budget.long_waits.is_due() {
            warn!(
                target_bytes,
                used_bytes,
                seconds = LONG.as_secs(),
                "a fetch waits for memory: more is read at once than --memory-target has room for, or origins hang"
            );
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.serve();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.waiting.remove(&self.number);
        state.books(self.number).is_closed = true;
        state.forget_if_closed(self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.give_back(self.account, self.kib);
        let is_wanted = !state.waiting.is_empty();
        drop(state);
        if is_wanted {
            self.budget.serve();
        }
    }
}

impl State {
    fn books(&mut self, account: u64) -> &mut Books {
        self.accounts.get_mut(&account).expect("an account has books while it is open or holds memory")
    }

    /// True if an account may hold so much more.
    fn has_room(&self, account: u64, kib: u32) -> bool {
        let Some(books) = self.accounts.get(&account) else { return false };
        let kib = u64::from(kib);
        let held = books.used_kib + kib;
        let left = self.kib.saturating_sub(self.used_kib + kib);
        held <= books.most_kib && (books.used_kib == 0 || held <= books.least_kib || held <= left)
    }

    fn take(&mut self, account: u64, kib: u32) {
        self.used_kib += u64::from(kib);
        self.books(account).used_kib += u64::from(kib);
    }

    fn give_back(&mut self, account: u64, kib: u32) {
        self.used_kib -= u64::from(kib);
        self.books(account).used_kib -= u64::from(kib);
        self.forget_if_closed(account);
    }

    fn forget_if_closed(&mut self, account: u64) {
        let books = self.books(account);
        if books.is_closed && books.used_kib == 0 {
            self.accounts.remove(&account);
        }
    }

    fn join(&mut self, account: u64, waiter: Waiter) {
        self.books(account).join(waiter);
        self.waiting.insert(account);
    }

    /// Takes the next request out of the queues, with its memory. None: there is too little, or none waits.
    fn next(&mut self) -> Option<(u64, Waiter)> {
        let Self { accounts, waiting, .. } = self;
        waiting.retain(|account| accounts.get_mut(account).is_some_and(Books::waits));
        let can_go = |&account: &u64| {
            let books = self.accounts.get(&account)?;
            let (_, first) = books.queue.first_key_value()?;
            self.has_room(account, first.kib).then_some((books.used_kib, account))
        };
        let (_, account) = self.waiting.iter().filter_map(can_go).min()?;
        let waiter = self.books(account).pop()?;
        self.take(account, waiter.kib);
        Some((account, waiter))
    }
}

impl Books {
    fn join(&mut self, waiter: Waiter) {
        self.drop_left();
        let turn = self.turns.join(waiter.caller, waiter.kib.into());
        self.queue.insert((turn, self.arrivals), waiter);
        self.arrivals += 1;
    }

    /// True if a request waits.
    fn waits(&mut self) -> bool {
        self.drop_left();
        !self.queue.is_empty()
    }

    /// Takes the first request out of the queue.
    fn pop(&mut self) -> Option<Waiter> {
        let ((turn, _), waiter) = self.queue.pop_first()?;
        self.turns.serve(turn);
        if self.queue.is_empty() {
            self.turns.clear();
        }
        Some(waiter)
    }

    /// Drops requests from the front for which nobody waits any more.
    fn drop_left(&mut self) {
        while let Some(next) = self.queue.first_entry().filter(|next| next.get().granted.is_closed()) {
            let Waiter { caller, kib, .. } = next.remove();
            self.turns.leave(caller, kib.into());
        }
    }
}
