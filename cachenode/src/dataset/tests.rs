//! Reads while the store counts the blocks of an earlier run.

mod measure;
mod pieces;

use std::sync::mpsc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use larder_dataset::BlockIndex;
use larder_import::Silent;
use larder_origin::OriginConfig;
use larder_store::StoreConfig;
use tempfile::TempDir;

use super::*;
use crate::home::Home;
use crate::planned::PlannedBlocks;
use crate::source::{Here, resolve};

/// Files of each dataset, one block each.
const FILES: u32 = 6;
const FILE_BYTES: u32 = 50_000;

/// No wait is longer than this in a test that passes.
const PATIENCE: Duration = Duration::from_secs(30);

impl Dataset {
    /// Reads a file by its number, and fetches what is missing.
    pub(crate) async fn read_file(&self, file: u32, offset: u64, len: u32) -> Result<Bytes, FetchError> {
        self.read_later(self.manifest().file_blocks(FileIndex(file))?, offset, len).await
    }

    /// The blocks that plans have fetched.
    pub(crate) fn planned(&self) -> &PlannedBlocks {
        self.fetcher.planned()
    }

    /// True if the store keeps a block.
    pub(crate) fn keeps(&self, block: BlockIndex) -> bool {
        self.cache.contains(block)
    }
}

/// Holds a rebuild at its first block until it is opened.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

fn bytes_of(dataset: &str, file: u32) -> Vec<u8> {
    let seed = dataset.bytes().fold(file, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    (0..FILE_BYTES).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 11) as u8).collect()
}

/// A folder with datasets and a store.
struct World {
    folder: TempDir,
}

impl World {
    fn new(datasets: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for dataset in datasets {
            let data = folder.path().join(dataset);
            std::fs::create_dir_all(&data).unwrap();
            for file in 0..FILES {
                std::fs::write(data.join(file.to_string()), bytes_of(dataset, file)).unwrap();
            }
        }
        Self { folder }
    }

    fn store(&self) -> Store {
        Store::open(StoreConfig::new(self.folder.path().join("store")), Arc::default()).unwrap()
    }

    /// Opens a dataset; its rebuild waits at `gate`.
    async fn open(&self, store: &Store, name: &str, gate: Option<&Arc<Gate>>, unwritten_bytes: u64) -> Arc<Dataset> {
        let url = format!("file://{}", self.folder.path().join(name).display());
        let home = Home::new(self.folder.path().join("home"));
        let source = resolve(&url, &OriginConfig::default(), &home, larder_dataset::Refresh::Never, &Here, &Silent)
            .await
            .unwrap();
        let spec = CacheSpec::exactly(source.manifest.snapshot(), 1 << 20, PolicyKind::Nr, 1);
        let held = gate.map(|gate| {
            let gate = Arc::clone(gate);
            let config = CacheConfig {
                key: spec.key.clone(),
                is_known_as_ours: false,
                name: name.to_owned(),
                blocks: source.manifest.totals().blocks,
                reservation_bytes: spec.reservation_bytes,
                promised: spec.promised,
                policy: spec.policy,
                seed: spec.seed,
                block_lens: Arc::new(move |_: BlockIndex| {
                    gate.pass();
                    FILE_BYTES
                }),
            };
            store.dataset(config).unwrap()
        });
        let config = FetchConfig { unwritten_bytes, read_deadline: PATIENCE * 10, ..FetchConfig::DEFAULT };
        let dataset =
            Dataset::open(source.manifest, store, spec, source.origin, None, &Handle::current(), config).unwrap();
        drop(held);
        dataset
    }
}

/// Reads a whole file, past the window; true if the store had it.
async fn read(dataset: &Dataset, name: &str, file: u32) -> bool {
    let index = FileIndex(file);
    let row = dataset.manifest().file_blocks(index).unwrap();
    let expected = bytes_of(name, file);
    let stored = dataset.counters().read_bytes_store.load(std::sync::atomic::Ordering::Relaxed);
    let is_here = dataset.read_now(row, 0, FILE_BYTES, |bytes| assert!(bytes == expected, "wrong bytes in {file}"));
    if !is_here {
        let bytes = tokio::time::timeout(PATIENCE, dataset.read_later(row, 0, FILE_BYTES)).await;
        assert!(bytes.expect("the read waits for the rebuild").unwrap() == expected, "wrong bytes in {file}");
    }
    dataset.counters().read_bytes_store.load(std::sync::atomic::Ordering::Relaxed) > stored
}

fn gets(dataset: &Dataset) -> u64 {
    dataset.counters().origin_gets.load(std::sync::atomic::Ordering::Relaxed)
}

/// A world with two datasets, whose first file each is in the store.
async fn after_a_first_run() -> World {
    let world = World::new(&["a", "b"]);
    let store = world.store();
    for name in ["a", "b"] {
        let dataset = world.open(&store, name, None, 64 << 20).await;
        read(&dataset, name, 0).await;
        dataset.drain().await;
        assert!(read(&dataset, name, 0).await);
    }
    store.close().unwrap();
    world
}

