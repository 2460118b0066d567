//! A proxy that breaks HTTP/1.1 on the wire.
//!
//! It sits in front of an S3 endpoint and forwards heads byte for byte, so that signatures hold (`Host` is the one the
//! client sent). For each request a hook says what is to break. [`FaultProxy`] accepts, [`Client`] is one connection.
//! The invariant: without a fault a client cannot tell the proxy from the server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Heads longer than this are refused.
const HEAD_LIMIT: usize = 64 << 10;

/// What is to happen to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The server is not asked; the client gets this status with an S3 error of this code, such as `SlowDown`.
    Status {
        /// The HTTP status.
        status: u16,
        /// The code in the XML.
        code: &'static str,
    },
    /// The connection is closed after so many bytes of the body, though `Content-Length` says more.
    Truncate {
        /// Bytes of the body that still come.
        after: u64,
    },
    /// `Content-Length` is off by this much; the body is whole, and the connection is closed after it.
    WrongLength {
        /// What is added to the true length.
        delta: i64,
    },
    /// The head and half of the body, then nothing until the client hangs up.
    Stall,
    /// Nothing at all until the client hangs up.
    StallBeforeHead,
    /// The connection is reset once the request is read.
    Reset,
    /// The request is forwarded after this long.
    Delay(Duration),
    /// The server is not asked; the client gets these bytes and the end of the connection.
    Answer(Vec<u8>),
}

/// The head of a request.
#[derive(Debug, Clone)]
pub struct RequestHead {
    /// The method.
    pub method: String,
    /// The path with its query, as sent.
    pub path: String,
    /// The headers, names as sent.
    pub headers: Vec<(String, String)>,
    /// The how-manieth request of the proxy it is, from 0.
    pub seq: u64,
}

impl RequestHead {
    /// A header's value; the name's case does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether this asks for an object, and not for a listing.
    pub fn is_get_object(&self) -> bool {
        self.method == "GET" && !self.path.contains("list-type=2")
    }
}

type Hook = Arc<dyn Fn(&RequestHead) -> Fault + Send + Sync>;

/// What went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Requests read.
    pub requests: u64,
    /// Requests that something was done to.
    pub faults: u64,
}

/// A running proxy. Dropping it stops it and cuts its connections.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    upstream: SocketAddr,
    hook: RwLock<Hook>,
    connections: AtomicU64,
    requests: AtomicU64,
    faults: AtomicU64,
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy").field("address", &self.address).field("upstream", &self.shared.upstream).finish()
    }
}

impl FaultProxy {
    /// Starts a proxy before `upstream` on the current runtime.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(
        upstream: SocketAddr,
        hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, upstream, hook)
    }

    /// The same, on a listener that was made elsewhere, such as at another address. Must be called within a runtime.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn serve(
        listener: TcpListener,
        upstream: SocketAddr,
        hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            hook: RwLock::new(Arc::new(hook)),
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// The proxy's URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts another hook in place, for requests from now on.
    pub fn set_hook(&self, hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static) {
        *self.shared.hook.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hook);
    }

    /// What went through up to now.
    pub fn counters(&self) -> ProxyCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ProxyCounters {
            connections: read(&self.shared.connections),
            requests: read(&self.shared.requests),
            faults: read(&self.shared.faults),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    shared.connections.fetch_add(1, Ordering::Relaxed);
                    let client = Client { stream, buffer: Vec::new(), server: None, shared: Arc::clone(&shared) };
                    clients.spawn(async move {
                        // However a connection ends, its client sees that it ended.
                        let _ = client.serve().await;
                    });
                }
            }
            Some(_) = clients.join_next() => {}
        }
    }
}

/// One side's stream and what was read of it too far.
struct Peer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// One connection of a client, with its own one to the server.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    server: Option<Peer>,
    shared: Arc<Shared>,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunked,
    UntilClose,
}

enum Next {
    Request,
    Close,
}

impl Client {
    async fn serve(mut self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        while let Some(head) = read_head(&mut self.stream, &mut self.buffer).await? {
            let parsed = parse_request(&head, self.shared.requests.fetch_add(1, Ordering::Relaxed))?;
            let hook = Arc::clone(&self.shared.hook.read().unwrap_or_else(PoisonError::into_inner));
            let fault = hook(&parsed);
            if fault != Fault::None {
                self.shared.faults.fetch_add(1, Ordering::Relaxed);
            }
            match self.exchange(&head, &parsed, fault).await? {
                Next::Request => {}
                Next::Close => return Ok(()),
            }
        }
        Ok(())
    }

