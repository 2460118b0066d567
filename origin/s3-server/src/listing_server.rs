//! A server that only lists objects: any number of simulated ones.
//!
//! - [`ListingServer`] answers ListObjectsV2 over HTTP: pages of 1,000 keys, `start-after` and continuation tokens,
//!   each page after a configured time. It can violate the rules of a listing: see [`ListingFault`].
//! - `keys` computes the keys.
//!
//! Invariant: memory does not grow with the number of objects, since every key is computed from its number. The same
//! number always gives the same object.

mod http;
mod keys;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use http::{Request, read_request, send};
pub use keys::MadeUpKeys;

/// The number of keys in a page.
const PAGE_KEYS: u64 = 1000;
/// S3 rejects requests whose signing time differs from its own by more than this.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(15 * 60);

/// The fault that the server simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingFault {
    /// No fault.
    None,
    /// Some pages have two keys in the wrong order.
    OutOfOrder,
    /// Some pages have a key twice.
    Twice,
    /// Pages without keys, whose continuation tokens lead to each other.
    LoopingToken,
    /// Every answer shows other versions of the same objects.
    Changing,
    /// The server's clock is this many seconds ahead of this machine's, and it rejects requests that were signed by
    /// another clock.
    ClockAhead(i64),
}

/// The behaviour of the server.
#[derive(Clone, Copy, Debug)]
pub struct ListingConfig {
    /// The objects.
    pub keys: MadeUpKeys,
    /// How long the server takes for a page.
    pub page_time: Duration,
    /// The fault to simulate.
    pub fault: ListingFault,
}

#[derive(Debug)]
struct State {
    config: ListingConfig,
    requests: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
    /// One of this many objects has another version than at first; 0 for none.
    replaced_one_of: AtomicU64,
}

/// A running server. Dropping it stops it and closes its connections.
#[derive(Debug)]
pub struct ListingServer {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl ListingServer {
    /// Starts a server on a loopback port, on the current runtime.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(config: ListingConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (requests, in_flight, most_in_flight, replaced_one_of) = Default::default();
        let state = Arc::new(State { config, requests, in_flight, most_in_flight, replaced_one_of });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, accepting })
    }

    /// The URL of the server: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment variables that direct any S3 client to this server. The server checks no signature.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", "listing".into()),
            ("AWS_SECRET_ACCESS_KEY", "listing".into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// The number of LIST calls so far.
    pub fn lists(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Gives one of this many objects another version with the same size, from now on; 0 for none.
    pub fn replace_one_of(&self, objects: u64) {
        self.state.replaced_one_of.store(objects, Ordering::Relaxed);
    }

    /// The most LIST calls that were in flight at the same time.
    pub fn most_at_once(&self) -> u64 {
        self.state.most_in_flight.load(Ordering::Relaxed)
    }
}

impl Drop for ListingServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream, Arc::clone(&state)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        if !request.is_listing() {
            send(&mut stream, "404 Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>", request.is_head()).await?;
            continue;
        }
        let nth = state.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let now = state.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        state.most_in_flight.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(state.config.page_time).await;
        state.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let ListingFault::ClockAhead(ahead) = state.config.fault {
            let there = http::seconds(SystemTime::now()) + ahead;
            if request.signed_at().is_none_or(|signed| there.abs_diff(signed) > CLOCK_TOLERANCE.as_secs()) {
                let date = http::date_header(there);
                let body =
                    b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
                send(&mut stream, "403 Forbidden", &date, body, false).await?;
                continue;
            }
        }
        let replaced_one_of = state.replaced_one_of.load(Ordering::Relaxed);
        let page = page(&state.config, &request, nth, replaced_one_of);
        send(&mut stream, "200 OK", "Content-Type: application/xml\r\n", &page, false).await?;
    }
    Ok(())
}

/// Builds the answer to the `nth` LIST call.
fn page(config: &ListingConfig, request: &Request, nth: u64, replaced_one_of: u64) -> Vec<u8> {
    let keys = &config.keys;
    let prefix = request.parameter("prefix").unwrap_or_default();
    let after = request.parameter("continuation-token").or_else(|| request.parameter("start-after"));
    if config.fault == ListingFault::LoopingToken {
        let token = if after.as_deref() == Some(b"one") { "two" } else { "one" };
        let text = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
        );
        return text.into_bytes();
    }
    let first = after.map_or(0, |after| keys.first_after(&after));
    let end = if keys.have_prefix(&prefix) { keys.count.min(first + PAGE_KEYS) } else { first };
    let mut order: Vec<u64> = (first..end).collect();
    if nth.is_multiple_of(5) && order.len() > 20 {
        match config.fault {
            ListingFault::OutOfOrder => order.swap(10, 12),
            ListingFault::Twice => order[12] = order[11],
            ListingFault::None | ListingFault::LoopingToken | ListingFault::Changing | ListingFault::ClockAhead(_) => {}
        }
    }
    let seed = if config.fault == ListingFault::Changing { nth } else { 0 };
    let mut xml = Vec::with_capacity(300 * order.len() + 512);
    xml.extend_from_slice(
        b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
          <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
    );
    xml.extend_from_slice(b"<Name>made-up</Name><MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType><IsTruncated>");
    let truncated = end < keys.count && keys.have_prefix(&prefix);
    xml.extend_from_slice(if truncated { b"true" } else { b"false" });
    xml.extend_from_slice(b"</IsTruncated>");
    if truncated {
        xml.extend_from_slice(b"<NextContinuationToken>");
        keys.put_key(end - 1, &mut xml);
        xml.extend_from_slice(b"</NextContinuationToken>");
    }
    for n in order {
        let replaced = replaced_one_of > 0 && n.is_multiple_of(replaced_one_of);
        keys.put_entry(n, if replaced { u64::from(u32::MAX) } else { seed }, &mut xml);
    }
    xml.extend_from_slice(b"</ListBucketResult>");
    xml
}