// SEMANTICS: C3
#[tokio::test]
async fn missing_blocks_are_read_during_a_rebuild_and_kept_after_it() {
    let world = after_a_first_run().await;
    let store = world.store();
    let gates = [Arc::<Gate>::default(), Arc::default()];
    let a = world.open(&store, "a", Some(&gates[0]), 64 << 20).await;
    let b = world.open(&store, "b", Some(&gates[1]), 64 << 20).await;
    for (dataset, name) in [(&a, "a"), (&b, "b")] {
        assert!(read(dataset, name, 0).await, "what was kept is a hit");
        for file in 1..FILES {
            assert!(!read(dataset, name, file).await);
        }
        assert!(dataset.cache_usage().rebuilding);
        // They wait for the store in memory: nothing is fetched again.
        for file in 1..FILES {
            read(dataset, name, file).await;
        }
        assert_eq!(gets(dataset), u64::from(FILES) - 1, "{name}");
    }
    // One dataset's rebuild ends, and its blocks are kept; the other's goes on.
    gates[0].open();
    a.settle().await;
    for file in 0..FILES {
        assert!(read(&a, "a", file).await, "{file} is a hit");
    }
    assert_eq!(a.cache_usage().blocks_cached, u64::from(FILES));
    assert!(b.cache_usage().rebuilding && !b.cache.contains(BlockIndex(1)));
    gates[1].open();
    b.settle().await;
    for file in 0..FILES {
        assert!(read(&b, "b", file).await, "{file} is a hit");
    }
    assert_eq!((gets(&a), gets(&b)), (u64::from(FILES) - 1, u64::from(FILES) - 1));
}

// SEMANTICS: C3
#[tokio::test]
async fn blocks_without_room_to_wait_for_a_rebuild_are_answered_counted_and_kept_later() {
    let world = after_a_first_run().await;
    let store = world.store();
    let gate = Arc::<Gate>::default();
    // Room for one block.
    let dataset = world.open(&store, "a", Some(&gate), u64::from(FILE_BYTES) + 4096).await;
    for file in 1..FILES {
        assert!(!read(&dataset, "a", file).await);
    }
    assert_eq!(store.counters().unwritten.get(), u64::from(FILES) - 2);
    gate.open();
    dataset.settle().await;
    assert_eq!(dataset.cache_usage().blocks_cached, 2);
    for file in 0..FILES {
        read(&dataset, "a", file).await;
        // Each has the room of the one before.
        dataset.settle().await;
    }
    assert_eq!(dataset.cache_usage().blocks_cached, u64::from(FILES));
}

// SEMANTICS: C3
#[tokio::test]
async fn a_dataset_that_is_closed_during_its_rebuild_waits_for_nothing() {
    let world = after_a_first_run().await;
    let store = world.store();
    let gate = Arc::<Gate>::default();
    let dataset = world.open(&store, "a", Some(&gate), 64 << 20).await;
    read(&dataset, "a", 1).await;
    tokio::time::timeout(PATIENCE, dataset.drain()).await.expect("drained while the rebuild goes on");
    gate.open();
}

// SEMANTICS: C3
#[tokio::test]
async fn warming_during_a_rebuild_waits_for_it_and_readers_do_not() {
    let world = after_a_first_run().await;
    let store = world.store();
    let gate = Arc::<Gate>::default();
    let dataset = world.open(&store, "a", Some(&gate), 64 << 20).await;
    dataset.start_warming();
    for file in 1..FILES {
        read(&dataset, "a", file).await;
    }
    gate.open();
    let (done, finished) = mpsc::channel();
    let warmed = tokio::spawn({
        let dataset = Arc::clone(&dataset);
        async move {
            while dataset.stats().warm.is_none_or(|state| state.running) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            done.send(dataset.stats().warm.unwrap()).unwrap();
        }
    });
    tokio::time::timeout(PATIENCE, warmed).await.expect("warming ends").unwrap();
    let state = finished.recv().unwrap();
    assert_eq!((state.blocks_kept, state.full), (u64::from(FILES), false));
    assert_eq!(gets(&dataset), u64::from(FILES) - 1);
}

// SEMANTICS: C22
#[tokio::test]
async fn a_dataset_is_of_large_files_if_they_have_more_than_16_mib_on_average() {
    let world = World::new(&[]);
    let store = world.store();
    for (name, bytes, is_large) in [("small", 16 << 20, false), ("large", (16 << 20) + 1, true)] {
        let data = world.folder.path().join(name);
        std::fs::create_dir(&data).unwrap();
        std::fs::File::create(data.join("file")).unwrap().set_len(bytes).unwrap();
        assert_eq!(world.open(&store, name, None, 64 << 20).await.is_of_large_files(), is_large, "{name}");
    }
}
