use std::collections::BTreeMap;
use std::time::Duration;

use larder_dataset::{FileIndex, PolicyKind};
use larder_import::Silent;
use larder_origin::OriginConfig;
use larder_store::{Store, StoreConfig, StoreCounters};
use tempfile::TempDir;

use super::*;
use crate::dataset::CacheSpec;
use crate::fetch::FetchConfig;
use crate::home::Home;
use crate::source::{Here, resolve};

/// The size of the one file of each dataset.
const FILE_BYTES: u64 = 50_000;

/// A store with an empty table of open datasets.
struct World {
    folder: TempDir,
    store: Store,
    open: Arc<OpenDatasets>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(folder.path().join("store"));
        let store = Store::open(config, Arc::new(StoreCounters::default())).unwrap();
        Self { folder, store, open: OpenDatasets::new(Handle::current()) }
    }

    /// Opens the dataset `name` for its first user. Its origin is a folder of that name.
    async fn open(&self, name: &str) -> OpenDataset {
        let data = self.folder.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("file"), vec![7; FILE_BYTES as usize]).unwrap();
        let url = format!("file://{}", data.display());
        let home = Home::new(self.folder.path().join("home"));
        let source = resolve(&url, &OriginConfig::default(), &home, larder_dataset::Refresh::Never, &Here, &Silent)
            .await
            .unwrap();
        let spec = CacheSpec::exactly(source.manifest.snapshot(), 1 << 20, PolicyKind::Nr, 1);
        let dataset = Dataset::open(
            source.manifest,
            &self.store,
            spec,
            source.origin,
            None,
            &Handle::current(),
            FetchConfig::DEFAULT,
        );
        self.open.add(name.to_owned(), dataset.unwrap(), User::Mount)
    }

    /// The counters among the sums, without the gauges.
    fn totals(&self) -> BTreeMap<&'static str, u64> {
        self.open.sums().into_iter().filter(|(name, _)| name.ends_with("_total")).collect()
    }

    /// Waits until nothing drains. Meanwhile no counter may fall.
    async fn drained(&self) {
        let mut before = self.totals();
        loop {
            let is_drained = self.open.is_drained();
            let now = self.totals();
            for (name, value) in &before {
                assert!(now[name] >= *value, "{name} fell from {value} to {}", now[name]);
            }
            if is_drained {
                return;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn read(dataset: &Dataset) {
    assert_eq!(dataset.read_file(0, 0, FILE_BYTES as u32).await.unwrap().len() as u64, FILE_BYTES);
}

/// Reads from the store or the window alone.
fn read_now(dataset: &Dataset) -> bool {
    let file = dataset.manifest().file_blocks(FileIndex(0)).unwrap();
    dataset.read_now(file, 0, FILE_BYTES as u32, |bytes| assert_eq!(bytes.len() as u64, FILE_BYTES))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_of_a_closed_dataset_stay_in_the_sums() {
    let world = World::new();
    let (one, other) = (world.open("one").await, world.open("other").await);
    read(&one).await;
    read(&other).await;
    one.settle().await;
    other.settle().await;
    let before = world.open.sums();
    assert_eq!((before["fs_origin_gets_total"], before["fs_read_bytes_origin_total"]), (2, 2 * FILE_BYTES));
    assert_eq!(before["store_blocks"], 2);

    drop(one);
    world.drained().await;
    let after = world.open.sums();
    assert_eq!((after["fs_origin_gets_total"], after["fs_read_bytes_origin_total"]), (2, 2 * FILE_BYTES));
    assert_eq!(after["store_blocks"], 1, "a gauge counts open datasets only");

    drop(other);
    world.drained().await;
    assert_eq!(world.totals(), before.into_iter().filter(|(name, _)| name.ends_with("_total")).collect());

    // Opened again, it is served from the store and counts on.
    let one = world.open("one").await;
    assert!(read_now(&one));
    let totals = world.totals();
    assert_eq!((totals["fs_origin_gets_total"], totals["fs_read_bytes_store_total"]), (2, FILE_BYTES));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_with_two_users_is_closed_when_both_are_gone() {
    let world = World::new();
    let first = world.open("one").await;
    let second = world.open.join("one", User::Mount).unwrap();
    assert!(Arc::ptr_eq(first.dataset(), second.dataset()), "opened once");
    let draining = world.open.watch_draining();
    drop(first);
    assert!(!draining.has_changed().unwrap(), "it has a user");
    assert_eq!(world.open.all().len(), 1);
    read(&second).await;

    let weak = Arc::downgrade(second.dataset());
    drop(second);
    assert!(world.open.join("one", User::Mount).is_none() && world.open.all().is_empty());
    assert!(draining.has_changed().unwrap());
    world.drained().await;
    assert_eq!(weak.strong_count(), 0, "it is closed before it counts as drained");
    let again = world.open("one").await;
    assert!(read_now(&again), "the block in flight reached the store before the dataset was closed");
}
