//! The server's answers on the wire, in cases where our own clients would hide them.

use larder_origin::{Depth, OriginConfig, OriginError, Version, open};
use larder_s3_server::{Counters, S3Server, S3ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn server() -> S3Server {
    server_that(false).await
}

async fn server_that(unchecked_gets: bool) -> S3Server {
    let buckets = vec!["bucket".into()];
    S3Server::start(S3ServerConfig { buckets, unchecked_gets, ..S3ServerConfig::default() }).await.expect("server")
}

async fn send(server: &S3Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).await.expect("connect");
    stream.write_all(request.as_bytes()).await.expect("write");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("read");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn requests_without_a_signature_are_refused() {
    let server = server().await;
    server.put("bucket", "k", "secret");
    let answer = send(&server, "GET /bucket/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("<Code>AccessDenied</Code>"), "{answer}");
    assert!(!answer.contains("secret"));
}

#[tokio::test]
async fn tags_have_their_quotes_and_ranges_their_header() {
    answers_right(server_that(false).await).await;
}

#[tokio::test]
async fn a_server_that_looks_at_no_signature_of_a_get_answers_the_same() {
    answers_right(server_that(true).await).await;
    let server = server_that(true).await;
    server.put("bucket", "k", "secret");
    let answer = send(&server, "GET /bucket/k?x-id=GetObject HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("secret"), "{answer}");
    let answer = send(&server, "HEAD /bucket/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("content-length: 6\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    for request in ["GET /bucket/", "GET /bucket?list-type=2", "PUT /bucket/k", "DELETE /bucket/k"] {
        let answer = send(&server, &format!("{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{request}: {answer}");
    }
}

async fn answers_right(server: S3Server) {
    let tag = server.put("bucket", "k", "hello");
    let env = server.env().into_iter().collect();
    let origin =
        open(&"s3://bucket".parse().expect("a URL"), &OriginConfig { env, ..OriginConfig::default() }).expect("open");
    let quoted = Version::ETag(format!("\"{tag}\""));
    assert_eq!(tag, "5d41402abc4b2a76b9719d911017c592");
    assert_eq!(origin.head(b"k").await.expect("head").version, quoted);
    assert_eq!(origin.list(b"", None, Depth::All).await.expect("list").files[0].version, quoted);
    assert_eq!(origin.put(b"k", "hello".into()).await.expect("put"), quoted);
    assert_eq!(origin.read(b"k", 1..3, Some(&quoted)).await.expect("a range"), "el");
    let other = Version::ETag("\"other\"".into());
    assert!(matches!(origin.read(b"k", 1..3, Some(&other)).await, Err(OriginError::Stale { .. })));
    assert!(matches!(origin.read(b"k", 9..12, Some(&quoted)).await, Err(OriginError::Truncated { .. })));
    let counters = server.counters();
    assert_eq!(counters, Counters { gets: 3, get_bytes: 2, lists: 1, heads: 1, puts: 1 });
    assert_eq!(server.gets_of("bucket", "k"), 3);
    server.reset_counters();
    assert_eq!((server.counters(), server.gets_of("bucket", "k")), (Counters::default(), 0));
}

#[tokio::test]
async fn stopped_server_frees_its_port_and_cuts_its_connections() {
    let server = server().await;
    let address = server.address();
    let mut stream = TcpStream::connect(address).await.expect("connect");
    server.shutdown().await;
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "the connection ended");
    S3Server::start(S3ServerConfig { address, ..S3ServerConfig::default() }).await.expect("the same port again");
}
