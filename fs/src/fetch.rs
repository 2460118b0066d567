//! Brings in the blocks that the store lacks: one GET for a block, however many readers wait for it.
//!
//! A block on its way is a *flight*: a task that asks the origin, hands the bytes to whoever waits, then lets the store
//! keep them if its policy says so. The flight ends only when the bytes are in the store or in the window, so that a later
//! reader finds them in one of the three and never asks the origin again.
//!
//! Invariants: at most one flight for a block; at most `fetch_concurrency` of them hold bytes; each ends within the read
//! deadline; no lock is held across an await.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart, FileIndex, ManifestError};
use larder_import::{ObjectRange, object_range};
use larder_origin::{Origin, OriginError};
use larder_store::{DatasetCache, Lookup, Reservation};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::chain::Chain;
use crate::dataset::DatasetConfig;
use crate::manifest_file::MappedManifest;
use crate::stats::{StatsCounters, add};
use crate::window::Window;

/// How often a block whose checksum is wrong is asked for again.
const CHECKSUM_ATTEMPTS: u32 = 3;

/// Failed fetches are logged at most this often.
const LOG_EVERY_SECONDS: u64 = 10;

/// Why a block could not be had. Shared by all who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// The object is not there any more.
    #[error("block {block}: the object is gone from the origin")]
    Gone {
        /// Which block.
        block: BlockIndex,
    },
    /// The object is another than the one that was listed.
    #[error("block {block}: the object changed after import; import the dataset again")]
    Stale {
        /// Which block.
        block: BlockIndex,
    },
    /// The origin does not let us read it.
    #[error("block {block}: access denied by the origin")]
    Denied {
        /// Which block.
        block: BlockIndex,
        /// What the origin said.
        source: Arc<OriginError>,
    },
    /// No answer within the read deadline.
    #[error("block {block}: no answer from the origin within {deadline:?}")]
    TimedOut {
        /// Which block.
        block: BlockIndex,
        /// The read deadline.
        deadline: Duration,
    },
    /// The origin kept failing.
    #[error("block {block}: origin unavailable")]
    Unavailable {
        /// Which block.
        block: BlockIndex,
        /// The last failure.
        source: Arc<OriginError>,
    },
    /// The bytes do not match the manifest's checksum.
    #[error("block {block}: wrong checksum from the origin, {CHECKSUM_ATTEMPTS} times")]
    Corrupt {
        /// Which block.
        block: BlockIndex,
    },
    /// The process is stopping, or the flight broke down.
    #[error("the fetch was stopped")]
    Stopped,
    /// The manifest is damaged where the block is described.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Bytes of a part of a block.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Exactly the part's bytes.
    pub(crate) bytes: Bytes,
    /// True if they were in memory already.
    pub(crate) from_window: bool,
}

/// What a flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Somebody waits for the bytes.
    Read,
    /// To fill the store; pointless if the store does not keep it.
    Warm,
}

/// How a flight ended.
#[derive(Clone, Debug)]
enum Landed {
    Bytes(Bytes),
    /// A warming flight that the store had no room for; nothing was fetched.
    NotKept,
    Failed(FetchError),
}

/// What a warming fetch came to.
#[derive(Clone, Debug)]
pub(crate) enum Warmed {
    /// The block is in the store.
    Kept,
    /// The store does not take it.
    NoRoom,
    /// It could not be had; the flight has counted and logged why.
    Failed,
}

type Flight = watch::Receiver<Option<Landed>>;

/// Brings in blocks. Shared by all readers of a mount.
#[derive(Debug)]
pub(crate) struct Fetcher {
    manifest: Arc<MappedManifest>,
    cache: Arc<DatasetCache>,
    /// Replaced when newer credentials come. Taken once a flight, never held across a wait.
    origin: RwLock<Arc<dyn Origin>>,
    counters: Arc<StatsCounters>,
    runtime: Handle,
    config: DatasetConfig,
    flights: Mutex<HashMap<BlockIndex, Flight>>,
    window: Window,
    permits: Semaphore,
    tasks: TaskTracker,
    store_counted: AtomicBool,
    started: Instant,
    /// When a failure was last logged, in seconds since `started` and [`LOG_EVERY_SECONDS`] before it.
    last_logged: AtomicU64,
}

