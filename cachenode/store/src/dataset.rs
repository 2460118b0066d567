//! One dataset's part of the store: reads, and how a block gets into it.
//!
//! The cast: [`DatasetCache`] is what callers hold; `files` opens its files; `shared` is the state behind the one lock
//! that admissions share, and `admission` how blocks come and go; `permit` is the room of a block between the decision
//! to keep it and its bytes; `flaws` drops what cannot be read; `disowned` is the blocks that other nodes own now, and
//! `search` finds them; `owners` knows the users of the cache, each of which is a [`CacheUser`]; `space` is the room in
//! the segments; `rebuild` counts the blocks of an earlier run, and `rebuilt` waits for it; `touches` carries hits to
//! policies that want to know of them.
//!
//! Invariant: a read takes no lock that is held across I/O and allocates nothing once its thread's buffer has grown. A
//! slot is set after its record is written, cleared before its record is freed, and changed under the admission lock
//! only (or by the rebuild, before there are admissions). A reader that finds a flaw in a record and the slot unchanged
//! has therefore found a true flaw and not an eviction in progress.
//!
//! Invariant: no answer waits for the count of the blocks of an earlier run.

mod admission;
mod adopting;
mod adoption;
mod ancestor;
mod disowned;
mod files;
mod flaws;
mod granted;
mod owners;
mod permit;
mod rebuild;
mod rebuilt;
mod search;
mod shared;
mod space;
#[cfg(test)]
mod tests;
mod touches;
mod user;
mod waiting;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_dataset::{BlockIndex, Chain};
use tracing::{info, warn};

use crate::base::Base;
use crate::buffer;
use crate::config::CacheConfig;
use crate::draft::{Draft, Record};
use crate::error::StoreError;
use crate::lookup::{Lookup, PartBytes};
use crate::ownership::Ownership;
use crate::record::{Header, Part};
use crate::reservations::{Known, Reservation};
use crate::slots::{Found, Place};
use crate::usage::Usage;
use crate::uses::InUse;
use crate::write_error::WriteError;
use admission::is_full;
use files::Files;
use rebuild::Work;
use shared::Shared;
use space::Trouble;

pub use permit::AdmissionPermit;
pub use user::CacheUser;

/// A dataset's cache. Shared by any number of readers and writers.
#[derive(Debug)]
pub struct DatasetCache {
    shared: Arc<Shared>,
    /// Why it has no files, if that is so.
    fault: Option<&'static str>,
    /// The rebuild and the adoption.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The last field: it is dropped when all work of this cache has ended.
    _in_use: InUse,
}

impl DatasetCache {
    pub(crate) fn open(base: Arc<Base>, config: CacheConfig) -> Result<Self, StoreError> {
        let in_use = InUse::by_cache(&base.uses, config.snapshot);
        let opened = base.folder.as_ref().map(|folder| {
            let open = || Files::open(&base, &folder.dataset(&config.snapshot), &config);
            open().or_else(|error| {
                if folder.dropped_bytes() == 0 {
                    return Err(error);
                }
                // It may need the room of a dataset that was released for it.
                folder.finish_removing();
                open()
            })
        });
        let (files, fault) = match opened {
            Some(Ok(files)) => (files, None),
            Some(Err(error)) => {
                warn!(
                    dataset = config.name, error = %Chain(&error),
                    "the dataset is served without a cache until it is opened again"
                );
                (Files::none(&base, &config)?, Some("no cache: disk error"))
            }
            None => (Files::none(&base, &config)?, Some("no cache: folder not usable")),
        };
        let Files { slots, found, space } = files;
        let snapshot = config.snapshot;
        let known = remember(&base, &config, config.promised, |_| ());
        note_used(&base, &config, None);
        let number = base.index.register(&snapshot, known.row(0));
        let work = Work {
            refill: matches!(found, Found::Made { .. }) || base.last_run.slots_doubtful || slots.has_lost_slots(),
            reindex: found == Found::Kept && base.last_run.index_is_new,
        };
        let has_segments = space.0.segments().len() > 0 || !space.0.lost().is_empty();
        let is_new = found != Found::Kept && !has_segments;
        let shared = Arc::new(Shared::new(base, config, number, slots, space, is_new));
        shared.change_owners(|owners| owners.wait_for(known.connections.unwrap_or_default()));
        let mut threads = Vec::new();
        if !is_new {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("larder-rebuild".into());
            let failed = |source| StoreError::Dataset { snapshot, step: "start the rebuild", source };
            threads.push(thread.spawn(move || shared.rebuild(work)).map_err(failed)?);
        }
        Ok(Self { shared, fault, threads: Mutex::new(threads), _in_use: in_use })
    }

