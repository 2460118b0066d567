//! The state of a dataset's cache that its readers, writers and permits share, and the changes to it that have several
//! callers. Most of the state is behind one lock.
//!
//! The lock is never held while the disk is written to or a file is created, so threads that must not wait for the disk
//! can take it. A change of a slot therefore has three steps: a decision under the lock, the write without it, and the
//! bookkeeping under it.
//!
//! Invariant, whenever the lock is free: the policy counts each block that has a slot or a valid permit exactly once,
//! except for those that are leaving. Slots that a failing disk did not clear are an exception, too. While a block is
//! pending or leaving, no thread changes its slot but the one that writes the block or clears its slot.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use larder_dataset::BlockIndex;
use tracing::warn;

use super::ancestor::Ancestor;
use super::checks::Checks;
use super::disowned::{Disowned, Shown};
use super::granted::Granted;
use super::owners::Owners;
use super::space::{Allocator, Space};
use super::touches::Touches;
use super::waiting::Waiting;
use crate::base::Base;
use crate::config::CacheConfig;
use crate::large_file::LargeFiles;
use crate::measured::Stale;
use crate::policy::{Policy, Sizes, build_policy};
use crate::record::{self, Flaw, Header, KEY_BYTES};
use crate::reservations::Known;
use crate::slots::{Place, Slots};

/// State shared by a dataset's readers, writers and permits.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) base: Arc<Base>,
    pub(super) config: CacheConfig,
    pub(super) key: [u8; KEY_BYTES],
    /// The dataset's number in the index.
    pub(super) number: u32,
    pub(super) slots: Slots,
    pub(super) space: Space,
    pub(super) large: LargeFiles,
    pub(super) checks: Checks,
    pub(super) used_bytes: AtomicU64,
    pub(super) blocks_cached: AtomicU64,
    /// Disk bytes of adopted blocks. Other datasets may share them.
    pub(super) adopted_disk_bytes: AtomicU64,
    /// The caches of other snapshots, while their blocks are adopted.
    pub(super) ancestors: ArcSwapOption<Vec<Ancestor>>,
    /// Held by an adoption, and while unused space of earlier runs or in adopted segments is freed: a record that no
    /// block uses now may be adopted a moment later.
    pub(super) adopted_room: Mutex<()>,
    pub(super) disowned: Shown,
    pub(super) granted: Granted,
    /// Marked after the dataset's files have changed.
    pub(super) stale: Stale,
    touches: Touches,
    state: Mutex<State>,
    pub(super) rebuilding: AtomicBool,
    pub(super) rebuilt: Condvar,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(super) struct State {
    /// None until the blocks of an earlier run are counted.
    pub(super) policy: Option<Box<dyn Policy>>,
    /// The sizes of the blocks that may be cached, once they are known.
    pub(super) sizes: Option<Sizes>,
    /// Blocks that have a permit.
    pub(super) pending: HashMap<BlockIndex, Pending>,
    /// Blocks that the policy no longer counts and whose slots are being cleared, or will be.
    pub(super) leaving: HashSet<BlockIndex>,
    /// Those of them that no permit has: the next call that may wait for the disk clears their slots.
    pub(super) unclaimed: Vec<Victim>,
    pub(super) allocator: Allocator,
    pub(super) owners: Owners,
    pub(super) disowned: Disowned,
    /// Flaws that reads found while there was no policy.
    pub(super) flawed: HashMap<BlockIndex, (Place, Flaw)>,
    /// Called when the rebuild has ended.
    pub(super) waiting: Waiting,
    touches_seen: u64,
}

/// The state of a block that has a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// It is to be written.
    Valid,
    /// The policy evicted it before it was written.
    Evicted,
    /// It has its slot.
    Written,
    /// Some pages of it are cached, and more are to be written.
    Growing,
    /// The policy evicted it before they were.
    Outgrown,
}

/// A block that must leave the cache to make room for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) block: BlockIndex,
    pub(super) cause: Cause,
}

/// Why a block leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The policy evicted it.
    Evicted,
    /// Another node owns it.
    Disowned,
}

impl State {
    /// True if a block of `len` bytes fits without evicting any.
    pub(super) fn has_room(&self, len: u32) -> bool {
        let fits = |policy: &dyn Policy| policy.used_bytes() + u64::from(len) <= policy.capacity_bytes();
        self.policy.as_deref().is_some_and(fits)
    }

    /// Notes that the policy has evicted a block. None if the block is still being written: its writer then removes it.
    pub(super) fn evict(&mut self, block: BlockIndex) -> Option<Victim> {
        match self.pending.get_mut(&block) {
            Some(pending @ Pending::Valid) => {
                *pending = Pending::Evicted;
                None
            }
            Some(pending @ Pending::Growing) => {
                *pending = Pending::Outgrown;
                None
            }
            _ => self.leaving.insert(block).then_some(Victim { block, cause: Cause::Evicted }),
        }
    }
}

