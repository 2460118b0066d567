//! Peers that lie, stall, break and die.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use futures::{Stream, StreamExt};
use larder_cachenode::{Cause, PeerError, Security};
use larder_cachenode_api::v1::cache_node_server::{CacheNode, CacheNodeServer};
use larder_cachenode_api::v1::read_response::Part;
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::crc32c;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::node::{Reader, TestNode, content, until};

/// What is wrong with a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    WrongBytes,
    OtherBlock,
    OtherWant,
    OtherOffset,
    OtherSnapshot,
    TooLong,
    TooShort,
    EmptyPiece,
    OneMore,
    NoHeader,
    HeaderTwice,
    Nothing,
    EndsEarly,
    ReadsInOtherProtocol,
    OtherProtocol,
    RefusesProtocol,
    Fails,
    StallsBeforeHeader,
    StallsAfterHeader,
}

/// A peer that answers every read with one range, and lies as it is told.
#[derive(Clone)]
struct Liar(Arc<Mutex<Lie>>);

impl Liar {
    fn lie(&self) -> Lie {
        *self.0.lock().unwrap()
    }
}

#[tonic::async_trait]
impl CacheNode for Liar {
    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        let protocol = if self.lie() == Lie::OtherProtocol { PROTOCOL + 1 } else { PROTOCOL };
        Ok(Response::new(v1::GetInfoResponse { protocol, version: "9.9.9".to_owned(), node: "liar".to_owned() }))
    }

    type ReadStream = Pin<Box<dyn Stream<Item = Result<v1::ReadResponse, Status>> + Send>>;

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let lie = self.lie();
        let v1::ReadRequest { snapshot, wants, .. } = request.into_inner();
        let v1::Want { block, start, len } = wants[0];
        let mut header = v1::Header { protocol: PROTOCOL, snapshot };
        let data = content(block, start, len);
        let mut piece = v1::Piece { want: 0, block, offset: start, crc32c: crc32c(&data), data };
        let pieces = |piece: v1::Piece| vec![Part::Header(header.clone()), Part::Piece(piece)];
        let mut stall = false;
        let mut resized = |len: usize| {
            piece.data = piece.data.iter().cycle().take(len).copied().collect();
            piece.crc32c = crc32c(&piece.data);
            piece.clone()
        };
        let parts = match lie {
            Lie::None | Lie::OtherProtocol => pieces(piece),
            Lie::WrongBytes => pieces(v1::Piece { data: Bytes::from(vec![7; len as usize]), ..piece }),
            Lie::OtherBlock => pieces(v1::Piece { block: block + 1, ..piece }),
            Lie::OtherWant => pieces(v1::Piece { want: 1, ..piece }),
            Lie::OtherOffset => pieces(v1::Piece { offset: start + 1, ..piece }),
            Lie::OtherSnapshot => {
                header.snapshot = Bytes::from_static(&[9; 32]);
                vec![Part::Header(header), Part::Piece(piece)]
            }
            Lie::TooLong => pieces(resized(len as usize + 1)),
            Lie::TooShort => pieces(resized(len as usize - 1)),
            Lie::EmptyPiece => pieces(resized(0)),
            Lie::OneMore => vec![Part::Header(header), Part::Piece(piece.clone()), Part::Piece(piece)],
            Lie::NoHeader => vec![Part::Piece(piece)],
            Lie::HeaderTwice => vec![Part::Header(header.clone()), Part::Header(header)],
            Lie::Nothing => vec![],
            Lie::EndsEarly => vec![Part::Header(header)],
            Lie::ReadsInOtherProtocol => {
                header.protocol += 1;
                vec![Part::Header(header)]
            }
            Lie::RefusesProtocol => return Err(Status::failed_precondition("this node speaks another protocol")),
            Lie::Fails => return Err(Status::internal("a made-up failure")),
            Lie::StallsBeforeHeader => {
                stall = true;
                vec![]
            }
            Lie::StallsAfterHeader => {
                stall = true;
                vec![Part::Header(header)]
            }
        };
        let parts = futures::stream::iter(parts.into_iter().map(|part| Ok(v1::ReadResponse { part: Some(part) })));
        let stalled = futures::stream::iter(stall.then(futures::stream::pending)).flatten();
        Ok(Response::new(Box::pin(parts.chain(stalled))))
    }

    async fn have(&self, _: Request<v1::HaveRequest>) -> Result<Response<v1::HaveResponse>, Status> {
        // Far too many bits.
        let outcome = Some(v1::have_response::Outcome::Stored(Bytes::from(vec![1; 1000])));
        Ok(Response::new(v1::HaveResponse { outcome }))
    }

    async fn get_stats(&self, _: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        let stats = v1::DatasetStats { snapshot: Bytes::from_static(b"short"), ..Default::default() };
        Ok(Response::new(v1::GetStatsResponse { datasets: vec![stats], counters: Default::default() }))
    }
}

