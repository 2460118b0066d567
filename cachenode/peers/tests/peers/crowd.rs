//! Thousands of connections whose handshakes never finish.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_cachenode_api::frame::Hello;
use larder_cachenode_api::{MESSAGE_BYTES_MOST, PROTOCOL};
use larder_peers::Security;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::certificates::{Side, ca};
use crate::node::{Fake, RawLane, Reader, TestNode, content, range, until};

/// Long enough that no timeout can be the cause of a result.
const HOURS: Duration = Duration::from_secs(10 * 3600);

/// Connects from `address` and sends nothing.
async fn idle(server: &TestNode, address: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((address, 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// The indices of the connections that the server has not closed.
fn open(connections: &[TcpStream]) -> Vec<usize> {
    let is_open = |io: &TcpStream| matches!(io.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    (0..connections.len()).filter(|&at| is_open(&connections[at])).collect()
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn one_address_with_connections_by_the_thousand_holds_up_no_other() {
    const IDLE: usize = 1_500;
    const EACH: usize = 64;
    raise_file_limit();
    let ca = ca("one");
    for (servers, readers) in
        [(Security::Plaintext, Security::Plaintext), (Side::good(&ca).security(), Side::good(&ca).security())]
    {
        let server = TestNode::start(Fake::open(), servers, |config| {
            config.handshake_timeout = HOURS;
            config.connections_most = 100;
            config.handshakes_each_most = EACH;
        })
        .await;
        let mut held = Vec::new();
        for _ in 0..IDLE {
            held.push(idle(&server, Ipv4Addr::new(127, 0, 0, 2)).await);
        }
        let reader = Reader::new(&[("a", server.address)], readers, |_| {});
        assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000));
        assert_eq!(reader.counters.went_down.load(Ordering::Relaxed), 0);
        // No timeout passed: the newest are all open.
        let newest: Vec<usize> = (IDLE - EACH..IDLE).collect();
        until("that address keeps no more than it may", || open(&held) == newest).await;
        let not_let_in = || server.counters.not_let_in.load(Ordering::Relaxed);
        until("they are counted", || not_let_in() == (IDLE - EACH) as u64).await;
        reader.read("a").await.unwrap();
    }
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn many_addresses_that_take_all_places_hold_up_no_other() {
    const PLACES: usize = 50;
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.handshake_timeout = HOURS;
        config.handshakes_most = PLACES;
        config.handshakes_each_most = 10;
    })
    .await;
    let mut held = Vec::new();
    for number in 0..3 * PLACES as u8 {
        held.push(idle(&server, Ipv4Addr::new(127, 0, 1, number / 5)).await);
    }
    let newest = |count: usize| (held.len() - count..held.len()).collect::<Vec<usize>>();
    until("all places are taken", || open(&held) == newest(PLACES)).await;
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000));
    until("the oldest made room for it", || open(&held) == newest(PLACES - 1)).await;
    let late = idle(&server, Ipv4Addr::new(127, 0, 2, 1)).await;
    reader.read("a").await.unwrap();
    assert_eq!(open(&held), newest(PLACES - 1), "it gave its place back");
    assert_eq!(open(&[late]), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_whose_handshake_is_finished_have_a_limit_of_their_own() {
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.connections_most = 2;
        config.handshakes_each_most = 1;
    })
    .await;
    let (mut first, second) = (RawLane::connect(&server).await, RawLane::connect(&server).await);
    let mut third = RawLane(TcpStream::connect(server.address).await.unwrap());
    third.0.write_all(&Hello { protocol: PROTOCOL }.encode()).await.unwrap();
    third.is_over().await;
    until("it is counted", || server.counters.not_let_in.load(Ordering::Relaxed) == 1).await;
    first.ask(1, range(1, 0, 10), "sesame", 0).await;
    assert_eq!(first.answer().await.1, content(1, 0, 10));
    drop(second);
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.read_at_last("a").await, content(5, 100, 3000), "its place is free again");
}

// SEMANTICS: S8
#[tokio::test(flavor = "multi_thread")]
async fn one_address_takes_no_places_of_others_with_finished_handshakes_either() {
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.connections_most = 8;
        config.connections_each_most = 3;
    })
    .await;
    let mut lanes = Vec::new();
    for _ in 0..3 {
        lanes.push(RawLane::connect(&server).await);
    }
    for number in 1..=8 {
        let mut lane = RawLane(idle(&server, Ipv4Addr::new(127, 0, 0, 2)).await);
        lane.0.write_all(&Hello { protocol: PROTOCOL }.encode()).await.unwrap();
        lane.is_over().await;
        until("it is counted", || server.counters.not_let_in.load(Ordering::Relaxed) == number).await;
    }
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000), "another address has its own places");
    drop(lanes.pop());
    RawLane::connect_at_last(&server).await;
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// The memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A connection over which requests can be sent that the generated client would not send.
async fn http2(server: &TestNode) -> SendRequest<BoxBody<Bytes, Infallible>> {
    let io = TcpStream::connect(server.address).await.unwrap();
    let (requests, connection) = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    requests
}

/// A request whose message ends only when the server gives up on it.
fn endless() -> http::Request<BoxBody<Bytes, Infallible>> {
    static PART: [u8; 64 << 10] = [0; 64 << 10];
    let size = u32::try_from(MESSAGE_BYTES_MOST).unwrap().to_be_bytes();
    let begin = Bytes::from([&[0], &size[..]].concat());
    let parts = std::iter::repeat_n(Bytes::from_static(&PART), MESSAGE_BYTES_MOST / PART.len() - 1);
    let frames = std::iter::once(begin).chain(parts).map(|part| Ok(Frame::data(part)));
    let sent = futures::stream::iter(frames).chain(futures::stream::pending());
    let uri = "http://node/larder.cachenode.v1.CacheNode/GetStats";
    let request = http::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    request.body(BodyExt::boxed(StreamBody::new(sent))).unwrap()
}

// SEMANTICS: S8, P6
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_never_end_take_little_memory_and_keep_no_peer_out() {
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.request_timeout = Duration::from_millis(500);
    })
    .await;
    let before = resident();
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let connection = http2(&server).await;
        for _ in 0..32 {
            let mut connection = connection.clone();
            // Dropping the answer would end the request.
            requests.spawn(async move { connection.send_request(endless()).await });
        }
    }
    let reader = Reader::new(&[("a", server.address)], Security::Plaintext, |_| {});
    while reader.peers.stats("a", &[]).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut most = resident();
    let (mut refused, mut all) = (0, 0);
    while let Some(ended) = requests.join_next().await {
        all += 1;
        refused += usize::from(match ended.unwrap() {
            // gRPC reports errors in headers of an answer with the status 200.
            Ok(answer) => answer.headers().contains_key("grpc-status"),
            // Sent before the client knew how many requests the server takes at a time.
            Err(error) => format!("{error:?}").contains("REFUSED_STREAM"),
        });
        most = most.max(resident());
        assert!(most - before < 160 << 10, "{} KiB for {all} requests", most - before);
    }
    assert_eq!((refused, all), (256, 256));
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000));
}
