//! Decides which fetched blocks the store keeps, and writes them.
//!
//! Where nodes share the dataset, the store takes the room of blocks that other nodes own now, once a search has found them.
//! Readers never wait for a search: one that finds none of them yet is not kept this time. Warming waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use larder_dataset::BlockPart;
use larder_store::{AdmissionPermit, Lookup};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::context::FetchContext;
use super::in_flight::PendingBlock;
use super::purpose::Purpose;
use super::receive::{BlockToKeep, ExpectedBlock};

/// Decides which fetched blocks the store keeps, and writes them.
#[derive(Debug)]
pub(super) struct Keeper {
    context: Arc<FetchContext>,
    runtime: Handle,
    tasks: TaskTracker,
    /// Held by the search for disowned blocks.
    searching: Arc<Mutex<()>>,
    /// The store has counted the blocks of an earlier run.
    is_store_counted: AtomicBool,
}

impl Keeper {
    /// What it starts in the background is among `tasks`.
    pub(super) fn new(context: Arc<FetchContext>, runtime: Handle, tasks: TaskTracker) -> Self {
        Self { context, runtime, tasks, searching: Arc::default(), is_store_counted: AtomicBool::new(false) }
    }

    /// The whole block, if it is in the window or in the store.
    pub(super) async fn find(&self, part: BlockPart) -> Option<Bytes> {
        if let Some(block) = self.context.window.peek(part.block) {
            return Some(block);
        }
        if !self.context.cache.contains(part.block) {
            return None;
        }
        let cache = Arc::clone(&self.context.cache);
        let read = move || match cache.read(part.block, part.block_len, 0, part.block_len, Bytes::copy_from_slice) {
            Lookup::Hit(block) => Some(block),
            Lookup::Miss => None,
        };
        self.runtime.spawn_blocking(read).await.ok().flatten()
    }

    /// The store's permit for a block, if the policy admits it. Warming evicts no other block.
    pub(super) async fn admit(&self, part: BlockPart, purpose: Purpose) -> Option<AdmissionPermit> {
        // After a restart the store admits nothing until it has counted its blocks: a few milliseconds, on its own thread.
        if !self.is_store_counted.load(Ordering::Relaxed) {
            let (cache, timeout) = (Arc::clone(&self.context.cache), self.context.config.read_deadline);
            let is_counted = self.runtime.spawn_blocking(move || cache.wait_rebuilt(timeout)).await;
            self.is_store_counted.store(is_counted.unwrap_or(false), Ordering::Relaxed);
        }
        let cache = &self.context.cache;
        match purpose {
            Purpose::Read | Purpose::Peer { .. } => {
                let permit = cache.admit(part.block, part.block_len);
                if cache.wants_search()
                    && let Ok(one) = Arc::clone(&self.searching).try_lock_owned()
                {
                    drop(self.search(one));
                }
                permit
            }
            Purpose::Warm => loop {
                let permit = cache.admit_without_evicting(part.block, part.block_len);
                if permit.is_some() {
                    return permit;
                }
                // Another search may have found some meanwhile.
                let one = Arc::clone(&self.searching).lock_owned().await;
                let permit = cache.admit_without_evicting(part.block, part.block_len);
                if permit.is_some() || !cache.wants_search() {
                    return permit;
                }
                self.search(one).await.ok()?;
            },
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

    /// Splits the blocks of a fetch into those to fetch, in the order of their bytes, and those to skip. The first block has
    /// `first_permit` and is fetched in any case. Its neighbours are fetched if the store admits them without evicting; one
    /// that is not admitted is skipped with all those beyond it, since one range fetches all.
    pub(super) fn admit_neighbours(
        &self,
        blocks: Vec<PendingBlock>,
        first_permit: Option<AdmissionPermit>,
    ) -> (Vec<ExpectedBlock>, Vec<PendingBlock>) {
        let (mut expected, mut skipped) = (Vec::with_capacity(blocks.len()), Vec::new());
        let mut blocks = blocks.into_iter();
        let Some(first) = blocks.next() else { return (expected, skipped) };
        let first_file = first.file;
        expected.push(ExpectedBlock { pending: first, permit: first_permit });
        let (mut admits_after, mut admits_before) = (true, true);
        for pending in blocks {
            let admits = if pending.file > first_file { &mut admits_after } else { &mut admits_before };
            let part = &pending.part;
            let permit =
                admits.then(|| self.context.cache.admit_without_evicting(part.block, part.block_len)).flatten();
            *admits = permit.is_some();
            match permit {
                Some(permit) => expected.push(ExpectedBlock { pending, permit: Some(permit) }),
                None => skipped.push(pending),
            }
        }
        expected.sort_by_key(|block| block.pending.file);
        (expected, skipped)
    }

    /// Writes blocks to the store. A block whose write fails is put into the window. Blocks on the disk.
    pub(super) fn write(&self, blocks: Vec<BlockToKeep>) {
        let cache = &self.context.cache;
        for BlockToKeep { permit, bytes, record } in blocks {
            let block = permit.block();
            let record = record.unwrap_or_else(|| cache.record(block, &bytes));
            if cache.write(permit, &record).is_err() {
                debug!(block = block.0, "block not kept");
                self.context.window.insert(block, bytes);
            }
        }
    }
}
