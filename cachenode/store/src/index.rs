//! The index: what must survive when the slot tables do not, in RocksDB.
//!
//! ```text
//!  family    key                                      value (numbers little-endian, first byte = version 1)
//!  default   "state"                                  1 | closed cleanly 0/1 | boot id, text, at most 64 bytes
//!  datasets  snapshot[32]                             1 | policy | number u32 | reservation u64 | last use u64 | name, at most 1 KiB
//!  blocks    number u32 BE | block u32 BE             segment u32 BE | offset in 4 KiB u32 BE
//!  epochs    number u32 BE | start, unix ms u64 BE    1 | hits u64 | misses u64 | hit bytes u64 | read bytes u64
//! ```
//! The cast: [`Index`] takes changes through a bounded queue; one thread of its own writes them in batches and syncs the
//! write-ahead log about once a second. When the queue is full a change is dropped and counted: the slot table has it,
//! and a block that the index has not, or has wrongly, costs one fetch after a power loss.
//!
//! Invariant: nothing here is asked on the way of a read, and no failure here fails anything else: it is counted, logged
//! once, and the store goes on without.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_dataset::{BlockIndex, SnapshotId};
use rocksdb::{BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, ErrorKind, Options, WriteBatch};
use tracing::{error, info, warn};

use crate::counters::StoreCounters;
use crate::slots::Place;
use larder_dataset::PolicyKind;

const VERSION: u8 = 1;
const DATASETS: &str = "datasets";
const BLOCKS: &str = "blocks";
const EPOCHS: &str = "epochs";
const STATE_KEY: &[u8] = b"state";
const BOOT_ID_BYTES: usize = 64;
const NAME_BYTES: usize = 1024;
/// Changes written together at most.
const BATCH: usize = 4096;
/// How long changes are waited for that can go into one batch; a full queue of them takes longer to come.
const LINGER: Duration = Duration::from_millis(10);
/// Epochs kept of a dataset.
const EPOCHS_KEPT: usize = 1000;

/// One pass over a dataset, for the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRecord {
    /// When it began, milliseconds since 1970; an epoch with the same start is overwritten.
    pub started_unix_ms: u64,
    /// Reads of cached blocks.
    pub hits: u64,
    /// Reads of blocks that were not cached.
    pub misses: u64,
    /// Bytes of the hits.
    pub hit_bytes: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
}

/// What the index knows about a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatasetRow {
    pub(crate) number: u32,
    pub(crate) policy: PolicyKind,
    pub(crate) reservation_bytes: u64,
    pub(crate) last_use_unix_s: u64,
    pub(crate) name: String,
}

#[derive(Debug)]
enum Change {
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
        snapshot: SnapshotId,
        row: DatasetRow,
    },
    Epoch {
        dataset: u32,
        epoch: EpochRecord,
    },
    Release {
        dataset: u32,
        snapshot: SnapshotId,
    },
    /// Answers when everything before it is written.
    Flush(SyncSender<()>),
}

/// What the state of the index says about the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRun {
    /// The machine went down without the store being closed: slots may be lost.
    pub(crate) slots_doubtful: bool,
    /// The index was made just now: it knows nothing of the blocks that are there.
    pub(crate) index_is_new: bool,
}

/// The index of one store. All methods may be called from any thread.
#[derive(Debug)]
pub(crate) struct Index {
    /// None if RocksDB could not be opened; changes then go nowhere.
    db: Option<Arc<DB>>,
    queue: Option<SyncSender<Change>>,
    writer: Option<JoinHandle<()>>,
    /// Gives out dataset numbers one at a time.
    numbers: Mutex<()>,
    report: Arc<Report>,
    boot_id: String,
}

/// Counts what goes wrong, and says so once.
#[derive(Debug)]
struct Report {
    counters: Arc<StoreCounters>,
    logged: AtomicBool,
    logged_dropped: AtomicBool,
}

impl Report {
    fn failed(&self, step: &'static str, error: &rocksdb::Error) {
        self.counters.index_errors.add(1);
        if !self.logged.swap(true, Ordering::Relaxed) {
            error!(step, %error, "index fails: cached blocks stay usable, a power loss now would cost them");
        }
    }

