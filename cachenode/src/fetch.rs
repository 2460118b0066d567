//! Brings in the blocks that the store lacks: one GET for a block, however many readers wait for it, or for several blocks.
//! Where nodes share their caches it asks the block's owner first ([`sharing`](crate::sharing)).
//!
//! A block on its way has a seat on a *flight*: a task that asks the origin, hands each block to whoever waits for it as soon
//! as its bytes are there ([`landing`]), then lets the store keep them if its policy says so. It ends only when the bytes are in
//! the store or in the window, so that a later reader finds them in one of the three and never asks the origin again. A
//! packed file brings its neighbours along as long as the store has room for them; readers in order are read ahead of
//! ([`ahead`](crate::ahead)).
//!
//! Invariants: at most one flight for a block; all together hold at most `fetch_bytes`; each ends within the read deadline;
//! no lock is held across an await.

mod error;
mod extent;
mod flight;
mod landing;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use larder_import::{ObjectRange, object_range};
use larder_origin::{Origin, OriginError};
use larder_peers::{BlockBytes, ReadError};
use larder_store::{AdmissionPermit, DatasetCache, Lookup};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::ahead::{AHEAD_BLOCKS, AHEAD_BYTES, ReadAhead};
use crate::counters::{StatsCounters, add};
use crate::dataset::DatasetConfig;
use crate::manifest_file::MappedManifest;
use crate::sharing::{Asker, Route, Sharing};
use crate::window::Window;
use larder_dataset::Chain;

use flight::{Flight, Landed, Listed, Running, Seat, landed};
use landing::{Kept, Landing, Ticket};

pub use error::FetchError;

/// How often a block whose checksum is wrong is asked for again.
const CHECKSUM_ATTEMPTS: u32 = 3;

/// Files that are looked at on either side of a packed one, and ahead of a reader: many are tiny or empty, and others wait
/// for the list of flights meanwhile.
const WALK_FILES: usize = 256;

/// Room for the largest flight there can be: a run of [`extent::EXTENT_BYTES`], and a block that begins at its end.
const FETCH_BYTES_LEAST: u64 = 8 << 20;

/// Interval between two looks at whether all fetches have ended.
const SETTLE_POLL: Duration = Duration::from_millis(2);

/// Failed fetches are logged at most this often.
const LOG_EVERY_SECONDS: u64 = 10;

/// Bytes of a part of a block.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Exactly the part's bytes.
    pub(crate) bytes: Bytes,
    /// Where they were.
    pub(crate) tier: Tier,
}

/// Where bytes were that the store did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In memory already.
    Window,
    /// At another node.
    Peer,
    /// At the origin.
    Origin,
}

/// What a flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Somebody waits for the bytes.
    Read,
    /// To fill the store; pointless if the store does not keep it.
    Warm,
    /// Another node waits for the bytes; `forwarded` if it wants no third one asked.
    Peer { forwarded: bool },
}

impl Purpose {
    fn asker(self) -> Asker {
        match self {
            Self::Read | Self::Warm => Asker::Here,
            Self::Peer { forwarded } => Asker::Peer { forwarded },
        }
    }
}

/// What a warming fetch came to.
#[derive(Clone, Debug)]
pub(crate) enum Warmed {
    /// The block is in the store.
    Kept,
    /// The store does not take it.
    NoRoom,
    /// Another node keeps it.
    NotOurs,
    /// It could not be had; the flight has counted and logged why.
    Failed,
}

