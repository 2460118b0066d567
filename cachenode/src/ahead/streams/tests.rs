use super::*;

const MIB: u64 = 1 << 20;
const LEAST_BLOCKS: u32 = 3;
const FILE_END: BlockIndex = BlockIndex(10_000);

/// A stream in a file that begins at block 1, and a reader of it.
struct World {
    streams: Streams,
    /// Blocks that were fetched ahead.
    fetched: u32,
}

impl World {
    fn new() -> Self {
        let mut world = Self { streams: Streams::default(), fetched: 0 };
        world.begin(1);
        world
    }

    fn begin(&mut self, block: u32) {
        let next = self.streams.begin(BlockIndex(block), FILE_END).unwrap();
        self.extend(next);
    }

    /// Does what is asked for: blocks of 4 MiB, up to the depth.
    fn extend(&mut self, next: Next) {
        let blocks = next.depth.bytes().div_ceil(BLOCK_BYTES) as u32;
        let last = BlockIndex((next.block.0 + blocks).min(next.limit.0));
        self.fetched += last.0.saturating_sub(next.last.0);
        assert_eq!(self.streams.extended(next.stream, last, (last > next.last).then_some(last)), None);
    }

    fn read(&mut self, block: u32) {
        if let Some(next) = self.streams.read(BlockIndex(block)) {
            self.extend(next);
        }
    }

    fn wait(&mut self, block: u32) {
        self.read(block);
        if let Some(next) = self.streams.waited(BlockIndex(block)) {
            self.extend(next);
        }
    }

    /// How many blocks are ahead of each stream.
    fn ahead(&self) -> Vec<u32> {
        self.streams.ahead().flatten().map(|(first, last)| last - first + 1).collect()
    }
}

#[test]
fn the_depth_doubles_by_waits_as_far_as_what_was_read_earns_and_halves_to_the_least() {
    let least = Depth::LEAST;
    assert_eq!(least.bytes(), 12 * MIB);
    assert_eq!(least.waited(MIB).bytes(), 14 * MIB, "twice what was read, and the least");
    assert_eq!(least.waited(100 * MIB).bytes(), 24 * MIB);
    let most = (0..10).fold(least, |depth, _| depth.waited(100 * MIB));
    assert_eq!(most.bytes(), 64 * MIB);
    assert_eq!(most.waited(0), most, "a wait never makes it less");
    let halved = most.unread().unwrap();
    assert_eq!((halved.bytes(), halved.unread().unwrap().unread()), (32 * MIB, Some(least)));
    assert_eq!(least.unread(), None);
}

// SEMANTICS: C9
#[test]
fn a_reader_that_never_waits_has_the_least_ahead() {
    let mut world = World::new();
    for block in 2..100 {
        world.read(block);
        assert_eq!(world.ahead(), [LEAST_BLOCKS], "at {block}");
    }
}

// SEMANTICS: C9
#[test]
fn each_block_that_a_read_waits_for_doubles_the_depth_once() {
    let mut world = World::new();
    // Block 2 comes in four parts that all wait.
    (0..4).for_each(|_| world.wait(2));
    assert_eq!(world.ahead(), [2 * LEAST_BLOCKS]);
    world.wait(3);
    assert_eq!(world.ahead(), [9], "12 MiB and twice the 12 MiB that were read");
    world.wait(4);
    assert_eq!(world.ahead(), [11], "12 MiB and twice the 16 MiB that were read");
    (5..40).for_each(|block| world.wait(block));
    assert_eq!(world.ahead(), [16], "64 MiB");
}

// SEMANTICS: C9
#[test]
fn a_stream_that_stops_has_fetched_at_most_the_least_and_twice_what_it_read() {
    for stops_after in 0..60 {
        let mut world = World::new();
        (2..2 + stops_after).for_each(|block| world.wait(block));
        let read = stops_after + 1;
        let wasted = world.fetched - stops_after;
        assert!(wasted <= LEAST_BLOCKS + 2 * read, "{wasted} blocks after {read}");
        assert!(wasted <= 16, "{wasted}");
    }
}

