//! Each dataset's promise and used bytes: in memory, and in files in the dataset's own folder.
//!
//! ```text
//!  datasets/<cache>/reservation, little-endian:
//!  0          8         9        10                11        16      24           32             40         48
//!  | LARDERRV | version | policy | connections u8 | adopted | bytes | disk bytes | wanted bytes | last use | connections | name | crc32c u32 |
//!                                                   4 KiB,    u64 each                                        u8 length    the    of all
//!                                                   5 bytes                                                   and text     rest   before
//! ```
//! ```text
//!  datasets/<cache>/used, of a closed dataset: bytes of its blocks u64 | crc32c u32
//! ```
//! ```text
//!  datasets/<cache>/payer: the namespace that pays for its room | crc32c u32
//! ```
//! A killed process leaves no `used` file. The number is then estimated from the disk space of the blocks.
//!
//! A dataset without a reservation file, for example in a cache of an earlier version, uses its row in the index. A
//! promise is lost only if both the file and the index are damaged; such a dataset is listed without a promise.
//!
//! Invariant: a change is synced before [`Reservations::put`] returns. The time of the last use may be written later,
//! so that a start that opens many datasets does not wait for the disk once for each.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use larder_dataset::{CacheId, CacheKey, PolicyKind};
use tracing::{debug, warn};

use crate::index::{DatasetRow, policy_byte, policy_of};
use crate::key_file;
use crate::record;
use crate::whole_file::write_whole;

/// The file that stores how many bytes of a closed dataset are cached.
const USED: &str = "used";

/// The file that stores which namespace pays.
const PAYER: &str = "payer";

const MAGIC: [u8; 8] = *b"LARDERRV";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 48;
const NAME_BYTES: usize = 1024;
/// The unit in which the disk space of adopted blocks is stored. A version that predates the field writes 0.
const ADOPTED_UNIT: u64 = 4096;
/// A larger file counts as damaged.
const FILE_BYTES: u64 = 128 << 10;

/// The space that a dataset is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Bytes of the dataset's blocks that may be cached.
    pub bytes: u64,
    /// Disk bytes that those blocks occupy at most: see [`disk_bytes`].
    pub disk_bytes: u64,
    /// Bytes that the dataset would have been promised if there had been space; 0 if that is unknown.
    pub wanted_bytes: u64,
}

impl Reservation {
    /// A promise of all that was wanted, without the overhead of blocks on disk.
    pub const fn exactly(bytes: u64) -> Self {
        Self { bytes, disk_bytes: bytes, wanted_bytes: bytes }
    }
}

/// The most disk space that blocks occupy: `bytes` in `blocks` records, each with its header and checksums, rounded up
/// to 4 KiB.
pub fn disk_bytes(bytes: u64, blocks: u64) -> u64 {
    let overhead = (record::HEADER_BYTES + 4 + record::ALIGN_BYTES - 1) as u64;
    let checksums = bytes / record::CHUNK_BYTES as u64 * 4;
    bytes.saturating_add(checksums).saturating_add(blocks.saturating_mul(overhead))
}

/// The facts about a dataset that hold whether or not it is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The key of the dataset's cache, from its own file; `None` if an earlier version made the cache.
    pub(crate) key: Option<CacheKey>,
    pub(crate) name: String,
    /// The namespace that pays for the room; empty if none is known.
    pub(crate) payer: String,
    pub(crate) reservation: Option<Reservation>,
    /// Which blocks are kept when not all fit.
    pub(crate) policy: PolicyKind,
    /// The connections that show the dataset. After the process that served them ended, the connections that it served
    /// last. `None` if that information was lost.
    pub(crate) connections: Option<BTreeSet<String>>,
    pub(crate) last_use_unix_s: u64,
    /// Disk bytes of the dataset's adopted blocks.
    pub(crate) adopted_disk_bytes: u64,
    /// Bytes of the dataset's blocks when it was closed, if known.
    pub(crate) used_bytes: Option<u64>,
}

impl Known {
    /// The dataset's row for the index, which keeps a copy.
    pub(crate) fn row(&self, number: u32) -> DatasetRow {
        DatasetRow {
            number,
            policy: self.policy,
            reservation_bytes: self.reservation.unwrap_or_default().bytes,
            last_use_unix_s: self.last_use_unix_s,
            name: self.name.clone(),
        }
    }

    pub(crate) fn use_now(&mut self) {
        // A clock that is set before 1970 counts as 0.
        self.last_use_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    }
}

impl From<DatasetRow> for Known {
    fn from(row: DatasetRow) -> Self {
        let DatasetRow { policy, reservation_bytes: bytes, last_use_unix_s, name, .. } = row;
        let reservation = Reservation { bytes, disk_bytes: bytes, wanted_bytes: 0 };
        Self { name, reservation: Some(reservation), policy, last_use_unix_s, ..Self::default() }
    }
}

