//! Blocks that plans have fetched ahead of their readers, and those that are on their way.
//!
//! A block is added before its fetch starts, with the memory for its bytes. It is *coming* until they are there, and
//! then *held* until a reader has read all that its plan wants of it, whether or not the store keeps it: the reader
//! need not wait for the disk. It is dropped unread if its plan ends, changes or passes it, or once the kernel reads its
//! file out of the cache by itself.
//!
//! Each block is here at most once, for the plan that came to it first. Any reader of the dataset gets its bytes.
//!
//! Invariants: the bytes of each block have their memory before they come. No code waits for anything under the lock.
//! While there is no plan, readers take no lock here.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counters::{StatsCounters, add};
use crate::memory::Permit;
use crate::window::ReadRanges;

/// How long a block is held that lost its place, or of which a reader has left a part unread and gone on.
const PASSED_STAYS: Duration = Duration::from_secs(10);

/// How long a block is held that no reader has begun, though some read what is behind it. Each of several readers, such
/// as the workers of a loader, has some files of its own to read, and may take long for those before.
const UNREAD_STAYS: Duration = Duration::from_secs(60);

/// The place of a block that its plan does not want any more. It is the first to go, unless the plan comes to it again.
const NOWHERE: Place = Place { position: u64::MAX, nth: 0 };

/// The plan of blocks that are coming and that no plan wants any more. They are dropped when they have come.
const NO_PLAN: u64 = 0;

/// Where a plan wants a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The position of the item.
    pub(crate) position: u64,
    /// The number of the block in the item.
    pub(crate) nth: u32,
}

/// A block that was read and is dropped here.
#[derive(Debug)]
pub(crate) struct PlannedRead {
    pub(crate) block: BlockIndex,
    pub(crate) bytes: Bytes,
    /// The store keeps it.
    pub(crate) is_kept: bool,
    /// Of its bytes.
    pub(crate) memory: Permit,
}

/// The blocks that a plan has here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) blocks: usize,
    /// Of all of its blocks.
    pub(crate) bytes: u64,
    /// Of those that are coming.
    pub(crate) coming_bytes: u64,
    /// The position after the last one of which a reader had bytes.
    pub(crate) read_to: u64,
}

/// The state of a block that a plan comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// It is here.
    Here,
    /// It is coming, and would be of the plan if that had room.
    NoRoom,
}

/// The blocks of all plans of a dataset.
#[derive(Debug)]
pub(crate) struct PlannedBlocks {
    /// So that readers need no lock to see that there is none.
    count: AtomicUsize,
    inner: Mutex<Inner>,
    counters: Arc<StatsCounters>,
    /// A block has come or gone.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    by_index: HashMap<BlockIndex, Planned>,
    /// By plan and place.
    order: BTreeSet<(u64, Place, BlockIndex)>,
    plans: HashMap<u64, Usage>,
    coming: usize,
    added: u64,
}

#[derive(Debug)]
struct Planned {
    plan: u64,
    place: Place,
    /// Which of the blocks that were ever added it is.
    ticket: u64,
    len: u32,
    /// The part of it that the plan wants.
    wanted: Range<u32>,
    /// The part of that which was read.
    read: ReadRanges,
    /// None: they are coming.
    bytes: Option<Bytes>,
    is_kept: bool,
    /// A reader had to wait for it.
    is_late: bool,
    /// When it came, was read, or lost its place.
    since: Instant,
    memory: Permit,
}

/// A reader that waits for a planned block. Counts the time until this is dropped.
#[derive(Debug)]
pub(crate) struct Stalled<'a> {
    counters: &'a StatsCounters,
    since: Instant,
}

/// A block that is coming. Gives it up when this is dropped, unless it has come.
#[derive(Debug)]
pub(crate) struct Coming {
    planned: Arc<PlannedBlocks>,
    block: BlockIndex,
    ticket: u64,
}

