//! Peers that send wrong data, stall, break and die.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use larder_cachenode_api::frame::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, READ_BYTES, REQUEST_BYTES, RefusalCode, Request, WireRange,
};
use larder_cachenode_api::v1::cache_node_server::{CacheNode, CacheNodeServer};
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::crc32c;
use larder_peers::{Cause, PeerError, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request as GrpcRequest, Response, Status};

use crate::node::{Reader, TestNode, content, until};

/// How a peer misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    WrongBytes,
    WrongSum,
    OtherBlock,
    OtherOffset,
    OtherSnapshot,
    OtherTag,
    TooLong,
    TooShort,
    ShortPiece,
    Nonsense,
    TooManyWords,
    EndsAtOnce,
    EndsEarly,
    OtherProtocol,
    NoHello,
    SaysNothing,
    SaysThatItIsThere,
}

/// A peer that answers every read, and returns wrong data on command.
#[derive(Clone)]
struct Liar(Arc<Mutex<Lie>>);

impl Liar {
    fn lie(&self) -> Lie {
        *self.0.lock().unwrap()
    }

    /// Serves a lane until it ends.
    async fn serve(self, mut io: TcpStream) -> Option<()> {
        let mut hello = [0; HELLO_BYTES];
        io.read_exact(&mut hello).await.ok()?;
        let protocol = if self.lie() == Lie::OtherProtocol { PROTOCOL + 1 } else { PROTOCOL };
        let ours = Hello { protocol }.encode();
        io.write_all(if self.lie() == Lie::NoHello { b"HTTP/1.1 400 Bad" } else { &ours }).await.ok()?;
        loop {
            let mut frame = [0; READ_BYTES];
            io.read_exact(&mut frame[..REQUEST_BYTES]).await.ok()?;
            let len = Request::len_of(frame.first_chunk()?);
            io.read_exact(&mut frame[REQUEST_BYTES..len]).await.ok()?;
            match Request::decode(&frame[..len]).ok()? {
                Request::Read { tag, range, token_len, .. } => {
                    io.read_exact(&mut vec![0; token_len.into()]).await.ok()?;
                    io.write_all(&self.answer(tag, range)?).await.ok()?;
                    if self.lie() == Lie::EndsEarly {
                        return None;
                    }
                }
                Request::Ping if self.lie() != Lie::SaysNothing => {
                    io.write_all(&Answer::Pong.encode()).await.ok()?;
                }
                Request::Ping => {}
                Request::Cancel { tag } => {
                    let refusal = Answer::Refusal { tag, code: RefusalCode::Unavailable, len: 0 };
                    io.write_all(&refusal.encode()).await.ok()?;
                }
            }
        }
    }

    /// The answer to a read. None closes the lane.
    fn answer(&self, tag: u32, wanted: WireRange) -> Option<Vec<u8>> {
        let range = |tag, summed: WireRange, len: u32| {
            let bytes = content(wanted.block, wanted.start, len);
            let sum = crc32c(&summed.encode()) ^ crc32c(&bytes);
            [&Answer::Bytes { tag, len }.encode()[..], &bytes, &sum.to_le_bytes()].concat()
        };
        let len = wanted.len;
        let mut good = range(tag, wanted, len);
        Some(match self.lie() {
            Lie::None | Lie::OtherProtocol | Lie::NoHello => good,
            Lie::WrongBytes => {
                good[100] ^= 1;
                good
            }
            Lie::WrongSum => {
                *good.last_mut()? ^= 0x80;
                good
            }
            // The right bytes with the sum for another request.
            Lie::OtherBlock => range(tag, WireRange { block: wanted.block + 1, ..wanted }, len),
            Lie::OtherOffset => range(tag, WireRange { start: wanted.start + 1, ..wanted }, len),
            Lie::OtherSnapshot => range(tag, WireRange { snapshot: [9; 32], ..wanted }, len),
            Lie::OtherTag => range(tag.wrapping_add(77), wanted, len),
            Lie::TooLong => range(tag, wanted, len + 1),
            Lie::TooShort => range(tag, wanted, len - 1),
            Lie::Nonsense => vec![0xee; 100],
            Lie::TooManyWords => Answer::Refusal { tag, code: RefusalCode::Gone, len: u32::MAX }.encode().to_vec(),
            Lie::ShortPiece => [&Answer::Bytes { tag, len: 1000 }.encode()[..], &good[ANSWER_BYTES..][..1000]].concat(),
            Lie::EndsAtOnce => return None,
            Lie::EndsEarly => good[..good.len() / 2].to_vec(),
            Lie::SaysNothing | Lie::SaysThatItIsThere => vec![],
        })
    }
}

