//! Fetches the blocks that the store lacks: one GET for a block, however many readers wait for it, or for several
//! blocks. Where nodes share their caches, the block's owner is asked first ([`sharing`](crate::sharing)).
//!
//! A block that is fetched is *in flight*: a task requests it, hands it to its waiters as soon as its bytes are there
//! (`receive`), then writes it to the store if the policy admits it (`keep`), which may take the store a while after a
//! restart. The block stays in flight until its bytes are in the store or in the window. A later reader therefore finds
//! it in one of the three, and never causes a second GET. A block for which neither the store nor the window has room
//! is read in pieces, each fetched for its reader alone. So are blocks of large files that are read here and there,
//! until the readers show that they want more of them (`window`). The fetch of a packed file includes its neighbours as
//! long as the store has room for them. Readers in order are read ahead of (`ahead`). A block of a large file is
//! fetched by several GETs where one connection is slow (`ranges`). Of files of tensors, what their readers are about to
//! read is fetched (`tensors`). Blocks in an earlier snapshot's cache, while they are adopted, are read there part by
//! part and are not in flight; neither are pieces, which are known while they come (`coming`).
//!
//! Bytes that wait for one thing do not hold the memory of those that wait for another. There are at most `fetch_bytes`
//! in flight from the origin; fetches from peers, fetches that fill the store, and blocks that wait for the store after
//! their readers have them have memory of their own. So an origin that hangs delays no read of a peer or of the disk,
//! and a disk that stalls delays no fetch: blocks that it does not take in time are not kept. All of it is taken of the
//! memory of the process (`memory`). Nor does a disk hold the threads of anything else: no task of the runtime blocks
//! on it, and few of the threads that may block do (`disk_threads`).
//!
//! A fetch that only fills the store lets those go first at the origin for which somebody waits, and has no deadline
//! until a reader joins it (`End`).
//!
//! Invariants: at most one fetch of a block is in flight; each ends within the read deadline, counted from when somebody
//! waits for it, and so does each read, whenever the fetches began that it joins; no lock is held across an await.
//! Readers take turns at the memory, so none waits for the backlog of another. A fetch counts for that one of its
//! readers whose turn came first.
//! A block that the store holds is never fetched again.

mod coming;
mod config;
mod context;
mod disk_threads;
mod end;
mod error;
mod for_peers;
mod in_flight;
mod keep;
mod neighbours;
mod origin;
mod outcome;
mod peers;
mod plans;
mod purpose;
mod ranges;
mod receive;
mod subscribers;
mod table;
mod tensors;
mod warmed;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use larder_origin::{Caller, Origin, PlaceReport, Scheme, watched};
use larder_store::{DatasetCache, PartBytes};
use larder_telemetry::TRACE_TARGET;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::StreamExt;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, trace_span};

use crate::ahead::{AHEAD_BLOCKS, Begins, NO_LIMIT, Next, ReadAhead};
use crate::counters::StatsCounters;
use crate::extent::EXTENT_BYTES;
use crate::manifest_file::MappedManifest;
use crate::memory::{Account, Permit};
use crate::sharing::{Asker, Route, Sharing};
use crate::stalls::{Cause, Phase, Stalls};
use crate::tensors::{Demand, Tensors};
use crate::window::Miss;

use coming::{ComingPieces, Landing};
use context::FetchContext;
use end::End;
use in_flight::InFlight;
use keep::Keeper;
use origin::FromOrigin;
use outcome::Outcome;
use peers::FromPeers;
use purpose::Purpose;
use receive::{Admission, BlockReceiver};
use table::{InFlightTable, StartedFetch};

pub use config::FetchConfig;
pub use disk_threads::DiskThreads;
pub use error::FetchError;
pub(crate) use outcome::{Tier, Warmed};

/// Interval between two checks of whether all fetches have ended.
const SETTLE_POLL: Duration = Duration::from_millis(2);

/// A request for so much at the beginning of a large file begins a stream. The kernel requests so much for a reader with
/// a buffer of 128 KiB.
const READS_ON_BYTES: u32 = 256 << 10;