    fn dropped(&self) {
        self.counters.index_dropped.add(1);
        if !self.logged_dropped.swap(true, Ordering::Relaxed) {
            warn!("index cannot keep up: changes are dropped and counted");
        }
    }
}

impl Index {
    pub(crate) fn open(
        path: &Path,
        boot_id: &str,
        queue: usize,
        sync_every: Duration,
        counters: Arc<StoreCounters>,
    ) -> (Self, LastRun) {
        let report =
            Arc::new(Report { counters, logged: AtomicBool::new(false), logged_dropped: AtomicBool::new(false) });
        let mut index = Self {
            db: None,
            queue: None,
            writer: None,
            numbers: Mutex::new(()),
            report: Arc::clone(&report),
            boot_id: boot_id.chars().filter(char::is_ascii).take(BOOT_ID_BYTES).collect(),
        };
        let db = match open_or_make(path) {
            Ok(db) => Arc::new(db),
            Err(error) => {
                report.failed("open", &error);
                return (index, LastRun { slots_doubtful: false, index_is_new: false });
            }
        };
        let state = db.get(STATE_KEY).unwrap_or_else(|error| {
            report.failed("read state", &error);
            None
        });
        let state = state.as_deref().and_then(decode_state);
        let last_run = LastRun {
            slots_doubtful: state.is_some_and(|(closed, last)| !closed && last != index.boot_id.as_bytes()),
            index_is_new: state.is_none(),
        };
        if let Err(error) = db.put(STATE_KEY, encode_state(false, &index.boot_id)) {
            report.failed("write state", &error);
        }
        let (sender, receiver) = sync_channel(queue.max(1));
        let writer = std::thread::Builder::new().name("larder-index".into()).spawn({
            let db = Arc::clone(&db);
            move || write_changes(&db, &receiver, sync_every, &report)
        });
        match writer {
            Ok(writer) => (index.queue, index.writer) = (Some(sender), Some(writer)),
            Err(error) => warn!(%error, "start the index writer: the index stays as it is"),
        }
        index.db = Some(db);
        (index, last_run)
    }

    pub(crate) fn put(&self, dataset: u32, block: BlockIndex, place: Place) {
        self.offer(Change::Put { dataset, block, place });
    }

    pub(crate) fn delete(&self, dataset: u32, block: BlockIndex) {
        self.offer(Change::Delete { dataset, block });
    }

    pub(crate) fn record_epoch(&self, dataset: u32, epoch: EpochRecord) {
        self.offer(Change::Epoch { dataset, epoch });
    }

    /// Like [`Index::put`], but waits when the queue is full. For background work.
    pub(crate) fn put_all(&self, dataset: u32, block: BlockIndex, place: Place) {
        self.send(Change::Put { dataset, block, place });
    }

    /// Notes a dataset under the number that it had, or a new one, whatever `row` says; gives the number.
    pub(crate) fn register(&self, snapshot: &SnapshotId, row: DatasetRow) -> u32 {
        let _one_at_a_time = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush();
        let rows = self.datasets();
        let number = match rows.iter().find(|(known, _)| known == snapshot) {
            Some((_, known)) => known.number,
            None => rows.iter().map(|(_, row)| row.number).max().map_or(1, |most| most.saturating_add(1)),
        };
        self.note(snapshot, DatasetRow { number, ..row });
        // The next number given out must know this one.
        self.flush();
        number
    }

    /// Notes what a dataset is now.
    pub(crate) fn note(&self, snapshot: &SnapshotId, row: DatasetRow) {
        self.send(Change::Dataset { snapshot: *snapshot, row });
    }

    /// Forgets a dataset with all its blocks and history; false if it was not known.
    pub(crate) fn release(&self, snapshot: &SnapshotId) -> bool {
        self.flush();
        let row = self.datasets().into_iter().find(|(known, _)| known == snapshot);
        if let Some((_, row)) = &row {
            self.send(Change::Release { dataset: row.number, snapshot: *snapshot });
            self.flush();
        }
        row.is_some()
    }

