//! The index: a copy of the slot tables in RocksDB, used when the tables themselves are lost.
//!
//! Its parts: [`Index`] is the handle and the bounded queue of changes; `changes` writes them in batches on a thread of
//! its own and syncs the write-ahead log about once a second; `rows` defines the rows of the database; `database` opens
//! it. When the queue is full, a change is dropped and counted. The slot table still has the change, and a block that
//! is missing or wrong in the index costs one fetch after a power loss.
//!
//! After a power loss, the slots of every dataset are doubtful until they were compared with the index. The doubt is
//! kept for each dataset: one may not be opened for several starts.
//!
//! Invariant: no read ever waits for the index. A failure of the index fails no other operation: it is counted, logged
//! once, and the store continues without the index.

mod changes;
mod database;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_dataset::{BlockIndex, CacheId};
use rocksdb::{DB, DEFAULT_COLUMN_FAMILY_NAME, WriteBatch};
use tracing::{error, warn};

use crate::counters::StoreCounters;
use crate::slots::Place;
use changes::{Change, Report};

pub(crate) use rows::{DatasetRow, policy_byte, policy_of};

const BOOT_ID_BYTES: usize = 64;

/// The index's record of the last run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastRun {
    /// The machine went down before the store was closed, so slots may be lost.
    pub(crate) slots_doubtful: bool,
    /// The index was just created and has no rows for blocks that are already cached.
    pub(crate) index_is_new: bool,
}

/// The index of one store. Any thread may call its methods.
#[derive(Debug)]
pub(crate) struct Index {
    /// None if RocksDB could not be opened; changes are then ignored.
    db: Option<Arc<DB>>,
    queue: Option<SyncSender<Change>>,
    writer: Option<JoinHandle<()>>,
    /// Serializes the assignment of dataset numbers.
    numbers: Mutex<()>,
    /// The datasets whose slots are doubtful. The database has a row for each.
    doubtful: Mutex<HashSet<CacheId>>,
    report: Arc<Report>,
    boot_id: String,
}

impl Index {
    /// An index without a database: it is empty and ignores changes.
    pub(crate) fn none(counters: Arc<StoreCounters>) -> Self {
        Self {
            db: None,
            queue: None,
            writer: None,
            numbers: Mutex::new(()),
            doubtful: Mutex::default(),
            report: Arc::new(Report::new(counters)),
            boot_id: String::new(),
        }
    }

    pub(crate) fn open(
        path: &Path,
        boot_id: &str,
        queue: usize,
        sync_every: Duration,
        counters: Arc<StoreCounters>,
    ) -> (Self, LastRun) {
        let mut index = Self::none(counters);
        index.boot_id = boot_id.chars().filter(char::is_ascii).take(BOOT_ID_BYTES).collect();
        let report = Arc::clone(&index.report);
        let db = match database::open_or_create(path) {
            Ok(db) => Arc::new(db),
            Err(error) => {
                report.failed("open", &error);
                return (index, LastRun::default());
            }
        };
        let state = db.get(rows::STATE_KEY).unwrap_or_else(|error| {
            report.failed("read state", &error);
            None
        });
        let state = state.as_deref().and_then(rows::decode_state);
        let last_run = LastRun {
            slots_doubtful: state.is_some_and(|(closed, last)| !closed && last != index.boot_id.as_bytes()),
            index_is_new: state.is_none(),
        };
        let (sender, receiver) = sync_channel(queue.max(1));
        let writer = std::thread::Builder::new().name("larder-index".into()).spawn({
            let db = Arc::clone(&db);
            move || changes::write(&db, &receiver, sync_every, &report)
        });
        match writer {
            Ok(writer) => (index.queue, index.writer) = (Some(sender), Some(writer)),
            Err(error) => warn!(%error, "cannot start the index writer: the index stays as it is"),
        }
        index.db = Some(Arc::clone(&db));
        let mut doubtful = index.doubts();
        if last_run.slots_doubtful {
            doubtful.extend(index.datasets().into_iter().map(|(id, _)| id));
        }
        // One batch: the state of the last run must not be forgotten before the doubts that follow from it are kept.
        let mut batch = WriteBatch::default();
        batch.put(rows::STATE_KEY, rows::encode_state(false, &index.boot_id));
        doubtful.iter().for_each(|id| batch.put(rows::doubt_key(id), rows::DOUBT));
        if let Err(error) = db.write(batch) {
            index.report.failed("write state", &error);
        }
        index.doubtful = Mutex::new(doubtful);
        (index, last_run)
    }

    /// The datasets that are doubtful since an earlier run.
    fn doubts(&self) -> HashSet<CacheId> {
        let mut found = HashSet::new();
        self.scan("list doubts", DEFAULT_COLUMN_FAMILY_NAME, rows::DOUBT_PREFIX, |key, _| {
            found.extend(rows::decode_doubt_key(key));
            true
        });
        found
    }

