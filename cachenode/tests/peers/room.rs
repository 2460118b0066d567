//! What is on its way to peers is bounded.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_cachenode::Security;
use larder_cachenode_api::v1::cache_node_client::CacheNodeClient;
use larder_cachenode_api::{PROTOCOL, v1};
use tokio::net::TcpStream;
use tonic::body::Body;

use crate::node::{Fake, Reader, SNAPSHOT, TestNode, content, token, until, want};

const MIB: u32 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_reads_at_once_keep_within_the_room() {
    const ROOM: u64 = 12 << 20;
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.under_way_bytes = ROOM;
        config.connection_under_way_bytes = ROOM;
    })
    .await;
    let reader = Reader::new(&[("a", server.address)], Security::Plaintext, |config| {
        config.slack = Duration::from_secs(60);
        // Each of them could fill the room.
        config.connections = 4;
    });
    let token = token();
    let reads = (0..1000).map(|number| {
        let (reader, token) = (&reader, &token);
        async move {
            let wants = [want(number, number, MIB + 7), want(number + 1, 0, 1000)];
            let outcomes = reader.peers.read("a", SNAPSHOT, Some(token), &wants, true).await.unwrap();
            let [one, two]: [_; 2] = outcomes.try_into().unwrap();
            assert!(one.unwrap() == content(number, number, MIB + 7));
            assert!(two.unwrap() == content(number + 1, 0, 1000));
        }
    });
    join_all(reads).await;
    let most = server.counters.under_way_bytes_most.load(Ordering::Relaxed);
    assert!(most <= ROOM, "{most} bytes were under way");
    assert!(most > ROOM / 2, "{most} bytes at most: the room was not put to the test");
    until("no room is held", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    assert_eq!(reader.counters.connections.load(Ordering::Relaxed), 4);
}

/// Sends requests as they are.
#[derive(Clone)]
struct Raw(http2::SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Raw {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

async fn raw_client(server: &TestNode) -> CacheNodeClient<Raw> {
    let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (requests, connection) =
        http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(1 << 16).handshake(io).await.unwrap();
    tokio::spawn(connection);
    CacheNodeClient::with_origin(Raw(requests), "http://node/".parse().unwrap())
}

fn request(wants: Vec<v1::Want>, deadline_ms: u32) -> tonic::Request<v1::ReadRequest> {
    let snapshot = Bytes::copy_from_slice(&SNAPSHOT.0);
    let mut request =
        tonic::Request::new(v1::ReadRequest { protocol: PROTOCOL, snapshot, wants, deadline_ms, forwarded: true });
    request.metadata_mut().insert("authorization", "Bearer sesame".parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_holds_its_share_and_then_loses_its_connection() {
    let server = TestNode::start(Fake::open(), Security::Plaintext, |config| {
        config.under_way_bytes = 20 << 20;
        config.connection_under_way_bytes = 10 << 20;
    })
    .await;
    let mut client = raw_client(&server).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        let wants = vec![v1::Want { block: 1, start: 0, len: 4 << 20 }; 4];
        // The header comes; the rest is never taken.
        let mut stream = client.read(request(wants, 1000)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        held.push(stream);
    }
    until("its share is taken", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 10 << 20).await;
    let reader = Reader::plain(&[("a", server.address)]);
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000), "others are served");
    until("the room is given back", || server.counters.under_way_bytes.load(Ordering::Relaxed) == 0).await;
    assert_eq!(server.counters.cut.load(Ordering::Relaxed), 1);
    let over = client.get_info(v1::GetInfoRequest { protocol: PROTOCOL }).await;
    assert!(over.is_err(), "its connection is still there");
    reader.read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_range_is_read_ahead_of_what_is_taken() {
    let blocks = Fake::open();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |_| {}).await;
    let mut client = raw_client(&server).await;
    let wants = vec![v1::Want { block: 1, start: 0, len: 4 << 20 }; 10];
    let mut stream = client.read(request(wants, 10_000)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    until("a range and the next are read", || blocks.forwarded.load(Ordering::SeqCst) == 2).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(blocks.forwarded.load(Ordering::SeqCst), 2, "more is read than is taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_and_those_that_cannot_be_are_turned_away() {
    let blocks = Fake::shut();
    let server = TestNode::start(Arc::clone(&blocks), Security::Plaintext, |config| config.requests_most = 2).await;
    let mut client = raw_client(&server).await;
    let good = || request(vec![v1::Want { block: 1, start: 0, len: 1 }], 0);
    let mut one = client.read(good()).await.unwrap().into_inner();
    one.message().await.unwrap().unwrap();
    let mut other = raw_client(&server).await;
    let two = other.read(good()).await.unwrap();
    let three = raw_client(&server).await.read(good()).await.unwrap_err();
    assert_eq!(three.code(), tonic::Code::ResourceExhausted);
    drop((one, two));
    until("both are gone", || blocks.reading.load(Ordering::SeqCst) == 0).await;
    let mut odd = good();
    odd.get_mut().snapshot = Bytes::from_static(b"short");
    let status = client.read(odd).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, "snapshot: is not 32 bytes"));
    let mut odd = good();
    odd.get_mut().protocol = 9;
    let status = client.read(odd).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.message().contains("protocol 9"), "{}", status.message());
    assert_eq!(server.counters.turned_away.load(Ordering::Relaxed), 3);
}