    async fn exchange(&mut self, head: &[u8], request: &RequestHead, fault: Fault) -> io::Result<Next> {
        let body = request_length(request)?;
        match &fault {
            Fault::Status { status, code } => {
                self.skip_body(request, body).await?;
                let text = format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>made up</Message></Error>"
                );
                let body = if request.method == "HEAD" { "" } else { text.as_str() };
                let answer = format!(
                    "HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{body}",
                    text.len()
                );
                self.stream.write_all(answer.as_bytes()).await?;
                return Ok(Next::Request);
            }
            Fault::StallBeforeHead => {
                self.skip_body(request, body).await?;
                self.until_hang_up().await;
                return Ok(Next::Close);
            }
            Fault::Reset => {
                self.skip_body(request, body).await?;
                self.stream.set_zero_linger()?;
                return Ok(Next::Close);
            }
            Fault::Answer(bytes) => {
                self.skip_body(request, body).await?;
                self.stream.write_all(bytes).await?;
                self.stream.shutdown().await?;
                return Ok(Next::Close);
            }
            Fault::Delay(time) => tokio::time::sleep(*time).await,
            Fault::None | Fault::Truncate { .. } | Fault::WrongLength { .. } | Fault::Stall => {}
        }
        self.forward_request(head, request, body).await?;
        self.forward_answer(request, fault).await
    }

    async fn skip_body(&mut self, request: &RequestHead, length: u64) -> io::Result<()> {
        self.invite(request).await?;
        let mut left = length;
        while left > 0 {
            let chunk = read_some(&mut self.stream, &mut self.buffer, left).await?;
            left -= chunk.len() as u64;
        }
        Ok(())
    }

    /// A client that waits for leave to send its body gets it from us.
    async fn invite(&mut self, request: &RequestHead) -> io::Result<()> {
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn forward_request(&mut self, head: &[u8], request: &RequestHead, length: u64) -> io::Result<()> {
        self.invite(request).await?;
        let mut server = match self.server.take() {
            Some(server) => server,
            None => {
                let stream = TcpStream::connect(self.shared.upstream).await?;
                stream.set_nodelay(true)?;
                Peer { stream, buffer: Vec::new() }
            }
        };
        server.stream.write_all(head).await?;
        let mut left = length;
        while left > 0 {
            let chunk = read_some(&mut self.stream, &mut self.buffer, left).await?;
            server.stream.write_all(&chunk).await?;
            left -= chunk.len() as u64;
        }
        self.server = Some(server);
        Ok(())
    }

    async fn forward_answer(&mut self, request: &RequestHead, fault: Fault) -> io::Result<Next> {
        let mut server = self.server.take().ok_or_else(|| io::Error::other("no server"))?;
        let mut head = loop {
            let head = read_head(&mut server.stream, &mut server.buffer).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            // The invitation that the client has had already.
            if status_of(&head)? != 100 {
                break head;
            }
        };
        let length = answer_length(request, &head)?;
        if let Fault::WrongLength { delta } = fault {
            head = with_length_off_by(&head, delta);
        }
        self.stream.write_all(&head).await?;
        let stop = match (&fault, length) {
            (Fault::Truncate { after }, _) => Some(*after),
            (Fault::Stall, Length::Bytes(bytes)) => Some(bytes / 2),
            (Fault::Stall, _) => Some(0),
            _ => None,
        };
        let whole = forward_body(&mut server, &mut self.stream, length, stop).await?;
        match fault {
            Fault::Stall => {
                self.until_hang_up().await;
                Ok(Next::Close)
            }
            Fault::Truncate { .. } | Fault::WrongLength { .. } => {
                self.stream.shutdown().await?;
                Ok(Next::Close)
            }
            _ if whole && length != Length::UntilClose && !closes(&head) => {
                self.server = Some(server);
                Ok(Next::Request)
            }
            _ => Ok(Next::Close),
        }
    }

    async fn until_hang_up(&mut self) {
        let mut scratch = [0; 4096];
        while self.stream.read(&mut scratch).await.is_ok_and(|n| n > 0) {}
    }
}

