//! Decides which fetched blocks the store keeps, and writes them.
//!
//! Where nodes share the dataset, the store takes the room of blocks that other nodes own now, once a search has found
//! them. Readers never wait for a search: one that finds none of them yet is not kept this time. Warming waits.
//!
//! After a restart the store admits nothing until it has counted its blocks. A block that is fetched meanwhile is
//! answered at once and waits for the store in memory.
//!
//! Readers never wait for the disk's writes. A block that readers have waits for its write in memory of its own
//! (`FetchContext::memory_until_written`); if there is none, because the disk is slow or stalled, the block is not
//! kept. Only warming waits, before there is a fetch that a reader could join. Reads of the disk, too, have memory and
//! threads of their own, and half of a reader's time: then the block is fetched.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::BlockPart;
use larder_store::{AdmissionPermit, PartBytes};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::context::{FetchContext, halfway};
use super::disk_threads::DiskThreads;
use super::in_flight::PendingBlock;
use super::purpose::Purpose;
use super::receive::{Admission, BlockToKeep, ExpectedBlock};
use crate::memory::{Account, Permit};

/// Interval between two looks at whether an adoption has ended.
const ADOPTED_POLL: Duration = Duration::from_millis(20);

/// The same for whether the store has written a piece of a block.
const WRITTEN_POLL: Duration = Duration::from_millis(20);

/// KiB that a read of a part of a block may need beyond the part: what its checksums cover is read whole.
const ROUNDED_KIB: u32 = 136;

/// The most memory for blocks that are read from a disk by other threads than FUSE's: at least three blocks.
const READING_BYTES: u64 = 16 << 20;

/// The most threads that write blocks of a dataset. A stalled disk holds each of them, and the other work of the
/// runtime's blocking threads, such as looking up the origin's name, must go on.
const WRITERS: usize = 8;

/// Decides which fetched blocks the store keeps, and writes them.
#[derive(Debug)]
pub(super) struct Keeper {
    context: Arc<FetchContext>,
    runtime: Handle,
    tasks: TaskTracker,
    /// Held by the search for disowned blocks.
    pub(super) searching: Arc<Mutex<()>>,
    /// Memory for blocks that are read from each disk. Reads of one that hangs keep theirs, and must not delay those of
    /// the others.
    pub(super) reading: Vec<Account>,
    /// The threads that wait for the disks.
    pub(super) threads: DiskThreads,
    /// Memory for fetches that fill the store.
    warming: Account,
    /// Permits to write blocks.
    pub(super) writing: Arc<Semaphore>,
    /// Cancelled when blocks need not wait for the store any longer.
    leaving: CancellationToken,
}

impl Keeper {
    /// Background work that it starts is among `tasks`.
    pub(super) fn new(context: Arc<FetchContext>, runtime: Handle, tasks: TaskTracker) -> Self {
        let config = &context.config;
        let disks = context.cache.disks();
        let reading = (0..disks).map(|_| config.other_account(READING_BYTES)).collect();
        let threads = config.disk_threads.clone().unwrap_or_else(|| DiskThreads::new(disks));
        let warming = config.other_fetches_account();
        let writing = Arc::new(Semaphore::new(WRITERS));
        let (searching, leaving) = (Arc::default(), CancellationToken::new());
        Self { context, runtime, tasks, searching, reading, threads, warming, writing, leaving }
    }

    /// The whole block, if a plan or the window holds it or it has come into the store just now. In memory it is of no
    /// use to a fetch that fills the store. None also if the disk does not answer in time.
    pub(super) async fn find(&self, part: BlockPart, purpose: Purpose, deadline: Instant) -> Option<Bytes> {
        let whole = BlockPart { start: 0, len: part.block_len, ..part };
        let held = || self.context.planned.get(&whole).or_else(|| self.context.window.unread(part.block));
        if let Some(block) = (!purpose.is_warm()).then(held).flatten() {
            return Some(block);
        }
        let PartBytes { memory, range, .. } = self.read_stored(whole, deadline).await?;
        Some(Bytes::from(memory).slice(range))
    }

    /// A part of a block that the store has. None also if the disk does not answer in time.
    pub(super) async fn read_stored(&self, part: BlockPart, deadline: Instant) -> Option<PartBytes> {
        let cache = Arc::clone(&self.context.cache);
        let disk = cache.disk_of(part.block)?;
        let BlockPart { block, block_len, start, len, .. } = part;
        let read = move || cache.read_into(block, block_len, start, len, Vec::with_capacity).hit();
        Box::pin(self.read_disk(disk, (len >> 10) + ROUNDED_KIB, deadline, read)).await
    }

