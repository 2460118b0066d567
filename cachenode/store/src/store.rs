//! A store: a cache with its datasets, in one folder or in several on different disks, owned by one process.
//!
//! Its parts: [`StoreConfig`] sets the location of the folders and the store's behaviour; [`Store`] opens and closes
//! the folders and provides a [`DatasetCache`] for each key.
//!
//! Invariant: at most one process has a folder open, and within it each cache is open at most once.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use larder_dataset::{CacheId, CacheKey, Chain, SnapshotId};
use tracing::{debug, error, info, warn};

use crate::base::{Base, LoggedFlaws};
use crate::config::CacheConfig;
use crate::counters::StoreCounters;
use crate::dataset::DatasetCache;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::folder::{Abilities, Folder};
use crate::health::Health;
use crate::index::{Index, LastRun};
use crate::info::DatasetInfo;
use crate::key_file;
use crate::measured::Measured;
use crate::probe;
use crate::promises::{Promise, Promises};
use crate::quotas::{Quota, Quotas};
use crate::reservations::{Known, Reservation, Reservations};
use crate::uses::{InUse, Use};
use crate::write_error::READ_ONLY;

/// The location and behaviour of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The cache folder. Created if missing; must be empty or contain a store.
    pub dir: PathBuf,
    /// Further cache folders, on other disks. Blocks are spread over all of them by free room.
    pub more_dirs: Vec<PathBuf>,
    /// The size at which a segment is full. If the policy evicts, a segment is at most a 16th of the reservation. The
    /// process keeps one open file per segment.
    pub segment_bytes: u64,
    /// The pause of admissions after a failed write. Doubles with each failed attempt.
    pub pause_first: Duration,
    /// The longest pause of admissions.
    pub pause_most: Duration,
    /// The percentage of the whole disk that writes leave free.
    pub keep_free_percent: u8,
    /// The capacity of the index's queue. Changes that exceed it are dropped and counted.
    pub index_queue: usize,
    /// The interval between syncs of the index. A power loss loses at most the changes of one interval.
    pub index_sync: Duration,
}

impl StoreConfig {
    /// The defaults: segments of 1 GiB, pauses from 10 s to 5 min, no part of the disk kept free, and an index sync
    /// every second.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            more_dirs: Vec::new(),
            segment_bytes: 1 << 30,
            pause_first: Duration::from_secs(10),
            pause_most: Duration::from_secs(300),
            keep_free_percent: 0,
            index_queue: 16 << 10,
            index_sync: Duration::from_secs(1),
        }
    }
}

/// The abilities of a file system that cannot be tested.
const ASSUMED: Abilities = Abilities { direct: true, free: true };

/// An open cache. Methods block on the disk; call them off an async runtime. Dropping the store without
/// [`Store::close`] is equivalent to killing the process: nothing is lost, but a later power loss may lose some blocks.
#[derive(Debug)]
pub struct Store {
    pub(crate) base: Arc<Base>,
    open: Mutex<HashMap<CacheId, Weak<DatasetCache>>>,
}

impl Store {
    /// Opens or creates the cache folders and takes their locks. Reads no segment and no slot, so the time does not
    /// depend on how much is cached.
    ///
    /// A folder that its disk does not let the store use is logged, not returned as an error: the store then uses the
    /// others, and without any it caches nothing. On a read-only disk the store serves the blocks that are cached. A
    /// cache of an earlier format is emptied. Errors: another process has a folder open, or a folder contains something
    /// other than a cache, or the cache of a later version.
    pub fn open(config: StoreConfig, counters: Arc<StoreCounters>) -> Result<Self, StoreError> {
        // Without a boot id, every unclean shutdown counts as a power loss. That causes only extra background work.
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::open_at_boot(config, counters, boot_id.trim())
    }

