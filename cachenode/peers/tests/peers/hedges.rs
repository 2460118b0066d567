//! Hedged reads: a second owner is asked before the first has failed. Time passes only when a test advances it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_peers::{HedgeCounts, PeersConfig, ReadRequest, Security};
use tokio::task::JoinHandle;

use crate::node::{Fake, Reader, TestNode, content, node, range, request};
use crate::scripted::{Asked, Scripted, StoppedClock};

const MS: Duration = Duration::from_millis(1);

/// The longest wait before a hedge.
const LATEST: Duration = Duration::from_millis(500);

/// The length of the reads: enough to arrive in pieces.
const LEN: u32 = 300_000;

/// The offset at which the ranges start.
const START: u32 = 100;

#[derive(Debug, Default)]
struct Counts {
    failed: AtomicU64,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
}

impl Counts {
    /// The numbers of failures, hedges, and hedges that answered first.
    fn all(&self) -> [u64; 3] {
        [&self.failed, &self.hedges, &self.hedges_won].map(|count| count.load(Ordering::SeqCst))
    }
}

fn new_reader(nodes: &[(&str, std::net::SocketAddr)]) -> (Reader, Arc<Counts>) {
    (Reader::new(nodes, Security::Plaintext, |config| *config = PeersConfig::default()), Arc::default())
}

/// Starts to read block `block` from these owners, in this order.
fn start(reader: &Reader, counts: &Arc<Counts>, owners: &'static [&str], block: u32) -> JoinHandle<Option<Bytes>> {
    let (peers, counts) = (Arc::clone(&reader.peers), Arc::clone(counts));
    tokio::spawn(async move {
        let request = |nth: usize| ReadRequest { forwarded: nth == 0, ..request(range(block, START, LEN)) };
        let owners: Vec<_> = owners.iter().enumerate().map(|(nth, owner)| (*owner, request(nth))).collect();
        let Counts { failed, hedges, hedges_won } = &*counts;
        let counts = HedgeCounts { failed, hedges, hedges_won };
        peers.read_from_any(&owners, |bytes| *bytes == content(block, START, LEN), counts).await
    })
}

/// A node that reads, and two owners.
struct World {
    clock: StoppedClock,
    reader: Reader,
    counts: Arc<Counts>,
    first: Scripted,
    second: Scripted,
}

const OWNERS: &[&str] = &["first", "second"];

impl World {
    async fn new() -> Self {
        Self::with(PeersConfig::default()).await
    }

    async fn with(config: PeersConfig) -> Self {
        let (first, second) = (Scripted::start().await, Scripted::start().await);
        let nodes = [("first", first.address), ("second", second.address)];
        let (reader, counts) = (Reader::new(&nodes, Security::Plaintext, |own| *own = config), Arc::default());
        Self { clock: StoppedClock::stop().await, reader, counts, first, second }
    }

    fn start(&self, block: u32) -> JoinHandle<Option<Bytes>> {
        start(&self.reader, &self.counts, OWNERS, block)
    }

    /// Starts a read, and waits until it has asked the first owner.
    async fn start_and_ask(&mut self, block: u32) -> (JoinHandle<Option<Bytes>>, Asked) {
        let read = self.start(block);
        let asked = self.first.asked().await;
        assert!(asked.forwarded && !asked.cached_only);
        (read, asked)
    }

    /// Starts a read, and waits until it has hedged.
    async fn hedged(&mut self, block: u32) -> (JoinHandle<Option<Bytes>>, Asked, Asked) {
        let (read, asked) = self.start_and_ask(block).await;
        self.clock.pass(LATEST).await;
        let hedge = self.second.asked().await;
        assert!(hedge.cached_only && hedge.forwarded, "it asks for what the second owner has, and for nothing else");
        (read, asked, hedge)
    }

    /// Makes as many quick reads from the first owner as are needed to know its usual speed.
    async fn make_known(&mut self) {
        for block in 0..100 {
            let (read, asked) = self.start_and_ask(block).await;
            asked.answer().await;
            assert!(read.await.unwrap().is_some());
        }
        assert_eq!(self.counts.all(), [0, 0, 0]);
    }