/// Forwards a body, of which no more than `stop` bytes; gives whether that was all of it.
async fn forward_body(server: &mut Peer, to: &mut TcpStream, length: Length, stop: Option<u64>) -> io::Result<bool> {
    let mut allowed = stop.unwrap_or(u64::MAX);
    let mut left = match length {
        Length::Bytes(bytes) => bytes,
        Length::Chunked | Length::UntilClose => 0,
    };
    loop {
        if length == Length::Chunked && left == 0 {
            // A chunk's head goes on as it is; the last chunk is empty and followed by trailers and an empty line.
            let line = read_line(&mut server.stream, &mut server.buffer).await?;
            to.write_all(&line).await?;
            let digits = line.split(|byte| !byte.is_ascii_hexdigit()).next().unwrap_or_default();
            let size = u64::from_str_radix(&String::from_utf8_lossy(digits), 16).map_err(io::Error::other)?;
            if size == 0 {
                loop {
                    let line = read_line(&mut server.stream, &mut server.buffer).await?;
                    to.write_all(&line).await?;
                    if line == b"\r\n" {
                        return Ok(true);
                    }
                }
            }
            left = size + 2;
        }
        if length != Length::UntilClose && left == 0 {
            return Ok(true);
        }
        if allowed == 0 {
            return Ok(false);
        }
        let most = if length == Length::UntilClose { allowed } else { left.min(allowed) };
        let chunk = match read_some(&mut server.stream, &mut server.buffer, most).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && length == Length::UntilClose => {
                return Ok(true);
            }
            chunk => chunk?,
        };
        to.write_all(&chunk).await?;
        allowed -= chunk.len() as u64;
        left = left.saturating_sub(chunk.len() as u64);
    }
}

/// Takes up to `most` bytes, at least one.
async fn read_some(stream: &mut TcpStream, buffer: &mut Vec<u8>, most: u64) -> io::Result<Vec<u8>> {
    if buffer.is_empty() {
        fill(stream, buffer).await?;
    }
    let taken = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
    Ok(buffer.drain(..taken).collect())
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    match stream.read(&mut chunk).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            buffer.extend_from_slice(&chunk[..n]);
            Ok(())
        }
    }
}

async fn read_line(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    loop {
        if let Some(end) = buffer.windows(2).position(|pair| pair == b"\r\n") {
            return Ok(buffer.drain(..end + 2).collect());
        }
        if buffer.len() > HEAD_LIMIT {
            return Err(io::Error::other("line too long"));
        }
        fill(stream, buffer).await?;
    }
}

/// Reads a head with the empty line after it; `None` if the connection ends before one begins.
async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(buffer.drain(..end + 4).collect()));
        }
        if buffer.len() > HEAD_LIMIT {
            return Err(io::Error::other("head too long"));
        }
        match fill(stream, buffer).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && buffer.is_empty() => return Ok(None),
            filled => filled?,
        }
    }
}

fn headers_of(head: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(head);
    let pairs = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_string(), value.trim().to_string())).collect()
}

fn parse_request(head: &[u8], seq: u64) -> io::Result<RequestHead> {
    let text = String::from_utf8_lossy(head);
    let mut words = text.split("\r\n").next().unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some(method), Some(path)) => {
            Ok(RequestHead { method: method.to_string(), path: path.to_string(), headers: headers_of(head), seq })
        }
        _ => Err(io::Error::other("no request line")),
    }
}

fn request_length(request: &RequestHead) -> io::Result<u64> {
    if request.header("transfer-encoding").is_some() {
        return Err(io::Error::other("a chunked request body is not forwarded"));
    }
    request.header("content-length").map_or(Ok(0), |length| length.parse().map_err(io::Error::other))
}

fn status_of(head: &[u8]) -> io::Result<u16> {
    let text = String::from_utf8_lossy(head);
    let status = text.split(' ').nth(1).unwrap_or_default();
    status.parse().map_err(io::Error::other)
}

fn answer_length(request: &RequestHead, head: &[u8]) -> io::Result<Length> {
    let status = status_of(head)?;
    if request.method == "HEAD" || status == 204 || status == 304 {
        return Ok(Length::Bytes(0));
    }
    let headers = headers_of(head);
    let get = |name: &str| headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    if get("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Length::Chunked);
    }
    match get("content-length") {
        Some(length) => Ok(Length::Bytes(length.parse().map_err(io::Error::other)?)),
        None => Ok(Length::UntilClose),
    }
}

fn closes(head: &[u8]) -> bool {
    headers_of(head)
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close"))
}

fn with_length_off_by(head: &[u8], delta: i64) -> Vec<u8> {
    let text = String::from_utf8_lossy(head);
    let lines = text.split("\r\n").map(|line| match line.split_once(':') {
        Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
            let length: u64 = value.trim().parse().unwrap_or_default();
            format!("{name}: {}", length.saturating_add_signed(delta))
        }
        _ => line.to_string(),
    });
    lines.collect::<Vec<_>>().join("\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every request with the same bytes and keeps its connections.
    async fn upstream(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bind");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = Vec::new();
                    while let Ok(Some(_)) = read_head(&mut stream, &mut buffer).await {
                        stream.write_all(answer).await.expect("write");
                    }
                });
            }
        });
        address
    }

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX: y\r\n\r\nhelloworld";

    /// Everything that comes back for one request; the write side is closed after it.
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
}
