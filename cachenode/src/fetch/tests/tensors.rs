//! Readers of models: their headers, and what is fetched ahead of them.

use super::kept_pieces::one_file;
use super::*;
use crate::tensors::{Follows, safetensors_of};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const LAYERS: u64 = 24;

type Named = Vec<(String, Range<u64>)>;

/// A model of layers of a small and a large tensor, of which the store keeps all: its tensors with their bytes.
fn model() -> (World, Named) {
    model_that_is_kept(2)
}

/// The same, of which the store has room for so many.
fn model_that_is_kept(times: u64) -> (World, Named) {
    let (mut tensors, mut end) = (Vec::new(), 0);
    for layer in 0..LAYERS {
        for (role, bytes) in [("norm", 8 * KIB), ("weight", 8 * MIB)] {
            tensors.push((format!("layers.{layer}.{role}"), end, end + bytes));
            end += bytes;
        }
    }
    let header = safetensors_of(&tensors);
    let data = header.len() as u64;
    let world = one_file(data + end, times * (data + end));
    world.origin.start_with(header);
    let named = tensors.into_iter().map(|(name, begin, end)| (name, data + begin..data + end)).collect();
    (world, named)
}

/// Reads a range as a mount does, in requests of at most 1 MiB. Returns the number of those that were nowhere here.
async fn read(world: &World, fetcher: &Arc<Fetcher>, range: Range<u64>) -> u32 {
    let file = world.manifest.file(FileIndex(0)).unwrap();
    let mut misses = 0;
    for at in range.clone().step_by(MIB as usize) {
        for part in file.parts(at, MIB.min(range.end - at)) {
            fetcher.touched(&part);
            let BlockPart { block, block_len, start, len, .. } = part;
            let is_stored = fetcher.context.cache.read(block, block_len, start, len, |_| ()).hit().is_some();
            if !is_stored && fetcher.in_window(&part).is_none() {
                misses += 1;
                fetcher.fetch(FileIndex(0), part, fetcher.deadline()).await.unwrap();
            }
            fetcher.mark_read(&part);
        }
    }
    fetcher.wait_idle().await;
    misses
}

fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Reads an eighth of each large tensor, and small ones as a whole.
async fn read_eighths(world: &World, tensors: &Named) -> u32 {
    let mut misses = 0;
    for (_, Range { start, end }) in tensors {
        let len = end - start;
        let wanted = if len < MIB { *start..*end } else { start + 3 * len / 8..start + 4 * len / 8 };
        misses += read(world, &world.fetcher, wanted).await;
        assert!(world.fetcher.window_bytes() <= FetchConfig::DEFAULT.window_bytes);
    }
    misses
}

// SEMANTICS: C31
#[tokio::test]
async fn a_reader_of_an_eighth_of_each_tensor_fetches_about_an_eighth_of_the_file() {
    let (world, tensors) = model();
    read(&world, &world.fetcher, 0..64 * KIB).await;
    assert_eq!(sum(&world.origin.take()), BLOCK_BYTES, "the header is in the block that the reader asked for");
    let misses = read_eighths(&world, &tensors).await;
    let fetched = sum(&world.origin.take());
    assert!(fetched <= LAYERS * MIB + 20 * MIB, "{} MiB", fetched / MIB);
    assert!(misses <= 10, "{misses}");
}

// SEMANTICS: C31
#[tokio::test]
async fn a_reader_of_an_eighth_of_a_model_that_is_not_kept_does_not_have_the_rest_fetched() {
    let (world, tensors) = model_that_is_kept(0);
    read(&world, &world.fetcher, 0..64 * KIB).await;
    read_eighths(&world, &tensors).await;
    let fetched = sum(&world.origin.take());
    assert!(fetched <= 2 * LAYERS * MIB + 24 * MIB, "{} MiB", fetched / MIB);
}

// SEMANTICS: C31
#[tokio::test]
async fn a_reader_of_all_tensors_in_the_order_of_their_names_finds_them_here() {
    let (world, mut tensors) = model();
    read(&world, &world.fetcher, 0..64 * KIB).await;
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut misses = 0;
    for (name, range) in &tensors {
        let missed = read(&world, &world.fetcher, range.clone()).await;
        misses += if name.starts_with("layers.0.") { 0 } else { missed };
    }
    // The order jumps five times.
    assert!(misses <= 10, "{misses}");
    let (fetched, all) = (sum(&world.origin.take()), world.manifest.totals().bytes);
    assert!(fetched <= all + all / 20, "{} MiB", fetched / MIB);
    let cached = world.fetcher.context.cache.usage();
    assert_eq!(cached.blocks_cached, u64::from(world.manifest.totals().blocks));
}

