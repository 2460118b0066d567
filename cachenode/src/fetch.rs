//! Fetches the blocks that the store lacks: one GET for a block, however many readers wait for it, or for several blocks.
//! Where nodes share their caches, the block's owner is asked first ([`sharing`](crate::sharing)).
//!
//! A block that is fetched is *in flight*: a task requests it, hands it to its waiters as soon as its bytes are there
//! (`receive`), then writes it to the store if the policy admits it (`keep`), which may take the store a while after a restart.
//! The block stays in flight until its bytes are in the store or in the window. A later reader therefore finds it in one of
//! the three, and never causes a second GET.
//! The fetch of a packed file includes its neighbours as long as the store has room for them. Readers in order are read ahead
//! of (`ahead`).
//!
//! Invariants: at most one fetch of a block is in flight; all fetches together hold at most `fetch_bytes`; each ends within
//! the read deadline; no lock is held across an await.

mod config;
mod context;
mod error;
mod in_flight;
mod keep;
mod neighbours;
mod origin;
mod outcome;
mod peers;
mod purpose;
mod receive;
mod subscribers;
mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use larder_origin::Origin;
use larder_peers::{BlockBytes, ReadError};
use larder_store::DatasetCache;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;

use crate::ahead::{AHEAD_BLOCKS, AHEAD_BYTES, ReadAhead};
use crate::counters::StatsCounters;
use crate::manifest_file::MappedManifest;
use crate::sharing::{Asker, Route, Sharing};

use context::FetchContext;
use in_flight::InFlight;
use keep::Keeper;
use origin::FromOrigin;
use outcome::Outcome;
use peers::FromPeers;
use purpose::Purpose;
use receive::{Admission, BlockReceiver};
use table::{InFlightTable, StartedFetch};

pub use config::FetchConfig;
pub use error::FetchError;
pub(crate) use outcome::Tier;

/// Memory for the largest possible fetch: an extent, and a block that begins at its end.
const FETCH_BYTES_LEAST: u64 = 8 << 20;

/// Interval between two checks of whether all fetches have ended.
const SETTLE_POLL: Duration = Duration::from_millis(2);

/// Bytes of a part of a block.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Exactly the part's bytes.
    pub(crate) bytes: Bytes,
    /// Where they were found.
    pub(crate) tier: Tier,
}