    /// Notes a user of the cache, which owns these blocks of it, or all of them. A block can be disowned only while
    /// there is a user and no user owns it.
    pub fn join(&self, ownership: Option<Arc<dyn Ownership>>) -> CacheUser {
        CacheUser::new(&self.shared, ownership)
    }

    /// Calls `use_bytes` with exactly `len` bytes of the block from `start`, checked against their CRCs, or returns a
    /// miss. `block_len` is the length of the whole block. Blocks on the disk for one read; takes no lock and allocates
    /// nothing. A part that is empty or not within the block is a miss.
    ///
    /// A torn, foreign or rotten record is counted, dropped from the cache, and a miss. A read that fails on the disk
    /// is counted and a miss, and the block stays: the disk may recover.
    pub fn read<R>(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> Lookup<R> {
        let Some((place, part)) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let shared = &*self.shared;
        let result = buffer::with(part.buffer_bytes(), |buffer| {
            shared.space.read(&shared.key, block, place, &part, buffer).map(|range| use_bytes(&buffer[range]))
        });
        self.looked_up(block, place, len, result)
    }

    /// The same bytes and their CRC32C, in memory from `memory`, without a copy. `memory` is called with the number of
    /// bytes needed; the content of what it returns does not matter, and less is extended. Blocks on the disk as
    /// [`read`](Self::read) does.
    pub fn read_into(
        &self,
        block: BlockIndex,
        block_len: u32,
        start: u32,
        len: u32,
        memory: impl FnOnce(usize) -> Vec<u8>,
    ) -> Lookup<PartBytes> {
        let Some((place, part)) = self.find(block, block_len, start, len) else { return Lookup::Miss };
        let shared = &*self.shared;
        let bytes = buffer::bytes_for(part.buffer_bytes());
        let mut memory = memory(bytes);
        memory.resize(bytes.max(memory.len()), 0);
        let aligned = buffer::aligned(&memory, part.buffer_bytes());
        let begin = aligned.start;
        let result = shared
            .space
            .read(&shared.key, block, place, &part, &mut memory[aligned])
            .map(|found| PartBytes::new(memory, begin + found.start..begin + found.end));
        self.looked_up(block, place, len, result)
    }

    /// The place of a part of a block; a miss is counted.
    fn find(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> Option<(Place, Part)> {
        let found = self.shared.slots.get(block).zip(Part::new(block_len, start, len));
        if found.is_none() {
            self.shared.base.counters.misses.add(1);
        }
        found
    }

    /// Counts a finished read, and drops a block that is flawed.
    fn looked_up<R>(&self, block: BlockIndex, place: Place, len: u32, result: Result<R, Trouble>) -> Lookup<R> {
        let (shared, counters) = (&*self.shared, &self.shared.base.counters);
        match result {
            Ok(used) => {
                counters.hits.add(1);
                counters.hit_bytes.add(u64::from(len));
                shared.touch(block);
                Lookup::Hit(used)
            }
            Err(trouble) => {
                shared.found_trouble(block, place, trouble);
                counters.misses.add(1);
                Lookup::Miss
            }
        }
    }

    /// True if the block is cached, as far as the slot table knows; one load.
    pub fn contains(&self, block: BlockIndex) -> bool {
        self.shared.slots.get(block).is_some()
    }

    /// Decides, before the fetch, whether the block will be kept, and takes its room. Does not wait for the disk,
    /// except for one write to the page cache for each evicted block.
    ///
    /// None if the block is cached or has a permit already, the policy refuses, the disk fails, the store is closed or
    /// still counts the blocks of an earlier run (see [`DatasetCache::wait_rebuilt`]).
    ///
    /// Blocks that must be evicted for it are misses from now on; later writes free their room on the disk. [`Usage`]
    /// says how much more than the capacity the disk holds at most, apart from the blocks of the permits in flight.
    pub fn admit(&self, block: BlockIndex, len: u32) -> Option<AdmissionPermit> {
        self.permit(block, len, true)
    }

    /// Like [`DatasetCache::admit`], but also None if another block that this node owns would have to be evicted.
    pub fn admit_without_evicting(&self, block: BlockIndex, len: u32) -> Option<AdmissionPermit> {
        self.permit(block, len, false)
    }

    fn permit(&self, block: BlockIndex, len: u32, may_evict: bool) -> Option<AdmissionPermit> {
        let number = self.shared.admit(block, len, may_evict, Instant::now())?;
        Some(AdmissionPermit { shared: Arc::clone(&self.shared), block, len, number })
    }

    /// Memory for the record of a block of `len` bytes that is being fetched: 4 KiB and a little more than the block.
    pub fn draft(&self, block: BlockIndex, len: u32) -> Draft {
        Draft::new(Header { key: self.shared.key, block, len })
    }

    /// The record of a block whose bytes are all in memory.
    pub fn record(&self, block: BlockIndex, bytes: &[u8]) -> Record {
        Record::new(self.shared.key, block, bytes)
    }

    /// Writes a block: it is a hit from the moment this returns, unless the policy evicted it meanwhile. Blocks on the
    /// disk; call it off an async runtime.
    ///
    /// A disk failure is counted, logged once, and pauses admissions for a while.
    pub fn write(&self, permit: AdmissionPermit, record: &Record) -> Result<(), WriteError> {
        let shared = &*self.shared;
        let Header { key, block, len } = *record.header();
        if !Arc::ptr_eq(&self.shared, &permit.shared) || key != shared.key {
            return Err(WriteError::WrongDataset);
        }
        if (block, len) != (permit.block, permit.len) {
            let (permitted, permitted_bytes) = (permit.block, permit.len);
            return Err(WriteError::WrongBlock { permitted, permitted_bytes, got: block, got_bytes: len });
        }
        shared.free_room(false);
        let mut kept = shared.keep(permit.number, record);
        if kept.as_ref().is_err_and(is_full) {
            // The room of dead records is freed in batches. Now it is needed.
            shared.free_room(true);
            kept = shared.keep(permit.number, record);
        }
        match kept {
            Ok(()) => {
                if shared.base.health.worked() {
                    info!("the cache's disk takes writes again");
                }
                Ok(())
            }
            Err(source) => {
                let error = WriteError::of(source);
                shared.base.counters.write_errors.add(1);
                if shared.base.health.failed(error.reason(), Instant::now()) {
                    warn!(dataset = shared.config.name, %error, "admissions to the cache pause");
                }
                shared.free_room(true);
                Err(error)
            }
        }
    }

    /// Lets the next admission try a disk that failed, although the pause after its failure has not ended.
    pub fn try_disk_again(&self) {
        self.shared.base.health.end_pause(Instant::now());
    }

    /// How full the cache is. Reads a few numbers; may be called often.
    pub fn usage(&self) -> Usage {
        let shared = &*self.shared;
        let used_bytes = shared.used_bytes.load(Ordering::Relaxed);
        let capacity_bytes = shared.granted.capacity_bytes();
        Usage {
            capacity_bytes,
            wanted_bytes: shared.granted.promised().wanted_bytes,
            used_bytes,
            room_bytes: (capacity_bytes + shared.disowned.bytes()).saturating_sub(used_bytes),
            blocks_cached: shared.blocks_cached.load(Ordering::Relaxed),
            policy: shared.config.policy,
            degraded: self.fault.or_else(|| shared.base.health.reason()),
            rebuilding: shared.is_rebuilding(),
        }
    }

    /// Changes how many bytes may be cached from now on, and what a later process finds that the dataset was promised.
    /// No block leaves now; see [`Policy::set_capacity`](crate::Policy::set_capacity). Blocks on the disk.
    pub fn resize(&self, capacity_bytes: u64, promised: Reservation) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        shared.granted.change(capacity_bytes, promised);
        if let Some(policy) = &mut state.policy {
            policy.set_capacity(capacity_bytes);
        }
        drop(state);
        remember(&shared.base, &shared.config, promised, |_| ());
    }

    /// Writes down that a connection shows the dataset, so that a later process keeps the dataset for it. Blocks on the
    /// disk.
    pub fn hold(&self, connection: &str) {
        let shared = &*self.shared;
        remember(&shared.base, &shared.config, shared.granted.promised(), |connections| {
            connections.insert(connection.to_owned());
        });
        shared.change_owners(|owners| owners.arrived(connection));
    }

    /// True while a connection that showed the dataset when the last process ended is neither held nor known to be
    /// gone. It may be a user that owns all blocks.
    pub fn awaits_connections(&self) -> bool {
        self.shared.lock().owners.is_awaiting()
    }

    /// Awaits no connections but those that are left. True if it awaits none any more. Blocks on the disk.
    pub(crate) fn keep_connections(&self, is_left: impl Fn(&str) -> bool) -> bool {
        let shared = &*self.shared;
        let gone = shared.change_owners(|owners| owners.give_up(is_left));
        if !gone.is_empty() {
            remember(&shared.base, &shared.config, shared.granted.promised(), |connections| {
                connections.retain(|connection| !gone.contains(connection));
            });
        }
        !gone.is_empty() && !self.awaits_connections()
    }

    /// Notes that a connection shows the dataset no longer. Written down when the dataset is closed.
    pub fn let_go(&self, connection: &str) {
        self.shared.base.reservations.note(&self.shared.config.snapshot, |known| {
            known.connections.get_or_insert_default().remove(connection);
        });
    }

    /// True if an admission found too little room, and blocks that other nodes own now may be here:
    /// [`search_disowned`](Self::search_disowned) looks for them. One load.
    pub fn wants_search(&self) -> bool {
        self.shared.disowned.wants_search()
    }

    /// Looks for blocks that other nodes own now, so that later admissions find their room. Does nothing unless
    /// [`wants_search`](Self::wants_search). One call visits a million blocks at most. Call it off an async runtime.
    pub fn search_disowned(&self) {
        self.shared.search_disowned();
    }

    /// True while the blocks of an earlier run are being counted: nothing is admitted.
    pub fn is_rebuilding(&self) -> bool {
        self.shared.is_rebuilding()
    }

    /// Calls `call` once the blocks of an earlier run are counted, at once if they are. It must not block.
    pub fn when_rebuilt(&self, call: impl FnOnce() + Send + 'static) {
        self.shared.when_rebuilt(Box::new(call));
    }

    /// Waits until the blocks of an earlier run are counted and admissions are open; false after `timeout`.
    pub fn wait_rebuilt(&self, timeout: Duration) -> bool {
        self.shared.wait_rebuilt(timeout)
    }

    /// Makes every cached block outlive a power loss.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        self.stop();
        let shared = &*self.shared;
        shared.lock().allocator.leave_current(&shared.space);
        shared.free_room(true);
        let failed = |step| move |source| StoreError::Dataset { snapshot: shared.config.snapshot, step, source };
        shared.space.sync().map_err(failed("sync the segments"))?;
        shared.slots.sync().map_err(failed("sync the slot table"))
    }