/// The facts about all datasets of a store.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    known: Mutex<HashMap<CacheId, Known>>,
    /// The datasets whose files have all changes but that of the time of the last use, with the time in the file.
    written: Mutex<HashMap<CacheId, u64>>,
    /// The lock of each dataset that is held during a write, so that the file has both of two concurrent changes.
    /// Reading never waits for the disk, and no dataset waits for the write of another.
    writing: Mutex<HashMap<CacheId, Arc<Mutex<()>>>>,
}

impl Reservations {
    /// Reads the reservation files of these datasets. A dataset without a usable file uses its row in the index.
    /// Errors: a key cannot be read now.
    pub(crate) fn load(
        folders: impl IntoIterator<Item = (CacheId, PathBuf)>,
        rows: impl IntoIterator<Item = (CacheId, DatasetRow)>,
    ) -> io::Result<Self> {
        let mut rows: HashMap<CacheId, DatasetRow> = rows.into_iter().collect();
        let mut written = HashMap::new();
        let known = folders.into_iter().map(|(id, folder)| {
            let (row, stored) = (rows.remove(&id), read(&file_in(&folder)));
            written.extend(stored.as_ref().map(|stored| (id, stored.last_use_unix_s)));
            let mut known = stored.or_else(|| row.map(Known::from)).unwrap_or_default();
            known.used_bytes = read_used(&folder.join(USED));
            known.payer = read_payer(&folder.join(PAYER)).unwrap_or_default();
            known.key = key_file::read(&folder, id)?;
            Ok::<_, io::Error>((id, known))
        });
        let known = known.collect::<io::Result<_>>()?;
        Ok(Self { known: Mutex::new(known), written: Mutex::new(written), writing: Mutex::default() })
    }

    pub(crate) fn get(&self, id: &CacheId) -> Option<Known> {
        self.lock().get(id).cloned()
    }

    /// Changes what is known about a dataset and writes it to `folder` so that it survives a power loss. Returns the
    /// new state. Blocks on the disk. If the write fails or there is no folder, the change is in memory only.
    pub(crate) fn put(&self, id: &CacheId, folder: Option<&Path>, change: impl FnOnce(&mut Known)) -> Known {
        let writing = Arc::clone(lock(&self.writing).entry(*id).or_default());
        let _writing = lock(&writing);
        lock(&self.written).remove(id);
        let known = {
            let mut all = self.lock();
            let known = all.entry(*id).or_default();
            change(known);
            known.clone()
        };
        let Some(folder) = folder else { return known };
        match write_whole(&file_in(folder), &encode(&known)) {
            Ok(()) => {
                lock(&self.written).insert(*id, known.last_use_unix_s);
            }
            Err(error) => {
                warn!(
                    dataset = known.name, %error,
                    "cannot write a reservation: after a restart the dataset may get another one"
                );
                // The old file may list no connection although one now serves the dataset. No file is better: a start
                // then keeps the dataset for every mount that has a manifest.
                let _ = std::fs::remove_file(file_in(folder));
            }
        }
        known
    }

    /// Like [`put`](Self::put), but if only the time of the last use changes, the change is in memory until the next
    /// [`put`](Self::put) or [`put_use`](Self::put_use).
    pub(crate) fn put_news(&self, id: &CacheId, folder: Option<&Path>, change: impl FnOnce(&mut Known)) -> Known {
        if lock(&self.written).contains_key(id) {
            let mut all = self.lock();
            let known = all.entry(*id).or_default();
            let before = known.clone();
            change(known);
            let known = known.clone();
            drop(all);
            let is_news = Known { last_use_unix_s: before.last_use_unix_s, ..known.clone() } != before;
            return if is_news { self.put(id, folder, |_| ()) } else { known };
        }
        self.put(id, folder, change)
    }

    /// Writes the time of the last use if the file has another one. Blocks on the disk.
    pub(crate) fn put_use(&self, id: &CacheId, folder: Option<&Path>) {
        let last_use = self.get(id).map(|known| known.last_use_unix_s);
        if last_use.is_some() && lock(&self.written).get(id).copied() != last_use {
            self.put(id, folder, |_| ());
        }
    }

    /// Changes what is known about a dataset in memory only. The next [`put`](Self::put) writes it.
    pub(crate) fn note(&self, id: &CacheId, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.lock().get_mut(id) {
            change(known);
        }
    }