    pub(crate) fn open_at_boot(
        config: StoreConfig,
        counters: Arc<StoreCounters>,
        boot_id: &str,
    ) -> Result<Self, StoreError> {
        let is_only = config.more_dirs.is_empty();
        let mut folders = Vec::new();
        for dir in [&config.dir].into_iter().chain(&config.more_dirs) {
            let opened = Folder::open(dir).and_then(|folder| match folder.try_to_read() {
                // The page cache may still have what the disk cannot read. Without the folder, blocks go to the others.
                Err(source) if !is_only => Err(StoreError::Folder { dir: dir.clone(), step: "read from", source }),
                _ => Ok(folder),
            });
            match opened {
                Ok(folder) => folders.push(folder),
                Err(error @ StoreError::Folder { .. }) => unusable(&error),
                Err(error) => return Err(error),
            }
        }
        let mut disks: Vec<Arc<Disk>> = folders.iter().map(|folder| disk_of(folder, &config, is_only)).collect();
        let mut folders = folders.into_iter();
        let (mut folder, mut more) = (folders.next(), folders.collect::<Vec<_>>());
        let tables = Health::new(config.pause_first, config.pause_most);
        if folder.as_ref().is_some_and(Folder::is_read_only) {
            tables.failed(READ_ONLY, Instant::now());
        }
        let (mut reservations, mut promises) = (Reservations::default(), Promises::default());
        let mut quotas = Quotas::default();
        let (mut index, mut last_run) = (Index::none(Arc::clone(&counters)), LastRun::default());
        if let Some(first) = &folder {
            (index, last_run) =
                Index::open(&first.index(), boot_id, config.index_queue, config.index_sync, Arc::clone(&counters));
            info!(dir = ?first.dir(), folders = disks.len(), ?last_run, "cache opened");
            promises = Promises::load(first.promises());
            quotas = Quotas::load(first.quotas());
            match load_reservations(first, &more, &index) {
                Ok(loaded) => reservations = loaded,
                // Whose blocks are in the folder is not known, so none may be served, and none dropped.
                Err(source) => {
                    unusable(&StoreError::Folder { dir: first.dir().to_owned(), step: "read the keys in", source });
                    (index, last_run) = (Index::none(Arc::clone(&counters)), LastRun::default());
                    (folder, more) = (None, Vec::new());
                }
            }
        }
        if folder.is_none() {
            let (abilities, health) = (ASSUMED, Health::new(config.pause_first, config.pause_most));
            disks = vec![Disk::new(&config.dir, abilities, health, config.keep_free_percent, true)];
        }
        let base = Base {
            reservations,
            promises,
            quotas,
            uses: Arc::default(),
            measured: Measured::default(),
            counters,
            tables,
            disks,
            index,
            last_run,
            segment_bytes: config.segment_bytes,
            boot_id: boot_id.to_owned(),
            closed: AtomicBool::new(false),
            scrubbing: Mutex::default(),
            logged: LoggedFlaws::default(),
            folder,
            more,
        };
        Ok(Self { base: Arc::new(base), open: Mutex::new(HashMap::new()) })
    }

    /// The counters that were passed to [`Store::open`].
    pub fn counters(&self) -> &Arc<StoreCounters> {
        &self.base.counters
    }

    /// False if no cache folder can be used. Nothing is cached then.
    pub fn has_folder(&self) -> bool {
        self.base.folder.is_some()
    }

    /// How many disks it has.
    pub fn disks(&self) -> usize {
        self.base.disks.len()
    }

