use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use larder_dataset::{FileIndex, PolicyKind};
use larder_import::Silent;
use larder_origin::OriginConfig;
use larder_store::{Store, StoreConfig, StoreCounters};
use larder_telemetry::{Labels, METRICS};
use tempfile::TempDir;

use super::*;
use crate::dataset::CacheSpec;
use crate::fetch::FetchConfig;
use crate::history::{self, History};
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
        let history = History::start(folder.path(), &Handle::current());
        Self { folder, store, open: OpenDatasets::new(Handle::current(), history) }
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

/// The samples of metrics, by name and labels, as a scraper sees them. None is there twice.
fn scraped(open: &OpenDatasets, with_names: bool) -> BTreeMap<(&'static str, Labels), Value> {
    let samples = open.samples(with_names);
    let all = samples.len();
    let scraped: BTreeMap<_, _> = samples.into_iter().map(|it| ((it.name, it.labels), it.value)).collect();
    assert_eq!(scraped.len(), all, "each series once");
    scraped
}

/// The sum of a counter over all of its series.
fn sum(open: &OpenDatasets, name: &str, with_names: bool) -> u64 {
    let number = |value: Value| if let Value::Number(number) = value { number } else { panic!("{value:?}") };
    scraped(open, with_names).into_iter().filter(|((of, _), _)| *of == name).map(|(_, value)| number(value)).sum()
}

/// The names of datasets that a scraper learns.
fn names(open: &OpenDatasets, with_names: bool) -> BTreeSet<String> {
    let labels = scraped(open, with_names).into_keys().flat_map(|(_, labels)| labels);
    labels.filter(|(label, _)| *label == "dataset").map(|(_, name)| name).collect()
}

// SEMANTICS: P9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_that_come_and_go_leave_sums_and_a_bounded_number_of_series_and_names() {
    let world = World::new();
    let (mut read_so_far, mut series_most) = (0, 0);
    for round in 0..2 {
        let mut open = Vec::new();
        for number in 0..NAMED_MOST + 5 {
            let dataset = world.open(&format!("d{round}-{number}")).await;
            read(&dataset).await;
            read_so_far += FILE_BYTES;
            open.push(dataset);
        }
        for with_names in [true, false] {
            assert_eq!(sum(&world.open, "read_bytes_total", with_names), read_so_far);
        }
        let names = names(&world.open, true);
        assert_eq!(names.len(), NAMED_MOST + 1, "{names:?}");
        assert!(names.contains(OTHER) && names.contains(&format!("d{round}-0")), "{names:?}");
        let series = scraped(&world.open, true).len();
        if round == 0 {
            series_most = series;
        }
        assert_eq!(series, series_most, "as many as before");
        drop(open);
        let mut before = 0;
        while !world.open.is_drained() {
            let now = sum(&world.open, "read_bytes_total", true);
            assert!(now >= before, "the sum fell from {before} to {now}");
            before = now;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    for with_names in [true, false] {
        assert_eq!(sum(&world.open, "read_bytes_total", with_names), read_so_far);
        assert_eq!(sum(&world.open, "reads_total", with_names), 2 * (NAMED_MOST as u64 + 5));
    }
    assert_eq!(names(&world.open, true).len(), NAMED_MOST + 1);
}

/// The series of counters that a scraper with the token sees.
fn counters(open: &OpenDatasets) -> BTreeMap<(&'static str, Labels), Value> {
    let mut scraped = scraped(open, true);
    scraped.retain(|(name, _), _| name.ends_with("_total"));
    scraped
}

// SEMANTICS: P9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_series_grows_because_a_dataset_is_closed_and_its_own_go_on_when_it_is_opened_again() {
    let world = World::new();
    let bytes = |name: &str| {
        let labels = vec![("tier", "store".to_owned()), ("dataset", name.to_owned())];
        counters(&world.open).remove(&("read_bytes_total", labels))
    };
    for round in 1..=3 {
        let one = world.open("one").await;
        read(&one).await;
        one.settle().await;
        assert!(read_now(&one));
        world.open.look_at_readers(Duration::ZERO);
        let before = counters(&world.open);
        drop(one);
        world.drained().await;
        assert_eq!(counters(&world.open), before, "round {round}");
    }
    let Some(Value::Number(stored)) = bytes("one") else { panic!("{:?}", counters(&world.open)) };
    assert!(stored >= 3 * FILE_BYTES, "{stored}");
    assert_eq!(bytes(OTHER), None);
}

// SEMANTICS: P9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histograms_never_have_names_and_without_them_nothing_has() {
    let world = World::new();
    let secret = world.open("secret").await;
    read(&secret).await;
    assert!(!format!("{:?}", world.open.samples(false)).contains("secret"));
    for ((name, labels), value) in scraped(&world.open, true) {
        let has_name = labels.iter().any(|(label, _)| *label == "dataset");
        assert!(!has_name || !matches!(value, Value::Histogram { .. }), "{name}");
    }
    assert_eq!(names(&world.open, true), BTreeSet::from(["secret".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sample_is_of_a_metric_in_the_table() {
    let world = World::new();
    let dataset = world.open("one").await;
    read(&dataset).await;
    dataset.settle().await;
    world.open.look_at_readers(Duration::ZERO);
    for sample in world.open.samples(true) {
        assert!(METRICS.iter().any(|metric| metric.name == sample.name), "{}", sample.name);
    }
}

// SEMANTICS: A6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_are_counted_and_written_down_and_the_last_one_is_cut_off_by_the_end() {
    let world = World::new();
    let one = world.open("one").await;
    world.open.look_at_readers(Duration::ZERO);
    read(&one).await;
    one.settle().await;
    world.open.look_at_readers(Duration::ZERO);
    let promised = || scraped(&world.open, true).into_keys().any(|(name, _)| name == "pass_promised_ratio");
    assert!(!promised(), "the first pass filled the cache");
    // A pass over the cached dataset, and half of one.
    assert!(read_now(&one));
    world.open.look_at_readers(Duration::ZERO);
    one.read_file(0, 0, FILE_BYTES as u32 / 2).await.unwrap();
    let passes = one.stats().passes;
    assert_eq!(passes.iter().map(|pass| pass.complete).collect::<Vec<_>>(), [true, true]);
    assert_eq!((passes[0].hit_ratio, passes[1].hit_ratio), (Some(0.0), Some(1.0)));
    assert_eq!(passes[1].promised_ratio, 1.0);
    assert!(promised());
    assert!(passes[0].stall_seconds > 0.0, "its read waited for the origin");
    assert_eq!(sum(&world.open, "passes_total", true), 2);
    drop(one);
    world.drained().await;
    assert_eq!(sum(&world.open, "passes_total", true), 2, "one that is cut off is not complete");
    world.open.close_history().await;
    let written = history::read(world.folder.path());
    let written: Vec<_> = written.iter().map(|it| (it.name.as_str(), it.pass.number, it.pass.complete)).collect();
    assert_eq!(written, [("one", 1, true), ("one", 2, true), ("one", 3, false)]);
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
