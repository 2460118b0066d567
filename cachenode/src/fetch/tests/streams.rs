//! Readers of large files: in order, in several places, and here and there.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use larder_origin::{Limited, Sink};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::planned::Place;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A connection brings so many bytes in each `chunk_time`.
const CHUNK: u64 = 256 * KIB;

/// Far longer than any wait of a test that passes.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A far origin whose objects are zeros. Its link bears any number of connections.
#[derive(Debug)]
struct Far {
    noted: Arc<Noted>,
    delay: Duration,
    chunk_time: Duration,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Far {
    fn new(chunk_time: Duration) -> Arc<Self> {
        let (noted, delay) = (Noted::new(), Duration::from_millis(40));
        Arc::new(Self { noted, delay, chunk_time, in_flight: AtomicUsize::new(0), most_in_flight: AtomicUsize::new(0) })
    }

    /// The ranges of all reads, sorted.
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = self.noted.ranges.lock().unwrap().clone();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(SeqCst)
    }
}

#[async_trait]
impl Origin for Far {
    fn url(&self) -> &OriginUrl {
        self.noted.url()
    }

    async fn list(&self, _: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
        Err(only_read("list"))
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let mut bytes = Vec::new();
        self.read_to(key, range, version, &mut |chunk: &[u8]| bytes.extend_from_slice(chunk)).await?;
        Ok(bytes.into())
    }

