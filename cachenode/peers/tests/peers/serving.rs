//! What nodes that work do for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use larder_peers::{Cause, PeerError, ReadError, Security, Token};

use crate::node::{
    BLOCKS, Fake, GONE, NEVER, OTHER_SNAPSHOT, PANICS, Reader, SNAPSHOT, TestNode, content, node, token, until, want,
};

const MIB: u32 = 1 << 20;

fn one_lane(server: &TestNode) -> Reader {
    Reader::new(&[("a", server.address)], Security::Plaintext, |config| config.lanes = 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_every_length_come_back_whole() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    let wants = [
        want(3, 0, 4 * MIB),
        want(1, 17, 1),
        want(1, 0, MIB),
        want(2, 5, MIB + 1),
        want(2, 3 * MIB, MIB),
        want(9, 4 * MIB - 1, 1),
        want(9, 3, 4096 - 12),
    ];
    let outcomes = join_all(wants.map(|want| reader.read_some("a", want))).await;
    for (outcome, want) in outcomes.into_iter().zip(wants) {
        assert!(outcome.unwrap() == content(want.block.0, want.start, want.len), "{want:?}");
    }
    let bytes = wants.iter().map(|want| u64::from(want.len)).sum::<u64>();
    assert_eq!(reader.counters.read_bytes.load(Ordering::Relaxed), bytes);
    until("all is counted", || server.counters.served_reads.load(Ordering::Relaxed) == 7).await;
    assert_eq!(server.counters.served_bytes.load(Ordering::Relaxed), bytes);
    until("no room is held", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_does_not_keep_the_rest_from_coming() {
    let server = TestNode::plain().await;
    let reader = one_lane(&server);
    let wants = [want(GONE, 0, 1), want(1, 0, 2 * MIB), want(BLOCKS, 0, 1), want(PANICS, 0, 1), want(2, 0, 10)];
    let outcomes = join_all(wants.map(|want| reader.read_some("a", want))).await;
    let refusals: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().err().and_then(PeerError::refusal)).collect();
    assert!(matches!(
        refusals[..],
        [Some(ReadError::Gone), None, Some(ReadError::NoSuchRange), Some(ReadError::Unavailable { .. }), None]
    ));
    assert!(*outcomes[1].as_ref().unwrap() == content(1, 0, 2 * MIB));
    assert_eq!(server.counters.refused.of(&ReadError::Gone), 1);
    assert_eq!(reader.counters.refused_by_peers.of(&ReadError::Gone), 1);
    assert!(reader.peers.is_up("a"), "a refusal is no failure");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_does_not_hold_up_those_behind_it() {
    let server = TestNode::plain().await;
    let reader = one_lane(&server);
    let slow = reader.read_some("a", want(NEVER, 0, 1));
    let quick = async {
        for block in 0..10 {
            assert!(reader.read_some("a", want(block, 0, MIB)).await.unwrap() == content(block, 0, MIB));
        }
    };
    tokio::select! {
        outcome = slow => panic!("{outcome:?}"),
        () = quick => {}
    }
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_hears_whether_it_may_ask_others() {
    let blocks = Fake::open();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |_| {}).await;
    let reader = Reader::plain(&[("a", server.address)]);
    for forwarded in [false, true] {
        reader.peers.read("a", SNAPSHOT, Some(&token()), want(1, 0, 1), forwarded).await.unwrap();
        assert_eq!(blocks.forwarded.load(Ordering::SeqCst), u64::from(forwarded));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_what_it_has() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    let info = reader.peers.info("a").await.unwrap();
    assert_eq!(info.node, "server");
    let stats = reader.peers.stats("a").await.unwrap();
    assert_eq!((stats.datasets.len(), stats.datasets[0].name.as_str()), (1, "made-up"));
    assert!(stats.counters.contains_key("served_bytes"));
    assert!(reader.peers.is_up("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_the_token_gets_nothing_and_is_not_asked_for_again_at_once() {
    let server = TestNode::plain().await;
    let wrong = Token::new("sesamf").unwrap();
    for shown in [None, Some(&wrong)] {
        let reader = Reader::plain(&[("a", server.address)]);
        let before = server.counters.refused.of(&ReadError::Denied);
        for _ in 0..3 {
            let error = reader.peers.read("a", SNAPSHOT, shown, want(1, 0, 1), true).await.unwrap_err();
            assert_eq!(error.refusal(), Some(&ReadError::Denied));
        }
        assert_eq!(server.counters.refused.of(&ReadError::Denied), before + 1, "the node was asked again");
        assert!(reader.peers.is_up("a"));
    }
    let reader = Reader::plain(&[("a", server.address)]);
    let error = reader.peers.read("a", OTHER_SNAPSHOT, Some(&token()), want(1, 0, 1), true).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&ReadError::UnknownDataset));
    reader.read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_a_dataset_is_forgotten_after_a_while() {
    let server = TestNode::plain().await;
    let reader =
        Reader::new(&[("a", server.address)], Security::Plaintext, |config| config.refusal_memory = Default::default());
    reader.peers.read("a", SNAPSHOT, None, want(1, 0, 1), true).await.unwrap_err();
    reader.read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_for_is_not_sent() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    for want in [want(0, 0, 0), want(0, 1, 4 * MIB), want(0, u32::MAX, u32::MAX)] {
        let error = reader.read_some("a", want).await.unwrap_err();
        assert!(matches!(error, PeerError::Invalid { .. }), "{error:?}");
    }
    assert_eq!(server.counters.turned_away.load(Ordering::Relaxed), 0);
    let error = reader.read("reader").await.unwrap_err();
    assert!(matches!(error, PeerError::NoSuchNode { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_is_let_go_and_one_that_comes_is_used() {
    let (a, b) = (TestNode::plain().await, TestNode::plain().await);
    let reader = Reader::plain(&[("a", a.address), ("reader", b.address)]);
    reader.read("a").await.unwrap();
    assert!(!reader.peers.is_up("reader"), "it is no peer of itself");
    reader.members.send_replace(vec![node("b", b.address)].into());
    until("b is a member", || reader.peers.is_up("b")).await;
    assert!(matches!(reader.read("a").await, Err(PeerError::NoSuchNode { .. })));
    reader.read("b").await.unwrap();
    // A server waits for the connections of peers that are still there.
    a.stop().await;

    // The same name at another address.
    let c = TestNode::plain().await;
    reader.members.send_replace(vec![node("b", c.address)].into());
    until("c is b", || reader.peers.status()[0].address == c.address).await;
    reader.read("b").await.unwrap();
    until("c is read from", || c.counters.served_reads.load(Ordering::Relaxed) == 1).await;
    reader.stopping.cancel();
    reader.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_under_way_ends_when_its_node_leaves() {
    let blocks = Fake::shut();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |_| {}).await;
    let reader = Reader::plain(&[("a", server.address)]);
    let read = async { reader.read("a").await };
    let leave = async {
        until("the node reads", || blocks.reading.load(Ordering::SeqCst) == 1).await;
        reader.members.send_replace(Vec::new().into());
    };
    let (outcome, ()) = tokio::join!(read, leave);
    assert!(matches!(outcome, Err(PeerError::Bypassed { .. })), "{outcome:?}");
    until("the node gave up", || blocks.reading.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_started_anew_costs_no_read() {
    let first = TestNode::plain().await;
    let reader = Reader::plain(&[("a", first.address)]);
    reader.read("a").await.unwrap();
    let address = first.address;
    first.stop().await;
    let _second = TestNode::start_at(address, Fake::open(), Security::Plaintext, |_| {}).await;
    reader.read("a").await.unwrap();
    assert_eq!(reader.counters.went_down.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_says_so_and_is_bypassed() {
    let blocks = Fake::shut();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |_| {}).await;
    let reader = Reader::plain(&[("a", server.address)]);
    let stop = async {
        until("the node reads", || blocks.reading.load(Ordering::SeqCst) == 1).await;
        server.stop().await;
    };
    let (outcome, ()) = tokio::join!(reader.read("a"), stop);
    assert_eq!(outcome.unwrap_err().cause(), Some(Cause::Stopping));
    assert_eq!(reader.counters.errors(Cause::Stopping), 1);
    assert!(!reader.peers.is_up("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_dropped_ends_at_the_node_too() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    reader.read("a").await.unwrap();
    let blocks = Fake::shut();
    let slow = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |_| {}).await;
    reader.members.send_replace(vec![node("a", slow.address)].into());
    until("a moved", || reader.peers.status()[0].address == slow.address).await;
    let reading = tokio::spawn({
        let peers = Arc::clone(&reader.peers);
        async move { peers.read("a", SNAPSHOT, Some(&token()), want(1, 0, 10), true).await }
    });
    until("the node reads", || blocks.reading.load(Ordering::SeqCst) == 1).await;
    reading.abort();
    until("the node gave up", || blocks.reading.load(Ordering::SeqCst) == 0).await;
    until("no room is held", || slow.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    assert!(reader.peers.is_up("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_are_dropped_by_the_hundred_leave_the_connection_as_it_is() {
    let server = TestNode::plain().await;
    let reader = Arc::new(one_lane(&server));
    reader.read("a").await.unwrap();
    for _ in 0..5 {
        let reads: Vec<_> = (0..200)
            .map(|_| {
                let reader = Arc::clone(&reader);
                tokio::spawn(async move { reader.read("a").await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        reads.iter().for_each(tokio::task::JoinHandle::abort);
        for read in reads {
            if let Ok(outcome) = read.await {
                outcome.unwrap();
            }
        }
        reader.read("a").await.unwrap();
    }
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_origin_is_slow_is_bypassed_after_some_reads() {
    let server = TestNode::plain().await;
    let reader = Reader::new(&[("a", server.address)], Security::Plaintext, |config| {
        config.slack = std::time::Duration::from_millis(50);
        config.slow_in_a_row = 3;
    });
    reader.read("a").await.unwrap();
    for number in 0..3 {
        assert!(reader.peers.is_up("a"), "{number}");
        let error = reader.read_some("a", want(NEVER, 0, 1)).await.unwrap_err();
        assert_eq!(error.refusal(), Some(&ReadError::TimedOut));
    }
    assert!(!reader.peers.is_up("a"));
    assert_eq!(reader.counters.errors(Cause::TimedOut), 1);
    assert_eq!(reader.read_at_last("a").await, content(5, 100, 3000));
}
