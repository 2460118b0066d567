//! The state that admissions share, behind one lock, and every change to it.
//!
//! Invariant, whenever the lock is free: the policy counts each block that has a slot or a permit once (except for slots
//! that a failing disk would not let go of).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::warn;

use super::disowned::{Disowned, Shown};
use super::granted::Granted;
use super::space::{Allocator, Allotment, Garbage, Space, Trouble};
use super::touches::Touches;
use crate::base::Base;
use crate::config::CacheConfig;
use crate::draft::Record;
use crate::policy::{Policy, build_policy};
use crate::record::{Flaw, Header, KEY_BYTES};
use crate::slots::{Place, Slots};

/// Disowned blocks taken out under one hold of the lock.
const TAKEN_OUT_AT_ONCE: usize = 256;

/// What a dataset's readers, writers and permits share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) base: Arc<Base>,
    pub(super) config: CacheConfig,
    pub(super) key: [u8; KEY_BYTES],
    /// The dataset's number in the index.
    pub(super) number: u32,
    pub(super) slots: Slots,
    pub(super) space: Space,
    pub(super) used_bytes: AtomicU64,
    pub(super) blocks_cached: AtomicU64,
    pub(super) disowned: Shown,
    pub(super) granted: Granted,
    touches: Touches,
    state: Mutex<State>,
    rebuilding: AtomicBool,
    rebuilt: Condvar,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(super) struct State {
    /// None until the blocks of an earlier run are counted.
    pub(super) policy: Option<Box<dyn Policy>>,
    /// Blocks that have a permit and are not written yet, with the permit's number.
    pending: HashMap<BlockIndex, u64>,
    last_permit: u64,
    pub(super) allocator: Allocator,
    pub(super) disowned: Disowned,
    /// Flaws that reads found while there was no policy.
    flawed: HashMap<BlockIndex, (Place, Flaw)>,
    /// Called when the rebuild has ended.
    waiting: Waiting,
    touches_seen: u64,
}

impl State {
    /// True if a block of `len` bytes fits without evicting any.
    fn has_room(&self, len: u32) -> bool {
        let fits = |policy: &dyn Policy| policy.used_bytes() + u64::from(len) <= policy.capacity_bytes();
        self.policy.as_deref().is_some_and(fits)
    }
}

/// Calls that wait for the end of the rebuild.
#[derive(Default)]
struct Waiting(Vec<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.len()).finish()
    }
}

