//! Faults on the wire are retried until the answer is right, or end in a clear error in time. They never cause wrong
//! bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::VersionTag;
use larder_origin::{Depth, Md5Answer, Origin, OriginConfig, OriginError, Version, open};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, RequestHead, seeded_bytes};

/// Far longer than any call may take, so that only a call that hangs reaches it.
const HANG: Duration = Duration::from_secs(30);

struct Bench {
    server: S3Server,
    proxy: FaultProxy,
    origin: Arc<dyn Origin>,
    bytes: Vec<u8>,
    version: Version,
}

impl Bench {
    async fn new(deadline: Duration) -> Self {
        Self::with_timeouts(Duration::from_millis(300), deadline).await
    }

    async fn with_timeouts(attempt_timeout: Duration, deadline: Duration) -> Self {
        let server = S3Server::start(S3ServerConfig::default()).await.expect("server");
        let bytes = seeded_bytes(1, 300_000);
        let etag = server.put("bucket", "k", bytes.clone());
        let proxy = FaultProxy::start(server.address(), |_| Fault::None).await.expect("proxy");
        let config = OriginConfig {
            endpoint: Some(proxy.endpoint()),
            attempt_timeout,
            deadline,
            env: server.env().into_iter().collect(),
            ..OriginConfig::default()
        };
        let origin = open(&"s3://bucket".parse().expect("a URL"), &config).expect("origin");
        Self { server, proxy, origin, bytes, version: Version::ETag(format!("\"{etag}\"")) }
    }

    /// Breaks the next `times` requests.
    fn break_next(&self, times: u64, fault: Fault) {
        let left = std::sync::atomic::AtomicU64::new(times);
        self.proxy.set_hook(move |_: &RequestHead| {
            let order = std::sync::atomic::Ordering::SeqCst;
            let broken = left.fetch_update(order, order, |left| left.checked_sub(1)).is_ok();
            if broken { fault.clone() } else { Fault::None }
        });
    }

    async fn read(&self, range: std::ops::Range<u64>) -> Result<Bytes, OriginError> {
        tokio::time::timeout(HANG, self.origin.read(b"k", range, Some(&self.version))).await.expect("a read ends")
    }
}

