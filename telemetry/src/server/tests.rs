use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::*;

const LONG: Duration = Duration::from_secs(3_600);

const LIMITS: Limits = Limits {
    connections: 8,
    head_bytes: 8 << 10,
    head: LONG,
    body_bytes: 1 << 10,
    body: LONG,
    age: LONG,
    answer: LONG,
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// A head that has not ended.
const BEGUN: &[u8] = b"GET / HTTP/1.1\r\nx: ";

struct Running {
    address: SocketAddr,
    replaced: Arc<AtomicUsize>,
    /// The requests to `/wait` that have come.
    came: Arc<Notify>,
    /// Lets a request to `/wait` be answered.
    go: Arc<Notify>,
}

async fn start(limits: Limits) -> Running {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), limits).await.unwrap();
    let address = server.address().unwrap();
    let (replaced, came, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (coming, going) = (Arc::clone(&came), Arc::clone(&go));
    let wait = async move || {
        coming.notify_one();
        going.notified().await;
        "waited"
    };
    let read = async move |request| body(request, &limits).await.map(|body| format!("{} bytes", body.len()));
    let router = Router::new()
        .route("/", get(async |ConnectInfo(client): ConnectInfo<SocketAddr>| client.to_string()))
        .route("/wait", get(wait))
        .route("/body", post(read));
    let count = Arc::clone(&replaced);
    tokio::spawn(async move {
        let replaced = || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        server.serve(Plain, router, replaced, std::future::pending()).await;
    });
    Running { address, replaced, came, go }
}

async fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.address).await.unwrap()
}

/// Sends a request on a new connection, which the client closes after the answer.
async fn ask(running: &Running, path: &str) -> String {
    let mut stream = connect(running).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    rest(stream).await
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn a_client_is_answered_on_one_connection_again_and_again() {
    let running = start(LIMITS).await;
    let mut stream = connect(&running).await;
    let client = stream.local_addr().unwrap().to_string();
    for _ in 0..3 {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(client.as_bytes()) {
            answer.push(stream.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
}

// SEMANTICS: P6
#[tokio::test]
async fn a_head_beyond_the_limit_is_refused_before_its_end() {
    let running = start(LIMITS).await;
    let mut stream = connect(&running).await;
    let _ = stream.write_all(&[BEGUN, &vec![b'x'; 1 << 20]].concat()).await;
    let answer = rest(stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert!(ask(&running, "/").await.starts_with("HTTP/1.1 200"));
}

// SEMANTICS: P6
#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_before_its_end() {
    let running = start(LIMITS).await;
    let post = async |length: usize, sent: usize| {
        let mut stream = connect(&running).await;
        let head = format!("POST /body HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(&[head.as_bytes(), &vec![b'x'; sent]].concat()).await;
        rest(stream).await
    };
    assert!(post(1 << 10, 1 << 10).await.ends_with("1024 bytes"));
    let answer = post(1 << 30, 2 << 10).await;
    assert!(answer.is_empty() || answer.ends_with("the request body exceeds 1024 bytes"), "{answer}");
}

/// Time passes as soon as nothing else happens.
// SEMANTICS: P6
#[tokio::test(start_paused = true)]
async fn silent_and_slow_clients_are_cut_off() {
    let [head, age] = [5, 60].map(Duration::from_secs);
    let running = start(Limits { head, age, answer: age, body: head, ..LIMITS }).await;
    // Nothing, half a head, and half a body.
    assert_eq!(rest(connect(&running).await).await, "");
    let mut half = connect(&running).await;
    half.write_all(BEGUN).await.unwrap();
    assert!(!rest(half).await.contains("200"));
    let mut half = connect(&running).await;
    half.write_all(b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx").await.unwrap();
    assert!(rest(half).await.contains("timed out reading the request body"));
    // A head that never ends, a byte each second.
    let mut slow = connect(&running).await;
    slow.write_all(BEGUN).await.unwrap();
    let mut sent = 0;
    while slow.write_all(b"x").await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sent += 1;
        assert!(sent < 100, "it is served for ever");
    }
    // Request after request on one connection.
    let mut busy = connect(&running).await;
    let (mut answered, mut some) = (0, [0; 1024]);
    while busy.write_all(REQUEST).await.is_ok() && busy.read(&mut some).await.is_ok_and(|read| read > 0) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        answered += 1;
        assert!(answered < 100, "it is served for ever");
    }
    assert!(answered > 0);
    // An answer that never comes.
    assert_eq!(ask(&running, "/wait").await, "");
}

// SEMANTICS: P6
#[tokio::test]
async fn beyond_the_limit_the_oldest_connection_that_waits_for_its_client_is_replaced() {
    let running = start(LIMITS).await;
    let mut answered = connect(&running).await;
    answered.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    running.came.notified().await;
    let mut waiting = Vec::new();
    for _ in 0..LIMITS.connections - 1 {
        let mut stream = connect(&running).await;
        stream.write_all(BEGUN).await.unwrap();
        waiting.push(stream);
    }
    for replaced in 1..=3 {
        assert!(ask(&running, "/").await.starts_with("HTTP/1.1 200"));
        assert_eq!(running.replaced.load(Ordering::Relaxed), 1, "{replaced}: its place is free again");
    }
    assert_eq!(rest(waiting.remove(0)).await, "", "the oldest that waits");
    for mut stream in waiting {
        stream.write_all(b"x\r\nconnection: close\r\n\r\n").await.unwrap();
        assert!(rest(stream).await.starts_with("HTTP/1.1 200"));
    }
    running.go.notify_one();
    assert!(rest(answered).await.ends_with("waited"));
}

/// Takes all places with requests whose handler does not end.
async fn fill(running: &Running) -> Vec<TcpStream> {
    let mut stuck = Vec::new();
    for _ in 0..LIMITS.connections {
        let mut stream = connect(running).await;
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        running.came.notified().await;
        stuck.push(stream);
    }
    stuck
}

// SEMANTICS: P6
#[tokio::test]
async fn handlers_that_never_end_keep_no_newcomer_out() {
    let running = start(LIMITS).await;
    let mut stuck = fill(&running).await;
    assert!(ask(&running, "/").await.starts_with("HTTP/1.1 200"));
    assert_eq!(rest(stuck.remove(0)).await, "");
}

// SEMANTICS: P6
#[tokio::test]
async fn clients_whose_requests_take_long_leave_half_of_the_places_to_others() {
    let running = start(LIMITS).await;
    let _stuck = fill(&running).await;
    let mut waiting = Vec::new();
    for _ in 0..LIMITS.connections / 2 {
        let mut stream = connect(&running).await;
        stream.write_all(BEGUN).await.unwrap();
        waiting.push(stream);
    }
    for mut stream in waiting {
        stream.write_all(b"x\r\nconnection: close\r\n\r\n").await.unwrap();
        assert!(rest(stream).await.starts_with("HTTP/1.1 200"));
    }
}
