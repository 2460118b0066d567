//! Warm-ups and plans beside readers.

use larder_origin::{Limited, Rate, Urgency};
use tokio::sync::watch;

use super::checksums::{FILE_BYTES, FILES, packed};
use super::*;
use crate::ownership::all_sizes;
use crate::planned::Place;
use crate::warm::Warmer;

/// Far longer than any wait of a test that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// An origin that answers nothing until it is released.
#[derive(Debug)]
struct Held {
    inner: Arc<Noted>,
    released: watch::Sender<bool>,
    /// The keys that were asked for, in order.
    asked: Mutex<Vec<String>>,
}

impl Held {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: Noted::new(), released: watch::Sender::new(false), asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn release(&self) {
        self.released.send_replace(true);
    }
}

#[async_trait]
impl Origin for Held {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, _: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
        Err(only_read("list"))
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        self.asked.lock().unwrap().push(String::from_utf8_lossy(key).into_owned());
        let mut released = self.released.subscribe();
        let _ = released.wait_for(|released| *released).await;
        self.inner.read(key, range, version).await
    }

    async fn head(&self, _: &[u8]) -> Result<ObjectInfo, OriginError> {
        Err(only_read("head"))
    }

    async fn read_all(&self, _: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
        Err(only_read("read_all"))
    }

    async fn put(&self, _: &[u8], _: Bytes) -> Result<Version, OriginError> {
        Err(only_read("put"))
    }

    async fn put_stream(&self, _: &[u8], _: BoxStream<'_, Result<Bytes, OriginError>>) -> Result<Version, OriginError> {
        Err(only_read("put_stream"))
    }
}

struct WarmWorld {
    held: Arc<Held>,
    fetcher: Arc<Fetcher>,
    manifest: Arc<MappedManifest>,
    _store: Store,
    _folder: tempfile::TempDir,
}

impl WarmWorld {
    /// Files that the store keeps. At most `places` of their requests are in flight.
    fn new(sizes: &[u64], places: usize, config: FetchConfig) -> Self {
        Self::of(sizes, places, config, PolicyKind::Nr, 1 << 30)
    }

    /// Files of which the store keeps some.
    fn of(sizes: &[u64], places: usize, config: FetchConfig, policy: PolicyKind, reservation_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = manifest(folder.path(), sizes);
        let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
        let cache = store
            .dataset(CacheConfig {
                key: manifest.snapshot().into(),
                is_known_as_ours: false,
                name: "data".into(),
                blocks: manifest.totals().blocks,
                reservation_bytes,
                promised: Reservation::exactly(reservation_bytes),
                policy,
                seed: 1,
                block_lens: Arc::new(|_: BlockIndex| 0),
            })
            .unwrap();
        cache.set_sizes(all_sizes(&manifest));
        let held = Held::new();
        let limited = Limited::new(Arc::<Held>::clone(&held), places, PATIENCE);
        let (by_manifest, counters) = (Arc::clone(&manifest), Arc::default());
        let fetcher = Fetcher::new(by_manifest, cache, Arc::new(limited), None, counters, Handle::current(), config);
        Self { held, fetcher: Arc::new(fetcher), manifest, _store: store, _folder: folder }
    }

    fn part(&self, file: u32) -> BlockPart {
        let row = self.manifest.file(FileIndex(file)).unwrap();
        row.parts(0, row.size).next().unwrap()
    }

    /// Starts to fetch a file for the store, and lets that go as far as it can.
    async fn warm(&self, file: u32) -> InFlight {
        let (in_flight, _) = self.fetcher.join_or_start(FileIndex(file), self.part(file), Purpose::Warm, End::open());
        settle().await;
        in_flight
    }

    /// Starts to fetch a file for a plan, and lets that go as far as it can.
    async fn plan(&self, file: u32) -> tokio::task::JoinHandle<()> {
        let (fetcher, part) = (Arc::clone(&self.fetcher), self.part(file));
        let memory = FetchConfig::DEFAULT.other_account(u64::MAX).take(1);
        let coming = fetcher.planned().add(1, Place { position: file.into(), nth: 0 }, &part, memory).unwrap();
        let fetching = tokio::spawn(async move {
            fetcher.fetch_planned(FileIndex(file), part).await;
            drop(coming);
        });
        settle().await;
        fetching
    }

    /// Starts to read a file, and lets that go as far as it can.
    async fn read(&self, file: u32) -> tokio::task::JoinHandle<Result<Fetched, FetchError>> {
        let (fetcher, part) = (Arc::clone(&self.fetcher), self.part(file));
        let reading = tokio::spawn(async move { fetcher.fetch(FileIndex(file), part, fetcher.deadline()).await });
        settle().await;
        reading
    }