// SEMANTICS: C9
#[test]
fn a_stream_that_leaves_out_what_it_brought_or_loses_it_is_halved_and_then_ends() {
    let mut world = World::new();
    (2..40).for_each(|block| world.wait(block));
    assert_eq!(world.ahead(), [16]);
    // It leaves out ten blocks.
    world.read(50);
    assert_eq!(world.ahead(), [8]);
    // Blocks are dropped before they are read.
    world.streams.dropped(BlockIndex(52));
    world.read(51);
    let ahead = world.ahead()[0];
    assert!(ahead < 8, "as long as there is enough, nothing more is fetched: {ahead}");
    // From 16 MiB to the least, and then it ends.
    world.streams.dropped(BlockIndex(53));
    assert_eq!(world.ahead(), [ahead]);
    world.streams.dropped(BlockIndex(54));
    assert!(world.ahead().is_empty());
}

#[test]
fn readers_that_share_a_file_may_come_to_its_blocks_in_no_exact_order() {
    let mut world = World::new();
    for block in [3, 2, 4, 6, 5, 8, 7] {
        world.read(block);
    }
    assert_eq!(world.ahead(), [LEAST_BLOCKS]);
}

// SEMANTICS: C9
#[test]
fn several_places_of_a_file_are_streams_of_their_own_and_the_oldest_makes_room() {
    let mut world = World::new();
    (1..STREAMS as u32).for_each(|place| world.begin(100 * place));
    assert_eq!(world.ahead(), [LEAST_BLOCKS; STREAMS]);
    (2..10).for_each(|block| world.wait(block));
    assert!(world.ahead()[0] > LEAST_BLOCKS);
    assert_eq!(world.ahead()[1..], [LEAST_BLOCKS; STREAMS - 1], "the others are as deep as they were");
    world.begin(9_000);
    assert_eq!(world.ahead(), [LEAST_BLOCKS; STREAMS], "it has the place of the first");
}

#[test]
fn a_stream_goes_on_where_memory_was_short() {
    let mut world = World::new();
    // Nothing can be fetched.
    for block in 2..=4 {
        let next = world.streams.read(BlockIndex(block)).unwrap();
        world.streams.extended(next.stream, next.block, None);
    }
    assert!(world.ahead().is_empty());
    let next = world.streams.waited(BlockIndex(5)).unwrap();
    assert_eq!((next.block, next.depth.bytes()), (BlockIndex(5), 24 * MIB));
    world.extend(next);
    assert_eq!(world.ahead(), [2 * LEAST_BLOCKS]);
    let again = world.streams.begin(BlockIndex(6), FILE_END).unwrap();
    assert_eq!((again.stream, again.depth), (next.stream, next.depth), "it is there already");
}

#[test]
fn one_caller_extends_a_stream_and_learns_where_it_has_moved_meanwhile() {
    let mut world = World::new();
    let first = world.streams.read(BlockIndex(2)).unwrap();
    assert_eq!(world.streams.read(BlockIndex(3)), None);
    assert_eq!(world.streams.waited(BlockIndex(4)), None);
    let next = world.streams.extended(first.stream, BlockIndex(5), Some(BlockIndex(5))).unwrap();
    assert_eq!((next.block, next.last, next.depth.bytes()), (BlockIndex(4), BlockIndex(5), 24 * MIB));
    world.extend(next);
    assert_eq!(world.ahead(), [2 * LEAST_BLOCKS]);
    assert!(world.streams.read(BlockIndex(5)).is_some());
}

#[test]
fn a_stream_ends_with_its_file_and_in_what_is_here() {
    let mut streams = Streams::default();
    let next = streams.begin(BlockIndex(1), BlockIndex(2)).unwrap();
    streams.extended(next.stream, BlockIndex(2), Some(BlockIndex(2)));
    assert_eq!(streams.read(BlockIndex(2)), None, "the end of the file");
    assert_eq!(streams.ahead().flatten().count(), 0);

    let next = streams.begin(BlockIndex(1), FILE_END).unwrap();
    streams.extended(next.stream, BlockIndex(AHEAD_BLOCKS as u32), None);
    assert_eq!(streams.ahead().flatten().count(), 1);
    streams.extended(next.stream, BlockIndex(AHEAD_BLOCKS as u32 + 1), None);
    assert_eq!(streams.ahead().flatten().count(), 0);
}