    /// Opens a dataset's cache with the blocks of earlier runs. Hits are served once this returns. If the dataset is
    /// already open with the same policy, returns the existing cache, which keeps its reservation. If the cache is
    /// being opened or closed, waits for that to end, because two caches would write to the same files. Opening it
    /// waits for no other dataset.
    ///
    /// If the reservation is smaller than before, evicting policies evict down to it before they admit again. NR keeps
    /// all blocks and admits nothing until it has space.
    ///
    /// If the dataset's part of the folder cannot be used, the cache stays empty and [`Usage::degraded`] gives the
    /// reason. Errors: the store is closed, or the dataset is open with another policy.
    ///
    /// [`Usage::degraded`]: crate::Usage::degraded
    pub fn dataset(&self, config: CacheConfig) -> Result<Arc<DatasetCache>, StoreError> {
        let id = config.key.id();
        let mut open = self.lock();
        loop {
            if self.base.closed.load(Ordering::Relaxed) {
                return Err(StoreError::Closed);
            }
            if let Some(cache) = open.get(&id).and_then(Weak::upgrade) {
                return match cache.usage().policy == config.policy {
                    true => Ok(cache),
                    false => Err(StoreError::AlreadyOpen { id }),
                };
            }
            let uses = self.base.uses.lock();
            if uses.get(&id).is_none_or(|by| by.caches == 0) {
                break;
            }
            drop(open);
            self.base.uses.wait(uses);
            open = self.lock();
        }
        // From here on, others wait for this cache, and other datasets do not.
        let in_use = InUse::by_cache(&self.base.uses, id);
        drop(open);
        let cache = Arc::new(DatasetCache::open(Arc::clone(&self.base), config, in_use)?);
        let mut open = self.lock();
        if self.base.closed.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        open.retain(|_, cache| cache.strong_count() > 0);
        open.insert(id, Arc::downgrade(&cache));
        // Connections that were found to be closed meanwhile are not awaited.
        let known = self.base.reservations.get(&id).and_then(|known| known.connections).unwrap_or_default();
        cache.keep_connections(|connection| known.contains(connection));
        drop(open);
        self.base.uses.opened();
        Ok(cache)
    }

    /// Deletes everything that the store holds of a dataset. False if it held nothing. Returns before the disk space is
    /// free; until then [`dropped_bytes`](Self::dropped_bytes) counts it. Errors: the dataset is open, another dataset
    /// is adopting its blocks, or its folder cannot be removed.
    pub fn release(&self, id: &CacheId) -> Result<bool, StoreError> {
        // Locked until the folder is moved away, so an adoption that starts now sees the whole dataset or none of it.
        let (_open, _uses) = loop {
            let open = self.lock();
            let uses = self.base.uses.lock();
            let is_open = open.get(id).is_some_and(|cache| cache.strong_count() > 0);
            match uses.get(id) {
                None => break (open, uses),
                Some(by) if is_open || by.adoptions > 0 => {
                    return Err(StoreError::DatasetInUse { id: *id });
                }
                // The dataset's cache is being opened or closed: wait for that, then try again.
                Some(_) => {
                    drop(open);
                    self.base.uses.wait(uses);
                }
            }
        };
        if !self.has_folder() {
            return Ok(false);
        }
        let known = self.base.index.release(id);
        self.base.reservations.remove(id);
        match self.base.remove(id) {
            Ok(had_some) => Ok(had_some || known),
            Err(source) => Err(StoreError::Dataset { id: *id, step: "remove the folder", source }),
        }
    }

    /// The promises in force.
    pub fn promises(&self) -> Vec<Promise> {
        self.base.promises.all()
    }

    /// Replaces the promises. They stay in force until they are replaced, including in later processes. Blocks on the
    /// disk. Errors: the promises cannot be written; the previous ones stay in force.
    pub fn promise(&self, promises: Vec<Promise>) -> io::Result<()> {
        self.base.promises.put(promises)
    }

    /// The quotas in force.
    pub fn quotas(&self) -> Vec<Quota> {
        self.base.quotas.all()
    }

    /// Replaces the quotas. They stay in force until they are replaced, including in later processes. Blocks on the
    /// disk. Errors: the quotas cannot be written, so they are in force in this process only.
    pub fn set_quotas(&self, quotas: Vec<Quota>) -> io::Result<()> {
        self.base.quotas.impose(quotas)
    }

