//! A dataset being served: its manifest, its part of the store, and what brings in the rest.
//!
//! [`Dataset::read_now`] is the hot path: it answers from the store or the window and never waits. What it cannot answer
//! goes to [`Dataset::read_later`], off the FUSE threads.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, BlockRange, File, FileIndex, ManifestError, PolicyKind};
use larder_import::object_range;
use larder_origin::Origin;
use larder_peers::{BlockBytes, Buffers, ReadError};
use larder_store::{CacheConfig, DatasetCache, Lookup, PartBytes, Store, StoreCounters, StoreError, Usage};
use tokio::runtime::Handle;

use crate::counters::{StatsCounters, add};
use crate::fetch::{FetchError, Fetched, Fetcher, Tier};
use crate::manifest_file::MappedManifest;
use crate::sharing::Sharing;
use crate::stats::{CacheStats, DatasetSummary, ProcessStats, Stats};
use crate::warm::Warmer;

/// What a dataset is served with.
#[derive(Clone, Copy, Debug)]
pub struct DatasetConfig {
    /// The longest a read may wait for the origin; then ETIMEDOUT.
    pub read_deadline: Duration,
    /// Bytes on their way from the origin into the store; who wants more waits. At least 8 MiB.
    pub fetch_bytes: u64,
    /// Memory for blocks that the store does not keep, while they are being read.
    pub window_bytes: u64,
}

impl DatasetConfig {
    /// What `larder mount` uses unless told otherwise.
    pub const DEFAULT: Self =
        Self { read_deadline: Duration::from_secs(60), fetch_bytes: 64 << 20, window_bytes: 64 << 20 };
}

/// What part of the store a dataset gets.
#[derive(Clone, Copy, Debug)]
pub struct CacheSpec {
    /// Bytes of the dataset that the store may keep.
    pub reservation_bytes: u64,
    /// What happens once they are full.
    pub policy: PolicyKind,
    /// Seed of the random policy.
    pub seed: u64,
}

/// Why a dataset cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The manifest does not hold together.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

