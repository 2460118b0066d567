//! Plans of a dataset whose files have the sizes 1,000, 1,001 and so on, so that each GET shows its file.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use larder_dataset::PolicyKind;
use larder_origin::Origin;
use larder_store::{Store, StoreConfig};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::command::{Open, PlanId, Put};
use super::*;
use crate::dataset::{CacheSpec, Dataset};
use crate::fetch::FetchConfig;
use crate::fetch::tests::{Noted, manifest};

/// No wait is longer than this in a test that passes.
const PATIENCE: Duration = Duration::from_secs(30);

const FILES: u32 = 1_000;

const ID: PlanId = PlanId([1; 16]);

#[derive(Debug, Default)]
struct Cached {
    files: Mutex<BTreeSet<u32>>,
    asked: Mutex<Vec<u32>>,
}

impl PageCache for Cached {
    fn ask(&self, file: FileIndex, _: u64) -> oneshot::Receiver<bool> {
        let (asker, answer) = oneshot::channel();
        self.asked.lock().unwrap().push(file.0);
        asker.send(self.files.lock().unwrap().contains(&file.0)).unwrap();
        answer
    }
}

struct World {
    dataset: Arc<Dataset>,
    origin: Arc<Noted>,
    cached: Arc<Cached>,
    _store: Store,
    _folder: tempfile::TempDir,
}

impl World {
    /// A dataset of which the cache keeps so many bytes.
    fn new(cache_bytes: u64, policy: PolicyKind) -> Self {
        let sizes: Vec<u64> = (0..FILES).map(size_of).collect();
        Self::of(&sizes, cache_bytes, policy)
    }

    /// The same, of files of these sizes.
    fn of(sizes: &[u64], cache_bytes: u64, policy: PolicyKind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = manifest(folder.path(), sizes);
        let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::default()).unwrap();
        let (origin, spec) = (Noted::new(), CacheSpec::exactly(manifest.snapshot(), cache_bytes, policy, 1));
        let (read, runtime) = (Arc::<Noted>::clone(&origin) as Arc<dyn Origin>, Handle::current());
        let dataset = Dataset::open(manifest, &store, spec, read, None, &runtime, FetchConfig::DEFAULT).unwrap();
        Self { dataset, origin, cached: Arc::default(), _store: store, _folder: folder }
    }

    fn command(&self, command: &Command<'_>, folder: Option<DirIndex>) -> Result<u32, PlanRefused> {
        let pages: Arc<dyn PageCache> = Arc::<Cached>::clone(&self.cached);
        self.dataset.plan(command, &PlanSource { user: 1, folder, pages: &pages })
    }

    fn open(&self) {
        self.command(&Command::Open(Open { id: ID, snapshot: None, count: None }), None).unwrap();
    }

    fn put(&self, items: Items<'_>) -> Result<u32, PlanRefused> {
        let put = Put { id: ID, position: 0, passed: 0, replaces: true };
        self.command(&Command::Put(put, items), Some(DirIndex(0)))
    }

    fn value(&self, name: &str) -> u64 {
        self.dataset.values().find(|(found, _)| *found == name).unwrap().1
    }

    /// Waits until all fetches of plans have ended and the plans hold so many bytes.
    async fn holds(&self, bytes: u64) {
        let until = async {
            while self.dataset.planned().totals() != (bytes, 0) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, until).await.expect("the plan holds its files");
    }

    /// Reads a file out of memory or the store; false if it has to be fetched.
    fn read(&self, file: u32) -> bool {
        let blocks = self.dataset.manifest().file_blocks(FileIndex(file)).unwrap();
        let expected: Vec<u8> = (0..size_of(file)).map(|at| at as u8).collect();
        self.dataset.read_now(blocks, 0, 1 << 20, |bytes| assert!(bytes == expected, "wrong bytes of {file}"))
    }

    /// Reads files as a mount does, whose page cache has none of them before. Returns how many had to be fetched.
    async fn read_all(&self, files: &[u32]) -> usize {
        self.cached.files.lock().unwrap().clear();
        let mut missing = 0;
        for &file in files {
            if !self.read(file) {
                self.dataset.read_file(file, 0, 1 << 20).await.unwrap();
                missing += 1;
            }
            self.cached.files.lock().unwrap().insert(file);
            // The plan goes on meanwhile.
            tokio::task::yield_now().await;
        }
        missing
    }

    /// The files that were fetched since the last call, in order.
    fn fetched(&self) -> Vec<u32> {
        self.origin.take().into_iter().map(|range| (range.end - 1_000) as u32).collect()
    }
}