impl Fetcher {
    pub(crate) fn new(
        manifest: Arc<MappedManifest>,
        cache: Arc<DatasetCache>,
        origin: Arc<dyn Origin>,
        counters: Arc<StatsCounters>,
        runtime: Handle,
        config: DatasetConfig,
    ) -> Self {
        Self {
            manifest,
            cache,
            origin: RwLock::new(origin),
            counters,
            runtime,
            config,
            flights: Mutex::default(),
            window: Window::new(config.window_bytes),
            permits: Semaphore::new(config.fetch_concurrency.max(1)),
            tasks: TaskTracker::new(),
            store_counted: AtomicBool::new(false),
            started: Instant::now(),
            last_logged: AtomicU64::new(0),
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Flights that start from now on ask `origin`.
    pub(crate) fn replace_origin(&self, origin: Arc<dyn Origin>) {
        *self.origin.write().unwrap_or_else(PoisonError::into_inner) = origin;
    }

    pub(crate) fn window_bytes(&self) -> u64 {
        self.window.bytes()
    }

    /// Waits until no flight is left, when no reader starts one any more. At most the read deadline and a disk write.
    pub(crate) async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A part's bytes, if its block is in the window. Counts the part as read.
    pub(crate) fn in_window(&self, part: &BlockPart) -> Option<Bytes> {
        let block = self.window.take(part.block, part.start..part.start + part.len)?;
        Some(slice(&block, part))
    }

    /// A part's bytes, from the window, from a flight under way, or from a new one. Cancel-safe: the flight goes on.
    pub(crate) async fn fetch(self: &Arc<Self>, file: FileIndex, part: BlockPart) -> Result<Fetched, FetchError> {
        loop {
            if let Some(bytes) = self.in_window(&part) {
                return Ok(Fetched { bytes, from_window: true });
            }
            match self.ride(file, part, Purpose::Read).await {
                Landed::Bytes(block) => {
                    self.window.used(part.block, part.start..part.start + part.len);
                    return Ok(Fetched { bytes: slice(&block, &part), from_window: false });
                }
                Landed::Failed(error) => return Err(error),
                // It was a warming flight, which gave up without asking the origin: start one for ourselves.
                Landed::NotKept => {}
            }
        }
    }

    /// Brings a block into the store, unless the store does not take it.
    pub(crate) async fn warm(self: &Arc<Self>, file: FileIndex, whole: BlockPart) -> Warmed {
        if self.cache.contains(whole.block) {
            return Warmed::Kept;
        }
        match self.ride(file, whole, Purpose::Warm).await {
            Landed::Bytes(_) => Warmed::Kept,
            Landed::NotKept => Warmed::NoRoom,
            Landed::Failed(_) => Warmed::Failed,
        }
    }

    /// Waits for the block's flight, after starting it if there is none.
    async fn ride(self: &Arc<Self>, file: FileIndex, part: BlockPart, purpose: Purpose) -> Landed {
        let mut flight = self.board(file, part, purpose);
        match flight.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(landed)) => landed.clone(),
            // The sender was dropped: the task panicked, or the runtime is shutting down.
            Ok(None) | Err(_) => Landed::Failed(FetchError::Stopped),
        }
    }