thread_local! {
    /// Where a read that spans blocks is put together.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A snapshot with its store and origin. Shared by all threads of a mount.
#[derive(Debug)]
pub struct Dataset {
    manifest: Arc<MappedManifest>,
    cache: Arc<DatasetCache>,
    store_counters: Arc<StoreCounters>,
    fetcher: Arc<Fetcher>,
    sharing: Option<Arc<Sharing>>,
    warmer: Warmer,
    counters: Arc<StatsCounters>,
    name: String,
    origin_url: String,
    started: Instant,
    socket: OnceLock<PathBuf>,
}

impl Dataset {
    /// Serves `manifest` out of `store`, and `origin` for the rest, whose fetches run on `runtime`; `sharing` if other nodes
    /// cache it too. Errors say what to do.
    pub fn open(
        manifest: Arc<MappedManifest>,
        store: &Store,
        spec: CacheSpec,
        origin: Arc<dyn Origin>,
        sharing: Option<Arc<Sharing>>,
        runtime: &Handle,
        config: DatasetConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let (name, origin_url) = manifest.name_and_origin()?;
        let (name, origin_url) = (name.to_owned(), origin_url.to_owned());
        let lens = {
            let manifest = Arc::clone(&manifest);
            // A block that the manifest does not describe has no length that could match its record's.
            move |block| block_len(&manifest, block).unwrap_or(0)
        };
        let cache = store.dataset(CacheConfig {
            snapshot: manifest.snapshot(),
            name: name.clone(),
            blocks: manifest.totals().blocks,
            reservation_bytes: spec.reservation_bytes,
            policy: spec.policy,
            seed: spec.seed,
            block_len: Arc::new(lens),
        })?;
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
        Ok(Arc::new(Self {
            warmer: Warmer::new(Arc::clone(&manifest), Arc::clone(&fetcher)),
            manifest,
            cache,
            store_counters,
            fetcher,
            sharing,
            counters,
            name,
            origin_url,
            started: Instant::now(),
            socket: OnceLock::new(),
        }))
    }

    /// The snapshot's manifest.
    pub fn manifest(&self) -> &MappedManifest {
        &self.manifest
    }

    /// The mount's counters.
    pub fn counters(&self) -> &Arc<StatsCounters> {
        &self.counters
    }

    /// Where fetches run.
    pub fn runtime(&self) -> &Handle {
        self.fetcher.runtime()
    }

    /// Notes where the daemon that serves it listens, for who reads the stats.
    pub fn served_at(&self, socket: PathBuf) {
        let _ = self.socket.set(socket);
    }

    /// Fetches from `origin` from now on: the same data, reached with other credentials.
    pub fn replace_origin(&self, origin: Arc<dyn Origin>) {
        self.fetcher.replace_origin(origin);
    }

    /// Starts to fill the store, unless that is going on already.
    pub fn start_warming(&self) {
        self.warmer.start();
    }

    /// Answers a read from the store or the window: calls `reply` once with the bytes and returns true, or returns false
    /// without having called it. Never waits for the network, takes no lock that readers share, allocates nothing.
    pub fn read_now(&self, file: &File<'_>, offset: u64, len: u32, mut reply: impl FnMut(&[u8])) -> bool {
        let mut parts = file.parts(offset, u64::from(len));
        let Some(first) = parts.next() else {
            reply(&[]);
            return true;
        };
        let Some(second) = parts.next() else { return self.read_part(&first, reply) };
        JOINED.with_borrow_mut(|joined| {
            joined.clear();
            let complete = [first, second]
                .into_iter()
                .chain(parts)
                .all(|part| self.read_part(&part, |bytes| joined.extend_from_slice(bytes)));
            if complete {
                reply(joined);
            }
            complete
        })
    }

    fn read_part(&self, part: &BlockPart, mut reply: impl FnMut(&[u8])) -> bool {
        self.fetcher.touched(part.block);
        match self.cache.read(part.block, part.block_len, part.start, part.len, &mut reply) {
            Lookup::Hit(()) => {
                add(&self.counters.read_bytes_store, u64::from(part.len));
                true
            }
            Lookup::Miss => match self.fetcher.in_window(part) {
                Some(bytes) => {
                    reply(&bytes);
                    add(&self.counters.read_bytes_window, u64::from(part.len));
                    true
                }
                None => false,
            },
        }
    }

    /// Answers a read, bringing in what is missing. Errors after at most the read deadline.
    pub async fn read_later(&self, index: FileIndex, offset: u64, len: u32) -> Result<Bytes, FetchError> {
        let parts: Vec<BlockPart> = self.manifest.file(index)?.parts(offset, u64::from(len)).collect();
        if let [part] = parts[..] {
            return self.fetch_part(index, part).await;
        }
        let mut joined = Vec::with_capacity(len as usize);
        for part in parts {
            if !self.read_part(&part, |bytes| joined.extend_from_slice(bytes)) {
                joined.extend_from_slice(&self.fetch_part(index, part).await?);
            }
        }
        Ok(joined.into())
    }

    async fn fetch_part(&self, index: FileIndex, part: BlockPart) -> Result<Bytes, FetchError> {
        let Fetched { bytes, tier } = self.fetcher.fetch(index, part).await?;
        let counter = match tier {
            Tier::Window => &self.counters.read_bytes_window,
            Tier::Peer => &self.counters.read_bytes_peer,
            Tier::Origin => &self.counters.read_bytes_origin,
        };
        add(counter, u64::from(part.len));
        Ok(bytes)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How other nodes share it, if they do.
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_deref()
    }

    /// A range of a block for a peer: from the store, in one of `buffers`, or as [`Fetcher::fetch_for_peer`] has it.
    /// `forwarded`: no other peer may be asked. Cancel-safe.
    pub async fn read_for_peer(
        &self,
        range: BlockRange,
        forwarded: bool,
        buffers: &Arc<Buffers>,
    ) -> Result<BlockBytes, ReadError> {
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
        if self.cache.contains(block) {
            let (cache, buffers) = (Arc::clone(&self.cache), Arc::clone(buffers));
            let read = move || match cache.read_into(block, block_len, start, len, |len| buffers.take_filled(len)) {
                Lookup::Hit(PartBytes { memory, range, crc }) => {
                    Some(BlockBytes::Whole { bytes: buffers.lend_part(memory, range), crc })
                }
                Lookup::Miss => None,
            };
            found = self.runtime().spawn_blocking(read).await.unwrap_or_default();
        }
        if found.is_none() {
            let part = BlockPart { block, block_len, start, len, file_offset };
            found = self.fetcher.fetch_for_peer(index, part, forwarded).await?;
        }
        let bytes = found.ok_or_else(|| ReadError::unavailable("another node is sending the block to this node"))?;
        add(&self.counters.peer_served, 1);
        add(&self.counters.peer_served_bytes, u64::from(len));
        Ok(bytes)
    }

    /// The URL of a file's object; for a packed file, of its pack with the bytes' place in it.
    pub fn origin_of(&self, file: &File<'_>) -> Result<Vec<u8>, ManifestError> {
        let object = object_range(&self.manifest, file, 0..file.size)?;
        let mut url = self.origin_url.trim_end_matches('/').as_bytes().to_vec();
        url.push(b'/');
        url.extend_from_slice(&object.key);
        if self.manifest.is_packed() {
            url.extend_from_slice(format!("#bytes={}-{}", object.range.start, object.range.end).as_bytes());
        }
        Ok(url)
    }

    fn dataset_stats(&self) -> DatasetSummary {
        let totals = self.manifest.totals();
        DatasetSummary {
            name: self.name.clone(),
            origin: self.origin_url.clone(),
            snapshot: self.manifest.snapshot().to_string(),
            files: totals.files,
            dirs: totals.dirs,
            blocks: totals.blocks,
            bytes: totals.bytes,
            packed: self.manifest.is_packed(),
            manifest_bytes: self.manifest.len_bytes(),
        }
    }

    /// `.larder/manifest.json`.
    pub fn describe(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self.dataset_stats()).unwrap_or_default();
        value["created_unix_seconds"] = (self.manifest.created_ns() / 1_000_000_000).into();
        value["packs"] = self.manifest.totals().packs.into();
        value
    }

    /// How the dataset's part of the store stands.
    pub fn cache_usage(&self) -> Usage {
        self.cache.usage()
    }

    /// `.larder/stats.json`.
    pub fn stats(&self) -> Stats {
        let usage = self.cache.usage();
        Stats {
            dataset: self.dataset_stats(),
            cache: CacheStats {
                policy: usage.policy.to_string(),
                capacity_bytes: usage.capacity_bytes,
                used_bytes: usage.used_bytes,
                blocks: usage.blocks_cached,
                degraded: usage.degraded.map(str::to_owned),
            },
            warm: self.warmer.state(),
            process: ProcessStats::now(self.started.elapsed().as_secs(), self.socket.get().cloned()),
            metrics: self
                .values()
                .chain(store_values(&self.store_counters))
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    /// Counters and gauges of this dataset, by name; those of the whole store are [`store_values`].
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let usage = self.cache.usage();
        let gauges = [
            ("store_blocks", usage.blocks_cached),
            ("store_capacity_bytes", usage.capacity_bytes),
            ("store_used_bytes", usage.used_bytes),
            ("fs_window_bytes", self.fetcher.window_bytes()),
        ];
        self.counters.values().chain(gauges)
    }

    /// Waits until no fetch is in flight and the store has written every block that it keeps. Cancel-safe.
    pub async fn settle(&self) {
        self.fetcher.wait_idle().await;
    }

    /// Waits for what is still on its way into the store, once the mount is over, so that the store can be closed clean.
    pub async fn drain(&self) {
        self.warmer.stop();
        self.fetcher.drain().await;
    }
}

/// What the store counts for all of its datasets, by name.
pub fn store_values(store: &StoreCounters) -> [(&'static str, u64); 9] {
    [
        ("store_admitted_total", store.admitted.get()),
        ("store_admitted_bytes_total", store.admitted_bytes.get()),
        ("store_refused_total", store.refused.get()),
        ("store_evicted_total", store.evicted.get()),
        ("store_corrupt_total", store.corrupt()),
        ("store_read_errors_total", store.read_errors.get()),
        ("store_write_errors_total", store.write_errors.get()),
        ("store_index_dropped_total", store.index_dropped.get()),
        ("store_index_errors_total", store.index_errors.get()),
    ]
}

fn block_len(manifest: &MappedManifest, block: BlockIndex) -> Result<u32, ManifestError> {
    let file = manifest.file(manifest.file_of_block(block)?)?;
    let file_offset = u64::from(block.0 - file.first_block.0) * BLOCK_BYTES;
    // At most BLOCK_BYTES, which a u32 holds.
    Ok(file.size.saturating_sub(file_offset).min(BLOCK_BYTES) as u32)
}