impl Shared {
    /// A dataset that `is_new` has nothing to count; it admits from the start.
    pub(super) fn new(
        base: Arc<Base>,
        config: CacheConfig,
        number: u32,
        slots: Slots,
        (space, allocator): (Space, Allocator),
        is_new: bool,
    ) -> Self {
        let policy = build_policy(config.policy, config.reservation_bytes, config.blocks, config.seed);
        let state = State {
            pending: HashMap::new(),
            last_permit: 0,
            allocator,
            disowned: Disowned::default(),
            flawed: HashMap::new(),
            waiting: Waiting::default(),
            touches_seen: 0,
            policy: None,
        };
        Self {
            key: Header::new(&config.snapshot, BlockIndex(0), 1).key,
            number,
            slots,
            space,
            used_bytes: AtomicU64::new(0),
            blocks_cached: AtomicU64::new(0),
            disowned: Shown::default(),
            granted: Granted::new(config.reservation_bytes, config.promised),
            touches: Touches::new(policy.wants_touch()),
            state: Mutex::new(State { policy: is_new.then_some(policy), ..state }),
            rebuilding: AtomicBool::new(!is_new),
            rebuilt: Condvar::new(),
            stop: AtomicBool::new(false),
            base,
            config,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::Relaxed)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks the rebuild to end early.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn wait_rebuilt(&self, timeout: Duration) -> bool {
        let unfinished = |_: &mut State| self.is_rebuilding();
        let waiting = self.rebuilt.wait_timeout_while(self.lock(), timeout, unfinished);
        waiting.unwrap_or_else(PoisonError::into_inner).0.policy.is_some()
    }

    /// Calls `call` when the rebuild has ended, at once if it has.
    pub(super) fn when_rebuilt(&self, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        if self.is_rebuilding() {
            state.waiting.0.push(call);
        } else {
            drop(state);
            call();
        }
    }

    /// Nobody waits for the rebuild any longer. If it has not finished, nothing is admitted.
    pub(super) fn end_rebuild(&self) {
        let mut state = self.lock();
        self.rebuilding.store(false, Ordering::Relaxed);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.rebuilt.notify_all();
        for call in waiting.0 {
            call();
        }
    }

    /// Opens admissions with a policy that has counted the cached blocks.
    pub(super) fn finish_rebuild(&self, mut policy: Box<dyn Policy>) {
        let mut state = self.lock();
        policy.set_capacity(self.granted.capacity_bytes());
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        state.policy = Some(policy);
        for (block, (place, flaw)) in std::mem::take(&mut state.flawed) {
            self.discard(&mut state, block, place, flaw);
        }
        drop(state);
        self.end_rebuild();
    }

    /// Notes a hit for a policy that wants to know.
    pub(super) fn touch(&self, block: BlockIndex) {
        if self.touches.push(block) {
            // If another thread holds the lock, a later holder drains the ring.
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.drain_touches(&mut state);
        }
    }

    fn drain_touches(&self, state: &mut State) {
        if let Some(policy) = &mut state.policy {
            self.touches.drain(&mut state.touches_seen, &mut **policy);
        }
    }

    /// Takes room for a block: free room, or that of disowned blocks, or what the policy evicts if it `may_evict`. Returns the
    /// number of the permit to write it.
    pub(super) fn admit(&self, block: BlockIndex, len: u32, may_evict: bool, now: Instant) -> Option<u64> {
        let counters = &self.base.counters;
        if block.0 >= self.slots.blocks() || len == 0 || u64::from(len) > BLOCK_BYTES {
            return None;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.slots.get(block).is_some() || state.pending.contains_key(&block) {
            return None;
        }
        if self.base.closed.load(Ordering::Relaxed) || state.policy.is_none() || !self.base.health.may_write(now) {
            counters.refused.add(1);
            return None;
        }
        self.drain_touches(state);
        self.make_room(state, len, now);
        let is_free = state.has_room(len);
        let mut victims = Vec::new();
        let policy = state.policy.as_mut()?;
        if !(is_free || may_evict) || !policy.admit(block, len, &mut victims) {
            counters.refused.add(1);
            return None;
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        for victim in victims {
            self.evict(state, victim, now);
        }
        state.last_permit += 1;
        state.pending.insert(block, state.last_permit);
        Some(state.last_permit)
    }

    /// Takes out disowned blocks until there is room for `len` bytes, or none is known, or enough were taken out at once.
    fn make_room(&self, state: &mut State, len: u32, now: Instant) {
        let could_fit = state.policy.as_ref().is_some_and(|policy| u64::from(len) <= policy.capacity_bytes());
        let Some(ownership) = self.config.ownership.as_ref().filter(|_| could_fit && !state.has_room(len)) else {
            return;
        };
        state.disowned.follow(ownership.version());
        for _ in 0..TAKEN_OUT_AT_ONCE {
            if state.has_room(len) {
                break;
            }
            let Some((victim, victim_len)) = state.disowned.pop() else { break };
            // A block that was found to be flawed has left already.
            if let Some(place) = self.slots.get(victim) {
                if !self.take_out(state, victim, place, Some(victim_len), now) {
                    break;
                }
                self.forget(state, victim, victim_len);
                self.base.counters.disowned.add(1);
            }
        }
        self.disowned.show(&state.disowned, self.is_stopped());
    }

    /// Gives back the room of a block that was not written; does nothing if the permit is no longer valid.
    pub(super) fn cancel(&self, block: BlockIndex, len: u32, permit: u64) {
        let mut state = self.lock();
        if state.pending.get(&block) == Some(&permit) {
            state.pending.remove(&block);
            self.forget(&mut state, block, len);
        }
    }

    /// Takes out a block that the policy has evicted.
    pub(super) fn evict(&self, state: &mut State, victim: BlockIndex, now: Instant) {
        if state.pending.remove(&victim).is_some() {
            // Its writer finds the permit invalid and frees what it wrote.
            return;
        }
        let Some(place) = self.slots.get(victim) else { return };
        let len = self.config.block_lens.len_of(victim);
        // If the disk does not let it go, it stays uncounted until a restart.
        if self.take_out(state, victim, place, len, now) {
            self.base.counters.evicted.add(1);
            self.base.counters.evicted_bytes.add(len.unwrap_or_default().into());
        }
    }

    /// Takes a block out of the slot table and the index, and frees its record if its length is certain. False if the disk does
    /// not let the block go: it stays a hit.
    pub(super) fn take_out(
        &self,
        state: &mut State,
        block: BlockIndex,
        place: Place,
        len: Option<u32>,
        now: Instant,
    ) -> bool {
        if let Err(error) = self.slots.set(block, None) {
            self.disk_failed("clear a slot", &error, now);
            return false;
        }
        self.base.index.delete(self.number, block);
        self.blocks_cached.fetch_sub(1, Ordering::Relaxed);
        state.allocator.retire(&self.space, place, len);
        true
    }

    /// Writes a block, then sets its slot.
    pub(super) fn keep(&self, permit: u64, record: &Record) -> io::Result<()> {
        let Header { block, len, .. } = *record.header();
        let extent = record.as_bytes().len();
        self.base.free_share.take(extent as u64, Instant::now())?;
        let Allotment { segment, place, prepare } = {
            let mut state = self.lock();
            if state.pending.get(&block) != Some(&permit) {
                // Evicted before it was written.
                return Ok(());
            }
            state.allocator.allocate(&self.space, extent)?
        };
        if let Some(range) = prepare {
            segment.prepare(range.start, range.end - range.start);
        }
        let written = segment.write(place.offset(), record.as_bytes()).and_then(|()| match segment.is_deleted()? {
            false => Ok(()),
            true => Err(io::Error::new(io::ErrorKind::NotFound, "segment was deleted")),
        });
        let mut guard = self.lock();
        let state = &mut *guard;
        let wanted = state.pending.get(&block) == Some(&permit);
        let shown = match written {
            Ok(()) if wanted => self.slots.set(block, Some(place)),
            other => other,
        };
        if wanted && shown.is_ok() {
            state.pending.remove(&block);
            self.base.index.put(self.number, block, place);
            self.blocks_cached.fetch_add(1, Ordering::Relaxed);
            self.base.counters.admitted.add(1);
            self.base.counters.admitted_bytes.add(u64::from(len));
        } else {
            state.allocator.retire(&self.space, place, Some(len));
        }
        if let Err(error) = &shown
            && !is_full(error)
            && state.allocator.is_current(segment.number)
        {
            // The next attempt starts with a file of its own.
            state.allocator.leave_current(&self.space);
        }
        // If the slot was not set, dropping the permit gives the room back.
        shown
    }

    /// A read of the block failed.
    pub(super) fn found_trouble(&self, block: BlockIndex, place: Place, trouble: Trouble) {
        if self.slots.get(block) != Some(place) {
            // Evicted while it was read: a plain miss.
            return;
        }
        match trouble {
            Trouble::Unreadable(error) => {
                self.base.counters.read_errors.add(1);
                if !self.base.logged.unreadable.swap(true, Ordering::Relaxed) {
                    warn!(dataset = self.config.name, %block, %error, "the disk failed to read a cached block");
                }
            }
            Trouble::Flaw(flaw) => {
                let mut state = self.lock();
                if state.policy.is_some() {
                    self.discard(&mut state, block, place, flaw);
                } else {
                    state.flawed.insert(block, (place, flaw));
                }
            }
        }
    }

    /// Drops a block whose record is flawed, unless another thread did before.
    fn discard(&self, state: &mut State, block: BlockIndex, place: Place, flaw: Flaw) {
        if self.slots.get(block) != Some(place) {
            return;
        }
        self.count_flaw(block, flaw);
        let len = self.config.block_lens.len_of(block);
        // A slot that rotted points into another block's record; only what is certainly this block's is freed.
        if self.take_out(state, block, place, len.filter(|_| flaw == Flaw::RottenData), Instant::now()) {
            self.forget(state, block, len.unwrap_or_default());
        }
    }

    fn count_flaw(&self, block: BlockIndex, flaw: Flaw) {
        let (counters, logged) = (&self.base.counters, &self.base.logged);
        let (counter, logged, reason) = match flaw {
            Flaw::Torn => (&counters.corrupt_torn, &logged.torn, "torn"),
            Flaw::Foreign => (&counters.corrupt_foreign, &logged.foreign, "foreign"),
            Flaw::RottenHeader | Flaw::RottenData => (&counters.corrupt_rotten, &logged.rotten, "rotten"),
        };
        counter.add(1);
        if !logged.swap(true, Ordering::Relaxed) {
            warn!(dataset = self.config.name, %block, reason, "drop a corrupt block: it is fetched again");
        }
    }

    pub(super) fn forget(&self, state: &mut State, block: BlockIndex, len: u32) {
        if let Some(policy) = &mut state.policy {
            policy.forget(block, len);
            self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        }
    }

    /// Frees room that nobody needs: whole segments at once, single records in batches, or `all`. Blocks on the disk.
    pub(super) fn free_room(&self, all: bool) {
        let (whole, is_due) = self.lock().allocator.take_whole(&self.space);
        self.free_each(whole.iter());
        drop(whole);
        if all || is_due {
            let _one_at_a_time = self.space.freeing().lock().unwrap_or_else(PoisonError::into_inner);
            let dead = self.lock().allocator.take_dead(&self.space, all);
            self.free_each(dead.iter());
        }
    }

    fn free_each<'a>(&self, garbage: impl Iterator<Item = &'a Garbage>) {
        for error in garbage.filter_map(|garbage| garbage.free().err()) {
            self.disk_failed("free room", &error, Instant::now());
        }
    }

    fn disk_failed(&self, step: &'static str, error: &io::Error, now: Instant) {
        self.base.counters.write_errors.add(1);
        if self.base.health.failed("disk error", now) {
            warn!(dataset = self.config.name, step, %error, "admissions to the cache pause");
        }
    }
}

/// True if a write failed for want of room on the disk.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
