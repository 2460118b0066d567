//! A server that answers as AWS STS, MinIO and Ceph do when tokens are exchanged for keys, or as a test scripts it. It
//! can also be the object store that is read with the keys.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use url::form_urlencoded;

/// The longest request that is read.
const REQUEST_BYTES: usize = 1 << 20;

/// A request.
#[derive(Clone, Debug, Default)]
pub struct StsRequest {
    /// The path and the query.
    pub target: String,
    /// The headers by lower-case name.
    pub headers: BTreeMap<String, String>,
    /// The fields of the body, if it is a form.
    pub form: BTreeMap<String, String>,
    /// The body, if it is text.
    pub body: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum StsAnswer {
    /// Keys that are valid for this long by the server's clock; negative if they have expired.
    Keys { id: String, secret: String, token: String, seconds: i64 },
    /// An error of STS.
    Refusal { status: u16, code: &'static str, message: String },
    /// Any status and body.
    Raw { status: u16, body: String },
    /// An object of an object store, or the part of it that is requested.
    Object { bytes: &'static str },
    /// No answer, while the client waits.
    Never,
}

type Hook = Box<dyn Fn(&StsRequest) -> StsAnswer + Send>;

struct Shared {
    hook: Mutex<Hook>,
    requests: Mutex<Vec<StsRequest>>,
    /// How far the server's clock is ahead.
    ahead: i64,
}

/// A running server. Dropping it stops it and cuts its connections.
pub struct FakeSts {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for FakeSts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeSts").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FakeSts {
    /// Starts a server on the current runtime.
    pub async fn start(hook: impl Fn(&StsRequest) -> StsAnswer + Send + 'static) -> io::Result<Self> {
        Self::start_ahead(0, hook).await
    }

    /// As [`Self::start`], with a clock that is ahead by this many seconds.
    pub async fn start_ahead(
        seconds: i64,
        hook: impl Fn(&StsRequest) -> StsAnswer + Send + 'static,
    ) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, seconds, hook)
    }

    /// As [`Self::start_ahead`], on the caller's listener, for example in a cluster. Must be called within a runtime.
    pub fn serve(
        listener: TcpListener,
        ahead: i64,
        hook: impl Fn(&StsRequest) -> StsAnswer + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (hook, requests) = (Mutex::new(Box::new(hook) as Hook), Mutex::default());
        let shared = Arc::new(Shared { hook, requests, ahead });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// The server's URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers by this hook from now on.
    pub fn set_hook(&self, hook: impl Fn(&StsRequest) -> StsAnswer + Send + 'static) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(hook);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<StsRequest> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for FakeSts {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let _ = serve(stream, &shared).await;
        });
    }
}

/// Serves the one request of a connection.
async fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let Some(request) = read(&mut stream).await? else { return Ok(()) };
    let range = request.headers.get("range").and_then(|range| {
        let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse::<usize>().ok()?, last.parse::<usize>().ok()? + 1))
    });
    let answer = shared.hook.lock().unwrap_or_else(PoisonError::into_inner)(&request);
    shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_secs() as i64 + shared.ahead;
    let at = |seconds| DateTime::from_timestamp_secs(seconds).ok_or_else(|| io::Error::other("a time out of range"));
    let mut more = String::new();
    let (status, body) = match answer {
        StsAnswer::Never => {
            // Until the client closes the connection.
            let _ = stream.read(&mut [0]).await;
            return Ok(());
        }
        StsAnswer::Raw { status, body } => (status, body),
        StsAnswer::Object { bytes } => {
            more = "ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n".to_owned();
            match range {
                None => (200, bytes.to_owned()),
                Some((start, end)) => {
                    let end = end.min(bytes.len());
                    more += &format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
                    (206, bytes[start..end].to_owned())
                }
            }
        }
        StsAnswer::Refusal { status, code, message } => {
            let error = format!("<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>");
            (status, format!("<ErrorResponse><Error>{error}</Error><RequestId>1</RequestId></ErrorResponse>"))
        }
        StsAnswer::Keys { id, secret, token, seconds } => {
            let end = at(now + seconds)?.to_rfc3339_opts(SecondsFormat::Secs, true);
            let keys = format!(
                "<AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
                 <SessionToken>{token}</SessionToken><Expiration>{end}</Expiration>"
            );
            let result = format!("<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials>");
            let start = r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">"#;
            let end = "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
            (200, format!("<?xml version=\"1.0\"?>\n{start}{result}{end}"))
        }
    };
    let (date, length) = (at(now)?.to_rfc2822(), body.len());
    let head =
        format!("HTTP/1.1 {status} S\r\nDate: {date}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads a request. `None` if it ends early or is too long.
async fn read(stream: &mut TcpStream) -> io::Result<Option<StsRequest>> {
    let mut bytes = Vec::new();
    let mut request = None;
    let mut more = [0; 4096];
    loop {
        if request.is_none()
            && let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n")
        {
            request = Some(head(&String::from_utf8_lossy(&bytes[..end])));
            bytes.drain(..end + 4);
        }
        if let Some((request, length)) = &mut request
            && bytes.len() >= *length
        {
            request.form = form_urlencoded::parse(&bytes[..*length]).into_owned().collect();
            request.body = String::from_utf8_lossy(&bytes[..*length]).into_owned();
            return Ok(Some(std::mem::take(request)));
        }
        let got = stream.read(&mut more).await?;
        if got == 0 || bytes.len() > REQUEST_BYTES {
            return Ok(None);
        }
        bytes.extend_from_slice(&more[..got]);
    }
}

/// A request without its body, and the length of that.
fn head(text: &str) -> (StsRequest, usize) {
    let mut lines = text.lines();
    let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: BTreeMap<_, _> = lines.filter_map(header).collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    (StsRequest { target, headers, ..StsRequest::default() }, length)
}
