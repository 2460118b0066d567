//! A dataset's cache over a real folder.
//!
//! Its parts: this file sets up a cache to test; `admission` is normal operation; `adoption`, blocks of another
//! snapshot; `restart`, the state that a restart finds; `store`, the store around the dataset; `faults`, failing disks
//! and broken bytes; `large`, blocks of large files; `disks`, several folders on different disks; `crash`, kills and
//! races; `disowned`, blocks that other nodes own now; `space`, the space in the segments; `model`, all of these
//! operations in any order, compared with a map.

mod admission;
mod adoption;
mod crash;
mod disks;
mod disowned;
mod faults;
mod large;
mod model;
mod restart;
mod space;
mod store;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use larder_dataset::{BLOCK_BYTES, CacheId, PolicyKind, SnapshotId};

use super::*;
use crate::counters::StoreCounters;
use crate::reservations::Reservation;
use crate::store::{Store, StoreConfig};

const SNAPSHOT: SnapshotId = SnapshotId([0x11; 32]);
const TIMEOUT: Duration = Duration::from_secs(60);

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mostly small lengths, some of several chunks, some at the limits.
fn len_of(block: BlockIndex) -> u32 {
    match block.0 % 16 {
        0 => 200_000,
        1 => 1,
        2 => 4096 - 68,
        3 => 65_536,
        _ => 1000 + (mix(u64::from(block.0)) % 9000) as u32,
    }
}

fn bytes_of(block: BlockIndex, len: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 8);
    for at in 0..u64::from(len).div_ceil(8) {
        bytes.extend(mix(u64::from(block.0) << 32 | at).to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// A cache folder, with its store and dataset while they are open.
struct Bed {
    dir: PathBuf,
    /// The folders on other disks.
    more: Vec<PathBuf>,
    boot_id: String,
    counters: Arc<StoreCounters>,
    config: CacheConfig,
    segment_bytes: u64,
    /// The ownership of the user that `open` creates.
    ownership: Option<Arc<dyn Ownership>>,
    user: Option<CacheUser>,
    open: Option<(Store, Arc<DatasetCache>)>,
    _temp: Option<tempfile::TempDir>,
}

impl Bed {
    fn new(policy: PolicyKind, reservation_bytes: u64) -> Self {
        let temp = tempfile::tempdir().unwrap();
        Self { _temp: None, ..Self::at(temp.path(), policy, reservation_bytes) }.keeping(temp)
    }

    fn at(dir: &Path, policy: PolicyKind, reservation_bytes: u64) -> Self {
        let mut bed = Self::closed(dir, policy, reservation_bytes);
        bed.open();
        bed
    }

    /// One that is not open yet.
    fn closed(dir: &Path, policy: PolicyKind, reservation_bytes: u64) -> Self {
        let config = CacheConfig {
            key: SNAPSHOT.into(),
            is_known_as_ours: false,
            name: "images".into(),
            blocks: 1000,
            reservation_bytes,
            promised: Reservation::exactly(reservation_bytes),
            policy,
            seed: 5,
            block_lens: Arc::new(len_of),
        };
        Self {
            dir: dir.join("cache"),
            more: Vec::new(),
            boot_id: "first boot".into(),
            counters: Arc::default(),
            config,
            segment_bytes: 1 << 20,
            ownership: None,
            user: None,
            open: None,
            _temp: None,
        }
    }

    fn keeping(mut self, temp: tempfile::TempDir) -> Self {
        self._temp = Some(temp);
        self
    }

    fn try_open(&self) -> Result<(Store, Arc<DatasetCache>), StoreError> {
        let store = self.try_open_store()?;
        let cache = store.dataset(self.config.clone())?;
        Ok((store, cache))
    }

    fn try_open_store(&self) -> Result<Store, StoreError> {
        let config = StoreConfig {
            segment_bytes: self.segment_bytes,
            pause_first: Duration::from_millis(20),
            pause_most: Duration::from_millis(40),
            more_dirs: self.more.clone(),
            ..StoreConfig::new(&self.dir)
        };
        Store::open_at_boot(config, Arc::clone(&self.counters), &self.boot_id)
    }

    /// Opens the dataset, and waits until admissions are open and what the last run left is freed.
    fn open(&mut self) {
        self.open = Some(self.try_open().unwrap());
        self.user = Some(self.cache().join(self.ownership.clone()));
        assert!(self.cache().wait_rebuilt(TIMEOUT));
        self.wait_freed();
    }

    /// Waits until the rebuild has freed what the last run left.
    fn wait_freed(&self) {
        drop(self.cache().shared.adopted_room.lock().unwrap());
    }

    /// Ends like a killed process, without closing the store.
    fn drop_all(&mut self) {
        self.open = None;
    }

    fn close(&mut self) {
        self.store().close().unwrap();
        self.open = None;
    }

    fn store(&self) -> &Store {
        &self.open.as_ref().unwrap().0
    }

    fn cache(&self) -> &DatasetCache {
        &self.open.as_ref().unwrap().1
    }

    fn put(&self, block: u32) -> bool {
        put(self.cache(), block)
    }

    fn put_all(&self, blocks: impl IntoIterator<Item = u32>) {
        blocks.into_iter().for_each(|block| assert!(self.put(block), "block {block}"));
    }

    fn get(&self, block: u32) -> bool {
        get(self.cache(), block)
    }

    fn hits(&self, blocks: impl IntoIterator<Item = u32>) -> usize {
        blocks.into_iter().filter(|&block| self.get(block)).count()
    }

    fn dataset_dir(&self) -> PathBuf {
        self.dir.join("datasets").join(SNAPSHOT.to_string())
    }

    fn slots_file(&self) -> PathBuf {
        self.dataset_dir().join("slots")
    }

    fn segment_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.dataset_dir().join("segments")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Bytes that the segments take on the disk.
    fn disk_bytes(&self) -> u64 {
        self.segment_files().iter().map(|file| fs::metadata(file).unwrap().blocks() * 512).sum()
    }

    fn place(&self, block: u32) -> Place {
        self.cache().shared.slots.get(BlockIndex(block)).expect("cached")
    }

    fn segment_file(&self, place: Place) -> PathBuf {
        let folder = self.dataset_dir();
        let file = folder.strip_prefix(&self.dir).unwrap().join(format!("segments/{:08}.seg", place.segment));
        let on_others = self.more.iter().map(|dir| dir.join(&file)).find(|path| path.exists());
        on_others.unwrap_or_else(|| self.dir.join(&file))
    }
}

fn put(cache: &DatasetCache, block: u32) -> bool {
    let block = BlockIndex(block);
    let Some(permit) = cache.admit(block, len_of(block)) else { return false };
    cache.write(permit, &cache.record(block, &bytes_of(block, len_of(block)))).unwrap();
    true
}

/// Reads a whole block and checks its bytes. True if it is a hit.
fn get(cache: &DatasetCache, block: u32) -> bool {
    let block = BlockIndex(block);
    let len = len_of(block);
    cache
        .read(block, len, 0, len, |found| assert!(found == bytes_of(block, len), "{block}: wrong bytes"))
        .hit()
        .is_some()
}

fn bytes_in(blocks: impl IntoIterator<Item = u32>) -> u64 {
    blocks.into_iter().map(|block| u64::from(len_of(BlockIndex(block)))).sum()
}
