//! Ranges that a node forwards while it is still receiving them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_cachenode_api::frame::Answer;
use larder_dataset::crc32c;
use larder_peers::{PeerError, ReadError, Security};

use crate::node::{ARRIVES, Arrival, Fake, RawLane, Reader, TestNode, content, range, until, wire};

const MIB: u32 = 1 << 20;

async fn serving(blocks: &Arc<Fake>) -> TestNode {
    TestNode::start(Arc::clone(blocks), Security::Plaintext, |_| {}).await
}

fn one_lane(server: &TestNode) -> Reader {
    Reader::new(&[("a", server.address)], Security::Plaintext, |config| config.lanes = 1)
}

fn piece(start: u32, len: u32) -> Arrival {
    Some(Ok(content(ARRIVES, start, len)))
}

// SEMANTICS: S1
#[tokio::test(flavor = "multi_thread")]
async fn pieces_are_sent_as_they_arrive_and_other_answers_overtake_them() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let mut lane = RawLane::connect(&server).await;
    let arriving = blocks.arrives();
    lane.ask(1, range(ARRIVES, 0, 2 * MIB + 5), "sesame", 60_000).await;
    let mut came = Vec::new();
    for start in [0, MIB] {
        arriving.send(piece(start, MIB)).unwrap();
        let (answer, bytes) = lane.piece().await;
        assert_eq!(answer, Answer::Bytes { tag: 1, len: MIB });
        came.extend(bytes);
        lane.ask(2 + start, range(1, start, 100), "sesame", 60_000).await;
        let between = lane.answer().await;
        assert_eq!(between, (Answer::Bytes { tag: 2 + start, len: 100 }, content(1, start, 100).to_vec()));
    }
    assert_eq!(server.counters.served_bytes.load(Ordering::Relaxed), u64::from(2 * MIB + 200));
    arriving.send(piece(2 * MIB, 5)).unwrap();
    let (answer, bytes) = lane.piece().await;
    assert_eq!(answer, Answer::Bytes { tag: 1, len: 5 });
    came.extend(bytes);
    assert!(came == content(ARRIVES, 0, 2 * MIB + 5));
    let request = wire(range(ARRIVES, 0, 2 * MIB + 5)).encode();
    assert_eq!(lane.sum().await, crc32c(&request) ^ crc32c(&came));
    until("everything is counted", || server.counters.served_reads.load(Ordering::Relaxed) == 3).await;
    until("no bytes are in flight", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reader_has_it_whole_while_its_lane_serves_others() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let reader = one_lane(&server);
    let arriving = blocks.arrives();
    let (start, len) = (7, 3 * MIB);
    let read = reader.read_some("a", range(ARRIVES, start, len));
    let meanwhile = async {
        for (nth, begin) in (0..).zip((0..len).step_by(MIB as usize)) {
            arriving.send(piece(start + begin, MIB)).unwrap();
            let most = u64::from(MIB) * (nth + 1);
            until("it is sent", || server.counters.served_bytes.load(Ordering::Relaxed) >= most).await;
            let other = reader.read_some("a", range(2, nth as u32, MIB)).await.unwrap();
            assert!(other == content(2, nth as u32, MIB), "{nth}");
        }
    };
    let (outcome, ()) = tokio::join!(read, meanwhile);
    assert!(outcome.unwrap() == content(ARRIVES, start, len));
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 1);
}

// SEMANTICS: S1
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_halfway_is_refused_and_its_lane_stays() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let reader = one_lane(&server);
    let is_unavailable = |refusal: &ReadError| matches!(refusal, ReadError::Unavailable { .. });
    let is_gone = |refusal: &ReadError| *refusal == ReadError::Gone;
    type Check = fn(&ReadError) -> bool;
    let cases: [(&str, Vec<Arrival>, Check); 5] = [
        ("an error", vec![piece(0, MIB), Some(Err(ReadError::Gone))], is_gone),
        ("a panic", vec![piece(0, MIB), None], is_unavailable),
        ("too little", vec![piece(0, MIB)], is_unavailable),
        ("too much", vec![piece(0, MIB), piece(0, MIB + 1)], is_unavailable),
        ("too small a piece", vec![piece(0, 1000), piece(1000, 2 * MIB - 1000)], is_unavailable),
    ];
    for (what, pieces, as_it_should) in cases {
        let arriving = blocks.arrives();
        for piece in pieces {
            arriving.send(piece).unwrap();
        }
        drop(arriving);
        let error = reader.read_some("a", range(ARRIVES, 0, 2 * MIB)).await.unwrap_err();
        assert!(error.refusal().is_some_and(as_it_should), "{what}: {error:?}");
        until("no bytes are in flight", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
        reader.read("a").await.unwrap();
    }
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 1);
    assert!(reader.peers.is_up("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_stalls_halfway_is_refused() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let mut lane = RawLane::connect(&server).await;
    let arriving = blocks.arrives();
    arriving.send(piece(0, MIB)).unwrap();
    lane.ask(1, range(ARRIVES, 0, 2 * MIB), "sesame", 300).await;
    assert_eq!(lane.piece().await.0, Answer::Bytes { tag: 1, len: MIB });
    let (answer, _) = lane.answer().await;
    assert!(matches!(answer, Answer::Refusal { tag: 1, .. }), "{answer:?}");
    assert_eq!(server.counters.refused.of(&ReadError::TimedOut), 1);
    assert!(arriving.is_closed(), "the node still waits for more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_dropped_in_the_middle_ends_at_the_node_too() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let reader = one_lane(&server);
    let arriving = blocks.arrives();
    arriving.send(piece(0, MIB)).unwrap();
    tokio::select! {
        outcome = reader.read_some("a", range(ARRIVES, 0, 2 * MIB)) => panic!("{outcome:?}"),
        () = until("a piece is sent", || server.counters.served_bytes.load(Ordering::Relaxed) == u64::from(MIB)) => {}
    }
    arriving.closed().await;
    until("no bytes are in flight", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    reader.read("a").await.unwrap();
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_refuses_the_rest() {
    let blocks = Fake::open();
    let server = serving(&blocks).await;
    let reader = one_lane(&server);
    let arriving = blocks.arrives();
    arriving.send(piece(0, MIB)).unwrap();
    let counters = Arc::clone(&server.counters);
    let stop = async {
        until("a piece is sent", || counters.served_bytes.load(Ordering::Relaxed) == u64::from(MIB)).await;
        server.stop().await;
    };
    let (outcome, ()) = tokio::join!(reader.read_some("a", range(ARRIVES, 0, 2 * MIB)), stop);
    assert!(matches!(outcome, Err(PeerError::Failed { .. })), "{outcome:?}");
    assert!(!reader.peers.is_up("a"));
    drop(arriving);
}