/// The outcome of warming a block.
#[derive(Clone, Debug)]
pub(crate) enum Warmed {
    /// The block is in the store.
    Kept,
    /// The store does not admit it.
    NoRoom,
    /// Another node keeps it.
    NotOurs,
    /// It could not be fetched. The error was counted and logged.
    Failed,
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
    /// Permits for KiB of blocks in flight.
    memory: Arc<Semaphore>,
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
        let ahead = ReadAhead::new(manifest.totals().blocks);
        let context = Arc::new(FetchContext::new(manifest, cache, counters, config));
        let tasks = TaskTracker::new();
        Self {
            in_flight: Arc::default(),
            peers: FromPeers::new(Arc::clone(&context), sharing),
            origin: FromOrigin::new(Arc::clone(&context), origin),
            keeper: Keeper::new(Arc::clone(&context), runtime.clone(), tasks.clone()),
            context,
            ahead,
            memory: Arc::new(Semaphore::new((config.fetch_bytes.max(FETCH_BYTES_LEAST) >> 10) as usize)),
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

    pub(crate) fn window_bytes(&self) -> u64 {
        self.context.window.bytes()
    }

    /// Waits until no fetch is left. Called when no reader can start one any more. Takes at most the read deadline and a disk
    /// write.
    pub(crate) async fn drain(&self) {
        self.keeper.leave();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits until no fetch is in flight and every block that was fetched is in the store or in the window. Waits for fetches
    /// that start meanwhile, too. Cancel-safe.
    pub(crate) async fn wait_idle(&self) {
        while !self.tasks.is_empty() {
            tokio::time::sleep(SETTLE_POLL).await;
        }
    }

    /// A part's bytes, if its block is in the window. Marks the part as read.
    pub(crate) fn in_window(&self, part: &BlockPart) -> Option<Bytes> {
        let block = self.context.window.read(part.block, part.start..part.start + part.len)?;
        Some(slice(&block, part))
    }

    /// A part's bytes: from the window, from a fetch in flight, or from a new one. Cancel-safe: the fetch continues.
    pub(crate) async fn fetch(self: &Arc<Self>, file: FileIndex, part: BlockPart) -> Result<Fetched, FetchError> {
        loop {
            if let Some(bytes) = self.in_window(&part) {
                return Ok(Fetched { bytes, tier: Tier::Window });
            }
            let first_of_file = BlockIndex(part.block.0 - (part.file_offset / BLOCK_BYTES) as u32);
            if self.ahead.missed(part.block, first_of_file) {
                self.read_ahead(part.block, part.block);
            }
            let (in_flight, _) = self.join_or_start(file, part, Purpose::Read);
            match in_flight.outcome().await {
                Outcome::Fetched(block, tier) => {
                    self.context.window.mark_read(part.block, part.start..part.start + part.len);
                    return Ok(Fetched { bytes: slice(&block, &part), tier });
                }
                Outcome::Failed(error) => return Err(error),
                // The fetch that this reader joined did not request the block.
                Outcome::NotAdmitted | Outcome::Skipped => {}
            }
        }
    }

    /// A part's bytes for a peer: from the window, or from a fetch as they arrive. None: the block is in flight from another
    /// peer. To wait for it could be to wait for the requesting peer.
    pub(crate) async fn fetch_for_peer(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        forwarded: bool,
    ) -> Result<Option<BlockBytes>, FetchError> {
        loop {
            if let Some(block) = self.context.window.peek(part.block) {
                return Ok(Some(BlockBytes::whole(slice(&block, &part))));
            }
            let (in_flight, route) = self.join_or_start(file, part, Purpose::Peer { forwarded });
            if in_flight.asks_peers && route.peers.is_empty() {
                return Ok(None);
            }
            let mut pieces = in_flight.subscribe(part.start as usize..(part.start + part.len) as usize);
            // A waiter would count as a reader of this node.
            drop(in_flight);
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

    /// Records a read of this block, and continues to read ahead if it is the block at which to do so.
    pub(crate) fn touched(self: &Arc<Self>, block: BlockIndex) {
        if let Some(last) = self.ahead.touched(block) {
            let fetcher = Arc::clone(self);
            self.tasks.spawn_on(async move { fetcher.read_ahead(block, last) }, &self.runtime);
        }
    }

    /// Starts to fetch the blocks after `block`, and marks the block at which to continue. Those up to `last` were started
    /// before, may have been read and dropped again, and are not fetched again.
    fn read_ahead(self: &Arc<Self>, block: BlockIndex, last: BlockIndex) {
        let (mut bytes, mut blocks_ahead, mut has_started) = (0, Vec::new(), false);
        let FetchContext { manifest, cache, window, .. } = &*self.context;
        let Ok(first) = manifest.file_of_block(block) else { return };
        'files: for file_index in (first.0..).map(FileIndex).take(neighbours::WALK_FILES) {
            let Ok(file) = manifest.file(file_index) else { break };
            for part in file.parts(0, file.size).filter(|part| part.block > block) {
                if bytes >= AHEAD_BYTES || blocks_ahead.len() >= AHEAD_BLOCKS {
                    break 'files;
                }
                bytes += u64::from(part.block_len);
                blocks_ahead.push(part.block);
                if part.block > last && !cache.contains(part.block) && !window.contains(part.block) {
                    let _ = self.join_or_start(file_index, part, Purpose::Read);
                    has_started = true;
                }
            }
        }
        // If every block is here already, the stream has caught up with an earlier reader, and ends.
        if let (true, Some(&middle), Some(&end)) =
            (has_started, blocks_ahead.get(blocks_ahead.len() / 2), blocks_ahead.last())
        {
            self.ahead.mark(middle, end.max(last));
        }
    }

    /// Fetches a block into the store, unless the store does not admit it.
    pub(crate) async fn warm(self: &Arc<Self>, file: FileIndex, whole: BlockPart) -> Warmed {
        // Before there is a fetch that a reader could join.
        self.keeper.store_is_counted().await;
        loop {
            if self.context.cache.contains(whole.block) {
                return Warmed::Kept;
            }
            if !self.peers.route(file, whole.block, Asker::Here).keep {
                return Warmed::NotOurs;
            }
            let (in_flight, _) = self.join_or_start(file, whole, Purpose::Warm);
            match in_flight.outcome().await {
                Outcome::Fetched(..) => return Warmed::Kept,
                Outcome::NotAdmitted => return Warmed::NoRoom,
                Outcome::Failed(_) => return Warmed::Failed,
                Outcome::Skipped => {}
            }
        }
    }

    /// Joins the block's fetch in flight, or starts one. The route is that of this purpose; the fetch that was joined may have
    /// another.
    fn join_or_start(self: &Arc<Self>, file: FileIndex, part: BlockPart, purpose: Purpose) -> (InFlight, Route) {
        let route = self.peers.route(file, part.block, purpose.asker());
        let asks_peers = !route.peers.is_empty();
        let (in_flight, started) = self.in_flight.join_or_start(file, part, asks_peers, |in_flight| {
            // A fetch includes neighbours only if it asks the origin and the store may keep the block: the neighbours have the
            // same owner.
            if asks_peers || !route.keep {
                return Vec::new();
            }
            neighbours::neighbours(&self.context.manifest, &self.context.cache, in_flight, file, &part)
        });
        if let Some(started) = started {
            if let Some(last) = started.blocks.iter().map(|pending| pending.part.block).max() {
                self.ahead.fetched_run(last, started.blocks.len());
            }
            self.tasks.spawn_on(Arc::clone(self).run(started, purpose, route.clone()), &self.runtime);
        }
        (in_flight, route)
    }

    /// Runs a fetch of one block, or of one and its neighbours. Each is completed as soon as its bytes are there. All are in
    /// the table until they are in the store or in the window.
    async fn run(self: Arc<Self>, started: StartedFetch, purpose: Purpose, route: Route) {
        let StartedFetch { mut blocks, mut entries } = started;
        let first = blocks[0].part;
        // Another fetch may have ended between the reader's look at store and window and the start of this one.
        if let Some(bytes) = self.keeper.find(first).await {
            let neighbours = blocks.split_off(1);
            entries.release(blocks, &Outcome::Fetched(bytes, Tier::Window));
            return entries.release(neighbours, &Outcome::Skipped);
        }
        let admission = if route.keep { self.keeper.admit(first, purpose).await } else { Admission::Refused };
        if matches!(admission, Admission::Refused) && purpose == Purpose::Warm {
            let neighbours = blocks.split_off(1);
            entries.release(blocks, &Outcome::NotAdmitted);
            return entries.release(neighbours, &Outcome::Skipped);
        }
        let (expected, skipped) = self.keeper.admit_neighbours(blocks, admission);
        entries.release(skipped, &Outcome::Skipped);
        let running = self.context.running();
        let kib = expected.iter().map(|block| block.pending.part.block_len >> 10).sum::<u32>() + 1;
        let mut receiver = BlockReceiver::new(&self.context, purpose, expected);
        let deadline = self.context.config.read_deadline;
        let mut memory = None;
        let fetched = tokio::time::timeout(deadline, async {
            memory = Some(Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| FetchError::Stopped)?);
            let from_peer = match receiver.only() {
                Some(pending) => self.peers.fetch(pending, &route).await,
                None => None,
            };
            match from_peer {
                Some(block) => receiver.receive_from_peer(block),
                None => self.origin.fetch(first.block, &mut receiver).await?,
            }
            Ok(())
        });
        let timed_out = FetchError::TimedOut { block: first.block, deadline };
        let fetched = fetched.await.unwrap_or(Err(timed_out));
        // Blocks that were complete before a failure are kept all the same.
        let to_keep = receiver.end(fetched.err().as_ref());
        if !to_keep.is_empty() {
            let decides_later = to_keep.iter().any(|block| block.permit.is_none());
            if decides_later && let Some(to_wait) = self.keeper.memory_to_wait(kib) {
                // The memory for fetches goes back: the next ones do not wait for the store.
                memory = Some(to_wait);
                self.keeper.store_is_counted().await;
            }
            let fetcher = Arc::clone(&self);
            // The memory is given back after the store's write. That bounds the memory of slow disks.
            let keep = move || {
                fetcher.keeper.write(to_keep);
                drop((entries, running, memory));
            };
            self.tasks.spawn_blocking_on(keep, &self.runtime);
        }
    }
}

/// The part's bytes out of its block's.
fn slice(block: &Bytes, part: &BlockPart) -> Bytes {
    block.slice(part.start as usize..(part.start + part.len) as usize)
}
