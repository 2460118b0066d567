//! The longest time that a read from a peer takes, with the timeouts of a node. Time passes only when a test advances
//! it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_peers::{Cause, PeersConfig, ReadError, ReadRequest, Security};
use tokio::net::TcpListener;

use crate::certificates::{Side, ca};
use crate::node::{Reader, range, request};
use crate::scripted::{Scripted, StoppedClock};

const MS: Duration = Duration::from_millis(1);

fn reader(name: &str, address: std::net::SocketAddr, security: Security) -> Reader {
    Reader::new(&[(name, address)], security, |config| *config = PeersConfig::default())
}

/// True if `took` is `expected`, up to a few steps of the clock.
fn is_about(took: Duration, expected: Duration) -> bool {
    took.abs_diff(expected) < 50 * MS
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_peer_with_which_there_is_no_connection_delays_a_read_by_half_a_second_and_a_mute_one_by_a_second() {
    let mut clock = StoppedClock::stop().await;
    // The kernel accepts the connection, and no process answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let ca = ca("one");
    let reader_tls = reader("silent", address, Side::good(&ca).security());
    let (outcome, took) = clock.until_done(reader_tls.read("silent")).await;
    assert_eq!(outcome.unwrap_err().cause(), Some(Cause::TimedOut));
    assert!(is_about(took, 500 * MS), "TLS: {took:?}");

    let reader_plain = reader("silent", address, Security::Plaintext);
    let (outcome, took) = clock.until_done(reader_plain.read("silent")).await;
    assert_eq!(outcome.unwrap_err().cause(), Some(Cause::TimedOut));
    assert!(is_about(took, 1000 * MS), "hello: {took:?}");

    drop(silent);
    let reader_none = reader("silent", address, Security::Plaintext);
    let (outcome, took) = clock.until_done(reader_none.read("silent")).await;
    assert_eq!(outcome.unwrap_err().cause(), Some(Cause::Connect));
    assert!(is_about(took, Duration::ZERO), "nobody listens: {took:?}");
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_peer_that_falls_silent_is_given_up_one_to_one_and_a_half_seconds_later() {
    for (since_sign, expected) in [(0, 1500), (200, 1300), (450, 1050), (700, 1000)] {
        let mut clock = StoppedClock::stop().await;
        let mut peer = Scripted::start().await;
        let reader = reader("a", peer.address, Security::Plaintext);
        let sign = async { peer.asked().await.answer().await };
        let (outcome, ()) = tokio::join!(reader.read("a"), sign);
        outcome.unwrap();
        clock.pass(since_sign * MS).await;
        peer.is_mute.store(true, Ordering::SeqCst);
        let (outcome, took) = clock.until_done(reader.read("a")).await;
        assert_eq!(outcome.unwrap_err().cause(), Some(Cause::TimedOut));
        assert!(is_about(took, expected * MS), "{since_sign} ms after a sign of life: {took:?}");
    }
}

/// A peer that answers pings but no reads.
// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn bytes_that_do_not_come_are_waited_for_six_seconds_and_ten_if_a_third_node_may_be_asked() {
    const BYTES: u32 = 4_000_000;
    let extra = Duration::from_secs(1);
    for (forwarded, cached_only, seconds) in [(true, false, 6), (false, false, 10), (true, true, 2)] {
        let mut clock = StoppedClock::stop().await;
        let peer = Scripted::start().await;
        let reader = reader("a", peer.address, Security::Plaintext);
        let request = ReadRequest { forwarded, cached_only, ..request(range(1, 0, BYTES)) };
        let (outcome, took) = clock.until_done(reader.peers.read("a", &request)).await;
        assert_eq!(outcome.unwrap_err().cause(), Some(Cause::TimedOut));
        // 4 MB take a second at the least rate.
        assert!(is_about(took, seconds * 1000 * MS + extra), "{forwarded} {cached_only}: {took:?}");
    }
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn a_peer_that_refuses_delays_a_read_by_nothing() {
    let mut clock = StoppedClock::stop().await;
    let mut peer = Scripted::start().await;
    let reader = reader("a", peer.address, Security::Plaintext);
    let refused = async { peer.asked().await.refuse().await };
    let ((outcome, ()), took) = clock.until_done(async { tokio::join!(reader.read("a"), refused) }).await;
    assert!(matches!(outcome.unwrap_err().refusal(), Some(ReadError::Unavailable { .. })));
    assert!(is_about(took, Duration::ZERO), "{took:?}");
    assert!(reader.peers.is_up("a"));
}