fn size_of(file: u32) -> u64 {
    1_000 + u64::from(file)
}

// SEMANTICS: C27
#[tokio::test]
async fn planned_files_are_read_out_of_memory_and_each_costs_one_get() {
    let world = World::new(0, PolicyKind::Nr);
    world.open();
    assert_eq!(world.put(Items::Rows(vec![7, 3, 12])), Ok(65_533));
    world.holds(3_022).await;
    assert!([3, 12, 7].map(|file| world.read(file)).iter().all(|is_here| *is_here));
    assert!(!world.read(7), "a second reading is not of the plan");
    assert_eq!(world.fetched().into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([3, 7, 12]));
    assert_eq!((world.value("fs_plan_bytes"), world.value("fs_plans")), (0, 1));
    let counters = world.dataset.counters();
    let late = counters.plan_blocks_late.load(Relaxed) + counters.plan_blocks_wasted.load(Relaxed);
    assert_eq!((counters.plan_blocks_in_time.load(Relaxed), late), (3, 0));
}

// SEMANTICS: C28
#[tokio::test]
async fn what_the_page_cache_has_is_not_fetched_and_only_what_was_read_is_asked_for() {
    let world = World::new(0, PolicyKind::Nr);
    for file in [1, 2] {
        world.dataset.read_file(file, 0, 1 << 20).await.unwrap();
        assert!(!world.read(file), "the look that the mount takes");
    }
    world.cached.files.lock().unwrap().extend([1, 4]);
    world.origin.take();
    world.open();
    world.put(Items::Rows(vec![1, 2, 3, 4])).unwrap();
    world.holds(3_009).await;
    assert_eq!(world.fetched().into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([2, 3, 4]));
    assert_eq!(*world.cached.asked.lock().unwrap(), [1, 2]);
    assert_eq!(world.dataset.counters().plan_blocks_in_page_cache.load(Relaxed), 1);
    // An earlier process may have answered the reads of any file.
    world.dataset.assume_read();
    world.put(Items::Rows(vec![1, 5])).unwrap();
    world.holds(3_009 + 1_005).await;
    assert_eq!(*world.cached.asked.lock().unwrap(), [1, 2, 1, 5]);
}

// SEMANTICS: C27
#[tokio::test]
async fn a_plan_fills_the_cache_and_evicts_nothing() {
    let world = World::new(1_500, PolicyKind::Nr);
    world.open();
    world.put(Items::Rows(vec![1])).unwrap();
    world.holds(1_001).await;
    world.dataset.settle().await;
    assert!(world.dataset.keeps(BlockIndex(1)) && world.read(1));

    let world = World::new(1_500, PolicyKind::Fifo);
    let kept = |file| world.dataset.keeps(BlockIndex(file));
    world.dataset.read_file(1, 0, 1 << 20).await.unwrap();
    world.dataset.settle().await;
    world.open();
    world.put(Items::Rows(vec![2])).unwrap();
    world.holds(1_002).await;
    world.dataset.settle().await;
    assert!(kept(1) && !kept(2), "the plan evicts nothing");
    assert!(world.read(2));
    world.dataset.settle().await;
    assert!(kept(2), "its reader does");
    assert_eq!(world.fetched(), [1, 2]);
}

// SEMANTICS: C1, C27
#[tokio::test]
async fn where_the_smallest_stay_a_planned_block_counts_as_missed_each_time_that_it_was_read() {
    let world = World::new(3_000, PolicyKind::Smallest);
    let planned = async || {
        world.open();
        world.put(Items::Rows(vec![900])).unwrap();
        world.holds(1_900).await;
        world.dataset.settle().await;
    };
    planned().await;
    world.command(&Command::Close { id: ID }, None).unwrap();
    for is_kept in [false, true] {
        planned().await;
        assert!(!world.dataset.keeps(BlockIndex(900)) && world.read(900));
        world.dataset.settle().await;
        assert_eq!(world.dataset.keeps(BlockIndex(900)), is_kept);
    }
}

// SEMANTICS: C27
#[tokio::test]
async fn a_plan_that_is_closed_or_whose_dataset_ends_holds_nothing() {
    let world = World::new(0, PolicyKind::Nr);
    world.open();
    world.put(Items::Rows(vec![1, 2])).unwrap();
    world.holds(2_003).await;
    world.command(&Command::Close { id: ID }, None).unwrap();
    assert_eq!((world.value("fs_plan_bytes"), world.value("fs_plans")), (0, 0));
    assert_eq!(world.dataset.counters().plan_wasted_bytes.load(Relaxed), 2_003);
    assert_eq!(world.put(Items::Rows(vec![3])), Err(PlanRefused::Unknown));
    world.open();
    world.put(Items::Rows(vec![3])).unwrap();
    world.holds(1_003).await;
    timeout(PATIENCE, world.dataset.drain()).await.unwrap();
    world.holds(0).await;
}

