//! Working nodes serve each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use larder_cachenode_api::frame::{Answer, RefusalCode};
use larder_dataset::CacheId;
use larder_peers::{AskedDataset, Cause, NodeStats, PeerError, ReadError, ReadRequest, Security, Token};

use crate::node::{
    BLOCKS, Fake, GONE, NEVER, OTHER_SNAPSHOT, PANICS, RawLane, Reader, SNAPSHOT, TestNode, content, node, range,
    request, token, until,
};

const MIB: u32 = 1 << 20;

fn one_lane(server: &TestNode) -> Reader {
    Reader::new(&[("a", server.address)], Security::Plaintext, |config| config.lanes = 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_every_length_come_back_whole() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    let ranges = [
        range(3, 0, 4 * MIB),
        range(1, 17, 1),
        range(1, 0, MIB),
        range(2, 5, MIB + 1),
        range(2, 3 * MIB, MIB),
        range(9, 4 * MIB - 1, 1),
        range(9, 3, 4096 - 12),
    ];
    let outcomes = join_all(ranges.map(|range| reader.read_some("a", range))).await;
    for (outcome, range) in outcomes.into_iter().zip(ranges) {
        assert!(outcome.unwrap() == content(range.block.0, range.start, range.len), "{range:?}");
    }
    let bytes = ranges.iter().map(|range| u64::from(range.len)).sum::<u64>();
    assert_eq!(reader.counters.read_bytes.load(Ordering::Relaxed), bytes);
    until("everything is counted", || server.counters.served_reads.load(Ordering::Relaxed) == 7).await;
    assert_eq!(server.counters.served_bytes.load(Ordering::Relaxed), bytes);
    until("no bytes are in flight", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_does_not_delay_other_answers() {
    let server = TestNode::plain().await;
    let reader = one_lane(&server);
    let ranges = [range(GONE, 0, 1), range(1, 0, 2 * MIB), range(BLOCKS, 0, 1), range(PANICS, 0, 1), range(2, 0, 10)];
    let outcomes = join_all(ranges.map(|range| reader.read_some("a", range))).await;
    let refusals: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().err().and_then(PeerError::refusal)).collect();
    assert!(matches!(
        refusals[..],
        [Some(ReadError::Gone), None, Some(ReadError::NoSuchRange), Some(ReadError::Unavailable { .. }), None]
    ));
    assert!(*outcomes[1].as_ref().unwrap() == content(1, 0, 2 * MIB));
    assert_eq!(server.counters.refused.of(&ReadError::Gone), 1);
    assert_eq!(reader.counters.refused_by_peers.of(&ReadError::Gone), 1);
    assert!(reader.peers.is_up("a"), "a refusal is not a failure");
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_waits_does_not_hold_up_those_behind_it() {
    let server = TestNode::plain().await;
    let reader = one_lane(&server);
    let slow = reader.read_some("a", range(NEVER, 0, 1));
    let quick = async {
        for block in 0..10 {
            assert!(reader.read_some("a", range(block, 0, MIB)).await.unwrap() == content(block, 0, MIB));
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
        reader.peers.read("a", &ReadRequest { forwarded, ..request(range(1, 0, 1)) }).await.unwrap();
        assert_eq!(blocks.forwarded.load(Ordering::SeqCst), u64::from(forwarded));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_what_it_has() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    let info = reader.peers.info("a").await.unwrap();
    assert_eq!(info.node, "server");
    let asked = AskedDataset { cache: SNAPSHOT, token: Some(token()), origin: String::new() };
    let stats = reader.peers.stats("a", std::slice::from_ref(&asked)).await.unwrap();
    assert_eq!((stats.datasets.len(), stats.datasets[0].name.as_str()), (1, "made-up"));
    assert!(stats.counters.contains_key("served_bytes"));
    assert!(reader.peers.is_up("a"));
}

// SEMANTICS: S6
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_without_the_token_gets_nothing_and_does_not_retry_at_once() {
    let server = TestNode::plain().await;
    let wrong = Token::new("sesamf").unwrap();
    for token in [None, Some(wrong)] {
        let request = ReadRequest { token, ..request(range(1, 0, 1)) };
        let reader = Reader::plain(&[("a", server.address)]);
        let before = server.counters.refused.of(&ReadError::Denied);
        for _ in 0..3 {
            let error = reader.peers.read("a", &request).await.unwrap_err();
            assert_eq!(error.refusal(), Some(&ReadError::UnknownDataset), "not told that the dataset is there");
        }
        assert_eq!(server.counters.refused.of(&ReadError::Denied), before + 1, "the node was asked again");
        assert!(reader.peers.is_up("a"));
    }
    let reader = Reader::plain(&[("a", server.address)]);
    let error =
        reader.peers.read("a", &ReadRequest { cache: OTHER_SNAPSHOT, ..request(range(1, 0, 1)) }).await.unwrap_err();
    assert_eq!(error.refusal(), Some(&ReadError::UnknownDataset));
    reader.read("a").await.unwrap();
}

/// Everything that the server answers to a peer that requests a dataset: the answer to a read, and the statistics.
async fn heard(server: &TestNode, snapshot: CacheId, token: Option<&str>) -> (Answer, Vec<u8>, NodeStats) {
    let mut lane = RawLane::connect(server).await;
    lane.ask_for(snapshot, 1, range(1, 0, 1), token.unwrap_or_default(), 0).await;
    let (answer, words) = lane.answer().await;
    let reader = Reader::plain(&[("a", server.address)]);
    let token = token.map(|token| Token::new(token).unwrap());
    let asked = AskedDataset { cache: snapshot, token, origin: "origin".to_owned() };
    let stats = reader.peers.stats("a", &[asked]).await.unwrap();
    (answer, words, stats)
}

// SEMANTICS: S6
#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_a_denied_dataset_looks_like_a_missing_one() {
    for token in [None, Some("sesamf")] {
        // A separate node for each case, so that its counters reflect only this request.
        let (there, elsewhere) = (TestNode::plain().await, TestNode::plain().await);
        let (answer, words, stats) = heard(&there, SNAPSHOT, token).await;
        let (other_answer, other_words, other_stats) = heard(&elsewhere, OTHER_SNAPSHOT, token).await;
        assert_eq!((answer, &words), (other_answer, &other_words));
        assert!(matches!(answer, Answer::Refusal { code: RefusalCode::UnknownDataset, .. }), "{answer:?}");
        assert_eq!((stats.datasets, stats.counters), (other_stats.datasets, other_stats.counters));
        assert_eq!(there.counters.refused.of(&ReadError::Denied), 1, "the node itself knows");
    }
    let server = TestNode::plain().await;
    let (answer, _, stats) = heard(&server, SNAPSHOT, Some("sesame")).await;
    assert!(matches!(answer, Answer::Bytes { .. }), "{answer:?}");
    assert_eq!(stats.datasets.len(), 1);
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.peers.stats("a", &[]).await.unwrap().datasets, [], "what it does not ask for it is not told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_a_dataset_is_forgotten_after_a_while() {
    let server = TestNode::plain().await;
    let reader =
        Reader::new(&[("a", server.address)], Security::Plaintext, |config| config.refusal_memory = Default::default());
    reader.peers.read("a", &ReadRequest { token: None, ..request(range(1, 0, 1)) }).await.unwrap_err();
    reader.read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_ranges_are_not_sent() {
    let server = TestNode::plain().await;
    let reader = Reader::plain(&[("a", server.address)]);
    for range in [range(0, 0, 0), range(0, 1, 4 * MIB), range(0, u32::MAX, u32::MAX)] {
        let error = reader.read_some("a", range).await.unwrap_err();
        assert!(matches!(error, PeerError::Invalid { .. }), "{error:?}");
    }
    assert_eq!(server.counters.turned_away.load(Ordering::Relaxed), 0);
    let error = reader.read("reader").await.unwrap_err();
    assert!(matches!(error, PeerError::NoSuchPeer { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_is_let_go_and_one_that_comes_is_used() {
    let (a, b) = (TestNode::plain().await, TestNode::plain().await);
    let reader = Reader::plain(&[("a", a.address), ("reader", b.address)]);
    reader.read("a").await.unwrap();
    assert!(!reader.peers.is_up("reader"), "a node is not a peer of itself");
    reader.members.send_replace(vec![node("b", b.address)].into());
    until("b is a member", || reader.peers.is_up("b")).await;
    assert!(matches!(reader.read("a").await, Err(PeerError::NoSuchPeer { .. })));
    reader.read("b").await.unwrap();
    // A stopping server waits for the open connections of its peers, so this proves that the reader closed its own.
    a.stop().await;

    // A node with the same name at another address.
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
    until("the node abandoned the read", || blocks.reading.load(Ordering::SeqCst) == 0).await;
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
        async move { peers.read("a", &request(range(1, 0, 10))).await }
    });
    until("the node reads", || blocks.reading.load(Ordering::SeqCst) == 1).await;
    reading.abort();
    until("the node abandoned the read", || blocks.reading.load(Ordering::SeqCst) == 0).await;
    until("no bytes are in flight", || slow.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
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
        let error = reader.read_some("a", range(NEVER, 0, 1)).await.unwrap_err();
        assert_eq!(error.refusal(), Some(&ReadError::TimedOut));
    }
    assert!(!reader.peers.is_up("a"));
    assert_eq!(reader.counters.errors(Cause::TimedOut), 1);
    assert_eq!(reader.read_at_last("a").await, content(5, 100, 3000));
}