    /// The datasets in the store and those that have a promise, sorted by cache. If the disk cannot list the datasets,
    /// returns those that were known at the start. Walks over the files of those alone that have changed since the last
    /// call.
    pub fn datasets(&self) -> Vec<DatasetInfo> {
        self.datasets_under(&self.promises(), None)
    }

    /// The result of [`datasets`](Self::datasets) if these were the promises, and if the store had the cache `opening`.
    pub fn datasets_under(&self, promises: &[Promise], opening: Option<&CacheKey>) -> Vec<DatasetInfo> {
        // Not under the lock, for which openings wait: the disk may be slow.
        let open = self.lock().clone();
        let cache_of = |id: &CacheId| open.get(id).and_then(Weak::upgrade);
        let mut caches = self.keyed_caches(&open, opening);
        // A promise is for one cache. An owner that has several of a snapshot, because the place of its dataset was
        // changed, has the promise for the one that it uses.
        let mut promised: HashMap<CacheId, (u64, &str)> = HashMap::new();
        for promise in promises {
            let of_owner = caches.iter().map(|(_, key)| key).filter(|key| promise.is_for(key));
            let used = |key: &&CacheKey| (cache_of(&key.id()).is_none(), Some(*key) != opening);
            let id = match of_owner.min_by_key(used) {
                Some(key) => key.id(),
                // Datasets with a promise are listed even if they were never opened.
                None => {
                    let key = CacheKey::new(promise.snapshot, "", &*promise.owner);
                    let id = key.id();
                    caches.push((true, key));
                    id
                }
            };
            let entry = promised.entry(id).or_insert((0, &promise.name));
            entry.0 = entry.0.max(promise.disk_bytes);
        }
        let info = |(is_keyed, key): (bool, CacheKey)| {
            let id = key.id();
            let (promised_disk_bytes, promised_name) = promised.get(&id).copied().unwrap_or_default();
            let unknown =
                || Known { name: promised_name.to_owned(), connections: Some(BTreeSet::new()), ..Known::default() };
            let promised_to = promised_name.split_once('/').map(|(namespace, _)| namespace);
            let is_there = || self.base.folders().any(|folder| folder.dataset(&id).exists());
            let known = self.base.reservations.get(&id);
            let known = known.unwrap_or_else(|| if is_there() { Known::default() } else { unknown() });
            let Known {
                name,
                payer,
                reservation,
                policy,
                connections,
                last_use_unix_s,
                adopted_disk_bytes,
                used_bytes,
                ..
            } = known;
            let used = self.base.used(&id);
            let open = cache_of(&id);
            let Use { adoptions, promised, .. } = self.base.uses.of(&id);
            let is_shown = open.is_some() || connections.as_ref().is_some_and(|connections| !connections.is_empty());
            let payer = match promised_to {
                Some(namespace) if !is_shown || payer.is_empty() => namespace.to_owned(),
                Some(_) | None => payer,
            };
            let counted = open.as_ref().filter(|cache| !cache.is_rebuilding());
            DatasetInfo {
                key,
                is_keyed,
                name,
                payer,
                reservation,
                policy,
                connections,
                last_use_unix_s,
                promised_disk_bytes,
                used_bytes: match &open {
                    // Blocks that the rebuild has not counted yet are included in the estimate.
                    Some(cache) if cache.is_rebuilding() => {
                        cache.usage().used_bytes.max(estimate(used.bytes, reservation))
                    }
                    Some(cache) => cache.usage().used_bytes,
                    None => used_bytes.unwrap_or_else(|| estimate(used.bytes, reservation)),
                },
                disk_bytes: used.bytes,
                shared: used.shared,
                adopted_disk_bytes: counted.map_or(adopted_disk_bytes, |cache| cache.adopted_disk_bytes()),
                is_ancestor: adoptions > 0,
                keeps_promise: promised > 0,
                open: open.map(|cache| cache.usage()),
            }
        };
        let mut found: Vec<_> = caches.into_iter().map(info).collect();
        found.sort_by_key(DatasetInfo::cache);
        found
    }