    fn board(self: &Arc<Self>, file: FileIndex, part: BlockPart, purpose: Purpose) -> Flight {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&part.block) {
            return flight.clone();
        }
        let (sender, flight) = watch::channel(None);
        flights.insert(part.block, flight.clone());
        drop(flights);
        let fetcher = Arc::clone(self);
        let flown = async move {
            let _listed = Listed { fetcher: &fetcher, block: part.block };
            fetcher.fly(file, part, purpose, &sender).await;
        };
        self.tasks.spawn_on(flown, &self.runtime);
        flight
    }

    /// The flight itself. Sends how it landed as soon as the bytes are there, and returns once they are kept somewhere.
    async fn fly(&self, file: FileIndex, part: BlockPart, purpose: Purpose, sender: &watch::Sender<Option<Landed>>) {
        let land = |landed| {
            sender.send_replace(Some(landed));
        };
        // Another flight may have landed between the reader's look at the store and this one's start.
        if let Some(block) = self.already_stored(part).await {
            return land(Landed::Bytes(block));
        }
        let reservation = self.reserve(part, purpose).await;
        if reservation.is_none() && purpose == Purpose::Warm {
            return land(Landed::NotKept);
        }
        self.counters.fetches_running.fetch_add(1, Ordering::Relaxed);
        let _running = Running(&self.counters);
        // The permit covers the store's write as well, which is what bounds the memory of slow disks.
        let deadline = self.config.read_deadline;
        let fetched = tokio::time::timeout(deadline, async {
            let permit = self.permits.acquire().await.map_err(|_| FetchError::Stopped)?;
            Ok::<_, FetchError>((permit, self.get(file, &part).await?))
        });
        let (_permit, block) = match fetched.await.unwrap_or(Err(FetchError::TimedOut { block: part.block, deadline }))
        {
            Ok(fetched) => fetched,
            Err(error) => {
                add(&self.counters.origin_errors, 1);
                self.log_failure(part.block, &error);
                return land(Landed::Failed(error));
            }
        };
        let Some(reservation) = reservation else {
            // Into the window before anybody is told, so that their next read finds it there.
            self.window.insert(part.block, block.clone());
            return land(Landed::Bytes(block));
        };
        land(Landed::Bytes(block.clone()));
        let (cache, bytes) = (Arc::clone(&self.cache), block.clone());
        let written = self.runtime.spawn_blocking(move || cache.write(reservation, &bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            debug!(block = part.block.0, "block not kept");
            self.window.insert(part.block, block);
        }
    }

    /// Room for the block, if the policy gives it any. Warming makes no other block leave.
    async fn reserve(&self, part: BlockPart, purpose: Purpose) -> Option<Reservation> {
        // After a restart the store refuses until it has counted what it holds: a few milliseconds, on its own thread.
        if !self.store_counted.load(Ordering::Relaxed) {
            let (cache, patience) = (Arc::clone(&self.cache), self.config.read_deadline);
            let counted = self.runtime.spawn_blocking(move || cache.wait_rebuilt(patience)).await;
            self.store_counted.store(counted.unwrap_or(false), Ordering::Relaxed);
        }
        match purpose {
            Purpose::Read => self.cache.reserve(part.block, part.block_len),
            Purpose::Warm => self.cache.reserve_free(part.block, part.block_len),
        }
    }

    /// One line in ten seconds, however many fetches fail: the counter has them all.
    fn log_failure(&self, block: BlockIndex, error: &FetchError) {
        let now = self.started.elapsed().as_secs() + LOG_EVERY_SECONDS;
        let last = self.last_logged.load(Ordering::Relaxed);
        let due = now >= last + LOG_EVERY_SECONDS;
        if due && self.last_logged.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let failures = self.counters.origin_errors.load(Ordering::Relaxed);
            warn!(block = block.0, failures, error = %Chain(error), "fetch from origin failed");
        }
    }

    async fn already_stored(&self, part: BlockPart) -> Option<Bytes> {
        if !self.cache.contains(part.block) {
            return None;
        }
        let cache = Arc::clone(&self.cache);
        let read = move || match cache.read(part.block, part.block_len, 0, part.block_len, Bytes::copy_from_slice) {
            Lookup::Hit(block) => Some(block),
            Lookup::Miss => None,
        };
        self.runtime.spawn_blocking(read).await.ok().flatten()
    }

    /// The whole block from the origin, of the right length and, where the manifest knows it, the right checksum.
    async fn get(&self, index: FileIndex, part: &BlockPart) -> Result<Bytes, FetchError> {
        let block = part.block;
        let object = {
            let file = self.manifest.file(index)?;
            object_range(&self.manifest, &file, part.file_offset..part.file_offset + u64::from(part.block_len))?
        };
        let ObjectRange { key, range, version } = object;
        let expected = self.manifest.block_crc(block)?;
        let origin = Arc::clone(&self.origin.read().unwrap_or_else(PoisonError::into_inner));
        for _ in 0..CHECKSUM_ATTEMPTS {
            let bytes =
                origin.read(&key, range.clone(), version.as_ref()).await.map_err(|error| self.decide(block, error))?;
            add(&self.counters.origin_gets, 1);
            add(&self.counters.origin_bytes, bytes.len() as u64);
            if bytes.len() == part.block_len as usize && expected.is_none_or(|crc| crc32c::crc32c(&bytes) == crc) {
                return Ok(bytes);
            }
        }
        Err(FetchError::Corrupt { block })
    }

    fn decide(&self, block: BlockIndex, error: OriginError) -> FetchError {
        match error {
            OriginError::NotFound { .. } => FetchError::Gone { block },
            OriginError::Stale { .. } => FetchError::Stale { block },
            OriginError::Denied { .. } => FetchError::Denied { block, source: Arc::new(error) },
            OriginError::TimedOut { .. } => FetchError::TimedOut { block, deadline: self.config.read_deadline },
            OriginError::Busy { .. }
            | OriginError::Truncated { .. }
            | OriginError::TooLarge { .. }
            | OriginError::Invalid { .. }
            | OriginError::Unavailable { .. } => FetchError::Unavailable { block, source: Arc::new(error) },
        }
    }
}

/// The part's bytes out of its block's.
fn slice(block: &Bytes, part: &BlockPart) -> Bytes {
    block.slice(part.start as usize..(part.start + part.len) as usize)
}

/// Takes a flight off the list when it is over, however it ended.
struct Listed<'a> {
    fetcher: &'a Fetcher,
    block: BlockIndex,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.fetcher.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.block);
    }
}

/// Counts a running fetch down when it is over.
struct Running<'a>(&'a StatsCounters);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetches_running.fetch_sub(1, Ordering::Relaxed);
    }
}