// SEMANTICS: C31
#[tokio::test]
async fn a_header_that_the_store_has_is_read_from_there_by_the_next_process() {
    let (world, tensors) = model();
    read(&world, &world.fetcher, 0..64 * KIB).await;
    world.origin.take();
    let (manifest, cache) = (Arc::clone(&world.manifest), Arc::clone(&world.fetcher.context.cache));
    let own: Arc<dyn Origin> = Arc::<Noted>::clone(&world.origin);
    let config = FetchConfig::DEFAULT;
    let next = Arc::new(Fetcher::new(manifest, cache, own, None, Arc::default(), Handle::current(), config));
    let at = tensors[21].1.start + 100 * KIB;
    assert_eq!(read(&world, &next, at..at + 4 * KIB).await, 1);
    assert!(sum(&world.origin.take()) <= 64 * KIB, "nothing but what was asked for");
    let part = world.part(0, at, 4 * KIB);
    assert_eq!(next.tensors.read(&part), Some(FileIndex(0)));
}

// SEMANTICS: C31
#[tokio::test]
async fn a_header_that_lies_about_its_length_is_read_once_at_most() {
    for len in [12 * MIB, 15 * MIB, 17 * MIB, u64::MAX, 1] {
        let (world, _) = model();
        world.origin.start_with([&len.to_le_bytes()[..], b"{\"a\":{"].concat());
        read(&world, &world.fetcher, 0..64 * KIB).await;
        let fetched = sum(&world.origin.take());
        let most = if len > 16 * MIB { BLOCK_BYTES } else { len + BLOCK_BYTES };
        assert!(fetched <= most, "{len}: {} MiB", fetched / MIB);
        let part = world.part(0, 100 * MIB, 4 * KIB);
        assert_eq!(world.fetcher.tensors.missed(&part), Follows::Same, "it is not looked at again");
        assert_eq!(world.fetcher.tensors.read(&part), None);
    }
}

#[tokio::test]
async fn a_header_that_could_not_be_read_is_read_at_the_next_miss() {
    let (world, tensors) = model();
    let header = safetensors_of(&[("a".to_owned(), 0, MIB)]);
    // More than the first block has of it.
    let json = format!("{}{}", str::from_utf8(&header[8..]).unwrap(), " ".repeat(5 << 20));
    world.origin.start_with([&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat());
    let file = world.manifest.file(FileIndex(0)).unwrap();
    let part = file.parts(0, 64 * KIB).next().unwrap();
    let fetched = world.fetcher.fetch(FileIndex(0), part, world.fetcher.deadline());
    fetched.await.unwrap();
    world.origin.fail_next(u32::MAX);
    world.fetcher.wait_idle().await;
    assert_eq!(world.fetcher.tensors.missed(&part), Follows::Unknown);
    world.origin.fail_next(0);
    let at = tensors[21].1.start;
    read(&world, &world.fetcher, at..at + 4 * KIB).await;
    assert_eq!(world.fetcher.tensors.read(&part), Some(FileIndex(0)));
}

// SEMANTICS: C9
#[tokio::test]
async fn a_stream_that_comes_to_what_readers_leave_out_ends_and_another_may_begin_there() {
    let (world, tensors) = model();
    let fetcher = &world.fetcher;
    read(&world, fetcher, 0..64 * KIB).await;
    // An eighth of the large tensors of two layers.
    for (_, Range { start, end }) in [&tensors[1], &tensors[3]] {
        let len = end - start;
        read(&world, fetcher, start + 3 * len / 8..start + 4 * len / 8).await;
    }
    let limit = BlockIndex(world.manifest.totals().blocks - 1);
    let stream = fetcher.ahead.begin(BlockIndex(40), limit).unwrap().stream;
    assert_eq!(fetcher.ahead.extended(stream, BlockIndex(43), Some(BlockIndex(43))), None);
    let part = world.part(0, 41 * BLOCK_BYTES, 64 * KIB);
    assert!(fetcher.tensors.leave_out(&part));
    fetcher.touched(&part);
    let next = fetcher.ahead.begin(BlockIndex(42), limit).expect("another stream");
    assert_ne!(next.stream, stream);
}

// SEMANTICS: C14
#[tokio::test]
async fn readers_of_the_same_piece_at_the_same_time_make_one_get() {
    let world = world(&[400 * MIB], 64 * MIB);
    let read = || world.read(0, MIB + 4 * KIB, 4 * KIB);
    tokio::join!(read(), read(), read());
    assert_eq!(world.origin.take().len(), 1);
}