/// Memory for the headers of files of tensors that are read, and for the tensors of those whose readers are followed.
const HEADERS_BYTES: u64 = 32 << 20;

/// A reader that joins a fetch within this time of its start fails with it. The pieces of one read come at about the
/// same time, and another fetch would end too late for them.
const JOINED_LATE: Duration = Duration::from_secs(1);

/// Bytes of a part of a block.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Exactly the part's bytes.
    pub(crate) bytes: Bytes,
    /// Where they were found.
    pub(crate) tier: Tier,
}

/// Fetches the blocks of a dataset. Shared by all of its readers.
#[derive(Debug)]
pub(crate) struct Fetcher {
    context: Arc<FetchContext>,
    in_flight: Arc<InFlightTable>,
    peers: FromPeers,
    origin: FromOrigin,
    keeper: Keeper,
    ahead: ReadAhead,
    tensors: Tensors,
    coming: Arc<ComingPieces>,
    /// Memory for blocks in flight from the origin. Readers take turns.
    memory: Account,
    tasks: TaskTracker,
    runtime: Handle,
}

impl Fetcher {
    pub(crate) fn new(
        manifest: Arc<MappedManifest>,
        cache: Arc<DatasetCache>,
        origin: Arc<dyn Origin>,
        sharing: Option<Arc<Sharing>>,
        counters: Arc<StatsCounters>,
        runtime: Handle,
        config: FetchConfig,
    ) -> Self {
        let totals = manifest.totals();
        let extents = u32::try_from(totals.bytes / EXTENT_BYTES).unwrap_or(u32::MAX);
        let ahead = ReadAhead::new(if manifest.is_packed() { totals.files.min(extents) } else { totals.files });
        let (memory, tensors) = (config.origin_account(), Tensors::new(config.other_account(HEADERS_BYTES)));
        let context = Arc::new(FetchContext::new(manifest, cache, counters, config));
        let tasks = TaskTracker::new();
        Self {
            in_flight: Arc::default(),
            peers: FromPeers::new(Arc::clone(&context), sharing),
            origin: FromOrigin::new(Arc::clone(&context), origin),
            keeper: Keeper::new(Arc::clone(&context), runtime.clone(), tasks.clone()),
            context,
            ahead,
            tensors,
            coming: Arc::default(),
            memory,
            tasks,
            runtime,
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Fetches that start from now on use `origin`.
    pub(crate) fn replace_origin(&self, origin: Arc<dyn Origin>) {
        self.origin.replace(origin);
    }

    /// The memory of the process and what is held of it, by name.
    pub(crate) fn memory_values(&self) -> [(&'static str, u64); 2] {
        self.memory.budget().values()
    }

    pub(crate) fn window_bytes(&self) -> u64 {
        self.context.window.bytes()
    }

    /// Waits until no fetch is left. Called when no reader can start another one. Takes at most the read deadline and
    /// a disk write.
    pub(crate) async fn drain(&self) {
        self.keeper.leave();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits until no fetch is in flight and every block that was fetched is in the store or in the window. Waits for
    /// fetches that start meanwhile, too. Cancel-safe.
    pub(crate) async fn wait_idle(&self) {
        while !self.tasks.is_empty() {
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }

    /// A part's bytes, if its block is in the window.
    pub(crate) fn in_window(&self, part: &BlockPart) -> Option<Bytes> {
        self.context.window.get(part)
    }

    /// A part's bytes, if a plan holds its block.
    pub(crate) fn in_plan(&self, part: &BlockPart) -> Option<Bytes> {
        self.context.planned.get(part)
    }

    /// Marks a part as read: its reader has the bytes, and those of all other parts of its read.
    pub(crate) fn mark_read(self: &Arc<Self>, part: &BlockPart) {
        if let Some(read) = self.context.planned.mark_read(part) {
            self.leave_planned(read);
        }
        self.context.window.mark_read(part);
    }

    /// The kind of the origin.
    pub(crate) fn scheme(&self) -> Scheme {
        self.origin.scheme()
    }

    /// How long the readers of the dataset wait.
    pub(crate) fn stalls(&self) -> &Arc<Stalls> {
        &self.context.stalls
    }

    /// When a read that begins now ends at the latest.
    pub(crate) fn deadline(&self) -> Instant {
        self.context.deadline()
    }

    /// A part's bytes: from the window, an earlier snapshot's cache, a fetch in flight, or a new one. Fails by the
    /// `deadline` of its read. The caller marks the part as read. Cancel-safe: the fetch continues, except for that of
    /// a piece.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        deadline: Instant,
    ) -> Result<Fetched, FetchError> {
        // Of the fetch that this reader starts, if it does.
        let mut fetch_deadline = deadline;
        loop {
            if let Some(bytes) = self.in_plan(&part).or_else(|| self.in_window(&part)) {
                return Ok(Fetched { bytes, tier: Tier::Window });
            }
            let has_earlier = self.context.cache.has_earlier(part.block);
            let waits = has_earlier.then(|| self.context.stalls.waits_for(Cause::Disk));
            if let Some(PartBytes { memory, range, .. }) = self.keeper.read_earlier(part, deadline).await {
                return Ok(Fetched { bytes: Bytes::from(memory).slice(range), tier: Tier::Window });
            }
            drop(waits);
            if let Some(coming) = self.coming.find(&part) {
                let _waits = self.context.stalls.joins(coming.phase());
                if let Some(bytes) = Box::pin(coming.bytes_of(part, deadline)).await {
                    return Ok(Fetched { bytes, tier: Tier::Window });
                }
            }
            if self.context.window.is_piece(&part) {
                return Box::pin(self.fetch_own_piece(file, part, deadline)).await;
            }
            let demand = self.follow_tensors(file, &part);
            let piece = match demand {
                Demand::Unknown => {
                    self.next_piece(file, &part).filter(|miss| !miss.then_block || self.follow(file, part))
                }
                Demand::Part(piece) => self.takes_pieces(file, part.block).then_some(Miss { piece, then_block: false }),
                Demand::Block => None,
            };
            if let Some(Miss { piece, .. }) = piece {
                return Box::pin(self.fetch_larger_piece(file, part, piece, Asker::Here, deadline)).await;
            }
            let next = match demand {
                _ if self.tensors.leave_out(&part) => None,
                Demand::Unknown => self.missed(file, &part),
                // The blocks that follow are fetched ahead without a stream.
                Demand::Block | Demand::Part(_) => self.ahead.waited(part.block),
            };
            let (in_flight, _) = self.join_or_start(file, part, Purpose::Read, End::by(fetch_deadline));
            // Behind the block that the reader waits for.
            if let Some(next) = next {
                self.read_ahead(next);
            }
            let _stalled = self.context.planned.stalls(part.block);
            let was_late = in_flight.end.deadline().is_some_and(|end| end + JOINED_LATE < deadline);
            let waits = self.context.stalls.joins(in_flight.end.phase());
            let outcome = in_flight.outcome_until(deadline).await;
            drop(waits);
            match outcome.unwrap_or_else(|| Outcome::Failed(self.context.timed_out(part.block))) {
                Outcome::Fetched(block, tier) => {
                    self.look_at_start(file, &part, &block);
                    return Ok(Fetched { bytes: slice(&block, &part), tier });
                }
                // The time of the fetch is over, and that of this reader is not. Its next fetch has the whole time, so
                // that the other readers of the block join that one.
                Outcome::Failed(FetchError::TimedOut { .. }) if was_late => fetch_deadline = self.deadline(),
                Outcome::Failed(error) => return Err(error),
                Outcome::InPieces => return Box::pin(self.fetch_own_piece(file, part, deadline)).await,
                // The fetch that this reader joined did not request the block.
                Outcome::NotAdmitted | Outcome::Skipped => {}
            }
        }
    }

    /// The peers to ask for a block before the origin, and whether the store may keep it.
    fn route(&self, file: FileIndex, block: BlockIndex, asker: Asker) -> Route {
        let mut route = self.peers.route(file, block, asker);
        if route.peers.is_empty() && asker == Asker::Here && self.origin.is_costly() {
            route.peers = self.peers.near(file, block);
        }
        route
    }

    /// The places that the dataset is read from, if there are several.
    pub(crate) fn origins(&self) -> Vec<PlaceReport> {
        self.origin.report()
    }

    /// Waits until a fetch must end: at its deadline, which is counted from now on if nobody waits and the dataset is
    /// being closed. Cancel-safe.
    async fn late(&self, end: &End) {
        if !end.urgency().is_high() {
            // On the heap, so that the thousands of others that may wait for the origin are small.
            Box::pin(async {
                tokio::select! {
                    () = end.urgency().high() => {}
                    () = self.keeper.left() => {}
                }
            })
            .await;
        }
        sleep_until(self.deadline_of(end)).await;
    }

    /// The deadline of a fetch, or that of one that begins now, if nobody waits for it yet.
    fn deadline_of(&self, end: &End) -> Instant {
        end.deadline().unwrap_or_else(|| self.deadline())
    }

    /// Memory for a fetch from the origin. It comes in the turn of whichever is the first of the readers that wait for
    /// the fetch, so that none of them waits for the backlog of the one that started it. Cancel-safe.
    async fn memory_for(&self, kib: u32, end: &End) -> Permit {
        match self.memory.try_acquire(kib) {
            Some(memory) => memory,
            // On the heap, so that the thousands of others that may wait for the origin are small.
            None => Box::pin(self.wait_for_memory(kib, end)).await,
        }
    }

    async fn wait_for_memory(&self, kib: u32, end: &End) -> Permit {
        let (mut waits, mut waiting) = (FuturesUnordered::new(), 0);
        loop {
            for caller in end.callers().into_iter().skip(waiting) {
                waits.push(caller.run(self.memory.acquire(kib)));
                waiting += 1;
            }
            tokio::select! {
                Some(memory) = waits.next() => return memory,
                () = end.joined() => {}
            }
        }
    }

    /// A piece for a reader of this node, which waits meanwhile.
    async fn fetch_own_piece(
        &self,
        file: FileIndex,
        part: BlockPart,
        deadline: Instant,
    ) -> Result<Fetched, FetchError> {
        let phase = Arc::new(Phase::default());
        let _waits = self.context.stalls.joins(&phase);
        self.fetch_piece(file, part, Asker::Here, deadline, &phase).await
    }

    /// A piece of a block that is read in pieces, from a peer or from the origin. Only the caller holds it.
    async fn fetch_piece(
        &self,
        file: FileIndex,
        part: BlockPart,
        asker: Asker,
        deadline: Instant,
        phase: &Arc<Phase>,
    ) -> Result<Fetched, FetchError> {
        let _running = self.context.running();
        let stalls = &self.context.stalls;
        let fetched = timeout_at(deadline, async {
            let route = self.route(file, part.block, asker);
            if !route.peers.is_empty() {
                stalls.enters(phase, Cause::Peer);
            }
            if let Some(bytes) = self.peers.fetch(part.range(), &route, Purpose::Read, deadline).await {
                return Ok(Fetched { bytes, tier: Tier::Peer });
            }
            stalls.enters(phase, Cause::Limit);
            let _memory = self.memory.acquire((part.len >> 10) + 1).await;
            stalls.enters(phase, Cause::Origin);
            let bytes = watched(self.context.watch(phase), self.origin.fetch_part(file, &part)).await?;
            Ok::<_, FetchError>(Fetched { bytes, tier: Tier::Origin })
        });
        let fetched = fetched.await.unwrap_or_else(|_| Err(self.context.timed_out(part.block)));
        fetched.inspect_err(|error| self.context.fetch_failed(part.block, error))
    }

    /// The fetch for a part of a block. None: the whole block.
    fn next_piece(&self, file: FileIndex, part: &BlockPart) -> Option<Miss> {
        if self.takes_pieces(file, part.block) { self.context.window.next_piece(part) } else { None }
    }

    /// Starts to fetch a block behind a piece of it, under the conditions of a stream. False: there is no memory, or
    /// the disk is behind, so the reader waits for the block.
    fn follow(self: &Arc<Self>, file: FileIndex, part: BlockPart) -> bool {
        let has_room = self.memory.leaves_half(u64::from(part.block_len >> 10) + 1) && self.context.disk_keeps_up();
        if has_room {
            let _ = self.join_or_start(file, part, Purpose::Ahead, End::by(self.deadline()));
        }
        has_room
    }

    /// True if pieces of a block may be fetched: its file has several, and nothing fetches all of it, or has.
    fn takes_pieces(&self, file: FileIndex, block: BlockIndex) -> bool {
        let FetchContext { manifest, cache, planned, .. } = &*self.context;
        let is_large = manifest.file(file).is_ok_and(|file| file.size > BLOCK_BYTES);
        is_large && !self.in_flight.contains(block) && !planned.contains(block) && !cache.contains(block)
    }

    /// A part's bytes out of a piece that is fetched, and held for the reads that come near it. The store keeps it,
    /// too, if it takes parts of the block.
    async fn fetch_larger_piece(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        piece: BlockPart,
        asker: Asker,
        deadline: Instant,
    ) -> Result<Fetched, FetchError> {
        let landing = self.coming.begin(piece);
        // A reader of another node does not count here.
        let _waits = (asker == Asker::Here).then(|| self.context.stalls.joins(landing.phase()));
        let Fetched { bytes, tier } = self.land_piece(file, piece, asker, deadline, landing).await?;
        let start = (part.start - piece.start) as usize;
        Ok(Fetched { bytes: bytes.slice(start..start + part.len as usize), tier })
    }

    /// The bytes of a piece, which are also handed to those that have joined its fetch, and held.
    async fn land_piece(
        self: &Arc<Self>,
        file: FileIndex,
        piece: BlockPart,
        asker: Asker,
        deadline: Instant,
        landing: Landing,
    ) -> Result<Fetched, FetchError> {
        let fetched = self.fetch_piece(file, piece, asker, deadline, landing.phase()).await?;
        self.context.window.hold_piece(piece, fetched.bytes.clone());
        if self.context.cache.takes_parts(piece.block) && self.peers.route(file, piece.block, asker).keep {
            self.keep_piece(piece, fetched.bytes.clone());
        }
        landing.land(fetched.bytes.clone());
        Ok(fetched)
    }

    /// Has the store keep a piece, if there is memory for it until it is written.
    fn keep_piece(self: &Arc<Self>, piece: BlockPart, bytes: Bytes) {
        let Some(memory) = self.context.memory_until_written((piece.len >> 10) + 1) else { return };
        let (fetcher, running) = (Arc::clone(self), self.context.running());
        let keep = async move {
            let turn = fetcher.keeper.turn_to_write().await;
            let (tasks, runtime) = (fetcher.tasks.clone(), fetcher.runtime.clone());
            let write = move || {
                fetcher.keeper.write_piece(&piece, &bytes);
                drop((memory, running, turn));
            };
            tasks.spawn_blocking_on(write, &runtime);
        };
        self.tasks.spawn_on(keep, &self.runtime);
    }

    /// A part's bytes, if the store has its block and the disk answers in time: half of the time until `deadline`.
    pub(crate) async fn stored(&self, part: BlockPart, deadline: Instant) -> Option<Bytes> {
        let PartBytes { memory, range, .. } = self.keeper.read_stored(part, deadline).await?;
        Some(Bytes::from(memory).slice(range))
    }

    /// Records that a reader waits for a block. Returns what is to be fetched ahead of the reader now.
    fn missed(&self, file: FileIndex, part: &BlockPart) -> Option<Next> {
        if let Some(next) = self.ahead.waited(part.block) {
            return Some(next);
        }
        let manifest = &self.context.manifest;
        let first_of_file = BlockIndex(part.block.0 - (part.file_offset / BLOCK_BYTES) as u32);
        let first_of_previous = |first: BlockIndex| {
            let last = BlockIndex(first.0.checked_sub(1)?);
            Some(manifest.file(manifest.file_of_block(last).ok()?).ok()?.first_block)
        };
        let begins = self.ahead.missed(part.block, first_of_file, first_of_previous);
        // A reader that requests so much at the beginning of a file reads on.
        let reads_on = part.file_offset == 0 && part.start == 0 && part.len >= READS_ON_BYTES;
        let limit = match begins.or(reads_on.then_some(Begins::InFile))? {
            Begins::AcrossFiles => NO_LIMIT,
            Begins::InFile => {
                let row = manifest.file(file).ok()?;
                // A file of a missed block has blocks.
                BlockIndex(row.first_block.0 + (row.size.div_ceil(BLOCK_BYTES) - 1) as u32)
            }
        };
        if part.block < limit { self.ahead.begin(part.block, limit) } else { None }
    }

    /// Records a read of this part, and fetches ahead of its reader if its block is one at which to do so.
    pub(crate) fn touched(self: &Arc<Self>, part: &BlockPart) {
        match self.ahead.read(part.block) {
            Some(next) if self.tensors.leave_out(part) => self.ahead.end(next.stream),
            Some(next) => {
                let fetcher = Arc::clone(self);
                let ahead = async move { fetcher.read_ahead(next) };
                self.tasks.spawn_on(Caller::current().run(ahead), &self.runtime);
            }
            None => {}
        }
        self.read_tensors(part);
    }

    /// Starts to fetch blocks of a stream, until it does not move any more.
    fn read_ahead(self: &Arc<Self>, mut next: Next) {
        loop {
            let (last, fetched) = self.fetch_ahead(&next);
            match self.ahead.extended(next.stream, last, fetched) {
                Some(more) => next = more,
                None => return,
            }
        }
    }

    /// Starts to fetch blocks of a stream: as many as its depth says, and no more than the origin bears, than there is
    /// memory for beside what others wait for, and than the cache's disk takes. Returns the last block that is here or
    /// in flight, and the last of them that was not here.
    fn fetch_ahead(self: &Arc<Self>, next: &Next) -> (BlockIndex, Option<BlockIndex>) {
        let &Next { block, limit, depth, .. } = next;
        let FetchContext { manifest, cache, window, .. } = &*self.context;
        let blocks_most = AHEAD_BLOCKS.min(self.origin.places());
        let (mut bytes, mut blocks, mut kib_started) = (0, 0, 0);
        let (mut last, mut fetched) = (block, None);
        let Ok(first) = manifest.file_of_block(block) else { return (last, fetched) };
        for file_index in (first.0..).map(FileIndex).take(neighbours::WALK_FILES) {
            let Ok(file) = manifest.file(file_index) else { break };
            let blocks_before = (block.0 + 1).saturating_sub(file.first_block.0);
            for part in file.parts(u64::from(blocks_before) * BLOCK_BYTES, file.size) {
                if bytes >= depth.bytes() || blocks >= blocks_most || part.block > limit {
                    return (last, fetched);
                }
                let is_here = |block| cache.contains(block) || window.contains(block) || cache.has_earlier(block);
                if part.block > next.last && !is_here(part.block) {
                    kib_started += u64::from(part.block_len >> 10) + 1;
                    // A stream without a block ahead would not go on.
                    let is_too_much = !self.memory.leaves_half(kib_started) || !self.context.disk_keeps_up();
                    if blocks > 0 && is_too_much {
                        return (last, fetched);
                    }
                    let _ = self.join_or_start(file_index, part, Purpose::Ahead, End::by(self.deadline()));
                    fetched = Some(part.block);
                }
                bytes += u64::from(part.block_len);
                blocks += 1;
                last = part.block;
            }
        }
        (last, fetched)
    }

    /// Advice about replaced objects, if one was met.
    pub(crate) fn stale_advice(&self) -> Option<String> {
        self.context.stale_advice()
    }

    /// Sets what renews the listing of the dataset, in words, for [`Self::stale_advice`].
    pub(crate) fn set_renewal(&self, renewal: String) {
        self.context.set_renewal(renewal);
    }

    /// Joins the block's fetch in flight, or starts one with this `end`. The route is that of this purpose; the fetch
    /// that was joined may have another, and another end.
    fn join_or_start(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        purpose: Purpose,
        end: End,
    ) -> (InFlight, Route) {
        self.join_or_start_in_turn(file, part, purpose, end, None)
    }

    /// The same. A fetch that is started drops `turn` once the store has decided whether it keeps the block.
    fn join_or_start_in_turn(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        purpose: Purpose,
        end: End,
        turn: Option<OwnedSemaphorePermit>,
    ) -> (InFlight, Route) {
        let route = self.route(file, part.block, purpose.asker());
        let asks_peers = !route.peers.is_empty();
        let (in_flight, started) = self.in_flight.join_or_start(file, part, asks_peers, &end, |in_flight| {
            // A fetch includes neighbours only if it asks the origin and the store may keep the block: the neighbours
            // have the same owner.
            if asks_peers || !route.keep || purpose == Purpose::WarmAlone {
                return Vec::new();
            }
            neighbours::neighbours(&self.context.manifest, &self.context.cache, in_flight, file, &part)
        });
        if let Some(started) = started {
            let blocks = || started.blocks.iter().map(|pending| pending.part.block);
            if let (Some(first), Some(last)) = (blocks().min(), blocks().max()) {
                self.ahead.fetched_run(first, last);
            }
            let span = trace_span!(target: TRACE_TARGET, "fetch", block = part.block.0, ?purpose);
            let run = Arc::clone(self).run(started, purpose, end, route.clone(), turn).instrument(span);
            self.tasks.spawn_on(Caller::current().run(run), &self.runtime);
        }
        (in_flight, route)
    }

    /// Runs a fetch of one block, or of one and its neighbours. Each is completed as soon as its bytes are there. All
    /// are in the table until they are in the store or in the window.
    async fn run(
        self: Arc<Self>,
        started: StartedFetch,
        mut purpose: Purpose,
        end: End,
        route: Route,
        turn: Option<OwnedSemaphorePermit>,
    ) {
        let StartedFetch { mut blocks, mut entries } = started;
        let first = blocks[0].part;
        let stalls = &self.context.stalls;
        stalls.enters(end.phase(), Cause::Disk);
        // Another fetch may have ended between the reader's look at store and window and the start of this one.
        if let Some(bytes) = self.keeper.find(first, purpose, self.deadline_of(&end)).await {
            let neighbours = blocks.split_off(1);
            entries.release(blocks, &Outcome::Fetched(bytes, Tier::Window));
            return entries.release(neighbours, &Outcome::Skipped);
        }
        let admission = if route.keep { self.admit(first, purpose, &end).await } else { Some(Admission::Refused) };
        drop(turn);
        // The fetch that only fills the store comes after this one.
        let admission = admission.unwrap_or_else(|| {
            purpose = Purpose::Read;
            Admission::Refused
        });
        if matches!(admission, Admission::Refused) && purpose.is_warm() {
            let neighbours = blocks.split_off(1);
            entries.release(blocks, &Outcome::NotAdmitted);
            return entries.release(neighbours, &Outcome::Skipped);
        }
        let admission = match self.hold_in_window(admission, purpose, &first) {
            Ok(admission) => admission,
            // Neighbours are fetched only with a block that the store keeps.
            Err(outcome) => return entries.release(blocks, &outcome),
        };
        let (expected, skipped) = self.keeper.admit_neighbours(blocks, admission);
        if let Some(rate) = self.context.config.warm_rate.as_ref().filter(|_| purpose == Purpose::Warm) {
            // The block itself was paid for before its fetch began.
            let beside = expected.iter().map(|block| &block.pending.part).filter(|part| part.block != first.block);
            rate.charge(beside.map(|part| u64::from(part.block_len)).sum());
        }
        entries.release(skipped, &Outcome::Skipped);
        let running = self.context.running();
        let kib = expected.iter().map(|block| block.pending.part.block_len >> 10).sum::<u32>() + 1;
        let mut receiver = BlockReceiver::new(&self.context, purpose, expected);
        let fetched = {
            let fetch = pin!(async {
                let from_peer = match receiver.only() {
                    Some(pending) => {
                        if !route.peers.is_empty() {
                            stalls.enters(end.phase(), Cause::Peer);
                        }
                        self.peers.fetch(pending.part.whole_block(), &route, purpose, self.deadline_of(&end)).await
                    }
                    None => None,
                };
                match from_peer {
                    Some(block) => receiver.receive_from_peer(block),
                    None => {
                        // A fetch that fills the store, or that is planned, has other memory.
                        stalls.enters(end.phase(), Cause::Limit);
                        let _memory = if purpose.has_memory() { None } else { Some(self.memory_for(kib, &end).await) };
                        stalls.enters(end.phase(), Cause::Origin);
                        let watch = self.context.watch(end.phase());
                        watched(watch, self.origin.fetch(first.block, &mut receiver, end.urgency())).await?;
                    }
                }
                Ok::<(), FetchError>(())
            });
            let late = pin!(self.late(&end));
            match select(fetch, late).await {
                Either::Left((fetched, _)) => fetched,
                Either::Right(_) => Err(self.context.timed_out(first.block)),
            }
        };
        // Blocks that were complete before a failure are kept all the same.
        let (to_keep, failed) = receiver.end(fetched.err().as_ref());
        for (pending, error) in failed {
            // Not in the table any more: a waiter whose time is not over starts the next fetch.
            entries.release(vec![pending], &Outcome::Failed(error));
        }
        if !to_keep.is_empty() {
            if to_keep.iter().any(|block| block.permit.is_none()) {
                self.keeper.store_is_counted().await;
            }
            let turn = self.keeper.turn_to_write().await;
            let fetcher = Arc::clone(&self);
            let keep = move || {
                fetcher.keeper.write(to_keep);
                drop((entries, running, turn));
            };
            self.tasks.spawn_blocking_on(keep, &self.runtime);
        }
    }

    /// Whether the store keeps the block of a fetch. None: that is not known yet, because the store looks for disowned
    /// blocks, and a reader that has joined the fetch of a warm-up must not wait for that.
    async fn admit(&self, part: BlockPart, purpose: Purpose, end: &End) -> Option<Admission> {
        // For a reader this is known at once.
        match select(pin!(self.keeper.admit(part, purpose)), pin!(end.urgency().high())).await {
            Either::Left((admission, _)) => Some(admission),
            Either::Right(_) => None,
        }
    }

    /// Reserves room in the window for a block that the store does not keep. Err: it has none, and the block is not
    /// fetched now.
    fn hold_in_window(&self, admission: Admission, purpose: Purpose, part: &BlockPart) -> Result<Admission, Outcome> {
        let window = &self.context.window;
        // They were fetched too far ahead of their readers.
        window.take_dropped().into_iter().for_each(|block| self.ahead.dropped(block));
        let is_piece = part.len < part.block_len && !self.context.manifest.is_packed();
        match (admission, purpose) {
            (Admission::Refused, Purpose::Ahead) if window.is_full_of_ahead(part.block_len) => Err(Outcome::Skipped),
            // The peer reads it in pieces, and its other pieces would not find it here.
            (Admission::Refused, Purpose::Peer { .. }) if is_piece => {
                window.read_in_pieces(part.block);
                Err(Outcome::InPieces)
            }
            (Admission::Refused, Purpose::Read | Purpose::Ahead) if !self.context.manifest.is_packed() => {
                window.reserve(part).map(Admission::Window).ok_or(Outcome::InPieces)
            }
            (admission, _) => Ok(admission),
        }
    }
}

/// The part's bytes out of its block's.
fn slice(block: &Bytes, part: &BlockPart) -> Bytes {
    block.slice(part.start as usize..(part.start + part.len) as usize)
}

#[cfg(test)]
pub(crate) mod tests;
