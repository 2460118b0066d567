//! The state that admissions share, behind one lock, and every change to it.
//!
//! Invariant, whenever the lock is free: each block that has a slot or a ticket is counted once by the policy (but for
//! slots that a failing disk would not let go of); a segment's live count is the slots and writes under way in it; a
//! segment that is not the current one and has none is on its way out.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use larder_dataset::{BLOCK_BYTES, BlockIndex};
use tracing::warn;

use super::rebuild::Work;
use super::touches::Touches;
use super::{DatasetSpec, Trouble, add, dataset_row};
use crate::base::Base;
use crate::error::StoreError;
use crate::policy::{Policy, build_policy};
use crate::record::{self, Flaw, Header, KEY_BYTES, Record};
use crate::segment::{Segment, SegmentTable};
use crate::slots::{Found, Place, Slots};
use larder_dataset::PolicyKind;

/// What a dataset's readers, writers and reservations share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) base: Arc<Base>,
    pub(super) spec: DatasetSpec,
    pub(super) key: [u8; KEY_BYTES],
    /// The dataset's number in the index.
    pub(super) number: u32,
    pub(super) slots: Slots,
    pub(super) segments: ArcSwap<SegmentTable>,
    pub(super) used_bytes: AtomicU64,
    pub(super) blocks_cached: AtomicU64,
    segments_dir: PathBuf,
    touches: Touches,
    admission: Mutex<Admission>,
    rebuilding: AtomicBool,
    rebuilt: Condvar,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Admission {
    /// None until what an earlier run left is counted.
    pub(super) policy: Option<Box<dyn Policy>>,
    /// Blocks promised and not yet written, with the ticket of the reservation that may write them.
    pending: HashMap<BlockIndex, u64>,
    last_ticket: u64,
    /// Where the next record goes: after a start, nowhere until there is one.
    current: Option<Current>,
    next_segment: Option<u32>,
    /// What was found flawed while there was no policy to tell.
    pub(super) flawed: HashMap<BlockIndex, (Place, Flaw)>,
    garbage: Vec<Garbage>,
    touches_seen: u64,
}

#[derive(Debug)]
struct Current {
    segment: Arc<Segment>,
    next_page: u32,
    /// Up to here the file has its room on the disk, or somebody is taking it.
    prepared_bytes: u64,
}

/// The most room that is taken ahead of the records.
const PREPARED_MOST: u64 = 64 << 20;
const PREPARED_LEAST: u64 = 1 << 20;

/// Where a record goes.
struct Allotment {
    segment: Arc<Segment>,
    place: Place,
    /// The part of the file that its writer prepares first.
    prepare: Option<Range<u64>>,
}

/// Room on the disk that nobody needs; given back without the lock.
#[derive(Debug)]
enum Garbage {
    Record {
        segment: Arc<Segment>,
        offset: u64,
        bytes: u64,
    },
    /// What was prepared and not used.
    Tail {
        segment: Arc<Segment>,
        offset: u64,
    },
    Segment(Arc<Segment>),
}

