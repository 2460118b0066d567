//! The table of the blocks in flight.
//!
//! The cast: [`InFlightTable`] is the table; [`StartedFetch`] has the blocks of a new fetch; [`Entries`] removes them
//! from the table.
//!
//! Invariant: at most one fetch of a block is in flight. The block is in the table from before its first waiter until
//! its [`Entries`] release it, at the latest when they are dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_dataset::{BlockIndex, BlockPart, FileIndex};
use tokio::sync::watch;

use super::end::End;
use super::in_flight::{InFlight, PendingBlock};
use super::outcome::Outcome;

/// The blocks in flight.
#[derive(Debug, Default)]
pub(super) struct InFlightTable(Mutex<HashMap<BlockIndex, InFlight>>);

/// A fetch that must now be run.
#[derive(Debug)]
pub(super) struct StartedFetch {
    /// The requested block, then its neighbours.
    pub(super) blocks: Vec<PendingBlock>,
    /// All of them in the table.
    pub(super) entries: Entries,
}

impl InFlightTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<BlockIndex, InFlight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block's fetch, if one is in flight.
    pub(super) fn get(&self, block: BlockIndex) -> Option<InFlight> {
        self.lock().get(&block).cloned()
    }

    /// True if a fetch of the block is in flight.
    pub(super) fn contains(&self, block: BlockIndex) -> bool {
        self.lock().contains_key(&block)
    }

    /// Joins the block's fetch in flight, or starts one with this `end` that includes the block's `neighbours`. To find
    /// these, `neighbours` gets a test of whether a block is in flight. The table is locked meanwhile.
    pub(super) fn join_or_start(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        asks_peers: bool,
        end: &End,
        neighbours: impl FnOnce(&dyn Fn(BlockIndex) -> bool) -> Vec<(FileIndex, BlockPart)>,
    ) -> (InFlight, Option<StartedFetch>) {
        let mut table = self.lock();
        if let Some(in_flight) = table.get(&part.block) {
            in_flight.end.join(end);
            return (in_flight.clone(), None);
        }
        let neighbours = neighbours(&|block| table.contains_key(&block));
        let (in_table, left) = watch::channel(());
        let (requested, pending) = InFlight::start(file, part, asks_peers, end.clone(), left.clone());
        table.insert(part.block, requested.clone());
        let mut blocks = vec![pending];
        for (file, part) in neighbours {
            let (in_flight, pending) = InFlight::start(file, part, asks_peers, end.clone(), left.clone());
            table.insert(part.block, in_flight);
            blocks.push(pending);
        }
        drop(table);
        let in_flight = blocks.iter().map(|pending| pending.part.block).collect();
        let entries = Entries { table: Arc::clone(self), blocks: in_flight, _in_table: in_table };
        (requested, Some(StartedFetch { blocks, entries }))
    }
}

/// The blocks of a fetch in the table.
#[derive(Debug)]
pub(super) struct Entries {
    table: Arc<InFlightTable>,
    blocks: Vec<BlockIndex>,
    /// Tells [`InFlight::written`] that they have left the table.
    _in_table: watch::Sender<()>,
}

impl Entries {
    /// Removes blocks that need not be fetched by this fetch, and then completes them. A waiter that has no bytes can
    /// start a fetch of its own from now on.
    pub(super) fn release(&mut self, blocks: Vec<PendingBlock>, outcome: &Outcome) {
        let mut table = self.table.lock();
        for pending in &blocks {
            table.remove(&pending.part.block);
        }
        drop(table);
        self.blocks.retain(|block| blocks.iter().all(|pending| pending.part.block != *block));
        for pending in blocks {
            pending.complete(outcome.clone());
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        for block in &self.blocks {
            table.remove(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn part(block: u32) -> BlockPart {
        BlockPart { block: BlockIndex(block), block_len: 10, start: 0, len: 10, file_offset: 0 }
    }

    fn join_or_start(table: &Arc<InFlightTable>, block: u32, neighbour: u32) -> (InFlight, Option<StartedFetch>) {
        table.join_or_start(FileIndex(block), part(block), false, &End::by(Instant::now()), |in_flight| {
            let free = !in_flight(BlockIndex(neighbour));
            free.then(|| (FileIndex(neighbour), part(neighbour))).into_iter().collect()
        })
    }

    #[tokio::test]
    async fn a_block_has_one_fetch_until_it_is_released() {
        let table = Arc::<InFlightTable>::default();
        let (_, started) = join_or_start(&table, 1, 2);
        let StartedFetch { mut blocks, mut entries } = started.unwrap();
        let (joined, none) = join_or_start(&table, 2, 3);
        assert!(none.is_none(), "in flight as a neighbour");
        assert_eq!(
            join_or_start(&table, 4, 1).1.unwrap().blocks.len(),
            1,
            "a neighbour in flight is not fetched again"
        );

        entries.release(blocks.split_off(1), &Outcome::Skipped);
        assert!(matches!(joined.outcome().await, Outcome::Skipped));
        let (_, again) = join_or_start(&table, 2, 1);
        assert_eq!(again.unwrap().blocks.len(), 1);

        drop((blocks, entries));
        assert!(table.lock().is_empty());
    }
}
