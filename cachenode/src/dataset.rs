//! A dataset being served: its manifest, its part of the store, and the fetcher of what the store lacks.
//!
//! [`Dataset::read_now`] is the hot path: it answers from the store or the window and never waits. Reads that it cannot
//! answer go to [`Dataset::read_later`], off the FUSE threads. Nothing else reads the store on the caller's thread.

mod adopting;
mod description;
mod lens;
mod measured;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::{
    BLOCK_BYTES, BlockPart, BlockRange, CacheId, CacheKey, File, FileBlocks, FileIndex, ManifestError, PolicyKind,
};
use larder_origin::{Caller, Origin};
use larder_peers::{BlockBytes, Buffers, ReadError, ReadRequest};
use larder_store::{
    CacheConfig, CacheUser, DatasetCache, Lookup, Ownership, PartBytes, Reservation, Sizes, Store, StoreCounters,
    StoreError, Usage,
};
use larder_telemetry::TRACE_TARGET;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument, trace_span};

use crate::counters::{Source, StatsCounters, add, store_values};
use crate::fetch::{FetchConfig, FetchError, Fetched, Fetcher, Tier};
use crate::manifest_file::MappedManifest;
use crate::ownership::{OwnedBlocks, all_sizes};
use crate::passes::{Cached, Moment, Passes};
use crate::plan::command::Command;
use crate::plan::{PageCache, PlanRefused, PlanSource, Planner};
use crate::renewal::Renewal;
use crate::sharing::Sharing;
use crate::stalls::{Cause, Stalls};
use crate::stats::{CacheStats, DatasetSummary, OriginStats, Stats};
use crate::warm::list_part::WarmListPart;
use crate::warm::{ListRefused, Warmer};

use description::Description;
use lens::ManifestLens;

/// How long the disk may take to answer a peer. The peer itself waits for 5 s or more, and must not take a node whose
/// disk hangs for one that is down.
const PEER_PATIENCE: Duration = Duration::from_secs(3);

/// The same for what only the cache may answer, for which a peer waits for 1 s or more.
const HEDGE_PATIENCE: Duration = Duration::from_millis(750);

/// A dataset's part of the store.
#[derive(Clone, Debug)]
pub struct CacheSpec {
    /// The snapshot, and for whom it is cached.
    pub key: CacheKey,
    /// Only this key's readers ever used what an earlier version cached of the snapshot.
    pub is_known_as_ours: bool,
    /// Bytes of the dataset that the store may keep.
    pub reservation_bytes: u64,
    /// The promise to the dataset.
    pub promised: Reservation,
    /// Which blocks are kept when not all fit.
    pub policy: PolicyKind,
    /// Seed of the random policy.
    pub seed: u64,
}

impl CacheSpec {
    /// A share of exactly this size.
    pub fn exactly(key: impl Into<CacheKey>, bytes: u64, policy: PolicyKind, seed: u64) -> Self {
        let (key, promised) = (key.into(), Reservation::exactly(bytes));
        Self { key, is_known_as_ours: false, reservation_bytes: bytes, promised, policy, seed }
    }
}

/// The reason that a dataset cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The manifest is not consistent.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A read from the cache that took longer than this has waited for its disk.
const SLOW_READ: Duration = Duration::from_millis(10);

