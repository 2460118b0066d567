use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::http::Buffered;
use super::{Fault, FaultProxy, ProxyCounters};

/// A server that answers every request with the same bytes and keeps its connections.
async fn upstream(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut client = Buffered::new(stream);
                while let Ok(Some(_)) = client.read_head().await {
                    client.stream.write_all(answer).await.expect("write");
                }
            });
        }
    });
    address
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX: y\r\n\r\nhelloworld";

/// Sends a request, closes the write side, and returns everything that comes back.
async fn ask(proxy: &FaultProxy, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(proxy.address).await?;
    stream.write_all(request.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

const GET: &str = "GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n";

#[tokio::test]
async fn without_a_fault_bytes_go_through_and_connections_are_kept() {
    let proxy = FaultProxy::start(upstream(HELLO).await, |_| Fault::None).await.expect("proxy");
    let twice = ask(&proxy, &GET.repeat(2)).await.expect("answers");
    assert_eq!(twice, String::from_utf8_lossy(HELLO).repeat(2));
    assert_eq!(proxy.counters(), ProxyCounters { connections: 1, requests: 2, faults: 0 });
}

#[tokio::test]
async fn chunked_answers_go_through() {
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5;x=y\r\nworld\r\n0\r\n\r\n";
    let proxy = FaultProxy::start(upstream(chunked).await, |_| Fault::None).await.expect("proxy");
    let twice = ask(&proxy, &GET.repeat(2)).await.expect("answers");
    assert_eq!(twice, String::from_utf8_lossy(chunked).repeat(2));
}

#[tokio::test]
async fn each_fault_breaks_what_it_is_named_after() {
    let proxy = FaultProxy::start(upstream(HELLO).await, |_| Fault::None).await.expect("proxy");
    proxy.set_hook(|_| Fault::Truncate { after: 3 });
    assert!(ask(&proxy, GET).await.expect("truncated").ends_with("Content-Length: 10\r\nX: y\r\n\r\nhel"));
    proxy.set_hook(|_| Fault::WrongLength { delta: -4 });
    assert!(ask(&proxy, GET).await.expect("short").contains("Content-Length: 6\r\n"));
    proxy.set_hook(|_| Fault::WrongLength { delta: 7 });
    assert!(ask(&proxy, GET).await.expect("long").contains("Content-Length: 17\r\n"));
    proxy.set_hook(|_| Fault::Status { status: 503, code: "SlowDown" });
    let busy = ask(&proxy, GET).await.expect("refused");
    assert!(busy.starts_with("HTTP/1.1 503 ") && busy.contains("<Code>SlowDown</Code>"), "{busy}");
    proxy.set_hook(|_| Fault::Answer(b"HTTP/1.0 200 OK\r\n\r\nraw".to_vec()));
    assert!(ask(&proxy, GET).await.expect("raw").ends_with("raw"));
    proxy.set_hook(|_| Fault::Reset);
    let error = ask(&proxy, GET).await.expect_err("reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.counters().faults, 6);
}

#[tokio::test]
async fn stalls_end_when_the_client_hangs_up() {
    let proxy = FaultProxy::start(upstream(HELLO).await, |_| Fault::None).await.expect("proxy");
    proxy.set_hook(|_| Fault::Stall);
    assert!(ask(&proxy, GET).await.expect("half").ends_with("\r\n\r\nhello"));
    proxy.set_hook(|_| Fault::StallBeforeHead);
    assert_eq!(ask(&proxy, GET).await.expect("nothing"), "");
}

#[tokio::test]
async fn hook_sees_the_request() {
    let proxy = FaultProxy::start(upstream(HELLO).await, |head| {
        assert_eq!((head.method.as_str(), head.path.as_str()), ("GET", "/b/k"));
        assert_eq!(head.header("HOST"), Some("h"));
        if head.seq == 0 { Fault::Status { status: 500, code: "InternalError" } } else { Fault::None }
    })
    .await
    .expect("proxy");
    let answers = ask(&proxy, &GET.repeat(2)).await.expect("answers");
    assert!(answers.starts_with("HTTP/1.1 500 ") && answers.ends_with("helloworld"), "{answers}");
}