impl Shared {
    /// A dataset that `is_new` has no blocks to count, so it admits blocks from the start.
    pub(super) fn new(
        base: Arc<Base>,
        config: CacheConfig,
        number: u32,
        slots: Slots,
        (space, allocator): (Space, Allocator),
        large: LargeFiles,
        is_new: bool,
    ) -> Self {
        let policy = build_policy(config.policy, config.reservation_bytes, config.blocks, config.seed);
        let state = State {
            sizes: None,
            pending: HashMap::new(),
            leaving: HashSet::new(),
            unclaimed: Vec::new(),
            allocator,
            owners: Owners::default(),
            disowned: Disowned::default(),
            flawed: HashMap::new(),
            waiting: Waiting::default(),
            touches_seen: 0,
            policy: None,
        };
        Self {
            key: Header::new(&config.key.id(), BlockIndex(0), 1).key,
            number,
            slots,
            space,
            large,
            checks: Checks::default(),
            used_bytes: AtomicU64::new(0),
            blocks_cached: AtomicU64::new(0),
            adopted_disk_bytes: AtomicU64::new(0),
            ancestors: ArcSwapOption::empty(),
            adopted_room: Mutex::new(()),
            disowned: Shown::default(),
            granted: Granted::new(config.reservation_bytes, config.promised),
            stale: base.measured.stale(&config.key.id()),
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

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks the rebuild and the checks of files to end early.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.checks.wake();
    }

    /// Changes the users of the cache.
    pub(super) fn change_owners<T>(&self, change: impl FnOnce(&mut Owners) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state.owners);
        // A block that was disowned before may have an owner now, so the blocks found so far are discarded.
        let version = state.owners.version();
        state.disowned.follow(version);
        self.disowned.show(&state.disowned, self.is_stopped());
        changed
    }

    /// Notes a hit, if the policy orders blocks by use.
    pub(super) fn touch(&self, block: BlockIndex) {
        if self.touches.push(block) {
            // If another thread holds the lock, a later holder drains the ring. A hit must not wait.
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.drain_touches(&mut state);
        }
    }

    pub(super) fn drain_touches(&self, state: &mut State) {
        if let Some(policy) = &mut state.policy {
            self.touches.drain(&mut state.touches_seen, &mut **policy);
        }
    }

    /// Removes a leaving block from the slot table and the index, and frees its record if its length is certain.
    /// Returns false if the disk fails to clear the slot: the block then remains a hit, but is not counted until a
    /// restart. Blocks on the disk.
    pub(super) fn take_out(&self, block: BlockIndex, len: Option<u32>) -> bool {
        let place = self.slots.get(block);
        let is_shared =
            place.is_some_and(
                |place| {
                    if place.is_in_file() { self.shares_pages(block) } else { self.space.is_adopted(place) }
                },
            );
        let cleared = place.map_or(Ok(()), |_| self.slots.set(block, None));
        if cleared.is_ok() && place.is_some_and(Place::is_in_file) {
            // At once, and not in a batch: until it has left, the block cannot be written to the same place again.
            self.free_pages(block);
        }
        let mut state = self.lock();
        state.leaving.remove(&block);
        if let Err(error) = cleared {
            drop(state);
            self.table_failed("clear a slot", &error, Instant::now());
            return false;
        }
        // A damaged page of the slot table may have lost the slot meanwhile.
        let Some(place) = place else { return false };
        self.base.index.delete(self.number, block);
        self.blocks_cached.fetch_sub(1, Ordering::Relaxed);
        if let Some(len) = len.filter(|_| is_shared) {
            let less = |bytes: u64| Some(bytes.saturating_sub(record::extent_bytes(len) as u64));
            let _ = self.adopted_disk_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        state.allocator.retire(&self.space, place, len);
        true
    }

    /// Stores which files are shared with other datasets, so that the sharing is known while this dataset is closed.
    /// Blocks on the disk.
    pub(super) fn remember_adopted(&self) {
        self.base.change(&self.config.key.id(), self.adopted());
    }

    /// Records which files are shared with other datasets, and the promise that includes them.
    pub(super) fn adopted(&self) -> impl FnOnce(&mut Known) + use<> {
        let (adopted, promised) = (self.adopted_disk_bytes.load(Ordering::Relaxed), self.granted.promised());
        move |known| {
            known.adopted_disk_bytes = adopted;
            known.reservation = Some(promised);
        }
    }

    pub(super) fn forget(&self, state: &mut State, block: BlockIndex, len: u32) {
        if let Some(policy) = &mut state.policy {
            policy.forget(block, len);
            self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        }
    }

    /// Records that a slot could not be changed.
    pub(super) fn table_failed(&self, step: &'static str, error: &io::Error, now: Instant) {
        self.base.counters.write_errors.add(1);
        if self.base.tables.failed("disk error", now) {
            warn!(dataset = self.config.name, step, %error, "admissions to the cache pause");
        }
    }
}