fn faults() -> Vec<Fault> {
    vec![
        Fault::Status { status: 500, code: "InternalError" },
        Fault::Status { status: 502, code: "" },
        Fault::Status { status: 503, code: "SlowDown" },
        Fault::Status { status: 429, code: "TooManyRequests" },
        Fault::Status { status: 400, code: "RequestTimeout" },
        Fault::Truncate { after: 0 },
        Fault::Truncate { after: 1 },
        Fault::Truncate { after: 77_777 },
        Fault::WrongLength { delta: 1 },
        Fault::WrongLength { delta: -1 },
        Fault::WrongLength { delta: 100_000 },
        Fault::Stall,
        Fault::StallBeforeHead,
        Fault::Reset,
        Fault::Delay(Duration::from_millis(50)),
        Fault::Answer(b"garbage\r\n\r\n".to_vec()),
        Fault::Answer(Vec::new()),
        Fault::Answer(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc".to_vec()),
        Fault::Answer(
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-3/300000\r\nContent-Length: 3\r\n\r\nabc".to_vec(),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_right_after_any_fault_that_ends() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    for fault in faults() {
        for range in [0..300_000, 100_001..250_000] {
            bench.break_next(3, fault.clone());
            let read = bench.read(range.clone()).await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
            assert!(read == bench.bytes[range.start as usize..range.end as usize], "{fault:?} {range:?}");
        }
        bench.break_next(2, fault.clone());
        let (whole, version) =
            bench.origin.read_all(b"k", 1_000_000).await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert!(whole == bench.bytes && version == bench.version, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_that_do_not_end_are_clear_errors_in_time() {
    // On a busy machine an answer takes long: an attempt ends when the call does, so that only one that hangs runs out of time.
    let deadline = Duration::from_millis(900);
    let bench = Bench::with_timeouts(deadline, deadline).await;
    for fault in faults() {
        if matches!(fault, Fault::Delay(_)) {
            continue;
        }
        bench.proxy.set_hook({
            let fault = fault.clone();
            move |_| fault.clone()
        });
        let error = match bench.read(0..300_000).await {
            // Each attempt returns some of the bytes, so enough attempts may return all of them.
            Ok(bytes) => {
                assert!(matches!(fault, Fault::Truncate { after: 1.. }) && bytes == bench.bytes, "{fault:?}");
                continue;
            }
            Err(error) => error,
        };
        let fits = match fault {
            Fault::Status { status: 503 | 429, .. } => matches!(error, OriginError::Busy { .. }),
            Fault::Truncate { .. } => matches!(error, OriginError::Truncated { expected: 300_000, .. }),
            Fault::Stall | Fault::StallBeforeHead => matches!(error, OriginError::TimedOut { .. }),
            // Without an answer, the deadline may come first.
            _ => matches!(
                error,
                OriginError::Unavailable { .. } | OriginError::Truncated { .. } | OriginError::TimedOut { .. }
            ),
        };
        assert!(fits && error.is_transient(), "{fault:?}: {error:?}");
        bench.proxy.set_hook(|_| Fault::None);
        assert!(bench.read(0..300_000).await.expect("read after the fault") == bench.bytes, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_goes_on_where_a_connection_broke() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    bench.break_next(2, Fault::Truncate { after: 100_000 });
    bench.server.reset_counters();
    assert!(bench.read(0..300_000).await.expect("read") == bench.bytes);
    let counters = bench.server.counters();
    assert_eq!((counters.gets, counters.get_bytes), (3, 300_000 + 200_000 + 100_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_gets_each_byte_once_and_what_came_before_a_lasting_failure() {
    let bench = Bench::new(Duration::from_millis(900)).await;
    let read_to = async |bytes: &mut Vec<u8>| {
        let sink = &mut |piece: &[u8]| bytes.extend_from_slice(piece);
        bench.origin.read_to(b"k", 1000..300_000, Some(&bench.version), sink).await
    };
    bench.break_next(2, Fault::Truncate { after: 100_000 });
    let mut bytes = Vec::new();
    read_to(&mut bytes).await.expect("read");
    assert!(bytes == bench.bytes[1000..]);

    let first = AtomicBool::new(true);
    bench.proxy.set_hook(move |_| if first.swap(false, Relaxed) { Fault::Stall } else { Fault::StallBeforeHead });
    let mut bytes = Vec::new();
    let error = read_to(&mut bytes).await.unwrap_err();
    assert!(matches!(error, OriginError::TimedOut { .. }), "{error:?}");
    assert!(
        (1..299_000).contains(&bytes.len()) && bytes == bench.bytes[1000..][..bytes.len()],
        "{} bytes",
        bytes.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_that_changes_between_two_attempts_is_stale_and_never_mixed() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    let (requested, mut seen) = tokio::sync::mpsc::unbounded_channel();
    bench.proxy.set_hook(move |head| {
        // The test may have ended before a late request arrives.
        let _ = requested.send(head.seq);
        Fault::Truncate { after: 1000 }
    });
    let read = bench.origin.read(b"k", 0..300_000, None);
    let overwrite = async {
        seen.recv().await.expect("a request");
        tokio::time::sleep(Duration::from_millis(20)).await;
        bench.server.put("bucket", "k", seeded_bytes(2, 300_000));
        bench.proxy.set_hook(|_| Fault::None);
    };
    let (read, ()) = tokio::join!(read, overwrite);
    match read {
        Err(OriginError::Stale { expected, .. }) => assert_eq!(expected, bench.version),
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_ignores_ranges_or_conditions_is_seen_through() {
    let bench = Bench::new(Duration::from_millis(600)).await;
    let answer = |head: &str, body: &[u8]| {
        let mut answer = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend_from_slice(body);
        Fault::Answer(answer)
    };
    let Version::ETag(tag) = bench.version.clone() else { panic!("an entity tag") };
    let whole = answer(&format!("200 OK\r\nETag: {tag}"), &bench.bytes);
    bench.proxy.set_hook(move |_| whole.clone());
    for range in [0..300_000, 0..1, 299_999..300_000, 5..250_000] {
        assert!(
            bench.read(range.clone()).await.expect("read") == bench.bytes[range.start as usize..range.end as usize]
        );
    }
    let error = bench.read(299_999..300_001).await.expect_err("past the end");
    assert!(matches!(error, OriginError::Truncated { expected: 2, got: 1, .. }), "{error:?}");

    // The server ignores If-Match and sends another version.
    let other = answer("206 Partial Content\r\nETag: \"other\"\r\nContent-Range: bytes 0-2/300000", b"abc");
    bench.proxy.set_hook(move |_| other.clone());
    let error = bench.read(0..3).await.expect_err("another version");
    assert!(
        matches!(&error, OriginError::Stale { got: Some(Version::ETag(got)), .. } if got == "\"other\""),
        "{error:?}"
    );

    // An answer without anything to compare its bytes with.
    let unnamed = answer("206 Partial Content\r\nContent-Range: bytes 0-2/300000", b"abc");
    bench.proxy.set_hook(move |_| unnamed.clone());
    let error = bench.read(0..3).await.expect_err("no version");
    assert!(matches!(error, OriginError::Unavailable { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_survive_faults_and_nonsense_is_an_error() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    for number in 0..1500 {
        bench.server.put("bucket", &format!("many/{number:05}"), "x");
    }
    for fault in faults() {
        bench.break_next(2, fault.clone());
        let page =
            bench.origin.list(b"many/", None, Depth::All).await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert_eq!((page.files.len(), page.next.as_deref()), (1000, Some(b"many/00999".as_slice())), "{fault:?}");
    }
    for body in ["<html>sign in</html>", "", "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"] {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
        bench.proxy.set_hook(move |_| Fault::Answer(answer.clone()));
        let error = bench.origin.list(b"", None, Depth::All).await.expect_err(body);
        let OriginError::Unavailable { source } = &error else { panic!("{body}: {error:?}") };
        assert!(source.to_string().contains("the listing"), "{source}");
    }
    let stalled = Bench::new(Duration::from_millis(600)).await;
    stalled.proxy.set_hook(|_| Fault::Stall);
    let listing = tokio::time::timeout(HANG, stalled.origin.list(b"", None, Depth::All)).await.expect("a listing ends");
    assert!(matches!(listing, Err(OriginError::TimedOut { .. })), "{listing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_survive_faults_and_end_in_time() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    for fault in [
        Fault::Status { status: 500, code: "InternalError" },
        Fault::Status { status: 503, code: "SlowDown" },
        Fault::Reset,
    ] {
        bench.break_next(2, fault.clone());
        let bytes = Bytes::from(seeded_bytes(9, 100_000));
        bench.origin.put(b"new", bytes.clone()).await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        bench.break_next(2, fault.clone());
        let bytes = Bytes::from(seeded_bytes(9, 40_000_000));
        bench.origin.put(b"large", bytes.clone()).await.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert!(bench.origin.read_all(b"large", 64 << 20).await.expect("read").0 == bytes, "{fault:?}");
    }
    let refused = Bench::new(Duration::from_millis(900)).await;
    refused.proxy.set_hook(|_| Fault::Status { status: 503, code: "SlowDown" });
    let put =
        tokio::time::timeout(HANG, refused.origin.put(b"new", Bytes::from_static(b"x"))).await.expect("a put ends");
    assert!(matches!(put, Err(OriginError::Busy { .. })), "{put:?}");
    refused.proxy.set_hook(|_| Fault::StallBeforeHead);
    let put =
        tokio::time::timeout(HANG, refused.origin.put(b"new", Bytes::from_static(b"x"))).await.expect("a put ends");
    assert!(matches!(put, Err(OriginError::TimedOut { .. } | OriginError::Unavailable { .. })), "{put:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_that_is_flipped_on_its_way_is_not_stored_under_the_md5_of_what_was_sent() {
    let bench = Bench::new(Duration::from_secs(60)).await;
    let Version::ETag(tag) = bench.version.clone() else { panic!("an entity tag") };
    let (md5, _) = VersionTag::ETag(tag.into()).md5().expect("an MD5");
    let put = async || bench.origin.put_with_md5(b"new", bench.bytes.clone().into(), &md5).await;
    bench.break_next(1, Fault::FlipBody);
    assert_eq!(put().await.expect("an answer"), Md5Answer::Differs);
    let head = bench.origin.head(b"new").await;
    assert!(matches!(head, Err(OriginError::NotFound { .. })), "{head:?}");
    // Whether a server in trouble compares bytes is not known.
    bench.break_next(1, Fault::Status { status: 503, code: "SlowDown" });
    let busy = put().await;
    assert!(matches!(busy, Err(OriginError::Busy { .. })), "{busy:?}");
    // It may refuse to write this way, which says nothing about the bytes.
    for (status, code) in [(400, "InvalidRequest"), (403, "AccessDenied"), (501, "NotImplemented")] {
        bench.break_next(1, Fault::Status { status, code });
        assert_eq!(put().await.expect("an answer"), Md5Answer::Refused);
    }
    assert_eq!(put().await.expect("an answer"), Md5Answer::Stored(bench.version.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origin_that_is_gone_is_unavailable_and_comes_back() {
    let bench = Bench::new(Duration::from_millis(700)).await;
    let address = bench.server.address();
    bench.read(0..10).await.expect("up");
    bench.server.shutdown().await;
    let gone =
        tokio::time::timeout(HANG, bench.origin.read(b"k", 0..10, Some(&bench.version))).await.expect("a read ends");
    assert!(matches!(gone, Err(OriginError::Unavailable { .. })), "{gone:?}");
    let again = S3Server::start(S3ServerConfig { address, ..S3ServerConfig::default() }).await.expect("the same port");
    again.put("bucket", "k", bench.bytes.clone());
    assert!(bench.origin.read(b"k", 0..10, Some(&bench.version)).await.expect("back") == bench.bytes[..10]);
}

/// A server whose clock is `ahead` seconds ahead. It rejects requests that were not signed with its time.
fn strict(ahead: i64, says_why: bool) -> impl Fn(&RequestHead) -> Fault + Send + Sync + 'static {
    move |head| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
        let there = chrono::DateTime::from_timestamp(now.as_secs() as i64 + ahead, 0).expect("a time");
        let signed = head.header("x-amz-date").expect("a signed request");
        let signed = chrono::NaiveDateTime::parse_from_str(signed, "%Y%m%dT%H%M%SZ").expect("a time").and_utc();
        if (there - signed).num_seconds().abs() < 15 * 60 {
            return Fault::None;
        }
        let body = if says_why {
            "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference</Message></Error>"
        } else {
            ""
        };
        let date = there.format("%a, %d %b %Y %H:%M:%S GMT");
        Fault::Answer(
            format!("HTTP/1.1 403 Forbidden\r\nDate: {date}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into(),
        )
    }
}

// SEMANTICS: O8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_is_seen_and_the_servers_time_used_from_then_on() {
    for (ahead, says_why) in [(3 * 3600, true), (-40 * 60, true), (26 * 3600, false)] {
        let bench = Bench::new(Duration::from_secs(20)).await;
        let refusals = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (strict, counted) = (strict(ahead, says_why), Arc::clone(&refusals));
        let bytes = bench.bytes[..3].to_vec();
        let Version::ETag(tag) = bench.version.clone() else { panic!("an entity tag") };
        bench.proxy.set_hook(move |head| match strict(head) {
            // The real server behind the proxy uses this machine's clock.
            Fault::None => {
                let head = format!(
                    "206 Partial Content\r\nETag: {tag}\r\nContent-Range: bytes 0-2/300000\r\nContent-Length: 3"
                );
                Fault::Answer([format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), &bytes].concat())
            }
            refusal => {
                counted.fetch_add(1, Relaxed);
                refusal
            }
        });
        for _ in 0..5 {
            assert!(bench.read(0..3).await.expect("the server's time is used") == bench.bytes[..3]);
        }
        assert_eq!(refusals.load(Relaxed), 1, "{ahead} s ahead");
    }
}

// SEMANTICS: O8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_the_server_refuses_twice_is_an_error_that_names_it() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    let requests = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    bench.proxy.set_hook(move |_| {
        counted.fetch_add(1, Relaxed);
        let body = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference</Message></Error>";
        let date = "Date: Tue, 01 Jan 2030 00:00:00 GMT";
        Fault::Answer(
            // The proxy closes the connection after it: a request on its way over it would come twice.
            format!(
                "HTTP/1.1 403 Forbidden\r\n{date}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into(),
        )
    });
    let error = bench.read(0..3).await.expect_err("refused");
    let OriginError::Denied { source, .. } = &error else { panic!("{error:?}") };
    let text = source.to_string();
    assert!(text.contains("clock of this machine") && text.contains("behind") && text.contains("NTP"), "{text}");
    assert_eq!(requests.load(Relaxed), 2, "it is tried once more");
}

// SEMANTICS: I7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_whose_tokens_loop_is_an_error() {
    let bench = Bench::new(Duration::from_secs(20)).await;
    bench.proxy.set_hook(|head: &RequestHead| {
        let next = if head.path.contains("continuation-token=one") { "two" } else { "one" };
        let body = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
        );
        Fault::Answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into())
    });
    let listing = tokio::time::timeout(HANG, bench.origin.list(b"", None, Depth::All)).await.expect("a listing ends");
    let Err(OriginError::Unavailable { source }) = listing else { panic!("{listing:?}") };
    assert_eq!(source.to_string(), "the listing makes no progress");
}