    /// True if slots of the dataset may have been lost with the machine's power.
    pub(crate) fn is_doubtful(&self, id: &CacheId) -> bool {
        self.lock_doubtful().contains(id)
    }

    /// Notes that the dataset's slots were compared with the index.
    pub(crate) fn end_doubt(&self, id: &CacheId) {
        if self.lock_doubtful().remove(id) {
            self.send(Change::EndDoubt { id: *id });
        }
    }

    fn lock_doubtful(&self) -> MutexGuard<'_, HashSet<CacheId>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, dataset: u32, block: BlockIndex, place: Place) {
        self.offer(Change::Put { dataset, block, place });
    }

    pub(crate) fn delete(&self, dataset: u32, block: BlockIndex) {
        self.offer(Change::Delete { dataset, block });
    }

    /// Waits when the queue is full, unlike [`Index::put`]. For background work.
    pub(crate) fn put_waiting(&self, dataset: u32, block: BlockIndex, place: Place) {
        self.send(Change::Put { dataset, block, place });
    }

    /// Stores the row of a dataset under the number that it had before, or else under a new one. Returns that number;
    /// the number in `row` is ignored.
    pub(crate) fn register(&self, id: &CacheId, row: DatasetRow) -> u32 {
        let _one_at_a_time = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush();
        let rows = self.datasets();
        let number = match rows.iter().find(|(known, _)| known == id) {
            Some((_, known)) => known.number,
            None => rows.iter().map(|(_, row)| row.number).max().map_or(1, |most| most.saturating_add(1)),
        };
        self.update(id, DatasetRow { number, ..row });
        // The next call reads the database to choose a number, so this row must be in it.
        self.flush();
        number
    }

    /// Overwrites the row of a dataset.
    pub(crate) fn update(&self, id: &CacheId, row: DatasetRow) {
        self.send(Change::Dataset { id: *id, row });
    }

    /// Deletes a dataset's row and the rows of its blocks. False if the dataset had none.
    pub(crate) fn release(&self, id: &CacheId) -> bool {
        self.flush();
        self.end_doubt(id);
        let row = self.datasets().into_iter().find(|(known, _)| known == id);
        if let Some((_, row)) = &row {
            self.send(Change::Release { dataset: row.number, id: *id });
            self.flush();
        }
        row.is_some()
    }

    /// The rows of all datasets.
    pub(crate) fn datasets(&self) -> Vec<(CacheId, DatasetRow)> {
        let mut found = Vec::new();
        self.scan("list datasets", rows::DATASETS, b"", |key, value| {
            if let (Ok(id), Some(row)) = (key.try_into(), rows::decode_dataset(value)) {
                found.push((CacheId(id), row));
            }
            true
        });
        found
    }

    /// Calls `f` for each block of the dataset until it returns false. Includes every change that was sent earlier.
    /// False if the index cannot be read to the end of the dataset.
    pub(crate) fn each_block(&self, dataset: u32, mut f: impl FnMut(BlockIndex, Place) -> bool) -> bool {
        self.flush();
        self.scan("list blocks", rows::BLOCKS, &dataset.to_be_bytes(), |key, value| {
            rows::decode_block(key, value).is_none_or(|(block, place)| f(block, place))
        })
    }

    /// Waits until every change that was sent earlier is written (not synced).
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        self.send(Change::Flush(done));
        // An error means that the writer has ended, so no change is left to wait for.
        let _ = wait.recv();
    }

    /// Writes and syncs everything, and records that the slots can be trusted. Later changes are still written to the
    /// index, but are only guaranteed in the slots.
    pub(crate) fn close(&self) {
        self.flush();
        if let Some(db) = &self.db {
            let closed = db.put(rows::STATE_KEY, rows::encode_state(true, &self.boot_id));
            if let Err(error) = closed.and_then(|()| db.flush_wal(true)) {
                self.report.failed("close", &error);
            }
        }
    }

    fn offer(&self, change: Change) {
        if let Some(queue) = &self.queue {
            match queue.try_send(change) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.report.dropped(),
            }
        }
    }

    fn send(&self, change: Change) {
        if let Some(queue) = &self.queue
            && queue.send(change).is_err()
        {
            self.report.dropped();
        }
    }

    /// False if the rows cannot be read.
    fn scan(&self, step: &'static str, family: &str, prefix: &[u8], mut f: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
        let Some((db, family)) = self.db.as_ref().and_then(|db| Some((db, db.cf_handle(family)?))) else {
            return false;
        };
        let mut rows = db.raw_iterator_cf(family);
        rows.seek(prefix);
        while let Some((key, value)) = rows.item() {
            if !key.starts_with(prefix) || !f(key, value) {
                return true;
            }
            rows.next();
        }
        rows.status().inspect_err(|error| self.report.failed(step, error)).is_ok()
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Closing the channel makes the writer write the rest of the queue and end.
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            error!("the index writer panicked");
        }
    }
}