    /// The caches in the folder, those that are open, and `opening`. True for those whose key is known.
    fn keyed_caches(
        &self,
        open: &HashMap<CacheId, Weak<DatasetCache>>,
        opening: Option<&CacheKey>,
    ) -> Vec<(bool, CacheKey)> {
        let mut ids: Vec<CacheId> = match &self.base.folder {
            Some(folder) => folder.caches().unwrap_or_else(|error| {
                warn!(
                    %error, dir = ?folder.dir(),
                    "cannot list the datasets of the cache: those known at the start count"
                );
                self.base.reservations.all().into_iter().map(|(id, _)| id).collect()
            }),
            None => Vec::new(),
        };
        // The first one again, if it could be listed.
        ids.extend(self.base.answering_folders().flat_map(|folder| folder.caches().unwrap_or_default()));
        ids.extend(open.iter().filter(|(_, cache)| cache.strong_count() > 0).map(|(id, _)| *id));
        ids.sort();
        ids.dedup();
        let key_of = |id: &CacheId| {
            let known = self.base.reservations.get(id).and_then(|known| known.key);
            (known.is_some(), known.unwrap_or_else(|| SnapshotId(id.0).into()))
        };
        let opening = opening.filter(|key| !ids.contains(&key.id())).map(|key| (true, key.clone()));
        ids.iter().map(key_of).chain(opening).collect()
    }

    /// Sets the number of threads that answer the kernel for one mount; it is 16 before. Of several disks, one that
    /// hangs holds three quarters as many.
    pub fn set_threads(&self, threads: usize) {
        self.base.disks.iter().for_each(|disk| disk.set_threads(threads));
    }

