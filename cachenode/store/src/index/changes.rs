//! Changes on their way into the index: batched, written and synced by one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use larder_dataset::{BlockIndex, CacheId};
use rocksdb::{ColumnFamily, DB, WriteBatch};
use tracing::{error, info, warn};

use super::rows::{self, DatasetRow};
use crate::counters::StoreCounters;
use crate::slots::Place;

/// The most changes in one batch.
const BATCH: usize = 4096;
/// How long the writer waits for more changes to join a batch. Short enough that the queue does not fill in that time.
const LINGER: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) enum Change {
    Put {
        dataset: u32,
        block: BlockIndex,
        place: Place,
    },
    Delete {
        dataset: u32,
        block: BlockIndex,
    },
    Dataset {
        id: CacheId,
        row: DatasetRow,
    },
    Release {
        dataset: u32,
        id: CacheId,
    },
    /// The slots of the dataset were compared with the index.
    EndDoubt {
        id: CacheId,
    },
    /// Answered once every earlier change is written.
    Flush(SyncSender<()>),
}

/// Counts failures and logs the first of each kind.
#[derive(Debug)]
pub(super) struct Report {
    counters: Arc<StoreCounters>,
    logged: AtomicBool,
    logged_dropped: AtomicBool,
}

impl Report {
    pub(super) fn new(counters: Arc<StoreCounters>) -> Self {
        Self { counters, logged: AtomicBool::new(false), logged_dropped: AtomicBool::new(false) }
    }

    pub(super) fn failed(&self, step: &'static str, error: &rocksdb::Error) {
        self.counters.index_errors.add(1);
        if !self.logged.swap(true, Ordering::Relaxed) {
            error!(step, %error, "the index fails: cached blocks stay usable, but a power loss now would lose them");
        }
    }

    pub(super) fn dropped(&self) {
        self.counters.index_dropped.add(1);
        if !self.logged_dropped.swap(true, Ordering::Relaxed) {
            warn!("the index cannot keep up: changes are dropped and counted");
        }
    }
}

/// Writes changes until the queue is closed and empty.
pub(super) fn write(db: &DB, changes: &Receiver<Change>, sync_every: Duration, report: &Report) {
    let (Some(datasets), Some(blocks)) = (db.cf_handle(rows::DATASETS), db.cf_handle(rows::BLOCKS)) else { return };
    let mut unsynced_since: Option<Instant> = None;
    let mut waiting = Vec::new();
    loop {
        let timeout = unsynced_since.map_or(Duration::MAX, |since| sync_every.saturating_sub(since.elapsed()));
        let (first, closed) = match changes.recv_timeout(timeout) {
            Ok(change) => (Some(change), false),
            Err(RecvTimeoutError::Timeout) => (None, false),
            Err(RecvTimeoutError::Disconnected) => (None, true),
        };
        if matches!(first, Some(Change::Put { .. } | Change::Delete { .. })) {
            // No caller waits for these changes, and the cost of a batch hardly depends on its number of changes.
            std::thread::sleep(LINGER);
        }
        let mut batch = WriteBatch::default();
        for change in first.into_iter().chain(changes.try_iter()).take(BATCH) {
            match change {
                Change::Flush(done) => waiting.push(done),
                change => collect(&mut batch, change, datasets, blocks),
            }
        }
        if !batch.is_empty() {
            match db.write(batch) {
                Ok(()) => drop(unsynced_since.get_or_insert_with(Instant::now)),
                Err(error) => report.failed("write", &error),
            }
        }
        if unsynced_since.is_some_and(|since| closed || since.elapsed() >= sync_every) {
            unsynced_since = None;
            if let Err(error) = db.flush_wal(true) {
                report.failed("sync", &error);
            }
        }
        for done in waiting.drain(..) {
            // The caller may have stopped waiting, which is no error here.
            let _ = done.send(());
        }
        if closed {
            info!("index closed");
            return;
        }
    }
}

fn collect(batch: &mut WriteBatch, change: Change, datasets: &ColumnFamily, blocks: &ColumnFamily) {
    match change {
        Change::Put { dataset, block, place } => {
            batch.put_cf(blocks, rows::block_key(dataset, block), rows::block_value(place));
        }
        Change::Delete { dataset, block } => batch.delete_cf(blocks, rows::block_key(dataset, block)),
        Change::Dataset { id, row } => batch.put_cf(datasets, id.0, rows::encode_dataset(&row)),
        Change::Release { dataset, id } => {
            let (from, to) = (dataset.to_be_bytes(), dataset.saturating_add(1).to_be_bytes());
            batch.delete_range_cf(blocks, from, to);
            batch.delete_cf(datasets, id.0);
        }
        Change::EndDoubt { id } => batch.delete(rows::doubt_key(&id)),
        // The caller of this function answers the flush, after the batch is written.
        Change::Flush(_) => {}
    }
}