    /// A part of a block out of the cache of an earlier snapshot, while the blocks of that are adopted. None also if
    /// the disk does not answer in time.
    pub(super) async fn read_earlier(&self, part: BlockPart, deadline: Instant) -> Option<PartBytes> {
        let cache = Arc::clone(&self.context.cache);
        let disk = cache.earlier_disk_of(part.block)?;
        let read = move || cache.read_earlier(part.block, part.block_len, part.start, part.len);
        Box::pin(self.read_disk(disk, (part.len >> 10) + ROUNDED_KIB, deadline, read)).await
    }

    /// The result of `read`, which blocks on a disk and needs `kib` KiB of memory. None if it is not there after half of
    /// the time until `deadline`: the other half is left for a fetch. The read keeps its memory until it ends.
    async fn read_disk<T: Send + 'static>(
        &self,
        disk: usize,
        kib: u32,
        deadline: Instant,
        read: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let found = async {
            let memory = self.reading[disk].acquire(kib).await;
            let read = move || {
                let found = read();
                drop(memory);
                found
            };
            self.threads.read(&self.runtime, disk, read).await
        };
        timeout_at(halfway(deadline), found).await.ok().flatten()
    }

    /// Whether the store keeps a block. Warming and plans evict no other block, and warming waits for a search.
    /// Cancel-safe.
    pub(super) async fn admit(&self, part: BlockPart, purpose: Purpose) -> Admission {
        let cache = &self.context.cache;
        // Later, a planned block might evict another.
        let may_be_later = || purpose != Purpose::Planned || !cache.usage().policy.evicts();
        if cache.is_rebuilding() {
            return if may_be_later() { Admission::Later } else { Admission::Refused };
        }
        let permit = match purpose {
            Purpose::Read | Purpose::Ahead | Purpose::Planned | Purpose::Peer { .. } => {
                let permit = match purpose {
                    Purpose::Planned => cache.admit_without_evicting(part.block, part.block_len),
                    _ => cache.admit(part.block, part.block_len),
                };
                if cache.wants_search()
                    && let Ok(one) = Arc::clone(&self.searching).try_lock_owned()
                {
                    drop(self.search(one));
                }
                permit
            }
            Purpose::Warm | Purpose::WarmAlone => self.admit_warmed(part, purpose).await,
        };
        match permit {
            Some(permit) => Admission::Granted(permit),
            // A piece of it is being written, so the store could not decide.
            None if !purpose.is_warm() && may_be_later() && cache.is_pending(part.block) => Admission::Later,
            None => Admission::Refused,
        }
    }

    async fn admit_warmed(&self, part: BlockPart, purpose: Purpose) -> Option<AdmissionPermit> {
        let cache = &self.context.cache;
        let admit = || match purpose {
            Purpose::WarmAlone => cache.admit_listed(part.block, part.block_len),
            _ => cache.admit_without_evicting(part.block, part.block_len),
        };
        loop {
            let permit = admit();
            if permit.is_some() {
                return permit;
            }
            if cache.is_pending(part.block) {
                // A piece of it is being written. To report that there is no room would end the warming. On the heap,
                // so that the thousands of other fetches that may wait are small.
                Box::pin(tokio::time::sleep(WRITTEN_POLL)).await;
                continue;
            }
            // Another search may have found some meanwhile.
            let one = Arc::clone(&self.searching).lock_owned().await;
            let permit = admit();
            if permit.is_none() && cache.is_pending(part.block) {
                continue;
            }
            if permit.is_some() || !cache.wants_search() {
                return permit;
            }
            self.search(one).await.ok()?;
        }
    }

    /// Looks for disowned blocks in the background.
    fn search(&self, one: OwnedMutexGuard<()>) -> JoinHandle<()> {
        let cache = Arc::clone(&self.context.cache);
        let search = move || {
            cache.search_disowned();
            drop(one);
        };
        self.tasks.spawn_blocking_on(search, &self.runtime)
    }

    /// Waits until the store admits blocks, unless the dataset is being closed. Cancel-safe.
    pub(super) async fn store_is_counted(&self) {
        let (sender, counted) = oneshot::channel::<()>();
        self.context.cache.when_rebuilt(move || drop(sender));
        tokio::select! {
            _ = counted => {}
            () = self.leaving.cancelled() => {}
        }
    }

    /// Waits until the store has adopted the blocks of earlier snapshots, unless the dataset is being closed.
    /// Cancel-safe.
    pub(super) async fn blocks_are_adopted(&self) {
        let adopted = async {
            while self.context.cache.is_adopting() {
                tokio::time::sleep(ADOPTED_POLL).await;
            }
        };
        self.leaving.run_until_cancelled(adopted).await;
    }

    /// Waits for the memory of a fetch of at most `kib` KiB that fills the store. It is held until the store has
    /// written the blocks, so warming is no faster than the disk. Cancel-safe.
    pub(super) async fn memory_to_warm(&self, kib: u32) -> Permit {
        self.warming.acquire(kib).await
    }

    /// Waits for a turn to [`write`](Self::write). Cancel-safe.
    pub(super) async fn turn_to_write(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let of_dataset = Arc::clone(&self.writing).acquire_owned().await.ok()?;
        Some([of_dataset, self.threads.turn_to_write().await?])
    }

    /// Waits until the dataset is being closed. Cancel-safe.
    pub(super) async fn left(&self) {
        self.leaving.cancelled().await;
    }

    /// Ends all waits for the store.
    pub(super) fn leave(&self) {
        self.leaving.cancel();
    }

    /// Splits the blocks of a fetch into those to fetch, in the order of their bytes, and those to skip. The first
    /// block has `first_admission` and is fetched in any case. Its neighbours are fetched if the store admits them
    /// without evicting; one that is not admitted is skipped with all those beyond it, since one range fetches all.
    pub(super) fn admit_neighbours(
        &self,
        blocks: Vec<PendingBlock>,
        first_admission: Admission,
    ) -> (Vec<ExpectedBlock>, Vec<PendingBlock>) {
        let (mut expected, mut skipped) = (Vec::with_capacity(blocks.len()), Vec::new());
        let mut blocks = blocks.into_iter();
        let Some(first) = blocks.next() else { return (expected, skipped) };
        let first_file = first.file;
        expected.push(ExpectedBlock { pending: first, admission: first_admission });
        let (mut admits_after, mut admits_before) = (true, true);
        for pending in blocks {
            let admits = if pending.file > first_file { &mut admits_after } else { &mut admits_before };
            let part = &pending.part;
            let permit =
                admits.then(|| self.context.cache.admit_without_evicting(part.block, part.block_len)).flatten();
            *admits = permit.is_some();
            match permit {
                Some(permit) => expected.push(ExpectedBlock { pending, admission: Admission::Granted(permit) }),
                None => skipped.push(pending),
            }
        }
        expected.sort_by_key(|block| block.pending.file);
        (expected, skipped)
    }

    /// Writes a piece of a block to the store, if the store admits the block. Blocks on the disk.
    pub(super) fn write_piece(&self, piece: &BlockPart, bytes: &[u8]) {
        let cache = &self.context.cache;
        if let Some(permit) = cache.admit(piece.block, piece.block_len)
            && let Err(error) = cache.write_part(permit, piece.start, bytes)
        {
            debug!(block = piece.block.0, %error, "piece not kept");
        }
    }

    /// Writes a block that was read to the store, if the store admits it. Blocks on the disk.
    pub(super) fn write_if_admitted(&self, part: &BlockPart, bytes: &[u8]) {
        let cache = &self.context.cache;
        if let Some(permit) = cache.admit(part.block, part.block_len) {
            // The cache counts and logs a failed write.
            let _ = cache.write(permit, &cache.record(part.block, bytes));
        }
    }

    /// Writes blocks to the store. A block that the store does not admit, or whose write fails, is put into the window.
    /// Blocks on the disk.
    pub(super) fn write(&self, blocks: Vec<BlockToKeep>) {
        let cache = &self.context.cache;
        for BlockToKeep { part, permit, bytes, record, memory: _memory } in blocks {
            let permit = permit.or_else(|| cache.admit(part.block, part.block_len));
            let is_kept = permit.is_some_and(|permit| {
                let record = record.unwrap_or_else(|| cache.record(part.block, &bytes));
                cache.write(permit, &record).is_ok()
            });
            if !is_kept {
                debug!(block = part.block.0, "block not kept");
                self.context.window.insert(part.block, bytes);
            }
        }
    }
}