    async fn read_to(
        &self,
        _: &[u8],
        range: Range<u64>,
        _: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        self.noted.ranges.lock().unwrap().push(range.clone());
        let in_flight = self.in_flight.fetch_add(1, SeqCst) + 1;
        self.most_in_flight.fetch_max(in_flight, SeqCst);
        tokio::time::sleep(self.delay).await;
        for start in range.clone().step_by(CHUNK as usize) {
            sink(&vec![0; (range.end - start).min(CHUNK) as usize]);
            tokio::time::sleep(self.chunk_time).await;
        }
        self.in_flight.fetch_sub(1, SeqCst);
        Ok(())
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

/// A dataset of one large file behind a far origin. The store keeps none of it.
fn far_world(size: u64, chunk_time: Duration) -> (World, Arc<Far>) {
    let world = world(&[size], 256 * MIB);
    let far = Far::new(chunk_time);
    world.fetcher.replace_origin(Arc::<Far>::clone(&far));
    (world, far)
}

/// Reads a part of the first file as a mount does.
async fn read_part(world: &World, offset: u64, len: u64) {
    let part = world.part(0, offset, len);
    world.fetcher.touched(&part);
    if world.fetcher.in_window(&part).is_none() {
        world.fetcher.fetch(FileIndex(0), part, world.fetcher.deadline()).await.unwrap();
    }
    world.fetcher.mark_read(&part);
}

async fn read_in_order(world: &World, offsets: Range<u64>) {
    for offset in offsets.step_by(MIB as usize) {
        read_part(world, offset, MIB).await;
    }
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn a_reader_in_order_of_a_far_file_has_64_mib_in_flight_and_each_byte_comes_once() {
    const SIZE: u64 = 240 * MIB;
    let (world, far) = far_world(SIZE, Duration::ZERO);
    read_in_order(&world, 0..SIZE).await;
    // The blocks ahead, and the one that the reader waits for.
    assert!((16..=17).contains(&far.most_in_flight()), "{}", far.most_in_flight());
    let ranges = far.ranges();
    assert!(ranges.iter().map(|range| range.start).eq((0..SIZE).step_by(BLOCK_BYTES as usize)), "{ranges:?}");
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_has_fetched_12_mib_ahead_and_twice_what_it_read_at_most() {
    for read in [1, 4, 5, 8, 20, 40] {
        let (world, far) = far_world(240 * MIB, Duration::ZERO);
        read_in_order(&world, 0..read * MIB).await;
        world.fetcher.wait_idle().await;
        let fetched = far.ranges().len() as u64 * BLOCK_BYTES;
        let read = (read * MIB).next_multiple_of(BLOCK_BYTES);
        assert!(fetched - read <= 12 * MIB + 2 * read, "{fetched} for {read}");
        assert!(fetched >= read + 12 * MIB, "{fetched} for {read}");
    }
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn a_reader_of_little_at_the_beginning_of_a_file_fetches_one_block_and_one_of_more_is_read_ahead_of() {
    let (world, far) = far_world(240 * MIB, Duration::ZERO);
    for offset in [0, 8, 100 * KIB] {
        read_part(&world, offset, 100 * KIB).await;
    }
    world.fetcher.wait_idle().await;
    let block = 0..BLOCK_BYTES;
    assert_eq!(far.ranges(), [block]);
    // As the kernel requests for a reader with a buffer of 128 KiB.
    let (world, far) = far_world(240 * MIB, Duration::ZERO);
    read_part(&world, 0, 256 * KIB).await;
    world.fetcher.wait_idle().await;
    assert_eq!(far.ranges().len(), 4, "the block, and 12 MiB");
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn readers_in_two_places_of_a_file_are_two_streams() {
    const SECOND: u64 = 400 * MIB;
    let (world, far) = far_world(800 * MIB, Duration::ZERO);
    for offset in (0..40 * MIB).step_by(MIB as usize) {
        read_part(&world, offset, MIB).await;
        read_part(&world, SECOND + offset, MIB).await;
    }
    world.fetcher.wait_idle().await;
    let ranges = far.ranges();
    let has = |start: u64| ranges.iter().any(|range| range.start == start);
    assert!(has(48 * MIB) && has(SECOND + 48 * MIB), "both are read ahead of: {ranges:?}");
    assert!(ranges.windows(2).all(|two| two[0].start < two[1].start), "each block once: {ranges:?}");
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn no_more_is_read_ahead_than_the_origin_bears_requests() {
    const PLACES: usize = 4;
    let (world, far) = far_world(240 * MIB, Duration::ZERO);
    world.fetcher.replace_origin(Arc::new(Limited::new(far, PLACES, PATIENCE)));
    let running = &world.fetcher.context.counters.fetches_running;
    for offset in (0..120 * MIB).step_by(MIB as usize) {
        read_part(&world, offset, MIB).await;
        // The blocks ahead, the one that is read, and those that have just come.
        assert!(running.load(SeqCst) <= 2 * PLACES as u64 + 1, "{} at {offset}", running.load(SeqCst));
    }
}

// SEMANTICS: C9
#[tokio::test(start_paused = true)]
async fn a_block_is_fetched_in_ranges_once_its_connection_is_known_to_be_the_limit() {
    const SIZE: u64 = 240 * MIB;
    // 65 MB/s.
    let (world, far) = far_world(SIZE, Duration::from_millis(4));
    read_in_order(&world, 0..SIZE).await;
    let ranges = far.ranges();
    assert!(ranges.iter().any(|range| range.end - range.start == MIB), "{ranges:?}");
    assert_eq!(ranges[0], 0..BLOCK_BYTES, "at first nothing is known");
    let ends = ranges.iter().map(|range| range.end);
    assert!(ends.eq(ranges.iter().skip(1).map(|range| range.start).chain([SIZE])), "each byte once: {ranges:?}");
}

// SEMANTICS: C14
#[tokio::test]
async fn reads_here_and_there_in_a_large_file_fetch_at_most_16_times_their_bytes() {
    const SIZE: u64 = 2_000_000_000;
    let world = world(&[SIZE], 64 * MIB);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..500 {
        world.read(0, random.random_range(0..SIZE / (4 * KIB)) * 4 * KIB, 4 * KIB).await;
        // Pieces have an eighth of the window.
        assert!(world.fetcher.window_bytes() <= 8 * MIB);
    }
    world.fetcher.wait_idle().await;
    let fetched: u64 = world.origin.take().iter().map(|range| range.end - range.start).sum();
    assert!(fetched <= 16 * 500 * 4 * KIB, "{fetched}");
}

// SEMANTICS: C14
#[tokio::test]
async fn reads_of_all_of_a_large_file_in_any_order_keep_its_blocks_after_a_few_gets_each() {
    const BLOCKS: u64 = 4;
    const SIZE: u64 = BLOCKS * BLOCK_BYTES;
    const PART: u64 = 64 * KIB;
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[SIZE]);
    let world = world_that_keeps(2 * SIZE, folder, manifest, None, FetchConfig::DEFAULT);
    let mut order: Vec<u64> = (0..SIZE / PART).collect();
    order.shuffle(&mut StdRng::seed_from_u64(1));
    for at in order {
        let part = world.part(0, at * PART, PART);
        if !world.fetcher.context.cache.contains(part.block) {
            world.read(0, at * PART, PART).await;
            world.fetcher.wait_idle().await;
        }
    }
    assert_eq!(world.fetcher.context.cache.usage().blocks_cached, BLOCKS);
    let gets = world.origin.take();
    assert!(gets.len() as u64 <= 6 * BLOCKS, "{gets:?}");
    let whole = gets.iter().filter(|range| range.end - range.start == BLOCK_BYTES).count();
    assert_eq!(whole as u64, BLOCKS);
}

// SEMANTICS: C14, S1
#[tokio::test]
async fn a_peer_that_reads_here_and_there_gets_a_piece_and_the_next_peer_what_is_here() {
    let world = world(&[400 * MIB], 64 * MIB);
    for offset in [MIB + 4 * KIB, MIB + 8 * KIB] {
        let part = world.part(0, offset, 4 * KIB);
        let got = world.fetcher.fetch_for_peer(FileIndex(0), part, true, Duration::from_secs(3)).await.unwrap();
        let Some(BlockBytes::Whole { bytes, .. }) = got else { panic!("{got:?}") };
        assert_eq!(bytes, (offset..offset + 4 * KIB).map(|at| at as u8).collect::<Vec<u8>>());
    }
    let piece = MIB..MIB + 16 * KIB;
    assert_eq!(world.origin.take(), [piece]);
}

// SEMANTICS: C27, S1
#[tokio::test]
async fn a_peer_that_reads_what_a_plan_is_about_to_fetch_is_not_the_reader_of_the_plan() {
    let world = world(&[2 * BLOCK_BYTES], 64 * MIB);
    let (block, planned) = (world.part(0, 0, BLOCK_BYTES), world.fetcher.planned());
    let memory = FetchConfig::DEFAULT.other_account(u64::MAX).take(1);
    let _coming = planned.add(1, Place { position: 0, nth: 0 }, &block, memory).unwrap();
    world.fetcher.context.window.read_in_pieces(block.block);
    let got = world.fetcher.fetch_for_peer(FileIndex(0), block, true, Duration::from_secs(3)).await.unwrap();
    assert!(matches!(got, Some(BlockBytes::Whole { .. })));
    assert!(planned.fill(block.block, &Bytes::from(vec![0; BLOCK_BYTES as usize]), false));
}

#[tokio::test]
async fn a_file_of_one_block_is_fetched_whole_however_it_is_read() {
    let world = world(&[BLOCK_BYTES; 3], 64 * MIB);
    world.read(1, 2 * MIB, 4 * KIB).await;
    let block = 0..BLOCK_BYTES;
    assert_eq!(world.origin.take(), [block]);
}