// SEMANTICS: A6
#[tokio::test]
async fn a_pass_of_programs_with_plans_ends_with_the_last_of_them() {
    let world = World::new(0, PolicyKind::Nr);
    world.open();
    world.put(Items::Rows(vec![1, 2])).unwrap();
    world.holds(2_003).await;
    assert!(world.read(1));
    assert_eq!(world.dataset.look_at_readers(Duration::ZERO), None, "its plan is open");
    world.command(&Command::Close { id: ID }, None).unwrap();
    let pass = world.dataset.look_at_readers(Duration::ZERO).expect("its plan was closed").pass;
    assert_eq!((pass.planned, pass.complete, pass.bytes["window"]), (true, true, 1_001));
}

// SEMANTICS: C27
#[tokio::test]
async fn files_are_found_by_their_paths_and_values_that_are_impossible_are_refused() {
    let world = World::new(0, PolicyKind::Nr);
    let open = |snapshot| world.command(&Command::Open(Open { id: ID, snapshot: Some(snapshot), count: None }), None);
    assert_eq!(open([7; 32]), Err(PlanRefused::OtherSnapshot));
    assert_eq!(open(world.dataset.manifest().snapshot().0), Ok(65_536));
    let paths = Items::Paths(vec![&b"000002"[..], b"nothing", b"", b"../000001", b"./000001"]);
    assert_eq!(world.put(paths.clone()), Ok(65_531), "a path without a file is an item, too");
    world.holds(2_003).await;
    let put = Put { id: ID, position: 0, passed: 0, replaces: false };
    assert_eq!(world.command(&Command::Put(put, paths), None), Err(PlanRefused::NotAFolder));
    assert_eq!(world.put(Items::Rows(vec![FILES])), Err(PlanRefused::Invalid));
    let range = |row, offset, len| world.put(Items::Ranges(vec![FileRange { row, offset, len }]));
    assert_eq!(range(FILES, 0, 1), Err(PlanRefused::Invalid));
    assert!(range(5, u64::MAX, 1).is_ok() && range(6, 500, 10).is_ok());
    world.holds(2_003 + 1_006).await;
}

// SEMANTICS: C27
#[tokio::test]
async fn a_file_that_cannot_be_fetched_is_left_to_its_reader() {
    let world = World::new(0, PolicyKind::Nr);
    world.origin.fail_next(1);
    world.open();
    world.put(Items::Rows(vec![1, 2])).unwrap();
    let held = async {
        while world.origin.ranges.lock().unwrap().len() < 2 || !matches!(world.dataset.planned().totals(), (_, 0)) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, held).await.expect("one of them is given up");
    let in_memory: Vec<u32> = [1, 2].into_iter().filter(|&file| world.read(file)).collect();
    assert_eq!(in_memory.len(), 1);
    for file in [1, 2] {
        assert!(world.dataset.read_file(file, 0, 1 << 20).await.is_ok());
    }
}

// SEMANTICS: C30
#[tokio::test]
async fn an_epoch_in_the_order_of_the_last_one_is_followed_and_a_shuffled_one_is_not() {
    let world = World::new(0, PolicyKind::Nr);
    let order = |seed| -> Vec<u32> {
        let mut order: Vec<u32> = (0..FILES).collect();
        order.shuffle(&mut StdRng::seed_from_u64(seed));
        order
    };
    let pages: Arc<dyn PageCache> = Arc::<Cached>::clone(&world.cached);
    // Without a page cache to ask, no epoch is followed.
    let ended: Arc<dyn PageCache> = Arc::<Cached>::default();
    world.dataset.watch_pages(Arc::downgrade(&ended));
    drop(ended);
    for _ in 0..2 {
        assert_eq!(world.read_all(&order(0)).await, FILES as usize);
    }
    world.dataset.watch_pages(Arc::downgrade(&pages));
    world.origin.take();
    let missing = world.read_all(&order(0)).await;
    assert!(missing < FILES as usize / 2, "{missing} had to be waited for");
    let mut fetched = world.fetched();
    fetched.sort_unstable();
    assert!(fetched.into_iter().eq(0..FILES), "each once");
    assert_eq!(world.dataset.counters().plan_blocks_wasted.load(Relaxed), 0);
    // Readers that pause for longer than a lease are followed again.
    world.read_all(&order(0)[..FILES as usize / 2]).await;
    assert_eq!(world.value("fs_plans"), 1);
    let source = PlanSource { user: FOLLOWED.user, folder: None, pages: &pages };
    world.dataset.plan(&Command::Close { id: FOLLOWED.id }, &source).unwrap();
    world.read_all(&order(0)[FILES as usize / 2..]).await;
    assert_eq!(world.value("fs_plans"), 1);
    let before = world.dataset.counters().plan_blocks_in_time.load(Relaxed);
    for seed in 1..4 {
        assert_eq!(world.read_all(&order(seed)).await, FILES as usize, "shuffled by {seed}");
    }
    assert_eq!(world.dataset.counters().plan_blocks_in_time.load(Relaxed), before);
}