thread_local! {
    /// Joins the parts of a read that spans blocks.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Frees the large buffers in which this thread reads. For threads that are idle; the next read allocates them again.
pub fn release_buffers() {
    larder_store::buffer::release();
    JOINED.with_borrow_mut(|joined| {
        joined.clear();
        joined.shrink_to(larder_store::buffer::KEPT_BYTES);
    });
}

/// A snapshot with its part of the store and its origin. Shared by all threads that read it.
#[derive(Debug)]
pub struct Dataset {
    manifest: Arc<MappedManifest>,
    cache: Arc<DatasetCache>,
    /// Another dataset of the snapshot may use the same cache.
    _user: CacheUser,
    store_counters: Arc<StoreCounters>,
    fetcher: Arc<Fetcher>,
    sharing: Option<Arc<Sharing>>,
    owned: Option<Arc<OwnedBlocks>>,
    /// The reservation is what this node owns.
    follows_owned: AtomicBool,
    warmer: Warmer,
    planner: Planner,
    counters: Arc<StatsCounters>,
    /// Of its readers. Locked about once a second.
    passes: Mutex<Passes>,
    /// The READ requests at the last look at its readers.
    seen_reads: AtomicU64,
    description: Description,
}

impl Dataset {
    /// Serves `manifest` from `store`, and from `origin` what the store lacks. Fetches run on `runtime`. `sharing` if
    /// other nodes cache the dataset too.
    pub fn open(
        manifest: Arc<MappedManifest>,
        store: &Store,
        spec: CacheSpec,
        origin: Arc<dyn Origin>,
        sharing: Option<Arc<Sharing>>,
        runtime: &Handle,
        config: FetchConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let description = Description::new(Arc::clone(&manifest))?;
        let owned = sharing.clone().map(|sharing| Arc::new(OwnedBlocks::new(Arc::clone(&manifest), sharing)));
        let cache = store.dataset(CacheConfig {
            key: spec.key,
            is_known_as_ours: spec.is_known_as_ours,
            name: description.name().to_owned(),
            blocks: manifest.totals().blocks,
            reservation_bytes: spec.reservation_bytes,
            promised: spec.promised,
            policy: spec.policy,
            seed: spec.seed,
            block_lens: Arc::new(ManifestLens(Arc::clone(&manifest))),
        })?;
        if spec.policy == PolicyKind::Smallest {
            // Before the first read: what is admitted stays.
            cache.set_sizes(owned.as_ref().map_or_else(|| all_sizes(&manifest), |owned| owned.sizes()));
        }
        let user = cache.join(owned.clone().map(|owned| owned as Arc<dyn Ownership>));
        let store_counters = Arc::clone(store.counters());
        let counters = Arc::new(StatsCounters::default());
        let fetcher = Arc::new(Fetcher::new(
            Arc::clone(&manifest),
            Arc::clone(&cache),
            origin,
            sharing.clone(),
            Arc::clone(&counters),
            runtime.clone(),
            config,
        ));
        let passes = Passes::new(Moment::now(), Cached::of(manifest.totals().bytes, &cache));
        Ok(Arc::new(Self {
            warmer: Warmer::new(Arc::clone(&manifest), Arc::clone(&fetcher)),
            planner: Planner::new(Arc::clone(&manifest), Arc::clone(&fetcher)),
            manifest,
            cache,
            _user: user,
            store_counters,
            fetcher,
            sharing,
            owned,
            follows_owned: AtomicBool::new(false),
            counters,
            passes: Mutex::new(passes),
            seen_reads: AtomicU64::default(),
            description,
        }))
    }

    fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The snapshot's manifest.
    pub fn manifest(&self) -> &MappedManifest {
        &self.manifest
    }

    /// The same, for those that keep it.
    pub(crate) fn shared_manifest(&self) -> &Arc<MappedManifest> {
        &self.manifest
    }

    /// The id of its part of the store, the same on all nodes.
    pub fn cache_id(&self) -> CacheId {
        self.cache.key().id()
    }

    /// The snapshot, and for whom it is cached.
    pub(crate) fn key(&self) -> &CacheKey {
        self.cache.key()
    }

    /// The dataset's counters.
    pub fn counters(&self) -> &Arc<StatsCounters> {
        &self.counters
    }

    /// The runtime of its fetches.
    pub fn runtime(&self) -> &Handle {
        self.fetcher.runtime()
    }

    /// Nobody stated a size: from now on the reservation follows what this node owns.
    pub(crate) fn follow_owned(&self) {
        self.follows_owned.store(true, Ordering::Relaxed);
    }

    /// The blocks that the reservation follows, if it does.
    pub(crate) fn followed(&self) -> Option<&Arc<OwnedBlocks>> {
        self.owned.as_ref().filter(|_| self.follows_owned.load(Ordering::Relaxed))
    }

    /// The blocks of which the store keeps the smallest, if it does and other nodes own some.
    pub(crate) fn sized(&self) -> Option<&Arc<OwnedBlocks>> {
        self.owned.as_ref().filter(|_| self.cache_usage().policy == PolicyKind::Smallest)
    }

    /// Sets the sizes of the blocks of which the store keeps the smallest.
    pub(crate) fn set_sizes(&self, sizes: Sizes) {
        self.cache.set_sizes(sizes);
    }

    /// Changes its part of the store. Blocks on the disk.
    pub(crate) fn resize(&self, capacity_bytes: u64, promised: Reservation) {
        self.cache.resize(capacity_bytes, promised);
    }

    /// Records which namespace pays for its room. Blocks on the disk if it is news.
    pub(crate) fn set_payer(&self, payer: &str) {
        self.cache.set_payer(payer);
    }

    /// Sets the socket of the daemon that serves it, shown in the stats.
    pub fn served_at(&self, socket: PathBuf) {
        self.description.set_socket(socket);
    }

    /// Why its listing could not be renewed for its newest mount, shown in the stats; where the list is of what is
    /// warmed first; and what renews the listing, in words.
    pub(crate) fn refreshed(&self, failure: Option<String>, order: PathBuf, renewal: Renewal) {
        self.description.set_refresh_failed(failure);
        self.warmer.set_order(order);
        self.fetcher.set_renewal(renewal.here);
        self.description.set_renewal(renewal.everywhere);
    }

    /// Why its reservation is less than it wants, and what to do, shown in the stats.
    pub(crate) fn set_shortage(&self, shortage: Option<String>) {
        self.description.set_shortage(shortage);
    }

    /// Fetches from `origin` from now on: the same data, with other credentials.
    pub fn replace_origin(&self, origin: Arc<dyn Origin>) {
        self.fetcher.replace_origin(origin);
    }

    /// Writes down that a connection shows the dataset, so that a restart keeps its reservation. Blocks on the disk.
    pub fn hold(&self, connection: &str) {
        self.cache.hold(connection);
    }

    /// True while a connection that showed the dataset before the last restart has not come back and is not known to be
    /// gone.
    pub(crate) fn awaits_connections(&self) -> bool {
        self.cache.awaits_connections()
    }

    /// Notes that a connection shows the dataset no longer.
    pub fn let_go(&self, connection: &str) {
        self.cache.let_go(connection);
    }

    /// Starts to fill the store, unless it is being filled already.
    pub fn start_warming(&self) {
        self.warmer.start();
    }

    /// Takes a part of a list of files to fill the store with.
    pub fn warm_listed(&self, part: WarmListPart) -> Result<(), ListRefused> {
        self.warmer.take(part)
    }

    /// True if most bytes of the dataset are in files that the store keeps as one file each.
    pub fn is_of_large_files(&self) -> bool {
        let totals = self.manifest.totals();
        // All other files, of up to two blocks, then have less than half of the bytes.
        totals.bytes > 4 * BLOCK_BYTES * u64::from(totals.files)
    }

    /// A file for the kernel to read by itself in place of one of the dataset, as [`DatasetCache::lend`] has it. Opens
    /// a file.
    pub fn lend(&self, file: FileBlocks) -> Option<std::fs::File> {
        let lent = self.cache.lend(file.parts(0, 1).next()?.block)?;
        // Its readers send no read that would show what a plan still has to hold.
        self.fetcher.leave_lent(file.file);
        Some(lent)
    }

    /// Has the files that [`lend`](Self::lend) may return checked in the background.
    pub fn scrub(&self) {
        self.cache.scrub();
    }

    /// Carries out a command about a plan. Returns how many more items the plan wants.
    pub fn plan(&self, command: &Command<'_>, source: &PlanSource<'_>) -> Result<u32, PlanRefused> {
        self.planner.command(command, source)
    }

    /// Which of these files this node is to keep, by their first blocks: a bit for each, the lowest first.
    pub fn owned(&self, files: Range<u32>) -> Vec<u8> {
        let mut bits = vec![0; files.len().div_ceil(8)];
        for (at, file) in files.enumerate() {
            let file = FileIndex(file);
            // A row that is not there, or cannot be read, is nobody's.
            if self.manifest.file(file).is_ok_and(|row| self.fetcher.is_ours(file, row.first_block)) {
                bits[at / 8] |= 1 << (at % 8);
            }
        }
        bits
    }

    /// Has the page cache of a mount asked before an epoch of a program that says nothing is followed.
    pub fn watch_pages(&self, pages: Weak<dyn PageCache>) {
        self.planner.watch(pages);
    }

    /// Notes that an earlier process has served a mount of the dataset: the kernel may have any block of it.
    pub fn assume_read(&self) {
        self.planner.assume_seen();
    }

    /// Answers a read from the store or the window: calls `reply` once with the bytes and returns true, or returns
    /// false without calling it. Never waits for the network, takes no lock that readers share unless there are plans,
    /// allocates nothing.
    pub fn read_now(&self, file: FileBlocks, offset: u64, len: u32, reply: impl FnMut(&[u8])) -> bool {
        let began = Instant::now();
        let found = self.find_now(file, offset, len, reply);
        if let Some(source) = found {
            let took = began.elapsed();
            self.counters.answered(source, took);
            if took > SLOW_READ && source == Source::Store {
                self.stalls().waited(Cause::Disk, began);
            }
        }
        found.is_some()
    }

    /// The same. Returns where the bytes were.
    fn find_now(&self, file: FileBlocks, offset: u64, len: u32, mut reply: impl FnMut(&[u8])) -> Option<Source> {
        let mut parts = file.parts(offset, u64::from(len));
        let Some(first) = parts.next() else {
            reply(&[]);
            return Some(Source::Window);
        };
        let Some(second) = parts.next() else {
            if let Some(bytes) = self.in_plan(&first) {
                self.fetcher.mark_read(&first);
                reply(&bytes);
                return Some(Source::Window);
            }
            if self.in_store(&first, &mut reply) {
                return Some(Source::Store);
            }
            let bytes = self.in_window(&first)?;
            self.fetcher.mark_read(&first);
            reply(&bytes);
            return Some(Source::Window);
        };
        JOINED.with_borrow_mut(|joined| {
            joined.clear();
            let mut from_window = false;
            let complete = [first, second].into_iter().chain(parts).all(|part| {
                if let Some(bytes) = self.in_plan(&part) {
                    from_window = true;
                    joined.extend_from_slice(&bytes);
                    return true;
                }
                self.in_store(&part, |bytes| joined.extend_from_slice(bytes)) || {
                    let found = self.in_window(&part);
                    from_window |= found.is_some();
                    found.map(|bytes| joined.extend_from_slice(&bytes)).is_some()
                }
            });
            // If a part is missing, all of them are read once more.
            if complete && from_window {
                file.parts(offset, u64::from(len)).for_each(|part| self.fetcher.mark_read(&part));
            }
            if complete {
                reply(joined);
            }
            complete.then_some(if from_window { Source::Window } else { Source::Store })
        })
    }

    /// A part's bytes, if a plan holds its block. A reader does not wait for the disk then, if the store has it, too.
    fn in_plan(&self, part: &BlockPart) -> Option<Bytes> {
        let bytes = self.fetcher.in_plan(part)?;
        self.touched(part);
        self.planner.read(part.block);
        add(&self.counters.read_bytes_window, u64::from(part.len));
        Some(bytes)
    }

    /// Notes that a part of a block is read.
    fn touched(&self, part: &BlockPart) {
        self.fetcher.touched(part);
        self.planner.seen(part.block);
    }

    /// Answers from the store; false if the store does not have the block.
    fn in_store(&self, part: &BlockPart, reply: impl FnMut(&[u8])) -> bool {
        self.touched(part);
        let found = self.cache.read(part.block, part.block_len, part.start, part.len, reply);
        if matches!(found, Lookup::Hit(())) {
            add(&self.counters.read_bytes_store, u64::from(part.len));
        }
        matches!(found, Lookup::Hit(()))
    }

    fn in_window(&self, part: &BlockPart) -> Option<Bytes> {
        self.fetcher.in_window(part).inspect(|_| add(&self.counters.read_bytes_window, u64::from(part.len)))
    }

    /// Answers a read, and fetches what is missing. Fails after at most the read deadline. Cancel-safe: the fetch
    /// continues.
    pub async fn read_later(&self, file: FileBlocks, offset: u64, len: u32) -> Result<Bytes, FetchError> {
        let (dataset, snapshot) = (self.name(), self.manifest.snapshot());
        let span = trace_span!(target: TRACE_TARGET, "read", dataset, %snapshot, file = file.file.0, offset, len);
        self.read_waiting(file, offset, len).instrument(span).await
    }

    async fn read_waiting(&self, file: FileBlocks, offset: u64, len: u32) -> Result<Bytes, FetchError> {
        let (began, deadline) = (Instant::now(), self.fetcher.deadline());
        let _waiting = self.stalls().read();
        let parts: Vec<BlockPart> = file.parts(offset, u64::from(len)).collect();
        let (bytes, source) = match parts[..] {
            [part] => self.fetch_part(file.file, part, deadline).await?,
            _ => {
                // Without memory yet: thousands of reads may wait for their first part.
                let (mut joined, mut slowest) = (Vec::new(), Source::Store);
                for &part in &parts {
                    match self.in_store_later(part, deadline).await {
                        Some(bytes) => joined.extend_from_slice(&bytes),
                        None => {
                            let (bytes, source) = self.fetch_part(file.file, part, deadline).await?;
                            joined.extend_from_slice(&bytes);
                            slowest = slowest.max(source);
                        }
                    }
                }
                (joined.into(), slowest)
            }
        };
        self.counters.answered(source, began.elapsed());
        // A read that fails is repeated, and needs all of its parts again.
        parts.iter().for_each(|part| self.fetcher.mark_read(part));
        Ok(bytes)
    }

    /// A part's bytes out of the store, for a read that may wait. None also if the disk does not answer in time.
    async fn in_store_later(&self, part: BlockPart, deadline: Instant) -> Option<Bytes> {
        self.touched(&part);
        let waits = self.stalls().waits_for(Cause::Disk);
        let bytes = self.fetcher.stored(part, deadline).await?;
        drop(waits);
        add(&self.counters.read_bytes_store, u64::from(part.len));
        Some(bytes)
    }

    /// How long its readers wait.
    fn stalls(&self) -> &Arc<Stalls> {
        self.fetcher.stalls()
    }

    /// A part's bytes, fetched if they have to be, and where they were found.
    async fn fetch_part(
        &self,
        index: FileIndex,
        part: BlockPart,
        deadline: Instant,
    ) -> Result<(Bytes, Source), FetchError> {
        if !self.fetcher.is_read_here_and_there(index, &part) {
            self.planner.read(part.block);
        }
        let Fetched { bytes, tier } = self.fetcher.fetch(index, part, deadline).await?;
        let counter = match tier {
            Tier::Window => &self.counters.read_bytes_window,
            Tier::Peer => &self.counters.read_bytes_peer,
            Tier::Origin => &self.counters.read_bytes_origin,
        };
        add(counter, u64::from(part.len));
        Ok((bytes, tier.into()))
    }

    /// The name of the dataset.
    pub fn name(&self) -> &str {
        self.description.name()
    }

    /// How it is shared with other nodes, if it is.
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_deref()
    }

    /// A range of a block for a peer: from the store, in one of `buffers`, or as `Fetcher::fetch_for_peer` has it.
    /// Cancel-safe.
    pub async fn read_for_peer(&self, request: &ReadRequest, buffers: &Arc<Buffers>) -> Result<BlockBytes, ReadError> {
        let range = request.range;
        let BlockRange { block, start, len } = range;
        let index = self.manifest.file_of_block(block).map_err(|_| ReadError::NoSuchRange)?;
        let file = self.manifest.file(index).map_err(FetchError::from)?;
        let file_offset = u64::from(block.0 - file.first_block.0) * BLOCK_BYTES;
        // At most BLOCK_BYTES, which a u32 holds.
        let block_len = file.size.saturating_sub(file_offset).min(BLOCK_BYTES) as u32;
        if !range.fits(block_len) {
            return Err(ReadError::NoSuchRange);
        }
        let mut found = None;
        if let Some(disk) = self.cache.disk_of(block) {
            let (cache, buffers) = (Arc::clone(&self.cache), Arc::clone(buffers));
            let read = move || match cache.read_into(block, block_len, start, len, |len| buffers.take_filled(len)) {
                Lookup::Hit(PartBytes { memory, range, crc }) => {
                    Some(BlockBytes::Whole { bytes: buffers.lend_part(memory, range), crc })
                }
                Lookup::Miss => None,
            };
            let patience = if request.cached_only { HEDGE_PATIENCE } else { PEER_PATIENCE };
            let late = |_| ReadError::unavailable("the disk of the node's cache does not answer in time");
            found = self.fetcher.read_disk_for_peer(disk, patience, read).await.map_err(late)?;
        }
        if found.is_none() {
            let part = BlockPart { block, block_len, start, len, file_offset };
            found = if request.cached_only {
                let held = self.fetcher.held_for_peer(&part);
                Some(held.ok_or_else(|| ReadError::unavailable("the node does not have the block"))?)
            } else {
                Caller::PEERS.run(self.fetcher.fetch_for_peer(index, part, request.forwarded, PEER_PATIENCE)).await?
            };
        }
        let bytes = found.ok_or_else(|| ReadError::unavailable("another node is sending the block to this node"))?;
        add(&self.counters.peer_served, 1);
        add(&self.counters.peer_served_bytes, u64::from(len));
        Ok(bytes)
    }

    /// The URL of a file's object; for a packed file, the URL of its pack and the range of its bytes.
    pub fn origin_of(&self, file: &File<'_>) -> Result<Vec<u8>, ManifestError> {
        self.description.origin_of(file)
    }

    /// `.larder/manifest.json`.
    pub fn describe(&self) -> serde_json::Value {
        self.description.manifest_json()
    }

    /// The `dataset` section of `.larder/stats.json`.
    pub fn summary(&self) -> DatasetSummary {
        DatasetSummary { cache: Some(self.cache_id().to_string()), ..self.description.summary() }
    }

    /// How much of its reservation is used.
    pub fn cache_usage(&self) -> Usage {
        self.cache.usage()
    }

    /// `.larder/stats.json`.
    pub fn stats(&self) -> Stats {
        let usage = self.cache.usage();
        Stats {
            dataset: self.summary(),
            listing: self.description.listing(self.fetcher.stale_advice(), self.sharing()),
            cache: CacheStats {
                policy: usage.policy.to_string(),
                capacity_bytes: usage.capacity_bytes,
                wanted_bytes: usage.wanted_bytes,
                used_bytes: usage.used_bytes,
                blocks: usage.blocks_cached,
                degraded: usage.degraded.map(str::to_owned),
                shortage: (usage.capacity_bytes < usage.wanted_bytes).then(|| self.description.shortage()).flatten(),
            },
            warm: self.warmer.state(),
            origins: self.fetcher.origins().into_iter().map(OriginStats::from).collect(),
            process: self.description.process(),
            metrics: self
                .values()
                .chain(store_values(&self.store_counters))
                .chain(self.fetcher.memory_values())
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            stalls: self.stall_stats(),
            reads: self.read_stats(),
            origin_answers: self.answer_stats(),
            origin_retries: self.retry_stats(),
            passes: self.all_passes(),
        }
    }

    /// Counters and gauges of this dataset, by name; those of the whole store are [`store_values`].
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.counters.values().chain(self.gauges())
    }

    /// How full its part of the store and its window are, by name.
    pub(crate) fn gauges(&self) -> [(&'static str, u64); 8] {
        let usage = self.cache.usage();
        let [plans, plan_bytes] = self.planner.gauges();
        [
            ("store_blocks", usage.blocks_cached),
            ("store_capacity_bytes", usage.capacity_bytes),
            ("store_degraded", usage.degraded.is_some().into()),
            ("store_used_bytes", usage.used_bytes),
            ("store_wanted_bytes", usage.wanted_bytes),
            ("fs_window_bytes", self.fetcher.window_bytes()),
            plans,
            plan_bytes,
        ]
    }

    /// Waits until no fetch is in flight and the store has written every block that it keeps. Cancel-safe.
    pub async fn settle(&self) {
        self.fetcher.wait_idle().await;
    }

    /// Stops warming, ends all plans, and waits until the store has written every block in flight, so that it can be
    /// closed cleanly. Called when the dataset has no readers left.
    pub async fn drain(&self) {
        self.warmer.stop();
        self.planner.stop();
        self.fetcher.drain().await;
    }
}