/// Brings in blocks. Shared by all readers of a mount.
#[derive(Debug)]
pub(crate) struct Fetcher {
    manifest: Arc<MappedManifest>,
    cache: Arc<DatasetCache>,
    /// Replaced when newer credentials come. Taken once a flight, never held across a wait.
    origin: RwLock<Arc<dyn Origin>>,
    /// None: this node shares with nobody.
    sharing: Option<Arc<Sharing>>,
    counters: Arc<StatsCounters>,
    runtime: Handle,
    config: DatasetConfig,
    flights: Mutex<HashMap<BlockIndex, Flight>>,
    window: Window,
    ahead: ReadAhead,
    /// KiB of blocks that may be on their way at a time.
    room: Arc<Semaphore>,
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
        sharing: Option<Arc<Sharing>>,
        counters: Arc<StatsCounters>,
        runtime: Handle,
        config: DatasetConfig,
    ) -> Self {
        let ahead = ReadAhead::new(manifest.totals().blocks);
        Self {
            manifest,
            cache,
            origin: RwLock::new(origin),
            sharing,
            counters,
            runtime,
            config,
            flights: Mutex::default(),
            window: Window::new(config.window_bytes),
            ahead,
            room: Arc::new(Semaphore::new((config.fetch_bytes.max(FETCH_BYTES_LEAST) >> 10) as usize)),
            tasks: TaskTracker::new(),
            store_counted: AtomicBool::new(false),
            started: Instant::now(),
            last_logged: AtomicU64::new(0),
        }
    }

    fn lock_flights(&self) -> MutexGuard<'_, HashMap<BlockIndex, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Waits until no fetch is in flight and every block that was fetched is in the store or in the window. A fetch that
    /// starts meanwhile is waited for, too. Cancel-safe.
    pub(crate) async fn wait_idle(&self) {
        while !self.tasks.is_empty() {
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }

    /// A part's bytes, if its block is in the window. Counts the part as read.
    pub(crate) fn in_window(&self, part: &BlockPart) -> Option<Bytes> {
        let block = self.window.read(part.block, part.start..part.start + part.len)?;
        Some(slice(&block, part))
    }

    /// A part's bytes, from the window, from a flight under way, or from a new one. Cancel-safe: the flight goes on.
    pub(crate) async fn fetch(self: &Arc<Self>, file: FileIndex, part: BlockPart) -> Result<Fetched, FetchError> {
        loop {
            if let Some(bytes) = self.in_window(&part) {
                return Ok(Fetched { bytes, tier: Tier::Window });
            }
            let first_of_file = BlockIndex(part.block.0 - (part.file_offset / BLOCK_BYTES) as u32);
            if self.ahead.missed(part.block, first_of_file) {
                self.read_ahead(part.block, part.block);
            }
            match self.ride(file, part, Purpose::Read).await {
                Landed::Bytes(block, tier) => {
                    self.window.mark_read(part.block, part.start..part.start + part.len);
                    return Ok(Fetched { bytes: slice(&block, &part), tier });
                }
                Landed::Failed(error) => return Err(error),
                // It was another's flight, which never asked for this block: start one for ourselves.
                Landed::NotKept | Landed::LeftOut => {}
            }
        }
    }

    /// A part's bytes for another node: from the window, or from a flight, as they come. None: the block is on a flight that
    /// asks other nodes, and waiting for it could be waiting for the one who asks.
    pub(crate) async fn fetch_for_peer(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        forwarded: bool,
    ) -> Result<Option<BlockBytes>, FetchError> {
        loop {
            if let Some(block) = self.window.peek(part.block) {
                return Ok(Some(BlockBytes::whole(slice(&block, &part))));
            }
            let purpose = Purpose::Peer { forwarded };
            let (flight, route) = self.board(file, part, purpose);
            if flight.asks_peers && route.nodes.is_empty() {
                return Ok(None);
            }
            let mut pieces = flight.follow(part.start as usize..(part.start + part.len) as usize);
            drop(flight);
            if let Some(first) = pieces.recv().await {
                let first = first?;
                if first.len() == part.len as usize {
                    return Ok(Some(BlockBytes::whole(first)));
                }
                let rest = ReceiverStream::new(pieces).map(|piece| piece.map_err(ReadError::from));
                return Ok(Some(BlockBytes::Arriving(Box::pin(tokio_stream::once(Ok(first)).chain(rest)))));
            }
        }
    }

    /// A read has come to this block: whoever reads blocks in order is kept ahead of.
    pub(crate) fn touched(self: &Arc<Self>, block: BlockIndex) {
        if let Some(last) = self.ahead.touched(block) {
            let fetcher = Arc::clone(self);
            self.tasks.spawn_on(async move { fetcher.read_ahead(block, last) }, &self.runtime);
        }
    }

    /// Starts flights for the blocks after `block`, those up to `last` left out, which were started before and may have been
    /// read and be gone again; and sees to it that it goes on so.
    fn read_ahead(self: &Arc<Self>, block: BlockIndex, last: BlockIndex) {
        let (mut bytes, mut coming, mut started) = (0, Vec::new(), false);
        let Ok(first) = self.manifest.file_of_block(block) else { return };
        'files: for file_index in (first.0..).map(FileIndex).take(WALK_FILES) {
            let Ok(file) = self.manifest.file(file_index) else { break };
            for part in file.parts(0, file.size).filter(|part| part.block > block) {
                if bytes >= AHEAD_BYTES || coming.len() >= AHEAD_BLOCKS {
                    break 'files;
                }
                bytes += u64::from(part.block_len);
                coming.push(part.block);
                if part.block > last && !self.cache.contains(part.block) && !self.window.contains(part.block) {
                    let _ = self.board(file_index, part, Purpose::Read);
                    started = true;
                }
            }
        }
        // Where all is here already the stream has caught up with an earlier reader, and ends.
        if let (true, Some(&middle), Some(&end)) = (started, coming.get(coming.len() / 2), coming.last()) {
            self.ahead.mark(middle, end.max(last));
        }
    }

    /// Brings a block into the store, unless the store does not take it.
    pub(crate) async fn warm(self: &Arc<Self>, file: FileIndex, whole: BlockPart) -> Warmed {
        loop {
            if self.cache.contains(whole.block) {
                return Warmed::Kept;
            }
            if !self.route(file, whole.block, Asker::Here).keep {
                return Warmed::NotOurs;
            }
            match self.ride(file, whole, Purpose::Warm).await {
                Landed::Bytes(..) => return Warmed::Kept,
                Landed::NotKept => return Warmed::NoRoom,
                Landed::Failed(_) => return Warmed::Failed,
                Landed::LeftOut => {}
            }
        }
    }

    /// Where a block comes from.
    fn route(&self, file: FileIndex, block: BlockIndex, asker: Asker) -> Route {
        let Some(sharing) = &self.sharing else { return Route::ALONE };
        sharing.route(extent::place_key(&self.manifest, file, block), asker)
    }

    /// Waits for the block's flight, after starting it if there is none.
    async fn ride(self: &Arc<Self>, file: FileIndex, part: BlockPart, purpose: Purpose) -> Landed {
        landed(self.board(file, part, purpose).0).await
    }

    /// The block's flight, after starting it if there is none; and the way that this purpose would have taken.
    fn board(self: &Arc<Self>, file: FileIndex, part: BlockPart, purpose: Purpose) -> (Flight, Route) {
        let route = self.route(file, part.block, purpose.asker());
        let mut flights = self.lock_flights();
        if let Some(flight) = flights.get(&part.block) {
            return (flight.clone(), route);
        }
        let mut run = vec![(file, part)];
        // Only who asks the origin, and keeps what it gets, takes neighbours along: they have the same owner.
        if route.nodes.is_empty() && route.keep {
            let on_the_way = |block| flights.contains_key(&block);
            run.extend(extent::neighbours(&self.manifest, &self.cache, on_the_way, file, &part));
        }
        let asks_peers = !route.nodes.is_empty();
        let seats: Vec<Seat> = run
            .into_iter()
            .map(|(file, part)| {
                let (flight, seat) = Flight::new(file, part, asks_peers);
                flights.insert(part.block, flight);
                seat
            })
            .collect();
        let flight = flights[&part.block].clone();
        drop(flights);
        if let Some(last) = seats.iter().map(|seat| seat.part.block).max() {
            self.ahead.fetched_run(last, seats.len());
        }
        let (fetcher, way) = (Arc::clone(self), route.clone());
        self.tasks.spawn_on(fetcher.fly(seats, purpose, way), &self.runtime);
        (flight, route)
    }

    /// The flight itself, of one block or of one and its neighbours. Each lands as soon as its bytes are there; all are on
    /// the list of flights until they are kept somewhere.
    async fn fly(self: Arc<Self>, mut seats: Vec<Seat>, purpose: Purpose, route: Route) {
        let blocks = seats.iter().map(|seat| seat.part.block).collect();
        let mut listed = Listed { fetcher: Arc::clone(&self), blocks };
        let first = seats[0].part;
        // Another flight may have landed between the reader's look at store and window and this one's start.
        if let Some(block) = self.already_here(first).await {
            seats.remove(0).land(Landed::Bytes(block, Tier::Window));
            return listed.leave(seats);
        }
        let reservation = if route.keep { self.reserve(first, purpose).await } else { None };
        if reservation.is_none() && purpose == Purpose::Warm {
            seats.remove(0).land(Landed::NotKept);
            return listed.leave(seats);
        }
        let (aboard, left_out) = self.settle(seats, reservation);
        listed.leave(left_out);
        let running = Running::new(&self.counters);
        let kib = aboard.iter().map(|ticket| ticket.seat.part.block_len >> 10).sum::<u32>() + 1;
        let mut landing = Landing::new(&self, purpose, aboard);
        let deadline = self.config.read_deadline;
        let mut room = None;
        let fetched = tokio::time::timeout(deadline, async {
            room = Some(Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| FetchError::Stopped)?);
            if let Some(block) = self.get_from_peers(&landing, &route).await {
                landing.has_all_of_first(block);
            } else {
                self.get(first.block, &mut landing).await?;
            }
            Ok(())
        });
        let timed_out = FetchError::TimedOut { block: first.block, deadline };
        let fetched = fetched.await.unwrap_or(Err(timed_out));
        // What landed before a failure is kept all the same.
        let kept = landing.end(fetched.err().as_ref());
        if !kept.is_empty() {
            let fetcher = Arc::clone(&self);
            // The room is given back after the store's write, which is what bounds the memory of slow disks.
            let keep = move || {
                fetcher.keep(kept);
                drop((listed, running, room));
            };
            self.tasks.spawn_blocking_on(keep, &self.runtime);
        }
    }

    /// Takes room for the neighbours of the first seat, and only free room. Who gets none is left out, and so is who lies
    /// behind them, since one range brings all.
    fn settle(&self, seats: Vec<Seat>, first: Option<AdmissionPermit>) -> (Vec<Ticket>, Vec<Seat>) {
        let (mut aboard, mut left_out) = (Vec::with_capacity(seats.len()), Vec::new());
        let mut seats = seats.into_iter();
        let Some(own) = seats.next() else { return (aboard, left_out) };
        let at = own.file;
        aboard.push(Ticket { seat: own, reservation: first });
        let (mut forward, mut backward) = (true, true);
        for seat in seats {
            let open = if seat.file > at { &mut forward } else { &mut backward };
            let room = open.then(|| self.cache.admit_without_evicting(seat.part.block, seat.part.block_len)).flatten();
            *open = room.is_some();
            match room {
                Some(room) => aboard.push(Ticket { seat, reservation: Some(room) }),
                None => left_out.push(seat),
            }
        }
        aboard.sort_by_key(|ticket| ticket.seat.file);
        (aboard, left_out)
    }

    /// Writes blocks to the store; one that it does not take goes into the window. Blocks on the disk.
    fn keep(&self, blocks: Vec<Kept>) {
        for Kept { reservation, bytes, record } in blocks {
            let block = reservation.block();
            let record = record.unwrap_or_else(|| self.cache.record(block, &bytes));
            if self.cache.write(reservation, &record).is_err() {
                debug!(block = block.0, "block not kept");
                self.window.insert(block, bytes);
            }
        }
    }

    /// Room for the block, if the policy gives it any. Warming makes no other block leave.
    async fn reserve(&self, part: BlockPart, purpose: Purpose) -> Option<AdmissionPermit> {
        // After a restart the store refuses until it has counted what it holds: a few milliseconds, on its own thread.
        if !self.store_counted.load(Ordering::Relaxed) {
            let (cache, patience) = (Arc::clone(&self.cache), self.config.read_deadline);
            let counted = self.runtime.spawn_blocking(move || cache.wait_rebuilt(patience)).await;
            self.store_counted.store(counted.unwrap_or(false), Ordering::Relaxed);
        }
        match purpose {
            Purpose::Read | Purpose::Peer { .. } => self.cache.admit(part.block, part.block_len),
            Purpose::Warm => self.cache.admit_without_evicting(part.block, part.block_len),
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

    async fn already_here(&self, part: BlockPart) -> Option<Bytes> {
        if let Some(block) = self.window.peek(part.block) {
            return Some(block);
        }
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

    /// The block of a flight from the first of its nodes that has it whole and with the right checksum. None: it has no
    /// such nodes, or none of them answers as it should in half of the read deadline, which is counted.
    async fn get_from_peers(&self, landing: &Landing<'_>, route: &Route) -> Option<Bytes> {
        let (Some(sharing), Some(seat)) = (&self.sharing, landing.only()) else { return None };
        let (block, crc) = (seat.part.block, self.manifest.block_crc(seat.part.block).ok()?);
        let ask_all = async {
            for node in &route.nodes {
                match sharing.read(node, &seat.part).await {
                    Ok(bytes) if crc.is_none_or(|crc| larder_dataset::crc32c(&bytes) == crc) => return Some(bytes),
                    Ok(_) => warn!(
                        block = block.0,
                        ?node,
                        "another node has wrong bytes: their checksum is not the manifest's"
                    ),
                    Err(error) => debug!(block = block.0, ?node, error = %Chain(&error), "not from another node"),
                }
                add(&self.counters.peer_errors, 1);
            }
            None
        };
        // The origin gets the other half.
        tokio::time::timeout(self.config.read_deadline / 2, ask_all).await.unwrap_or_else(|_| {
            add(&self.counters.peer_errors, 1);
            None
        })
    }

    /// The blocks of a run from the origin by one GET. Those that came with another checksum than the manifest's are asked
    /// for again, each by itself.
    async fn get(&self, asked_for: BlockIndex, landing: &mut Landing<'_>) -> Result<(), FetchError> {
        self.get_once(asked_for, landing).await?;
        for _ in 1..CHECKSUM_ATTEMPTS {
            for block in landing.take_wrong() {
                landing.await_again(block);
                self.get_once(asked_for, landing).await?;
            }
        }
        Ok(())
    }

    async fn get_once(&self, asked_for: BlockIndex, landing: &mut Landing<'_>) -> Result<(), FetchError> {
        let object = |seat: &Seat| {
            let file = self.manifest.file(seat.file)?;
            let end = seat.part.file_offset + u64::from(seat.part.block_len);
            object_range(&self.manifest, &file, seat.part.file_offset..end)
        };
        let Some((first, last)) = landing.ends() else { return Ok(()) };
        let ObjectRange { key, mut range, version } = object(first)?;
        range.end = object(last)?.range.end;
        let bytes = range.end - range.start;
        let origin = Arc::clone(&self.origin.read().unwrap_or_else(PoisonError::into_inner));
        let read = origin.read_to(&key, range, version.as_ref(), &mut |bytes| landing.take(bytes)).await;
        read.map_err(|error| self.decide(asked_for, error))?;
        add(&self.counters.origin_gets, 1);
        add(&self.counters.origin_bytes, bytes);
        Ok(())
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