impl Usage {
    /// A reader had bytes of the block that is wanted at `place`.
    fn read_at(&mut self, place: Place) {
        if place != NOWHERE {
            self.read_to = self.read_to.max(place.position.saturating_add(1));
        }
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        add(&self.counters.plan_stalled_microseconds, self.since.elapsed().as_micros() as u64);
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut inner = self.planned.lock();
        let is_coming = |planned: &Planned| planned.ticket == self.ticket && planned.bytes.is_none();
        if inner.by_index.get(&self.block).is_some_and(is_coming) {
            inner.remove(self.block);
            self.planned.note_change(&inner);
        }
    }
}

impl PlannedBlocks {
    pub(crate) fn new(counters: Arc<StatsCounters>) -> Self {
        Self { count: AtomicUsize::new(0), inner: Mutex::default(), counters, changed: Notify::new() }
    }

    /// Waits until a block has come or gone since the last call. For one task.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Ends the current or the next call of [`Self::changed`].
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// A part's bytes, if they are held.
    pub(crate) fn get(&self, part: &BlockPart) -> Option<Bytes> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let inner = self.lock();
        let bytes = inner.by_index.get(&part.block)?.bytes.as_ref()?;
        Some(bytes.slice(part.start as usize..(part.start + part.len) as usize))
    }

    /// True if a plan holds a block, or is about to.
    pub(crate) fn contains(&self, block: BlockIndex) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.lock().by_index.contains_key(&block)
    }

    /// Marks a part as read: its reader has the bytes. Returns the block if no more of it is wanted.
    pub(crate) fn mark_read(&self, part: &BlockPart) -> Option<PlannedRead> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut inner = self.lock();
        let Inner { by_index, plans, .. } = &mut *inner;
        let planned = by_index.get_mut(&part.block)?;
        planned.since = Instant::now();
        if let Some(usage) = plans.get_mut(&planned.plan) {
            usage.read_at(planned.place);
        }
        planned.read.add(part.start..part.start + part.len, planned.len);
        if !planned.read.covers(&planned.wanted) {
            return None;
        }
        let bytes = planned.bytes.clone()?;
        if !planned.is_late {
            add(&self.counters.plan_blocks_in_time, 1);
        }
        let Planned { is_kept, memory, .. } = inner.remove(part.block)?;
        self.note_change(&inner);
        Some(PlannedRead { block: part.block, bytes, is_kept, memory })
    }

    /// Drops those of these blocks that are held: their readers read what the store keeps, without a request to this
    /// process.
    pub(crate) fn leave(&self, blocks: &Range<BlockIndex>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut inner = self.lock();
        let is_held = |(block, planned): &(&BlockIndex, &Planned)| blocks.contains(*block) && planned.bytes.is_some();
        let held: Vec<BlockIndex> = inner.by_index.iter().filter(is_held).map(|(&block, _)| block).collect();
        for block in held {
            let Some(Planned { plan, place, is_late, .. }) = inner.remove(block) else { continue };
            if let Some(usage) = inner.plans.get_mut(&plan) {
                usage.read_at(place);
            }
            if !is_late {
                add(&self.counters.plan_blocks_in_time, 1);
            }
        }
        self.note_change(&inner);
    }

    /// Notes that a reader waits for a block. None: no plan wants it, or it is here.
    pub(crate) fn stalls(&self, block: BlockIndex) -> Option<Stalled<'_>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut inner = self.lock();
        let planned = inner.by_index.get_mut(&block).filter(|planned| planned.bytes.is_none())?;
        if !planned.is_late {
            planned.is_late = true;
            add(&self.counters.plan_blocks_late, 1);
        }
        Some(Stalled { counters: &self.counters, since: Instant::now() })
    }

    /// The bytes of a block are there; the store may keep them, too. False: no plan wants the block.
    pub(crate) fn fill(&self, block: BlockIndex, bytes: &Bytes, is_kept: bool) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut inner = self.lock();
        let Inner { by_index, plans, coming, .. } = &mut *inner;
        let Some(planned) = by_index.get_mut(&block) else { return false };
        if planned.bytes.is_none() {
            *coming -= 1;
            if let Some(usage) = plans.get_mut(&planned.plan) {
                usage.coming_bytes -= u64::from(planned.len);
            }
        }
        (planned.bytes, planned.is_kept, planned.since) = (Some(bytes.clone()), is_kept, Instant::now());
        let (is_abandoned, was_read) = (planned.plan == NO_PLAN, planned.read.covers(&planned.wanted));
        if was_read {
            inner.remove(block);
            self.note_change(&inner);
        } else if is_abandoned {
            self.waste(&mut inner, block);
        }
        self.changed.notify_one();
        !is_abandoned && !was_read
    }

    /// Adds a block that is about to be fetched, for which there is `memory`. `part`: the part of it that is wanted.
    /// None: it is here already. Plans have numbers from 1 on.
    pub(crate) fn add(self: &Arc<Self>, plan: u64, place: Place, part: &BlockPart, memory: Permit) -> Option<Coming> {
        let mut inner = self.lock();
        if inner.by_index.contains_key(&part.block) {
            return None;
        }
        let (block, ticket, len) = (part.block, inner.added, part.block_len);
        inner.added += 1;
        let planned = Planned {
            plan,
            place,
            ticket,
            len,
            wanted: part.start..part.start + part.len,
            read: ReadRanges::default(),
            bytes: None,
            is_kept: false,
            is_late: false,
            since: Instant::now(),
            memory,
        };
        inner.insert(block, planned);
        self.count.store(inner.by_index.len(), Ordering::Release);
        Some(Coming { planned: Arc::clone(self), block, ticket })
    }

    /// Looks a block up. If it is of this plan, or of none and the plan has room for it, it is wanted at `place`, too,
    /// and this part of it.
    pub(crate) fn look_up(&self, plan: u64, place: Place, part: &BlockPart, has_room: bool) -> Found {
        let mut inner = self.lock();
        let Some(planned) = inner.by_index.get_mut(&part.block) else { return Found::Nothing };
        if planned.plan == NO_PLAN && !has_room {
            return Found::NoRoom;
        }
        if planned.plan == plan || planned.plan == NO_PLAN {
            planned.wanted = planned.wanted.start.min(part.start)..planned.wanted.end.max(part.start + part.len);
            if planned.place == NOWHERE {
                inner.move_to(part.block, plan, place);
            }
        }
        Found::Here
    }

    /// The blocks that a plan has here.
    pub(crate) fn usage(&self, plan: u64) -> Usage {
        self.lock().plans.get(&plan).copied().unwrap_or_default()
    }

    /// Of all plans, the bytes of all blocks, and how many of them are coming.
    pub(crate) fn totals(&self) -> (u64, usize) {
        let inner = self.lock();
        (inner.plans.values().map(|usage| usage.bytes).sum(), inner.coming)
    }

    /// The position of a plan's first block.
    pub(crate) fn first_position(&self, plan: u64) -> Option<u64> {
        let inner = self.lock();
        let first = inner.placed(plan, 0..u64::MAX).next();
        first.map(|(place, _)| place.position)
    }

    /// Takes the place from the blocks of a plan from `position` on.
    pub(crate) fn cut(&self, plan: u64, position: u64) {
        let mut inner = self.lock();
        let cut: Vec<_> = inner.placed(plan, position..u64::MAX).collect();
        for (_, block) in cut {
            inner.move_to(block, plan, NOWHERE);
        }
    }

    /// Drops the blocks of a plan before `position`.
    pub(crate) fn pass(&self, plan: u64, position: u64) {
        let mut inner = self.lock();
        let passed: Vec<_> = inner.placed(plan, 0..position).collect();
        for (_, block) in passed {
            self.waste(&mut inner, block);
        }
    }

    /// Drops the blocks of a plan that lost their place, or that its readers have passed, a while ago.
    pub(crate) fn drop_passed(&self, plan: u64) {
        let mut inner = self.lock();
        let read_to = inner.plans.get(&plan).map_or(0, |usage| usage.read_to);
        let passed = inner.placed(plan, 0..read_to.saturating_sub(1)).chain(inner.unplaced(plan));
        let is_old = |(place, block): &(Place, BlockIndex)| {
            inner.by_index.get(block).is_some_and(|planned| {
                let is_awaited = *place != NOWHERE && planned.read.is_empty();
                let stays = if is_awaited { UNREAD_STAYS } else { PASSED_STAYS };
                planned.bytes.is_some() && planned.since.elapsed() >= stays
            })
        };
        let old: Vec<_> = passed.filter(is_old).collect();
        for (_, block) in old {
            self.waste(&mut inner, block);
        }
    }

    /// Drops the farthest block of a plan. Returns the place from which on the plan must come to its items again; None
    /// if it has no block.
    pub(crate) fn drop_farthest(&self, plan: u64) -> Option<Place> {
        let mut inner = self.lock();
        let (place, block) = inner.placed(plan, 0..u64::MAX).chain(inner.unplaced(plan)).next_back()?;
        self.waste(&mut inner, block);
        Some(place)
    }

    /// Drops all blocks of a plan, which has ended.
    pub(crate) fn forget(&self, plan: u64) {
        let mut inner = self.lock();
        let all: Vec<_> = inner.placed(plan, 0..u64::MAX).chain(inner.unplaced(plan)).collect();
        for (_, block) in all {
            self.waste(&mut inner, block);
        }
        inner.plans.remove(&plan);
    }

    /// Drops a block that was not read. One that is coming keeps its memory until then.
    fn waste(&self, inner: &mut Inner, block: BlockIndex) {
        if inner.by_index.get(&block).is_some_and(|planned| planned.bytes.is_none()) {
            inner.move_to(block, NO_PLAN, NOWHERE);
            return;
        }
        if let Some(Planned { is_kept: false, len, .. }) = inner.remove(block) {
            add(&self.counters.plan_blocks_wasted, 1);
            add(&self.counters.plan_wasted_bytes, len.into());
        }
        self.note_change(inner);
    }

    fn note_change(&self, inner: &Inner) {
        self.count.store(inner.by_index.len(), Ordering::Release);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn insert(&mut self, block: BlockIndex, planned: Planned) {
        let usage = self.plans.entry(planned.plan).or_default();
        usage.blocks += 1;
        usage.bytes += u64::from(planned.len);
        if planned.bytes.is_none() {
            usage.coming_bytes += u64::from(planned.len);
            self.coming += 1;
        }
        self.order.insert((planned.plan, planned.place, block));
        self.by_index.insert(block, planned);
    }

    fn remove(&mut self, block: BlockIndex) -> Option<Planned> {
        let planned = self.by_index.remove(&block)?;
        self.order.remove(&(planned.plan, planned.place, block));
        let coming_bytes = if planned.bytes.is_none() { u64::from(planned.len) } else { 0 };
        self.coming -= usize::from(planned.bytes.is_none());
        if let Some(usage) = self.plans.get_mut(&planned.plan) {
            usage.blocks -= 1;
            usage.bytes -= u64::from(planned.len);
            usage.coming_bytes -= coming_bytes;
        }
        Some(planned)
    }

    fn move_to(&mut self, block: BlockIndex, plan: u64, place: Place) {
        if let Some(planned) = self.remove(block) {
            self.insert(block, Planned { plan, place, since: Instant::now(), ..planned });
        }
    }

    /// The blocks of a plan at these positions, in their order.
    fn placed(&self, plan: u64, positions: Range<u64>) -> impl DoubleEndedIterator<Item = (Place, BlockIndex)> {
        let at = |position| (plan, Place { position, nth: 0 }, BlockIndex(0));
        // The end is before the blocks without a place.
        self.order.range(at(positions.start)..at(positions.end)).map(|&(_, place, block)| (place, block))
    }

    /// The blocks of a plan without a place.
    fn unplaced(&self, plan: u64) -> impl DoubleEndedIterator<Item = (Place, BlockIndex)> {
        let from = (plan, NOWHERE, BlockIndex(0));
        self.order.range(from..=(plan, NOWHERE, BlockIndex(u32::MAX))).map(|&(_, place, block)| (place, block))
    }
}

#[cfg(test)]
mod tests;
