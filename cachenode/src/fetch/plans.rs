//! Fetches blocks for plans, ahead of their readers.

use std::sync::Arc;

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex, PolicyKind};

use super::Fetcher;
use super::config::FetchConfig;
use super::end::End;
use super::purpose::Purpose;
use crate::counters::StatsCounters;
use crate::memory::Permit;
use crate::planned::{PlannedBlocks, PlannedRead};
use crate::sharing::Asker;
use crate::tensors::Demand;

impl Fetcher {
    /// The blocks of all plans of the dataset.
    pub(crate) fn planned(&self) -> &Arc<PlannedBlocks> {
        &self.context.planned
    }

    /// The limits of the dataset's fetches.
    pub(crate) fn config(&self) -> &FetchConfig {
        &self.context.config
    }

    /// The dataset's counters.
    pub(crate) fn counters(&self) -> &StatsCounters {
        &self.context.counters
    }

    /// True if a reader would find a part of a block here, or a fetch of the block in flight.
    pub(crate) fn is_here(&self, part: &BlockPart) -> bool {
        let cache = &self.context.cache;
        let &BlockPart { block, block_len, start, len, .. } = part;
        cache.contains_part(block, block_len, start, len)
            || self.context.window.contains(block)
            || cache.has_earlier(block)
            || self.in_flight.contains(block)
    }

    /// True if a reader of a part that is nowhere here would fetch a piece of its block. A plan of whole blocks would
    /// fetch far more than such readers read.
    pub(crate) fn is_read_here_and_there(&self, file: FileIndex, part: &BlockPart) -> bool {
        let is_piece =
            || self.context.window.fetches_piece(part) || matches!(self.tensors.demand(part, false), Demand::Part(_));
        self.takes_pieces(file, part.block) && is_piece()
    }

    /// True if this node is to keep a block, as far as its cache has room.
    pub(crate) fn is_ours(&self, file: FileIndex, block: BlockIndex) -> bool {
        self.peers.route(file, block, Asker::Here).keep
    }

    /// Fetches a block that is among the planned ones. Readers that wait for the origin go first, until one of them
    /// waits for this block. Returns when the fetch has ended. Cancel-safe: it continues.
    pub(crate) async fn fetch_planned(self: &Arc<Self>, file: FileIndex, part: BlockPart) {
        let whole = BlockPart { start: 0, len: part.block_len, ..part };
        let (in_flight, _) = self.join_or_start(file, whole, Purpose::Planned, End::open());
        let written = in_flight.written();
        // It would count as a reader that waits.
        drop(in_flight);
        written.await;
    }

    /// Lets go of the planned blocks of a file that the kernel reads by itself from now on.
    pub(crate) fn leave_lent(&self, file: FileIndex) {
        if let Ok(row) = self.context.manifest.file(file) {
            let end = BlockIndex(row.first_block.0 + row.size.div_ceil(BLOCK_BYTES) as u32);
            self.context.planned.leave(&(row.first_block..end));
        }
    }

    /// Lets go of a planned block that was read.
    pub(super) fn leave_planned(self: &Arc<Self>, read: PlannedRead) {
        let PlannedRead { block, bytes, is_kept, memory } = read;
        let cache = &self.context.cache;
        if is_kept || cache.contains(block) {
            return;
        }
        // Before it was read, nothing was evicted for the block, and it did not count as missed.
        if cache.usage().policy != PolicyKind::Nr {
            let part =
                BlockPart { block, file_offset: 0, block_len: bytes.len() as u32, start: 0, len: bytes.len() as u32 };
            if let Some(memory) = self.context.memory_until_written((part.block_len >> 10) + 1) {
                let (fetcher, bytes) = (Arc::clone(self), bytes.clone());
                self.tasks.spawn_on(async move { fetcher.keep_read(part, bytes, memory).await }, &self.runtime);
            }
        }
        self.context.window.insert_read(block, bytes, memory);
    }

    /// Offers a block that was read to the store.
    async fn keep_read(self: Arc<Self>, part: BlockPart, bytes: Bytes, memory: Permit) {
        let turn = self.keeper.turn_to_write().await;
        let fetcher = Arc::clone(&self);
        let keep = move || {
            fetcher.keeper.write_if_admitted(&part, &bytes);
            drop((memory, turn));
        };
        self.tasks.spawn_blocking_on(keep, &self.runtime);
    }
}