impl Shared {
    pub(super) fn open(
        base: Arc<Base>,
        spec: DatasetSpec,
        segments_dir: PathBuf,
        slots: Slots,
        found: Found,
    ) -> Result<(Self, Option<Work>), StoreError> {
        let snapshot = spec.snapshot;
        let segments = SegmentTable::open(&segments_dir, base.abilities.direct)
            .map_err(|source| StoreError::Dataset { snapshot, step: "open the segments", source })?;
        let number = base.index.register(&snapshot, dataset_row(&spec, 0));
        let work = Work {
            refill: matches!(found, Found::Made { .. }) || base.last_run.slots_doubtful,
            reindex: found == Found::Kept && base.last_run.index_is_new,
        };
        // A new dataset has nothing to count; it admits from the start.
        let is_new = found != Found::Kept && segments.iter().next().is_none();
        let admission = Admission {
            policy: is_new.then(|| build_policy(spec.policy, spec.reservation_bytes, spec.blocks, spec.seed)),
            pending: HashMap::new(),
            last_ticket: 0,
            current: None,
            next_segment: segments.next_number(),
            flawed: HashMap::new(),
            garbage: Vec::new(),
            touches_seen: 0,
        };
        let shared = Self {
            key: Header::new(&snapshot, BlockIndex(0), 1).key,
            number,
            slots,
            segments: ArcSwap::from_pointee(segments),
            used_bytes: AtomicU64::new(0),
            blocks_cached: AtomicU64::new(0),
            segments_dir,
            touches: Touches::new(spec.policy == PolicyKind::Lru),
            admission: Mutex::new(admission),
            rebuilding: AtomicBool::new(!is_new),
            rebuilt: Condvar::new(),
            stop: AtomicBool::new(false),
            base,
            spec,
        };
        Ok((shared, (!is_new).then_some(work)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub(super) fn wait_rebuilt(&self, patience: Duration) -> bool {
        let waiting = self.rebuilt.wait_timeout_while(self.lock(), patience, |state| state.policy.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner).0.policy.is_some()
    }

    /// Opens admissions with a policy that has counted what is there.
    pub(super) fn finish_rebuild(&self, policy: Box<dyn Policy>) {
        let mut state = self.lock();
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        state.policy = Some(policy);
        for (block, (place, flaw)) in std::mem::take(&mut state.flawed) {
            self.discard(&mut state, block, place, flaw);
        }
        self.rebuilding.store(false, Ordering::Relaxed);
        drop(state);
        self.rebuilt.notify_all();
    }

    /// Notes a hit for a policy that wants to know.
    pub(super) fn touch(&self, block: BlockIndex) {
        if self.touches.push(block) {
            // Whoever holds the lock empties the ring too, if later.
            let mut state = match self.admission.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.drain_touches(&mut state);
        }
    }

    fn drain_touches(&self, state: &mut Admission) {
        if let Some(policy) = &mut state.policy {
            self.touches.drain(&mut state.touches_seen, &mut **policy);
        }
    }

    /// Takes room for a block, only free room unless `may_evict`; gives the ticket with which it can be written.
    pub(super) fn reserve(&self, block: BlockIndex, len: u32, may_evict: bool, now: Instant) -> Option<u64> {
        let counters = &self.base.counters;
        if block.0 >= self.slots.blocks() || len == 0 || u64::from(len) > BLOCK_BYTES {
            return None;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        if self.slots.get(block).is_some() || state.pending.contains_key(&block) {
            return None;
        }
        let closed = self.base.closed.load(Ordering::Relaxed);
        if closed || state.policy.is_none() || !self.base.health.may_write(now) {
            counters.refused.add(1);
            return None;
        }
        self.drain_touches(state);
        let mut victims = Vec::new();
        let policy = state.policy.as_mut()?;
        let is_free = policy.used_bytes() + u64::from(len) <= policy.capacity_bytes();
        if !(is_free || may_evict) || !policy.admit(block, len, &mut victims) {
            counters.refused.add(1);
            return None;
        }
        self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        for victim in victims {
            self.evict(state, victim, now);
        }
        state.last_ticket += 1;
        state.pending.insert(block, state.last_ticket);
        Some(state.last_ticket)
    }

    /// Gives the room of a block back that was not written; nothing if the ticket is no longer good.
    pub(super) fn cancel(&self, block: BlockIndex, len: u32, ticket: u64) {
        let mut state = self.lock();
        if state.pending.get(&block) == Some(&ticket) {
            state.pending.remove(&block);
            self.forget(&mut state, block, len);
        }
    }

    /// Takes out a block that the policy has put out already.
    pub(super) fn evict(&self, state: &mut Admission, victim: BlockIndex, now: Instant) {
        if state.pending.remove(&victim).is_some() {
            // Its writer finds its ticket void and frees what it wrote.
            return;
        }
        let Some(place) = self.slots.get(victim) else { return };
        if let Err(error) = self.slots.set(victim, None) {
            // The block stays a hit, and its record is not freed; that it is not counted lasts until a restart.
            self.disk_failed("clear a slot", &error, now);
            return;
        }
        let len = (self.spec.lens)(victim);
        self.base.index.delete(self.number, victim);
        self.blocks_cached.fetch_sub(1, Ordering::Relaxed);
        self.base.counters.evicted.add(1);
        self.base.counters.evicted_bytes.add(u64::from(len));
        self.retire(state, place, Some(len));
    }

    /// Writes a block and shows it.
    pub(super) fn keep(&self, ticket: u64, record: &Record) -> io::Result<()> {
        let Header { block, len, .. } = *record.header();
        let extent = record.as_bytes().len();
        let Allotment { segment, place, prepare } = {
            let mut state = self.lock();
            if state.pending.get(&block) != Some(&ticket) {
                // Evicted before it was written.
                return Ok(());
            }
            self.allocate(&mut state, extent)?
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
        let wanted = state.pending.get(&block) == Some(&ticket);
        let shown = match written {
            Ok(()) if wanted => self.slots.set(block, Some(place)),
            other => other,
        };
        if wanted && shown.is_ok() {
            state.pending.remove(&block);
            self.base.index.put(self.number, block, place);
            add(&self.blocks_cached, 1);
            self.base.counters.admitted.add(1);
            self.base.counters.admitted_bytes.add(u64::from(len));
        } else {
            self.retire(state, place, Some(len));
        }
        if let Err(error) = &shown {
            let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if !full && state.current.as_ref().is_some_and(|current| current.segment.number == segment.number) {
                // The next try starts with a file of its own.
                self.leave_current(state);
            }
        }
        // If it was not shown, dropping the reservation gives the room back.
        shown
    }

    /// A read found something in its way.
    pub(super) fn found_trouble(&self, block: BlockIndex, place: Place, trouble: Trouble) {
        if self.slots.get(block) != Some(place) {
            // Evicted while it was read: a plain miss.
            return;
        }
        match trouble {
            Trouble::Unreadable(error) => {
                self.base.counters.read_errors.add(1);
                if !self.base.logged.unreadable.swap(true, Ordering::Relaxed) {
                    warn!(dataset = self.spec.name, %block, %error, "the disk fails a read of a cached block");
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

    /// Drops a block whose record is flawed, unless someone did before.
    fn discard(&self, state: &mut Admission, block: BlockIndex, place: Place, flaw: Flaw) {
        if self.slots.get(block) != Some(place) {
            return;
        }
        self.count_flaw(block, flaw);
        if let Err(error) = self.slots.set(block, None) {
            self.disk_failed("clear a slot", &error, Instant::now());
            return;
        }
        self.base.index.delete(self.number, block);
        self.blocks_cached.fetch_sub(1, Ordering::Relaxed);
        let len = (self.spec.lens)(block);
        self.forget(state, block, len);
        // A slot that rotted points into another's record; only what is surely this block's is freed.
        self.retire(state, place, (flaw == Flaw::RottenData).then_some(len));
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
            warn!(dataset = self.spec.name, %block, reason, "drop a corrupt block: it is fetched again");
        }
    }

    fn forget(&self, state: &mut Admission, block: BlockIndex, len: u32) {
        if let Some(policy) = &mut state.policy {
            policy.forget(block, len);
            self.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
        }
    }

    /// Finds a place for a record.
    fn allocate(&self, state: &mut Admission, extent: usize) -> io::Result<Allotment> {
        const PAGE: u64 = record::ALIGN_BYTES as u64;
        let most = self.base.segment_bytes;
        let end_in = |current: &Current| u64::from(current.next_page) * PAGE + extent as u64;
        if !state.current.as_ref().is_some_and(|current| current.next_page == 0 || end_in(current) <= most) {
            self.leave_current(state);
            let segment = self.new_segment(state)?;
            state.current = Some(Current { segment, next_page: 0, prepared_bytes: 0 });
        }
        let Some(current) = &mut state.current else { return Err(io::Error::other("no segment")) };
        let (place, end) = (Place { segment: current.segment.number, page: current.next_page }, end_in(current));
        let prepare = (end > current.prepared_bytes).then(|| {
            // A small cache does not take many times its size ahead.
            let ahead = (self.spec.reservation_bytes / 16).clamp(PREPARED_LEAST, PREPARED_MOST);
            let to = (current.prepared_bytes + ahead).min(most / PAGE * PAGE).max(end);
            std::mem::replace(&mut current.prepared_bytes, to)..to
        });
        // A record is at most 4 MiB and 8 KiB, and a segment ends long before 2^32 pages.
        current.next_page += (extent as u64 / PAGE) as u32;
        current.segment.add_live();
        Ok(Allotment { segment: Arc::clone(&current.segment), place, prepare })
    }

    fn new_segment(&self, state: &mut Admission) -> io::Result<Arc<Segment>> {
        loop {
            let number = state.next_segment.ok_or_else(|| io::Error::other("all segment numbers are used up"))?;
            let made = Segment::create(&self.segments_dir, number, self.base.abilities.direct);
            let is_taken = made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
            if made.is_ok() || is_taken {
                state.next_segment = (number < Place::MAX_SEGMENT).then_some(number + 1);
            }
            if is_taken {
                continue;
            }
            let segment = Arc::new(made?);
            self.segments.store(Arc::new(self.segments.load().with(Arc::clone(&segment))));
            return Ok(segment);
        }
    }

    /// Writes no more to the current segment.
    pub(super) fn leave_current(&self, state: &mut Admission) {
        let Some(Current { segment, next_page, prepared_bytes }) = state.current.take() else { return };
        let offset = Place { segment: segment.number, page: next_page }.offset();
        if segment.live() == 0 {
            self.delete_segment(state, segment);
        } else if prepared_bytes > offset {
            state.garbage.push(Garbage::Tail { segment, offset });
        }
    }

    /// A record is no longer needed. With its block's length its room is given back; without, when its segment goes.
    fn retire(&self, state: &mut Admission, place: Place, len: Option<u32>) {
        let Some(segment) = self.segments.load().get(place.segment).cloned() else { return };
        let is_current = state.current.as_ref().is_some_and(|current| current.segment.number == place.segment);
        if segment.drop_live() && !is_current {
            self.delete_segment(state, segment);
        } else if let Some(len) = len
            && self.base.abilities.free
        {
            let bytes = record::extent_bytes(len) as u64;
            state.garbage.push(Garbage::Record { segment, offset: place.offset(), bytes });
        }
    }

    pub(super) fn delete_segment(&self, state: &mut Admission, segment: Arc<Segment>) {
        self.segments.store(Arc::new(self.segments.load().without(segment.number)));
        state.garbage.push(Garbage::Segment(segment));
    }

    /// Gives back the room of what left. Blocks on the disk.
    pub(super) fn collect_garbage(&self) {
        let garbage = std::mem::take(&mut self.lock().garbage);
        for garbage in garbage {
            let freed = match &garbage {
                Garbage::Record { segment, offset, bytes } => segment.free(*offset, *bytes),
                Garbage::Tail { segment, offset } => segment.cut(*offset),
                Garbage::Segment(segment) => match segment.delete() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    deleted => deleted,
                },
            };
            if let Err(error) = freed {
                self.disk_failed("free room", &error, Instant::now());
            }
        }
    }

    /// Makes the records of this run outlive a power loss; those of earlier runs were written long ago.
    pub(super) fn sync_segments(&self) -> io::Result<()> {
        self.segments.load().iter().try_for_each(|segment| segment.sync())
    }

    fn disk_failed(&self, step: &'static str, error: &io::Error, now: Instant) {
        self.base.counters.write_errors.add(1);
        if self.base.health.failed("disk error", now) {
            warn!(dataset = self.spec.name, step, %error, "admissions to the cache pause");
        }
    }
}