    async fn asked_for(&self, enough: impl Fn(&[String]) -> bool) {
        let asked = async {
            while !enough(&self.held.asked()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("the requests come");
    }
}

/// Lets all other tasks of this thread run until they wait.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

// SEMANTICS: O11
#[tokio::test]
async fn a_warm_up_has_as_many_requests_in_flight_as_the_origin_allows() {
    let world = WarmWorld::new(&[1_000; 600], 400, FetchConfig::DEFAULT);
    let warmer = Warmer::new(Arc::clone(&world.manifest), Arc::clone(&world.fetcher));
    warmer.start();
    // All of the places but those that are left to readers: one of 16.
    world.asked_for(|asked| asked.len() >= 375).await;
    settle().await;
    assert_eq!(world.held.asked().len(), 375);
    // A reader gets one of them at once.
    let reading = world.read(599).await;
    world.asked_for(|asked| asked.iter().any(|key| key.ends_with("000599"))).await;
    world.held.release();
    reading.await.unwrap().unwrap();
    let ended = async {
        while warmer.state().unwrap().running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the warming ends");
    assert_eq!(warmer.state().unwrap().blocks_kept, 600);
}

// SEMANTICS: C7
#[tokio::test]
async fn a_warm_up_keeps_the_smallest_files_wherever_they_come_if_the_policy_does() {
    let sizes: Vec<u64> = (0..100).map(|file| if file % 2 == 0 { 5_000 } else { 1_000 }).collect();
    // Room for the small files and two of the others.
    let world = WarmWorld::of(&sizes, 400, FetchConfig::DEFAULT, PolicyKind::Smallest, 60_000);
    world.held.release();
    let warmer = Warmer::new(Arc::clone(&world.manifest), Arc::clone(&world.fetcher));
    for _ in 0..2 {
        warmer.start();
        let ended = async {
            while warmer.state().unwrap().running {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the warming ends");
        let state = warmer.state().unwrap();
        assert_eq!((state.blocks_kept, state.blocks_unkept, state.full), (52, 48, true));
        assert_eq!(world.held.asked().len(), 52, "none is fetched in vain, or again");
    }
    // One that a list names comes before smaller ones, but it replaces none.
    let is_left_out = |file: &u32| world.fetcher.warmed(FileIndex(*file), &world.part(*file)) == Warmed::LeftOut;
    let file = (0..100).find(is_left_out).unwrap();
    assert_eq!(world.fetcher.warm(FileIndex(file), world.part(file), true, None).await, Warmed::LeftOut);
}

// SEMANTICS: O11
#[tokio::test]
async fn a_reader_that_joins_the_fetch_of_a_warm_up_takes_it_ahead_of_the_others() {
    let world = WarmWorld::new(&[1_000; 10], 1, FetchConfig::DEFAULT);
    let warming = [world.warm(0).await, world.warm(4).await, world.warm(8).await];
    let reading = [world.read(8).await, world.read(2).await];
    world.held.release();
    for reading in reading {
        reading.await.unwrap().unwrap();
    }
    for in_flight in warming {
        assert!(matches!(in_flight.outcome().await, Outcome::Fetched(..)));
    }
    assert_eq!(world.held.asked(), ["000000", "000008", "000002", "000004"]);
}

// SEMANTICS: C27
#[tokio::test]
async fn readers_go_before_plans_also_with_a_block_that_a_plan_is_about_to_fetch() {
    let world = WarmWorld::new(&[1_000; 10], 1, FetchConfig::DEFAULT);
    let planned = [world.plan(0).await, world.plan(4).await, world.plan(8).await];
    let reading = [world.read(8).await, world.read(2).await];
    world.held.release();
    for reading in reading {
        reading.await.unwrap().unwrap();
    }
    for planned in planned {
        planned.await.unwrap();
    }
    assert_eq!(world.held.asked(), ["000000", "000008", "000002", "000004"]);
}

// SEMANTICS: O11
#[tokio::test]
async fn warm_ups_leave_memory_for_readers() {
    // Of blocks of 3 MiB, five fit: a KiB more is counted for each.
    let config = FetchConfig { fetch_bytes: 16 << 20, ..FetchConfig::DEFAULT };
    let world = WarmWorld::new(&[3 << 20; 20], 100, config);
    let warming: Vec<_> = [0, 2, 4, 6, 8, 10]
        .map(|file| {
            let (fetcher, whole) = (Arc::clone(&world.fetcher), world.part(file));
            tokio::spawn(async move { fetcher.warm(FileIndex(file), whole, false, None).await })
        })
        .into();
    world.asked_for(|asked| asked.len() >= 5).await;
    settle().await;
    assert_eq!(world.held.asked().len(), 5);
    let reading = world.read(15).await;
    world.asked_for(|asked| asked.iter().any(|key| key == "000015")).await;
    world.held.release();
    reading.await.unwrap().unwrap();
    for warmed in warming {
        assert_eq!(warmed.await.unwrap(), Warmed::Kept);
    }
    assert_eq!(world.held.asked().len(), 7);
}

// SEMANTICS: O11
#[tokio::test(start_paused = true)]
async fn the_time_of_a_fetch_is_counted_from_when_somebody_waits() {
    let world = WarmWorld::new(&[1_000; 10], 4, FetchConfig::DEFAULT);
    let (patient, joined) = (world.warm(0).await, world.warm(5).await);
    tokio::time::sleep(PATIENCE * 60).await;
    let started = Instant::now();
    let error = world.read(5).await.await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::TimedOut { .. }), "{error}");
    assert_eq!(started.elapsed().as_secs(), FetchConfig::DEFAULT.read_deadline.as_secs());
    assert!(matches!(joined.outcome().await, Outcome::Failed(FetchError::TimedOut { .. })));
    world.held.release();
    assert!(matches!(patient.outcome().await, Outcome::Fetched(..)));
}

// SEMANTICS: O1, O11
#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_late_to_the_fetch_of_a_warm_up_has_its_own_deadline() {
    let world = WarmWorld::new(&[1_000; 10], 4, FetchConfig::DEFAULT);
    let _warming = world.warm(5).await;
    tokio::time::sleep(PATIENCE * 60).await;
    let first = world.read(5).await;
    tokio::time::sleep(FetchConfig::DEFAULT.read_deadline - Duration::from_secs(2)).await;
    let late = world.read(5).await;
    let error = first.await.unwrap().unwrap_err();
    assert!(matches!(error, FetchError::TimedOut { .. }), "{error}");
    settle().await;
    world.held.release();
    late.await.unwrap().unwrap();
    assert_eq!(world.held.asked(), ["000005", "000005"]);
}

// SEMANTICS: O10
#[tokio::test(start_paused = true)]
async fn warm_ups_share_a_rate_that_readers_and_cached_blocks_do_not_pay() {
    let rate = Arc::new(Rate::new(1 << 20));
    let config = FetchConfig { warm_rate: Some(Arc::clone(&rate)), ..FetchConfig::DEFAULT };
    let world = WarmWorld::new(&[1 << 20; 10], 100, config);
    world.held.release();
    let started = Instant::now();
    for file in 0..5 {
        world.fetcher.warm(FileIndex(file), world.part(file), false, None).await;
    }
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(3_800), "{took:?}");
    for file in 0..5 {
        world.fetcher.warm(FileIndex(file), world.part(file), false, None).await;
    }
    world.read(9).await.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), took);
    // Another dataset waits for what these have taken.
    rate.wait(1, &Urgency::low()).await;
    assert!(started.elapsed() > took);
}

// SEMANTICS: O10
#[tokio::test(start_paused = true)]
async fn files_that_a_warm_up_fetches_beside_another_are_paid_for_once() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = packed(folder.path());
    let rate = Arc::new(Rate::new(FILE_BYTES));
    let config = FetchConfig { warm_rate: Some(Arc::clone(&rate)), ..FetchConfig::DEFAULT };
    let world = Arc::new(world_that_keeps(1 << 20, folder, manifest, None, config));
    let started = Instant::now();
    let warm = |file| {
        let world = Arc::clone(&world);
        async move { world.fetcher.warm(FileIndex(file), world.part(file, 0, FILE_BYTES), false, None).await }
    };
    let warming: tokio::task::JoinSet<Warmed> = (0..FILES as u32).map(warm).collect();
    assert!(warming.join_all().await.into_iter().all(|warmed| warmed == Warmed::Kept));
    let all = 0..FILES * FILE_BYTES;
    assert_eq!(world.origin.take(), [all], "one GET for all of them");
    // Until all of it is paid for.
    rate.wait(0, &Urgency::low()).await;
    let (took, expected) = (started.elapsed(), Duration::from_secs(FILES));
    assert!(took.abs_diff(expected) < Duration::from_millis(500), "{took:?}");
}