async fn liar() -> (Liar, SocketAddr) {
    let liar = Liar(Arc::new(Mutex::new(Lie::None)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = liar.clone();
    tokio::spawn(async move {
        loop {
            let (io, _) = listener.accept().await.unwrap();
            tokio::spawn(serving.clone().serve(io));
        }
    });
    (liar, address)
}

// SEMANTICS: S5
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_lies_is_caught_bypassed_and_taken_back_when_it_behaves() {
    let good = TestNode::plain().await;
    for (lie, cause) in [
        (Lie::WrongBytes, Cause::WrongBytes),
        (Lie::WrongSum, Cause::WrongBytes),
        (Lie::OtherBlock, Cause::WrongBytes),
        (Lie::OtherOffset, Cause::WrongBytes),
        (Lie::OtherSnapshot, Cause::WrongBytes),
        (Lie::OtherTag, Cause::WrongBlock),
        (Lie::TooLong, Cause::WrongBlock),
        (Lie::TooShort, Cause::WrongBlock),
        (Lie::ShortPiece, Cause::WrongBlock),
        (Lie::Nonsense, Cause::WrongBlock),
        (Lie::TooManyWords, Cause::WrongBlock),
        (Lie::EndsAtOnce, Cause::Broken),
        (Lie::EndsEarly, Cause::Truncated),
    ] {
        let (liar, address) = liar().await;
        // Long enough that the test sees the peer bypassed.
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

        // The peer returns wrong data again while it is on trial.
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

// SEMANTICS: S5
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_protocol_is_not_read_from() {
    let (liar, address) = liar().await;
    *liar.0.lock().unwrap() = Lie::OtherProtocol;
    let reader = Reader::plain(&[("liar", address)]);
    let error = reader.read("liar").await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::OtherProtocol));
    assert!(error.to_string().contains("it speaks protocol 3, this node 2"), "{error}");
    assert!(!reader.peers.is_up("liar"));
    // A peer that is not Larder at all is bypassed too.
    *liar.0.lock().unwrap() = Lie::NoHello;
    let other = Reader::plain(&[("liar", address)]);
    assert_eq!(other.read("liar").await.unwrap_err().cause(), Some(Cause::Connect));
    *liar.0.lock().unwrap() = Lie::None;
    reader.read_at_last("liar").await;
}

/// A peer whose gRPC answers are nonsense.
struct OddNode {
    protocol: u32,
}

#[tonic::async_trait]
impl CacheNode for OddNode {
    async fn get_info(&self, _: GrpcRequest<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        let (protocol, version, node) = (self.protocol, "9.9.9".to_owned(), "odd".to_owned());
        Ok(Response::new(v1::GetInfoResponse { protocol, version, node }))
    }

    async fn get_stats(&self, _: GrpcRequest<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        let stats = v1::DatasetStats { snapshot: "short".into(), ..Default::default() };
        Ok(Response::new(v1::GetStatsResponse { datasets: vec![stats], ..Default::default() }))
    }
}

// SEMANTICS: S5
#[tokio::test(flavor = "multi_thread")]
async fn malformed_answers_to_stats_take_a_peer_down() {
    for (protocol, cause, says) in
        [(PROTOCOL, Cause::WrongBlock, "snapshot"), (PROTOCOL + 1, Cause::OtherProtocol, "protocol 3 (Larder 9.9.9)")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(CacheNodeServer::new(OddNode { protocol }));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let reader = Reader::plain(&[("odd", address)]);
        let error = reader.peers.stats("odd", &[]).await.unwrap_err();
        assert_eq!(error.cause(), Some(cause));
        assert!(error.to_string().contains(says), "{error}");
        assert!(!reader.peers.is_up("odd"));
    }
}

/// Reads from a peer many times concurrently. That must cause exactly one failure, and later reads must cause none.
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

// SEMANTICS: S4
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_never_answers_costs_one_timeout() {
    // The kernel accepts the connection, and no process answers.
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
    for lie in [Lie::SaysNothing, Lie::SaysThatItIsThere] {
        let (liar, address) = liar().await;
        let reader = Reader::new(&[("liar", address)], Security::Plaintext, |config| {
            config.answer_timeout = Duration::from_millis(500);
            // The missing sign of life alone must end the read.
            let hours = lie == Lie::SaysNothing;
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
        // On trial, one read is sent, and the others do not wait for it.
        until("it is probed", || reader.peers.is_up("liar")).await;
        let outcomes = join_all((0..50).map(|_| reader.read("liar"))).await;
        let failed = outcomes.iter().filter(|outcome| outcome.as_ref().unwrap_err().cause().is_some()).count();
        assert_eq!(failed, 1, "{lie:?}");
        *liar.0.lock().unwrap() = Lie::None;
        reader.read_at_last("liar").await;
    }
}

// SEMANTICS: S4
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