    /// All datasets known.
    pub(crate) fn datasets(&self) -> Vec<(SnapshotId, DatasetRow)> {
        let mut rows = Vec::new();
        self.scan("list datasets", DATASETS, b"", |key, value| {
            if let (Ok(snapshot), Some(row)) = (key.try_into(), decode_dataset(value)) {
                rows.push((SnapshotId(snapshot), row));
            }
            true
        });
        rows
    }

    /// Calls `f` for each block of the dataset until it says false. Everything sent before is included.
    pub(crate) fn each_block(&self, dataset: u32, mut f: impl FnMut(BlockIndex, Place) -> bool) {
        self.flush();
        self.scan("list blocks", BLOCKS, &dataset.to_be_bytes(), |key, value| {
            match (u64_be(key), u64_be(value)) {
                (Some(key), Some(place)) => f(
                    // Truncations on purpose: the lower halves.
                    BlockIndex(key as u32),
                    Place { segment: (place >> 32) as u32, page: place as u32 },
                ),
                _ => true,
            }
        });
    }

    /// The dataset's history, oldest first.
    pub(crate) fn epochs(&self, dataset: u32) -> Vec<EpochRecord> {
        self.flush();
        let mut epochs = Vec::new();
        self.scan("list epochs", EPOCHS, &dataset.to_be_bytes(), |key, value| {
            epochs.extend(decode_epoch(key, value));
            true
        });
        epochs.drain(..epochs.len().saturating_sub(EPOCHS_KEPT));
        epochs
    }

    /// Waits until everything sent before is written (not synced).
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        self.send(Change::Flush(done));
        // An error means that the writer is gone and there is nothing to wait for.
        let _ = wait.recv();
    }

    /// Writes and syncs everything, and notes that slots can be trusted. Changes that come after are written too, but
    /// only the slots hold them for certain.
    pub(crate) fn close(&self) {
        self.flush();
        if let Some(db) = &self.db {
            let closed = db.put(STATE_KEY, encode_state(true, &self.boot_id)).and_then(|()| db.flush_wal(true));
            if let Err(error) = closed {
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

    fn scan(&self, step: &'static str, family: &str, prefix: &[u8], mut f: impl FnMut(&[u8], &[u8]) -> bool) {
        let Some((db, family)) = self.db.as_ref().and_then(|db| Some((db, db.cf_handle(family)?))) else { return };
        let mut rows = db.raw_iterator_cf(family);
        rows.seek(prefix);
        while let Some((key, value)) = rows.item() {
            if !key.starts_with(prefix) || !f(key, value) {
                return;
            }
            rows.next();
        }
        if let Err(error) = rows.status() {
            self.report.failed(step, &error);
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Without a sender the writer writes what is left and ends.
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            error!("the index writer panicked");
        }
    }
}

/// RocksDB with little memory: the index is written all the time and read only after a loss.
fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(1 << 20));
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_open_files(64);
    options.set_write_buffer_size(2 << 20);
    options.set_db_write_buffer_size(8 << 20);
    options.set_max_total_wal_size(8 << 20);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(1);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(rocksdb::LogLevel::Warn);
    options
}

fn open_or_make(path: &Path) -> Result<DB, rocksdb::Error> {
    let open = || {
        let families = [DATASETS, BLOCKS, EPOCHS].map(|name| ColumnFamilyDescriptor::new(name, options()));
        DB::open_cf_descriptors(&options(), path, families)
    };
    open().or_else(|error| {
        // What is damaged or another program's is made anew: blocks are found through their slots, and only the
        // history is lost. A full or failing disk would not be better for it.
        let damaged = matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidArgument)
            || error.as_ref().contains("No such file");
        if !damaged || fs::remove_dir_all(path).is_err() {
            return Err(error);
        }
        warn!(%error, "index is damaged: made anew");
        open()
    })
}