    /// Free bytes of the disks. Errors: none of them can be measured.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.sum_of_disks(|disk| probe::free_bytes(disk.dir()))
    }

    /// Free bytes of the disks in excess of the part that must stay free on each. Errors: none of them can be measured.
    pub fn spare_bytes(&self) -> io::Result<u64> {
        self.sum_of_disks(|disk| disk.free_share.spare_bytes())
    }

    /// The sum over all disks. Several folders on one disk count once. A disk that cannot be measured has no room.
    fn sum_of_disks(&self, measure: impl Fn(&Disk) -> io::Result<u64>) -> io::Result<u64> {
        let disks = &self.base.disks;
        let is_first = |at: &usize| disks[..*at].iter().all(|other| !disks[*at].is_same_device(other));
        let (mut sum, mut failed) = (None, None);
        for measured in (0..disks.len()).filter(is_first).map(|at| measure(&disks[at])) {
            match measured {
                Ok(bytes) => sum = Some(sum.unwrap_or(0_u64).saturating_add(bytes)),
                Err(error) => failed = Some(error),
            }
        }
        sum.ok_or_else(|| failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Disk bytes of released files that are still being deleted, on disks that answer.
    pub fn dropped_bytes(&self) -> u64 {
        self.base.answering_folders().map(Folder::dropped_bytes).sum()
    }

    /// Records the connections of a dataset whose own list of connections was lost. Blocks on the disk.
    pub fn found_connections(&self, id: &CacheId, connections: BTreeSet<String>) {
        self.change(id, |known| known.connections = Some(connections));
    }

    /// Records which connections remain of those that showed datasets when the last process ended. An open dataset also
    /// keeps the connections that it gained since. True if an open dataset no longer awaits any connection. Blocks on
    /// the disk.
    pub fn keep_connections(&self, is_left: impl Fn(&str) -> bool) -> bool {
        let open = self.lock();
        let mut complete = false;
        for (id, known) in self.base.reservations.all() {
            if let Some(cache) = open.get(&id).and_then(Weak::upgrade) {
                complete |= cache.keep_connections(&is_left);
            } else if known.connections.iter().flatten().any(|connection| !is_left(connection)) {
                info!(
                    dataset = known.name, %id,
                    "the dataset was mounted when the previous process ended, and no longer is"
                );
                self.change(&id, |known| {
                    known.connections.get_or_insert_default().retain(|connection| is_left(connection));
                });
            }
        }
        complete
    }

    fn change(&self, id: &CacheId, change: impl FnOnce(&mut Known)) {
        self.base.change(id, change);
    }

    /// Ends admissions, makes all cached blocks survive a power loss, and records a clean shutdown. Reads continue
    /// while a [`DatasetCache`] exists; dropping the last one releases the folder's lock.
    pub fn close(&self) -> Result<(), StoreError> {
        let open = self.lock();
        self.base.closed.store(true, Ordering::Relaxed);
        let mut result = Ok(());
        for cache in open.values().filter_map(Weak::upgrade) {
            if let Err(error) = cache.settle() {
                result = Err(error);
            }
        }
        if result.is_ok() {
            self.base.index.close();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, Weak<DatasetCache>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unusable(error: &StoreError) {
    error!(
        error = %Chain(error),
        "the cache folder cannot be used: nothing is cached in it until a restart (--cache-dir)"
    );
}

/// The disk of a folder. `is_only`: there is no other folder.
fn disk_of(folder: &Folder, config: &StoreConfig, is_only: bool) -> Arc<Disk> {
    let (dir, health) = (folder.dir(), Health::new(config.pause_first, config.pause_most));
    if folder.is_read_only() {
        warn!(?dir, "the cache's disk is read-only: cached blocks are served and none is added");
        health.failed(READ_ONLY, Instant::now());
    }
    let abilities = folder.probe();
    if !abilities.direct {
        warn!(?dir, "the file system refuses direct I/O: cached bytes may be in memory twice");
    }
    if !abilities.free {
        warn!(
            ?dir,
            "the file system cannot free parts of files: an evicted block keeps its room until its segment is empty"
        );
    }
    debug!(?dir, ?abilities, "cache folder opened");
    Disk::new(dir, abilities, health, config.keep_free_percent, is_only)
}

/// The facts about all datasets that have files in a folder. The keys are in each of the folders, so that the loss of
/// the first disk does not make blocks on the others nobody's. Errors: a key cannot be read now.
fn load_reservations(first: &Folder, more: &[Folder], index: &Index) -> io::Result<Reservations> {
    // The folders were listed successfully when they were opened. If listing fails now, the datasets count as unknown
    // and get new reservations.
    let mut caches: Vec<CacheId> =
        [first].into_iter().chain(more).flat_map(|folder| folder.caches().unwrap_or_default()).collect();
    caches.sort();
    caches.dedup();
    let folders: Vec<_> = caches.into_iter().map(|id| (id, first.dataset(&id))).collect();
    let ids: Vec<CacheId> = folders.iter().map(|(id, _)| *id).collect();
    let reservations = Reservations::load(folders, index.datasets())?;
    for id in ids {
        let is_keyed = reservations.get(&id).is_some_and(|known| known.key.is_some());
        let elsewhere = || more.iter().find_map(|folder| key_file::read(&folder.dataset(&id), id).ok().flatten());
        if !is_keyed && let Some(key) = elsewhere() {
            reservations.note(&id, |known| known.key = Some(key));
        }
    }
    Ok(reservations)
}

/// Estimates the bytes of blocks that occupy `disk_bytes` on the disk.
fn estimate(disk_bytes: u64, reservation: Option<Reservation>) -> u64 {
    let Some(Reservation { bytes, disk_bytes: reserved, .. }) = reservation else { return disk_bytes };
    let bytes = (u128::from(disk_bytes) * u128::from(bytes)).checked_div(u128::from(reserved)).unwrap_or(0);
    u64::try_from(bytes).unwrap_or(u64::MAX).min(disk_bytes)
}