    /// Ends what runs in the background.
    fn stop(&self) {
        self.shared.stop();
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            if thread.join().is_err() {
                let dataset = &self.shared.config.name;
                warn!(
                    dataset,
                    "a background thread of the cache panicked: until a restart, blocks may not be admitted"
                );
            }
        }
    }
}

impl Drop for DatasetCache {
    fn drop(&mut self) {
        self.stop();
        let shared = &*self.shared;
        shared.lock().allocator.leave_current(&shared.space);
        shared.free_room(true);
        shared.remember_adopted();
        let known = remember(&shared.base, &shared.config, shared.granted.promised(), |_| ());
        shared.base.index.update(&shared.config.snapshot, known.row(shared.number));
        if self.fault.is_none() && !shared.is_rebuilding() {
            note_used(&shared.base, &shared.config, Some(shared.used_bytes.load(Ordering::Relaxed)));
        }
    }
}

/// Writes down how many bytes are cached, or that this changes from now on.
fn note_used(base: &Base, config: &CacheConfig, used_bytes: Option<u64>) {
    if let Some(folder) = &base.folder {
        base.reservations.put_used(&config.snapshot, &folder.dataset(&config.snapshot), used_bytes);
    }
}

/// Writes down what the dataset is promised, and that it is used now.
fn remember(
    base: &Base,
    config: &CacheConfig,
    promised: Reservation,
    change: impl FnOnce(&mut BTreeSet<String>),
) -> Known {
    base.change(&config.snapshot, |known| {
        known.name.clone_from(&config.name);
        known.reservation = Some(promised);
        known.policy = config.policy;
        known.use_now();
        change(known.connections.get_or_insert_default());
    })
}