fn write_changes(db: &DB, changes: &Receiver<Change>, sync_every: Duration, report: &Report) {
    let (Some(datasets), Some(blocks), Some(epochs)) =
        (db.cf_handle(DATASETS), db.cf_handle(BLOCKS), db.cf_handle(EPOCHS))
    else {
        return;
    };
    let mut unsynced_since: Option<Instant> = None;
    let mut waiting = Vec::new();
    loop {
        let patience = unsynced_since.map_or(Duration::MAX, |since| sync_every.saturating_sub(since.elapsed()));
        let (first, over) = match changes.recv_timeout(patience) {
            Ok(change) => (Some(change), false),
            Err(RecvTimeoutError::Timeout) => (None, false),
            Err(RecvTimeoutError::Disconnected) => (None, true),
        };
        if matches!(first, Some(Change::Put { .. } | Change::Delete { .. })) {
            // Nobody waits for these, and what a write costs it costs once, however many changes it has.
            std::thread::sleep(LINGER);
        }
        let mut batch = WriteBatch::default();
        for change in first.into_iter().chain(changes.try_iter()).take(BATCH) {
            match change {
                Change::Flush(done) => waiting.push(done),
                change => collect(&mut batch, change, datasets, blocks, epochs),
            }
        }
        if !batch.is_empty() {
            match db.write(batch) {
                Ok(()) => drop(unsynced_since.get_or_insert_with(Instant::now)),
                Err(error) => report.failed("write", &error),
            }
        }
        if unsynced_since.is_some_and(|since| over || since.elapsed() >= sync_every) {
            unsynced_since = None;
            if let Err(error) = db.flush_wal(true) {
                report.failed("sync", &error);
            }
        }
        for done in waiting.drain(..) {
            // Who asked may have stopped waiting.
            let _ = done.send(());
        }
        if over {
            info!("index closed");
            return;
        }
    }
}

fn collect(
    batch: &mut WriteBatch,
    change: Change,
    datasets: &ColumnFamily,
    blocks: &ColumnFamily,
    epochs: &ColumnFamily,
) {
    match change {
        Change::Put { dataset, block, place } => {
            batch.put_cf(blocks, pair(dataset, block.0), pair(place.segment, place.page));
        }
        Change::Delete { dataset, block } => batch.delete_cf(blocks, pair(dataset, block.0)),
        Change::Dataset { snapshot, row } => batch.put_cf(datasets, snapshot.0, encode_dataset(&row)),
        Change::Epoch { dataset, epoch } => {
            batch.put_cf(epochs, epoch_key(dataset, &epoch), encode_epoch(&epoch));
        }
        Change::Release { dataset, snapshot } => {
            let (from, to) = (dataset.to_be_bytes(), dataset.saturating_add(1).to_be_bytes());
            batch.delete_range_cf(blocks, from, to);
            batch.delete_range_cf(epochs, from, to);
            batch.delete_cf(datasets, snapshot.0);
        }
        // Answered by the caller, after the batch.
        Change::Flush(_) => {}
    }
}

fn pair(high: u32, low: u32) -> [u8; 8] {
    (u64::from(high) << 32 | u64::from(low)).to_be_bytes()
}

fn u64_be(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn u64_le(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn encode_state(closed: bool, boot_id: &str) -> Vec<u8> {
    [&[VERSION, u8::from(closed)], boot_id.as_bytes()].concat()
}

/// Whether the store was closed, and the boot id. Another version is no state.
fn decode_state(bytes: &[u8]) -> Option<(bool, &[u8])> {
    match bytes {
        [VERSION, closed, boot_id @ ..] => Some((*closed == 1, boot_id)),
        _ => None,
    }
}

fn encode_dataset(row: &DatasetRow) -> Vec<u8> {
    let policy = match row.policy {
        PolicyKind::Nr => 0,
        PolicyKind::Lru => 1,
        PolicyKind::Fifo => 2,
        PolicyKind::Random => 3,
    };
    let mut bytes = vec![VERSION, policy];
    bytes.extend(row.number.to_le_bytes());
    bytes.extend(row.reservation_bytes.to_le_bytes());
    bytes.extend(row.last_use_unix_s.to_le_bytes());
    bytes.extend(row.name.bytes().take(NAME_BYTES));
    bytes
}

fn decode_dataset(bytes: &[u8]) -> Option<DatasetRow> {
    if bytes.first() != Some(&VERSION) {
        return None;
    }
    let policy = match bytes.get(1)? {
        0 => PolicyKind::Nr,
        1 => PolicyKind::Lru,
        2 => PolicyKind::Fifo,
        3 => PolicyKind::Random,
        _ => return None,
    };
    Some(DatasetRow {
        number: u32::from_le_bytes(bytes.get(2..6)?.try_into().ok()?),
        policy,
        reservation_bytes: u64_le(bytes, 6)?,
        last_use_unix_s: u64_le(bytes, 14)?,
        name: String::from_utf8_lossy(bytes.get(22..)?).into_owned(),
    })
}

fn epoch_key(dataset: u32, epoch: &EpochRecord) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&dataset.to_be_bytes());
    key[4..].copy_from_slice(&epoch.started_unix_ms.to_be_bytes());
    key
}