    /// Stores how many bytes of a closing dataset are cached, or with `None` that this number changes from now on.
    /// Blocks on the disk.
    pub(crate) fn put_used(&self, id: &CacheId, folder: &Path, used_bytes: Option<u64>) {
        self.note(id, |known| known.used_bytes = used_bytes);
        let file = folder.join(USED);
        let done = match used_bytes {
            Some(used_bytes) => write_whole(&file, &seal(used_bytes.to_le_bytes().to_vec())),
            None => std::fs::remove_file(file),
        };
        if let Err(error) = done
            && error.kind() != io::ErrorKind::NotFound
        {
            debug!(%id, %error, "cannot record how much is cached: the next process estimates it");
        }
    }

    /// Stores the namespace that pays for a dataset. Blocks on the disk.
    pub(crate) fn put_payer(&self, id: &CacheId, folder: Option<&Path>, payer: &str) {
        self.note(id, |known| payer.clone_into(&mut known.payer));
        if let Some(folder) = folder
            && let Err(error) = write_whole(&folder.join(PAYER), &seal(payer.as_bytes().to_vec()))
        {
            warn!(
                %id, payer, %error,
                "cannot record which namespace pays for a dataset: after a restart its quota may not count it"
            );
        }
    }

    pub(crate) fn remove(&self, id: &CacheId) {
        self.lock().remove(id);
        lock(&self.written).remove(id);
        lock(&self.writing).remove(id);
    }

    /// All datasets that are known, with their state.
    pub(crate) fn all(&self) -> Vec<(CacheId, Known)> {
        self.lock().iter().map(|(id, known)| (*id, known.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, Known>> {
        lock(&self.known)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("reservation")
}

fn read(path: &Path) -> Option<Known> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES).read_to_end(&mut bytes).ok()?;
    decode(&bytes)
}

fn encode(known: &Known) -> Vec<u8> {
    let Reservation { bytes, disk_bytes, wanted_bytes } = known.reservation.unwrap_or_default();
    // A snapshot has one connection for each server that it is read from.
    let connections: Vec<&String> =
        known.connections.iter().flatten().filter(|name| name.len() < 256).take(255).collect();
    let mut file = MAGIC.to_vec();
    file.extend([VERSION, policy_byte(known.policy), connections.len() as u8]);
    file.extend(&known.adopted_disk_bytes.div_ceil(ADOPTED_UNIT).to_le_bytes()[..5]);
    for number in [bytes, disk_bytes, wanted_bytes, known.last_use_unix_s] {
        file.extend(number.to_le_bytes());
    }
    for connection in connections {
        file.push(connection.len() as u8);
        file.extend(connection.bytes());
    }
    file.extend(known.name.bytes().take(NAME_BYTES));
    seal(file)
}

/// Appends the checksum to a file's content.
fn seal(mut file: Vec<u8>) -> Vec<u8> {
    file.extend(larder_dataset::crc32c(&file).to_le_bytes());
    file
}

fn read_used(path: &Path) -> Option<u64> {
    read_sealed(path)?.try_into().ok().map(u64::from_le_bytes)
}

fn read_payer(path: &Path) -> Option<String> {
    String::from_utf8(read_sealed(path)?).ok()
}

/// The content of a file that [`seal`] made. None if it is missing or damaged.
fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (u32::from_le_bytes(*crc) == larder_dataset::crc32c(content)).then(|| content.to_vec())
}

/// Decodes a reservation file. None if it is of another version or damaged.
fn decode(file: &[u8]) -> Option<Known> {
    let (file, crc) = file.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != larder_dataset::crc32c(file) || file[..8.min(file.len())] != MAGIC {
        return None;
    }
    let (fixed, mut rest) = file.split_first_chunk::<FIXED_BYTES>()?;
    if fixed[8] != VERSION {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(fixed.get(at..at + 8)?.try_into().ok()?));
    let mut connections = BTreeSet::new();
    for _ in 0..fixed[10] {
        let (&len, after) = rest.split_first()?;
        let (text, after) = after.split_at_checked(len.into())?;
        connections.insert(String::from_utf8_lossy(text).into_owned());
        rest = after;
    }
    let reservation = Reservation { bytes: number(16)?, disk_bytes: number(24)?, wanted_bytes: number(32)? };
    Some(Known {
        key: None,
        payer: String::new(),
        // All zeros mean that the promise is unknown: a dataset that was promised nothing still wanted something.
        reservation: Some(reservation).filter(|reservation| *reservation != Reservation::default()),
        policy: policy_of(fixed[9])?,
        connections: Some(connections),
        last_use_unix_s: number(40)?,
        adopted_disk_bytes: (number(8)? >> 24) * ADOPTED_UNIT,
        used_bytes: None,
        name: String::from_utf8_lossy(rest).into_owned(),
    })
}
