//! Bytes and requests in flight to peers are bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{Answer, Hello, RefusalCode, Request};
use larder_peers::Security;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::node::{Fake, RawLane, Reader, TestNode, content, range, until};

const MIB: u32 = 1 << 20;

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_reads_at_once_keep_within_the_room() {
    const ROOM: u64 = 12 << 20;
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.in_flight_bytes = ROOM;
        config.peer_in_flight_bytes = ROOM;
    })
    .await;
    let reader = Reader::new(&[("a", server.address)], Security::Plaintext, |config| {
        config.slack = Duration::from_secs(60);
        config.lanes = 4;
    });
    let reads = (0..1000).map(|number| {
        let reader = &reader;
        async move {
            let range = range(number, number, if number % 2 == 0 { MIB + 7 } else { 1000 });
            assert!(reader.read_some("a", range).await.unwrap() == content(number, number, range.len), "{range:?}");
        }
    });
    join_all(reads).await;
    let most = server.counters.under_way_bytes_most.load(Ordering::Relaxed);
    assert!(most <= ROOM, "{most} bytes were in flight");
    assert!(most > ROOM / 2, "{most} bytes at most: the limit was not reached");
    until("no bytes are in flight", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 4);
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stops_reading_holds_its_share_and_is_then_disconnected() {
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.in_flight_bytes = 20 << 20;
        config.peer_in_flight_bytes = 8 << 20;
    })
    .await;
    let mut lane = RawLane::connect(&server).await;
    for tag in 0..4 {
        lane.ask(tag, range(1, 0, 4 * MIB), "sesame", 1000).await;
    }
    until("its share is taken", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 8 << 20).await;
    // All lanes of a peer share its limit.
    let mut second = RawLane::connect(&server).await;
    second.ask(7, range(1, 0, MIB), "sesame", 1000).await;
    let (answer, _) = second.answer().await;
    assert!(matches!(answer, Answer::Refusal { tag: 7, code: RefusalCode::TimedOut, .. }), "{answer:?}");
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000), "others are served");
    until("the room is given back", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    assert_eq!(server.counters.cut.load(Ordering::Relaxed), 1);
    lane.is_over().await;
    second.ask(8, range(1, 0, MIB), "sesame", 0).await;
    assert!(second.answer().await.1 == content(1, 0, MIB), "its share is free again");
    reader.read("a").await.unwrap();
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_requests_without_reading_answers_is_disconnected() {
    // A lane ends because a write takes too long, and because it has reached its maximum age.
    join_all([10 * 3600 * 1000, 100].map(async |age_ms| {
        let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
            config.deadline_most = Duration::from_millis(500);
            config.connection_age_most = Duration::from_millis(age_ms);
        })
        .await;
        let mut lane = RawLane::connect(&server).await;
        let mut pings = Vec::new();
        while pings.len() < 4096 {
            Request::Ping.encode(&mut pings);
        }
        let until_it_ends = async { while lane.0.write_all(&pings).await.is_ok() {} };
        let ended = tokio::time::timeout(Duration::from_secs(60), until_it_ends).await;
        assert!(ended.is_ok(), "a connection of {age_ms} ms goes on");
        let reader = Reader::plain(&[("a", server.address)]);
        assert_eq!(reader.read_at_last("a").await, content(5, 100, 3000), "others are served");
    }))
    .await;
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_room_for_their_answers_are_not_read() {
    let blocks = Fake::open();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |config| {
        config.peer_in_flight_bytes = 8 << 20;
    })
    .await;
    let mut lane = RawLane::connect(&server).await;
    for tag in 0..10 {
        lane.ask(tag, range(1, 0, 4 * MIB), "sesame", 0).await;
    }
    until("two ranges are read", || blocks.forwarded.load(Ordering::SeqCst) == 2).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(blocks.forwarded.load(Ordering::SeqCst), 2, "more is read than there is room for");
    }
    for _ in 0..10 {
        assert!(lane.answer().await.1 == content(1, 0, 4 * MIB));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_and_those_that_cannot_be_are_turned_away() {
    let blocks = Fake::shut();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |config| config.requests_most = 2).await;
    let turned_away = || server.counters.turned_away.load(Ordering::Relaxed);
    let mut lane = RawLane::connect(&server).await;
    for tag in 1..=3 {
        lane.ask(tag, range(tag, 0, 1), "sesame", 0).await;
    }
    let (answer, words) = lane.answer().await;
    assert!(matches!(answer, Answer::Refusal { tag: 3, code: RefusalCode::Unavailable, .. }), "{answer:?}");
    assert_eq!(words, b"too many requests are in flight");
    // Each read is answered, even a cancelled one.
    until("both are read", || blocks.reading.load(Ordering::SeqCst) == 2).await;
    for tag in 1..=2 {
        let mut cancel = Vec::new();
        Request::Cancel { tag }.encode(&mut cancel);
        lane.0.write_all(&cancel).await.unwrap();
        let (answer, _) = lane.answer().await;
        assert!(matches!(answer, Answer::Refusal { tag: answered, .. } if answered == tag), "{answer:?}");
    }
    until("both are gone", || blocks.reading.load(Ordering::SeqCst) == 0).await;
    assert_eq!(turned_away(), 1);

    for (range, token) in [(range(1, 0, 0), "sesame"), (range(1, 1, 4 * MIB), "sesame"), (range(1, 0, 1), "a b")] {
        lane.ask(4, range, token, 0).await;
        let (answer, words) = lane.answer().await;
        assert!(matches!(answer, Answer::Refusal { tag: 4, code: RefusalCode::Invalid, .. }), "{answer:?} {words:?}");
    }
    assert_eq!(turned_away(), 4);
    lane.0.write_all(&[99; 8]).await.unwrap();
    lane.is_over().await;
    until("it is counted", || turned_away() == 5).await;
}

// SEMANTICS: S5
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_protocol_gets_our_hello_and_nothing_else() {
    let server = TestNode::plain().await;
    // The versions that answer with the bytes of any place and owner speak 1.
    for (turned_away, protocol) in [(1, 1), (2, PROTOCOL + 1)] {
        let mut lane = RawLane(TcpStream::connect(server.address).await.unwrap());
        lane.0.write_all(&Hello { protocol }.encode()).await.unwrap();
        assert_eq!(lane.hello().await.unwrap(), Hello { protocol: PROTOCOL });
        lane.is_over().await;
        until("it is counted", || server.counters.turned_away.load(Ordering::Relaxed) == turned_away).await;
    }
}