fn encode_epoch(epoch: &EpochRecord) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for number in [epoch.hits, epoch.misses, epoch.hit_bytes, epoch.read_bytes] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn decode_epoch(key: &[u8], value: &[u8]) -> Option<EpochRecord> {
    if value.first() != Some(&VERSION) {
        return None;
    }
    Some(EpochRecord {
        started_unix_ms: u64_be(key.get(4..)?)?,
        hits: u64_le(value, 1)?,
        misses: u64_le(value, 9)?,
        hit_bytes: u64_le(value, 17)?,
        read_bytes: u64_le(value, 25)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_still_written_and_read_as_version_1() {
        assert_eq!(encode_state(true, "boot"), b"\x01\x01boot");
        assert_eq!(decode_state(b"\x01\x00boot"), Some((false, &b"boot"[..])));
        assert_eq!(decode_state(b"\x02\x01boot"), None);
        let row = DatasetRow {
            number: 0x0102_0304,
            policy: PolicyKind::Random,
            reservation_bytes: 5,
            last_use_unix_s: 6,
            name: "text".into(),
        };
        let golden = b"\x01\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0text";
        assert_eq!(encode_dataset(&row), golden);
        assert_eq!(decode_dataset(golden), Some(row));
        let epoch = EpochRecord { started_unix_ms: 7, hits: 1, misses: 2, hit_bytes: 3, read_bytes: 4 };
        let (key, value) = (epoch_key(9, &epoch), encode_epoch(&epoch));
        assert_eq!(key, *b"\0\0\0\x09\0\0\0\0\0\0\0\x07");
        assert_eq!(value, b"\x01\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(decode_epoch(&key, &value), Some(epoch));
        assert_eq!(pair(1, 2), *b"\0\0\0\x01\0\0\0\x02");
    }

    #[test]
    fn any_bytes_decode_without_panic_and_another_version_is_nothing() {
        let golden = b"\x01\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0text";
        for cut in 0..22 {
            assert_eq!(decode_dataset(&golden[..cut]), None);
            assert_eq!(decode_epoch(&golden[..cut], &golden[..cut]), None);
        }
        assert_eq!(decode_dataset(b"\x02\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_what_is_waited_for_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let counters = Arc::<StoreCounters>::default();
        let (index, last_run) = Index::open(dir.path(), "b", 1, Duration::from_secs(1), Arc::clone(&counters));
        assert_eq!(last_run, LastRun { slots_doubtful: false, index_is_new: true });
        for block in 0..20_000 {
            index.put(1, BlockIndex(block), Place { segment: 1, page: block });
        }
        index.put_all(1, BlockIndex(20_000), Place { segment: 1, page: 7 });
        index.put_all(2, BlockIndex(3), Place { segment: 1, page: 7 });
        let mut blocks = Vec::new();
        index.each_block(1, |block, place| {
            blocks.push((block, place));
            true
        });
        assert_eq!(blocks.last(), Some(&(BlockIndex(20_000), Place { segment: 1, page: 7 })));
        assert_eq!(blocks.len() as u64 + counters.index_dropped.get(), 20_001);
        assert_eq!(counters.index_errors.get(), 0);
    }

    #[test]
    fn slots_are_doubted_after_an_unclean_end_and_another_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot_id| Index::open(dir.path(), boot_id, 8, Duration::from_secs(1), Arc::default());
        drop(open("a"));
        assert!(!open("a").1.slots_doubtful);
        assert!(open("b").1.slots_doubtful);
        let (index, _) = open("b");
        index.close();
        drop(index);
        assert_eq!(open("c").1, LastRun { slots_doubtful: false, index_is_new: false });
    }
}
