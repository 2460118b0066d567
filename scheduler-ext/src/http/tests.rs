use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::tls::TlsFiles;
use super::*;
use crate::config::Settings;
use crate::index::Index;
use crate::index::state::Snapshot;
use crate::load::Size;

const SIZE: Size = Size { nodes: 30, datasets: 6, pods: 100 };

struct Running {
    address: SocketAddr,
    counters: Arc<Counters>,
    shown: Arc<ArcSwap<Snapshot>>,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

async fn start(limits: Limits, tls: Option<Tls>) -> Running {
    let mut index = Index::new(vec!["nvidia.com/gpu".into()]);
    SIZE.events().into_iter().for_each(|event| index.apply(event));
    let shown = Arc::new(ArcSwap::from(index.show()));
    let counters = Arc::new(Counters::default());
    let (verbs, keeper) = Verbs::new(Arc::new(Settings::default()), Arc::clone(&shown), Arc::clone(&counters));
    tokio::spawn(keeper.run(tokio::sync::mpsc::channel(1).0));
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, tls, limits, verbs, Arc::clone(&counters)).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    let served = tokio::spawn(server.serve(stop.clone()));
    Running { address, counters, shown, stop, served }
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// One answer on a keep-alive connection: its status and its body.
async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> (u16, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    (status, String::from_utf8(body).unwrap())
}

async fn ask(running: &Running, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    answer(&mut stream).await
}

/// Reads until the other side closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn one_connection_answers_one_request_after_the_other() {
    let running = start(LIMITS, None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = SIZE.request(20, Some(1));
    for _ in 0..3 {
        stream.write_all(&post("/filter", &request)).await.unwrap();
        let (status, body) = answer(&mut stream).await;
        assert!(status == 200 && body.contains(r#""NodeNames":["node-00000""#), "{status} {body}");
        stream.write_all(&post("/prioritize", &request)).await.unwrap();
        let (status, body) = answer(&mut stream).await;
        assert!(status == 200 && body.starts_with(r#"[{"Host":"node-00000","Score":"#), "{status} {body}");
    }
    let (_, kept) = ask(&running, b"GET /decisions?pod=team-1%2Fpod HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let crate::replay::Replayed(replayed) = crate::replay::replay(&kept).unwrap();
    assert_eq!(replayed, 6);
}

#[tokio::test]
async fn a_request_that_is_none_is_refused_in_words() {
    let running = start(LIMITS, None).await;
    let (status, why) = ask(&running, &post("/filter", b"junk")).await;
    assert!(status == 400 && why.contains("not a request of kube-scheduler"), "{why}");
    let (status, why) = ask(&running, &post("/filter", br#"{"NodeNames":[]}"#)).await;
    assert!(status == 400 && why.contains("Pod is missing"), "{why}");
    let (status, why) = ask(&running, &post("/bind", b"{}")).await;
    assert!(status == 404 && why.contains("/filter, /prioritize or /preempt"), "{why}");
    assert_eq!(running.counters.refused.load(Ordering::Relaxed), 2);
    // Not HTTP at all.
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&[0xff; 512]).await.unwrap();
    assert!(!rest(stream).await.contains("200"));
    assert_eq!(ask(&running, &post("/filter", &SIZE.request(1, None))).await.0, 200);
}

// SEMANTICS: X3
#[tokio::test]
async fn a_body_beyond_the_limit_is_cut_off() {
    // The server does not wait for the rest of the body.
    let limits = Limits { body_bytes: 1 << 20, body: Duration::from_secs(3_600), ..LIMITS };
    let running = start(limits, None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The connection may be closed before half of it is written.
    let _ = stream.write_all(&vec![b' '; 5 << 20]).await;
    drop(rest(stream).await);
    assert_eq!(running.counters.refused.load(Ordering::Relaxed), 1);
    // The same in chunks, without a Content-Length.
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
    let piece = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..160 {
        if stream.write_all(&piece).await.is_err() {
            break;
        }
    }
    drop(rest(stream).await);
    assert_eq!(running.counters.refused.load(Ordering::Relaxed), 2);
}

// SEMANTICS: X3
#[tokio::test]
async fn half_requests_and_slow_ones_are_cut_off() {
    let limits = Limits { head: Duration::from_millis(200), body: Duration::from_millis(200), ..LIMITS };
    let running = start(limits, None).await;
    let mut half_head = TcpStream::connect(running.address).await.unwrap();
    half_head.write_all(b"POST /filter HT").await.unwrap();
    let mut half_body = TcpStream::connect(running.address).await.unwrap();
    half_body.write_all(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    let idle = TcpStream::connect(running.address).await.unwrap();
    assert!(!rest(half_head).await.contains("200 OK"));
    let answered = rest(half_body).await;
    assert!(answered.contains("408") && answered.contains("timed out reading the request body"), "{answered}");
    assert_eq!(rest(idle).await, "");
    assert_eq!(ask(&running, &post("/filter", &SIZE.request(1, None))).await.0, 200);
}

// SEMANTICS: X3
#[tokio::test]
async fn a_thousand_connections_are_served_or_closed_at_once() {
    let head = Duration::from_secs(3_600);
    let running = start(Limits { connections: 100, head, ..LIMITS }, None).await;
    let mut streams = Vec::new();
    for _ in 0..1_000 {
        streams.push(TcpStream::connect(running.address).await.unwrap());
    }
    let request = post("/filter", &SIZE.request(20, Some(1)));
    let (mut served, mut closed) = (0, 0);
    for stream in &mut streams {
        let mut byte = [0];
        // A closed connection fails when it is read, or even when it is written.
        let sent = stream.write_all(&request).await.is_ok();
        if sent && stream.read(&mut byte).await.is_ok_and(|read| read == 1) {
            served += 1;
        } else {
            closed += 1;
        }
    }
    assert_eq!((served, closed), (100, 900));
    assert_eq!(running.counters.connections_replaced.load(Ordering::Relaxed), 900);
    drop(streams);
    // The slots of the closed connections become free.
    loop {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        let mut byte = [0];
        if stream.write_all(&request).await.is_ok() && stream.read(&mut byte).await.is_ok_and(|read| read == 1) {
            break;
        }
    }
}

#[tokio::test]
async fn before_all_is_known_it_says_so() {
    let running = start(LIMITS, None).await;
    let complete = running.shown.load_full();
    running.shown.store(Arc::default());
    let (status, why) = ask(&running, &post("/filter", &SIZE.request(1, None))).await;
    assert!(status == 503 && why.contains("still being listed"), "{why}");
    running.shown.store(complete);
    assert_eq!(ask(&running, &post("/filter", &SIZE.request(1, None))).await.0, 200);
}

#[tokio::test]
async fn once_told_to_stop_it_ends_with_its_idle_connections() {
    let hour = Duration::from_secs(3_600);
    // The server does not wait for the idle timeout.
    let running = start(Limits { head: hour, body: hour, age: hour, answer: hour, ..LIMITS }, None).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&post("/filter", &SIZE.request(1, None))).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 200);
    running.stop.cancel();
    running.served.await.unwrap();
    assert_eq!(rest(stream).await, "");
}

#[tokio::test]
async fn with_a_certificate_it_answers_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let files = TlsFiles { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
    std::fs::write(&files.cert, made.cert.pem()).unwrap();
    std::fs::write(&files.key, "no key").unwrap();
    let error = Tls::open(files.clone()).err().unwrap();
    assert!(format!("{error:#}").contains("tls.key"), "{error:#}");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let running = start(LIMITS, Some(Tls::open(files).unwrap())).await;

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(running.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let request: Bytes = SIZE.request(1, Some(1));
    stream.write_all(&post("/prioritize", &request)).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 200);
    // Plain HTTP is rejected on the TLS port.
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    plain.write_all(&post("/prioritize", &request)).await.unwrap();
    assert!(!rest(plain).await.contains("200 OK"));
}