    /// Lets the tasks end, and checks that no read remains.
    async fn assert_nothing_is_left(&mut self) {
        self.clock.settle().await;
        self.first.was_asked_nothing();
        self.second.was_asked_nothing();
        for peer in [&self.first, &self.second] {
            assert!(peer.lanes.load(Ordering::SeqCst) <= 2, "no lane was lost and replaced");
        }
        // Each owner still answers new reads.
        for (name, peer) in [("first", &mut self.first), ("second", &mut self.second)] {
            let answer = async { peer.asked().await.answer().await };
            let (outcome, ()) = tokio::join!(self.reader.read(name), answer);
            outcome.unwrap();
        }
    }
}

fn right(block: u32) -> Option<Bytes> {
    Some(content(block, START, LEN))
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn the_second_owner_is_asked_when_the_first_does_not_begin_and_the_first_answer_wins() {
    let mut world = World::new().await;
    let (read, asked) = world.start_and_ask(1).await;
    world.clock.pass(LATEST - 10 * MS).await;
    assert_eq!(world.counts.all(), [0, 0, 0], "it is not time yet");
    world.clock.pass(10 * MS).await;
    world.second.asked().await.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert_eq!(world.counts.all(), [0, 1, 1]);
    assert_eq!(world.first.cancelled().await, asked.tag);

    // The same with the roles swapped.
    let (read, asked, hedge) = world.hedged(2).await;
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all(), [0, 2, 1]);
    assert_eq!(world.second.cancelled().await, hedge.tag);
    assert!(world.reader.peers.is_up("first") && world.reader.peers.is_up("second"));
    world.assert_nothing_is_left().await;
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_read_is_hedged_after_as_long_as_99_of_100_answers_of_its_owner_take_and_never_at_once() {
    let mut world = World::new().await;
    // The first owner answers immediately, and a slow second owner changes nothing.
    world.make_known().await;
    let (read, _asked) = world.start_and_ask(1).await;
    world.clock.pass(5 * MS).await;
    assert_eq!(world.counts.all(), [0, 0, 0]);
    world.clock.pass(5 * MS).await;
    world.second.asked().await.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    world.first.cancelled().await;

    // The first owner becomes slow: as its answers take longer, the wait before a hedge grows.
    for block in 0..30 {
        let (read, asked) = world.start_and_ask(block).await;
        world.clock.pass(100 * MS).await;
        asked.answer().await;
        assert_eq!(read.await.unwrap(), right(block));
    }
    world.second.forget_reads();
    let hedges = world.counts.all()[1];
    let (read, asked) = world.start_and_ask(1).await;
    world.clock.pass(100 * MS).await;
    assert_eq!(world.counts.all()[1], hedges, "this is usual now");
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    // The speed of one owner does not affect the wait for the other.
    let read = start(&world.reader, &world.counts, &["second", "first"], 5);
    let slow = world.second.asked().await;
    world.clock.pass(LATEST - 10 * MS).await;
    assert_eq!(world.counts.all()[1], hedges);
    slow.answer().await;
    assert_eq!(read.await.unwrap(), right(5));
    world.assert_nothing_is_left().await;
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn an_answer_that_begins_and_stalls_is_hedged_later() {
    let mut world = World::new().await;
    let (read, asked) = world.start_and_ask(1).await;
    asked.begin(LEN / 2).await;
    world.clock.pass(LATEST).await;
    assert_eq!(world.counts.all(), [0, 0, 0], "it has begun");
    // The time that the bytes may take at 4 MB per second.
    world.clock.pass(75 * MS).await;
    world.second.asked().await.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert_eq!(world.counts.all(), [0, 1, 1]);
    assert_eq!(world.first.cancelled().await, asked.tag);
    world.assert_nothing_is_left().await;

    // A read that continues in time is not hedged.
    let (read, asked) = world.start_and_ask(2).await;
    asked.begin(LEN / 2).await;
    world.clock.pass(LATEST + 50 * MS).await;
    asked.rest_after(LEN / 2).await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all(), [0, 1, 1]);
    world.assert_nothing_is_left().await;
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn of_two_answers_one_is_used_and_neither_costs_a_lane() {
    let mut world = World::new().await;
    for block in 0..5 {
        let (read, asked, hedge) = world.hedged(block).await;
        // Both answers are in flight before the reader receives either.
        tokio::join!(asked.answer(), hedge.answer());
        assert_eq!(read.await.unwrap(), right(block));
    }
    world.assert_nothing_is_left().await;
    let [failed, hedges, won] = world.counts.all();
    assert!(failed == 0 && hedges == 5 && won <= 5);
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn an_owner_that_does_not_have_the_block_says_so_and_the_first_is_waited_for() {
    let mut world = World::new().await;
    let (read, asked, hedge) = world.hedged(1).await;
    hedge.refuse().await;
    world.clock.pass(1000 * MS).await;
    assert!(!read.is_finished());
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert_eq!(world.counts.all(), [0, 1, 0], "it is no failure");

    // If the first owner fails, the second is asked for the block itself, and may fetch it.
    let (read, asked, hedge) = world.hedged(2).await;
    hedge.refuse().await;
    world.clock.settle().await;
    asked.refuse().await;
    let again = world.second.asked().await;
    assert!(!again.cached_only && !again.forwarded);
    again.answer().await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all(), [1, 2, 0]);
    world.assert_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_win_nothing() {
    let mut world = World::new().await;
    let (read, asked, hedge) = world.hedged(1).await;
    hedge.answer_wrong().await;
    world.clock.pass(50 * MS).await;
    assert!(!read.is_finished());
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert_eq!(world.counts.all(), [1, 1, 0]);

    let (read, asked, hedge) = world.hedged(2).await;
    asked.answer_wrong().await;
    world.clock.settle().await;
    hedge.answer().await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all(), [2, 2, 1]);
    world.assert_nothing_is_left().await;
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_silent_is_found_although_hedges_answer_for_it() {
    let mut world = World::new().await;
    world.first.is_mute.store(true, Ordering::SeqCst);
    // The first connection is open, and its hello is awaited.
    let read = world.start(1);
    world.clock.pass(LATEST).await;
    world.second.asked().await.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert!(world.reader.peers.is_up("first"));
    world.clock.pass(LATEST + 10 * MS).await;
    assert!(!world.reader.peers.is_up("first"), "a second without a hello, and no reader waits for it");

    // The owner goes silent after it has worked.
    let mut world = World::new().await;
    world.make_known().await;
    let (read, _asked) = world.start_and_ask(1).await;
    world.first.is_mute.store(true, Ordering::SeqCst);
    world.clock.pass(10 * MS).await;
    world.second.asked().await.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    world.clock.pass(1500 * MS).await;
    assert!(!world.reader.peers.is_up("first"));
    // The next read goes to the second owner immediately, and is not a hedge.
    let read = world.start(2);
    let asked = world.second.asked().await;
    assert!(!asked.cached_only);
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all()[1..], [1, 1]);
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn two_silent_owners_delay_a_read_by_two_seconds_at_most() {
    let mut world = World::new().await;
    for peer in [&world.first, &world.second] {
        peer.is_mute.store(true, Ordering::SeqCst);
    }
    let read = world.start(1);
    let (outcome, took) = world.clock.until_done(read).await;
    assert_eq!(outcome.unwrap(), None);
    assert!(took <= 2000 * MS, "{took:?}");
    assert_eq!(world.counts.all(), [3, 1, 0], "the second fails twice: its hedge, and when it is its turn");
    assert!(!world.reader.peers.is_up("first") && !world.reader.peers.is_up("second"));
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn one_read_in_twenty_is_hedged_after_the_first_ten_and_what_is_held_back_is_counted() {
    let latest = 20 * MS;
    let mut world = World::with(PeersConfig { hedge_after_most: latest, ..PeersConfig::default() }).await;
    for block in 0..110 {
        let (read, asked) = world.start_and_ask(block).await;
        world.clock.pass(latest).await;
        let is_hedged = world.counts.all()[1] > world.counts.all()[2];
        if is_hedged {
            world.second.asked().await.answer().await;
            assert_eq!(world.first.cancelled().await, asked.tag);
        } else {
            asked.answer().await;
        }
        assert_eq!(read.await.unwrap(), right(block));
    }
    let [failed, hedges, won] = world.counts.all();
    // The hedges are the burst plus five for each hundred reads.
    assert_eq!([failed, hedges, won], [0, 15, 15]);
    assert_eq!(world.reader.counters.hedges_held_back.load(Ordering::Relaxed), 95);
    world.assert_nothing_is_left().await;
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn owners_that_leave_the_list_meanwhile_fail_no_read() {
    let mut world = World::new().await;
    let both = Arc::clone(&world.reader.members.borrow());
    let only = |name: &str| Arc::new(both.iter().filter(|node| node.name == name).cloned().collect::<Vec<_>>());
    // The first owner leaves while its answer is awaited, so the second is asked for the block itself.
    let (read, _asked) = world.start_and_ask(1).await;
    world.reader.members.send_replace(only("second"));
    let asked = world.second.asked().await;
    assert!(!asked.cached_only);
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
    assert_eq!(world.counts.all(), [1, 0, 0]);

    // The second owner leaves before the time of the hedge, and after it.
    world.reader.members.send_replace(Arc::clone(&both));
    world.clock.settle().await;
    let (read, asked) = world.start_and_ask(2).await;
    world.reader.members.send_replace(only("first"));
    world.clock.pass(LATEST).await;
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(2));
    assert_eq!(world.counts.all(), [1, 0, 0], "there was nobody to ask");
    world.reader.members.send_replace(Arc::clone(&both));
    world.clock.settle().await;
    let (read, asked, _hedge) = world.hedged(3).await;
    world.reader.members.send_replace(only("first"));
    world.clock.settle().await;
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(3));
    assert_eq!(world.counts.all(), [2, 1, 0]);

    // A node that stops while reads are in flight waits for none of them.
    world.reader.members.send_replace(Arc::clone(&both));
    world.clock.settle().await;
    let (read, _asked, hedge) = world.hedged(4).await;
    hedge.answer().await;
    assert_eq!(read.await.unwrap(), right(4));
    world.first.cancelled().await;
    let (unanswered, _asked) = world.start_and_ask(5).await;
    world.reader.stopping.cancel();
    world.reader.task.await.unwrap();
    assert_eq!(unanswered.await.unwrap(), None);
}

/// A restarted peer has a new address.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_restarted_at_another_address_is_measured_anew() {
    let mut world = World::new().await;
    world.make_known().await;
    world.first = Scripted::start().await;
    let members = [node("first", world.first.address), node("second", world.second.address)];
    world.reader.members.send_replace(Arc::new(members.into()));
    world.clock.settle().await;
    let (read, asked) = world.start_and_ask(1).await;
    world.clock.pass(LATEST - 10 * MS).await;
    assert_eq!(world.counts.all(), [0, 0, 0], "it may be filling its cache");
    asked.answer().await;
    assert_eq!(read.await.unwrap(), right(1));
}

/// The owners are real nodes: a read that was given up releases everything that it took from them.
// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_read_that_is_given_up_takes_nothing_of_the_owner_any_more() {
    let mut clock = StoppedClock::stop().await;
    let (slow, fast) = (Fake::shut(), Fake::open());
    let first = TestNode::start(Arc::clone(&slow), Security::Plaintext, |_| {}).await;
    let second = TestNode::start(fast, Security::Plaintext, |_| {}).await;
    let (reader, counts) = new_reader(&[("first", first.address), ("second", second.address)]);
    for round in 0..5 {
        let reads: Vec<_> = (0..2).map(|block| start(&reader, &counts, OWNERS, block)).collect();
        while slow.reading.load(Ordering::SeqCst) < 2 {
            clock.settle().await;
        }
        assert!(first.counters.under_way_bytes.load(Ordering::Relaxed) > 0);
        clock.pass(LATEST).await;
        for (read, block) in reads.into_iter().zip(0..) {
            assert_eq!(read.await.unwrap(), right(block));
        }
        while slow.reading.load(Ordering::SeqCst) > 0 || first.counters.under_way_bytes.load(Ordering::Relaxed) > 0 {
            clock.settle().await;
        }
        assert_eq!(counts.all()[1..], [2 * (round + 1); 2]);
    }
    assert!(reader.peers.is_up("first"), "an owner that refuses what was cancelled works");
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 4, "two lanes to each");
}