async fn liar() -> (Liar, std::net::SocketAddr) {
    let liar = Liar(Arc::new(Mutex::new(Lie::None)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(CacheNodeServer::new(liar.clone()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (liar, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_lies_is_caught_bypassed_and_taken_back_when_it_behaves() {
    let good = TestNode::plain().await;
    for (lie, cause) in [
        (Lie::WrongBytes, Cause::WrongBytes),
        (Lie::OtherBlock, Cause::WrongBlock),
        (Lie::OtherWant, Cause::WrongBlock),
        (Lie::OtherOffset, Cause::WrongBlock),
        (Lie::OtherSnapshot, Cause::WrongBlock),
        (Lie::TooLong, Cause::WrongBlock),
        (Lie::TooShort, Cause::Truncated),
        (Lie::EmptyPiece, Cause::WrongBlock),
        (Lie::OneMore, Cause::WrongBlock),
        (Lie::NoHeader, Cause::WrongBlock),
        (Lie::HeaderTwice, Cause::WrongBlock),
        (Lie::Nothing, Cause::Truncated),
        (Lie::EndsEarly, Cause::Truncated),
        (Lie::ReadsInOtherProtocol, Cause::OtherProtocol),
        (Lie::RefusesProtocol, Cause::OtherProtocol),
        (Lie::Fails, Cause::Broken),
    ] {
        let (liar, address) = liar().await;
        // Time enough to see it bypassed.
        let reader = Reader::new(&[("liar", address), ("good", good.address)], Security::Plaintext, |config| {
            config.backoff_first = Duration::from_millis(300);
        });
        reader.read("liar").await.unwrap();
        *liar.0.lock().unwrap() = lie;
        let error = reader.read("liar").await.unwrap_err();
        assert_eq!(error.cause(), Some(cause), "{lie:?}: {error:?}");
        assert_eq!(reader.counters.errors(cause), 1, "{lie:?}");
        let error = reader.read("liar").await.unwrap_err();
        assert!(matches!(error, PeerError::Bypassed { .. }), "{lie:?}: {error:?}");
        assert_eq!(reader.counters.bypassed.load(Ordering::Relaxed), 1);
        reader.read("good").await.unwrap();

        // On trial it lies again.
        until("it is probed", || reader.peers.is_up("liar")).await;
        let error = reader.read("liar").await.unwrap_err();
        assert_eq!(error.cause(), Some(cause), "{lie:?}: {error:?}");
        assert_eq!(reader.counters.errors(cause), 2, "{lie:?}");

        *liar.0.lock().unwrap() = Lie::None;
        assert_eq!(reader.read_at_last("liar").await, content(5, 100, 3000));
        assert_eq!(reader.counters.came_back.load(Ordering::Relaxed), 1);
        assert!(reader.peers.is_up("good"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_protocol_is_not_read_from() {
    let (liar, address) = liar().await;
    *liar.0.lock().unwrap() = Lie::OtherProtocol;
    let reader = Reader::plain(&[("liar", address)]);
    let error = reader.read("liar").await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::OtherProtocol));
    assert!(error.to_string().contains("protocol 2 (Larder 9.9.9)"), "{error}");
    assert!(!reader.peers.is_up("liar"));
    *liar.0.lock().unwrap() = Lie::None;
    reader.read_at_last("liar").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_answers_to_other_questions_take_a_peer_down_too() {
    let (_liar, address) = liar().await;
    let reader = Reader::plain(&[("liar", address)]);
    let first = larder_dataset::BlockIndex(0);
    let error = reader.peers.have("liar", crate::node::SNAPSHOT, None, first, 10).await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::WrongBlock));
    let reader = Reader::plain(&[("liar", address)]);
    let error = reader.peers.stats("liar").await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::WrongBlock));
}

/// Reads a peer many times at once, which must cost one failure and no more, and then nothing.
async fn costs_one_failure(reader: &Reader, node: &str, cause: Cause) {
    let outcomes = join_all((0..100).map(|_| reader.read(node))).await;
    let mut failures = 0;
    for outcome in outcomes {
        match outcome.unwrap_err() {
            PeerError::Bypassed { .. } => {}
            error => {
                assert_eq!(error.cause(), Some(cause), "{error:?}");
                failures += 1;
            }
        }
    }
    assert_eq!(failures, 1);
    assert_eq!(reader.counters.went_down.load(Ordering::Relaxed), 1);
    for _ in 0..100 {
        let error = reader.read(node).await.unwrap_err();
        assert!(matches!(error, PeerError::Bypassed { .. }), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_never_answers_costs_one_timeout() {
    // The kernel accepts for it, and that is all that happens.
    let stalled = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = TestNode::plain().await;
    let nodes = [("stalled", stalled.local_addr().unwrap()), ("good", good.address)];
    let reader = Reader::new(&nodes, Security::Plaintext, |config| {
        config.answer_timeout = Duration::from_millis(500);
        config.backoff_first = Duration::from_secs(600);
        config.backoff_most = Duration::from_secs(600);
    });
    costs_one_failure(&reader, "stalled", Cause::TimedOut).await;
    assert_eq!(reader.counters.errors(Cause::TimedOut), 1);
    reader.read_at_last("good").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_answers_probes_and_stalls_reads_costs_one_timeout_for_each_probe() {
    for lie in [Lie::StallsBeforeHeader, Lie::StallsAfterHeader] {
        let (liar, address) = liar().await;
        let reader = Reader::new(&[("liar", address)], Security::Plaintext, |config| {
            config.answer_timeout = Duration::from_millis(500);
            // Where no header comes, that alone must end it.
            let hours = lie == Lie::StallsBeforeHeader;
            config.slack = if hours { Duration::from_secs(9999) } else { Duration::from_millis(200) };
            config.backoff_first = Duration::from_secs(2);
        });
        reader.read_at_last("liar").await;
        *liar.0.lock().unwrap() = lie;
        let before = reader.counters.errors(Cause::TimedOut);
        let outcomes = join_all((0..50).map(|_| reader.read("liar"))).await;
        assert!(outcomes.iter().all(Result::is_err));
        assert!(!reader.peers.is_up("liar"), "{lie:?}");
        assert!(reader.counters.errors(Cause::TimedOut) > before);
        // On trial: one read is let through, the others are not held up by it.
        until("it is probed", || reader.peers.is_up("liar")).await;
        let outcomes = join_all((0..50).map(|_| reader.read("liar"))).await;
        let failed = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap_err().cause().is_some()).count();
        assert_eq!(failed, 1, "{lie:?}");
        *liar.0.lock().unwrap() = Lie::None;
        reader.read_at_last("liar").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_not_there_costs_one_failure_and_is_found_when_it_comes() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let reader = Reader::new(&[("a", address)], Security::Plaintext, |config| {
        config.backoff_first = Duration::from_secs(1);
    });
    costs_one_failure(&reader, "a", Cause::Connect).await;
    let status = reader.peers.status();
    assert!(!status[0].up && status[0].failure.as_ref().unwrap().0 == Cause::Connect, "{status:?}");
    let _server = TestNode::start_at(address, crate::node::Fake::open(), Security::Plaintext, |_| {}).await;
    assert_eq!(reader.read_at_last("a").await, content(5, 100, 3000));
    assert_eq!(reader.peers.status()[0].failure, None);
}