// SEMANTICS: C28
#[tokio::test]
async fn a_part_that_the_cache_has_is_not_fetched_with_the_rest_of_its_block() {
    const SIZE: u64 = 3 * BLOCK_BYTES;
    let world = World::of(&[SIZE], SIZE, PolicyKind::Nr);
    let at = BLOCK_BYTES + (1 << 20);
    world.dataset.read_file(0, at, 4096).await.unwrap();
    world.dataset.settle().await;
    let page = at..at + (16 << 10);
    assert_eq!(world.origin.take(), [page]);
    world.open();
    let range = |offset, len| FileRange { row: 0, offset, len };
    world.put(Items::Ranges(vec![range(at, 4096), range(2 * BLOCK_BYTES, 1 << 20)])).unwrap();
    world.holds(BLOCK_BYTES).await;
    let other = 2 * BLOCK_BYTES..SIZE;
    assert_eq!(world.origin.take(), [other]);
}

// SEMANTICS: C14, C27
#[tokio::test]
async fn a_plan_of_small_parts_of_a_large_file_fetches_the_blocks_that_their_readers_would() {
    const BLOCKS: u64 = 100;
    const LAST: u64 = (BLOCKS - 1) * BLOCK_BYTES;
    let world = World::of(&[BLOCKS * BLOCK_BYTES], 0, PolicyKind::Nr);
    world.open();
    let here_and_there = (0..BLOCKS - 1).map(|block| block * BLOCK_BYTES + (1 << 20));
    let in_the_last = (0..6).map(|nth| LAST + (1 << 20) + nth * (64 << 10));
    let range = |offset| FileRange { row: 0, offset, len: 4096 };
    world.put(Items::Ranges(here_and_there.chain(in_the_last).map(range).collect())).unwrap();
    world.holds(BLOCK_BYTES).await;
    let last = LAST..LAST + BLOCK_BYTES;
    assert_eq!(world.origin.take(), [last]);
}

// SEMANTICS: C22, C27
#[tokio::test]
async fn a_file_that_the_kernel_reads_by_itself_is_not_held() {
    const SIZE: u64 = 3 * BLOCK_BYTES;
    let world = World::of(&[SIZE], SIZE, PolicyKind::Nr);
    world.open();
    world.put(Items::Rows(vec![0])).unwrap();
    world.holds(SIZE).await;
    world.dataset.settle().await;
    let file = world.dataset.manifest().file_blocks(FileIndex(0)).unwrap();
    assert!(world.dataset.lend(file).is_some(), "all of it was written just now");
    world.holds(0).await;
    let counters = world.dataset.counters();
    assert_eq!((counters.plan_blocks_in_time.load(Relaxed), counters.plan_blocks_wasted.load(Relaxed)), (3, 0));
}

// SEMANTICS: C14, C30
#[tokio::test]
async fn small_reads_here_and_there_in_a_large_file_are_not_followed() {
    const BLOCKS: u32 = 300;
    let world = World::of(&[u64::from(BLOCKS) * BLOCK_BYTES], 0, PolicyKind::Nr);
    let pages: Arc<dyn PageCache> = Arc::<Cached>::clone(&world.cached);
    world.dataset.watch_pages(Arc::downgrade(&pages));
    // The second epoch reads other pages of the same blocks.
    for start in [1 << 20, 2 << 20] {
        for nth in 0..BLOCKS {
            let block = u64::from(nth * 7 % BLOCKS);
            world.dataset.read_file(0, block * BLOCK_BYTES + start, 4096).await.unwrap();
        }
    }
    assert_eq!(world.value("fs_plans"), 0);
    let fetched = world.origin.take();
    assert_eq!(fetched.len(), 2 * BLOCKS as usize);
    assert!(fetched.iter().all(|range| range.end - range.start <= 64 << 10));
}
