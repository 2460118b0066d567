//! A node with made-up blocks, and a reader of its kind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use larder_cachenode::{
    Ask, Blocks, DatasetStats, Node, PeerCounters, Peers, PeersConfig, ReadError, Security, Server, ServerConfig,
    StoredBlocks, Token, Want,
};
use larder_dataset::{BlockIndex, SnapshotId};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const SNAPSHOT: SnapshotId = SnapshotId([7; 32]);
pub(crate) const OTHER_SNAPSHOT: SnapshotId = SnapshotId([8; 32]);

/// Blocks from here on do not exist.
pub(crate) const BLOCKS: u32 = 10_000;
/// Blocks with a meaning.
pub(crate) const PANICS: u32 = 9_000;
pub(crate) const GONE: u32 = 9_001;
pub(crate) const NEVER: u32 = 9_002;

pub(crate) fn token() -> Token {
    Token::new("sesame").unwrap()
}

pub(crate) fn want(block: u32, start: u32, len: u32) -> Want {
    Want { block: BlockIndex(block), start, len }
}

/// What a block holds, which no other block holds in the same place.
pub(crate) fn content(block: u32, start: u32, len: u32) -> Bytes {
    (start..start + len).map(|at| (at.wrapping_mul(31) ^ (at >> 11) ^ block.wrapping_mul(0x9e37)) as u8).collect()
}

/// How long something that must come about is waited for.
const GENEROUS: Duration = Duration::from_secs(60);

/// Waits until it is so.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < GENEROUS, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Made-up blocks: every block is [`content`], and every third one is stored.
#[derive(Debug)]
pub(crate) struct Fake {
    /// Reads wait here; a closed gate is one without permits.
    pub(crate) gate: Semaphore,
    pub(crate) reading: AtomicU64,
    pub(crate) forwarded: AtomicU64,
}

impl Fake {
    pub(crate) fn open() -> Arc<Self> {
        Arc::new(Self { gate: Semaphore::new(1 << 20), reading: AtomicU64::new(0), forwarded: AtomicU64::new(0) })
    }

    pub(crate) fn shut() -> Arc<Self> {
        Arc::new(Self { gate: Semaphore::new(0), reading: AtomicU64::new(0), forwarded: AtomicU64::new(0) })
    }

    fn admit(&self, snapshot: SnapshotId, shown: Option<&Token>) -> Result<(), ReadError> {
        if snapshot != SNAPSHOT {
            return Err(ReadError::UnknownDataset);
        }
        if shown == Some(&token()) { Ok(()) } else { Err(ReadError::Denied) }
    }
}

struct Reading<'a>(&'a AtomicU64);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Blocks for Fake {
    async fn read(&self, ask: &Ask) -> Result<Bytes, ReadError> {
        self.admit(ask.snapshot, ask.token.as_ref())?;
        self.reading.fetch_add(1, Ordering::SeqCst);
        let _reading = Reading(&self.reading);
        self.forwarded.fetch_add(u64::from(ask.forwarded), Ordering::SeqCst);
        let _pass = self.gate.acquire().await.unwrap();
        match ask.block.0 {
            BLOCKS.. => Err(ReadError::NoSuchRange),
            PANICS => panic!("made up"),
            GONE => Err(ReadError::Gone),
            NEVER => std::future::pending().await,
            block => Ok(content(block, ask.start, ask.len)),
        }
    }

    async fn have(
        &self,
        snapshot: SnapshotId,
        token: Option<&Token>,
        first: BlockIndex,
        blocks: u32,
    ) -> Result<StoredBlocks, ReadError> {
        self.admit(snapshot, token)?;
        Ok(StoredBlocks::of(first, blocks, |block| block.0.is_multiple_of(3)))
    }

    fn stats(&self) -> Vec<DatasetStats> {
        let name = "made-up".to_owned();
        vec![DatasetStats { snapshot: SNAPSHOT, name, blocks_cached: 1, bytes_cached: 2, capacity_bytes: 3 }]
    }
}

/// A node that serves.
#[derive(Debug)]
pub(crate) struct TestNode {
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<PeerCounters>,
    pub(crate) stopping: CancellationToken,
    task: JoinHandle<()>,
}

impl TestNode {
    pub(crate) async fn start(blocks: Arc<Fake>, security: Security, change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), blocks, security, change).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        blocks: Arc<Fake>,
        security: Security,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut config = ServerConfig::new("server");
        change(&mut config);
        let counters = Arc::new(PeerCounters::default());
        let stopping = CancellationToken::new();
        let server = Server::new(config, security, blocks, Arc::clone(&counters), stopping.clone());
        let task = tokio::spawn(async move { server.serve(listener).await.unwrap() });
        Self { address, counters, stopping, task }
    }

    pub(crate) async fn plain() -> Self {
        Self::start(Fake::open(), Security::Plaintext, |_| {}).await
    }

    pub(crate) async fn stop(self) {
        self.stopping.cancel();
        self.task.await.unwrap();
    }
}

/// A node that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) peers: Arc<Peers>,
    pub(crate) counters: Arc<PeerCounters>,
    pub(crate) members: watch::Sender<Arc<Vec<Node>>>,
    pub(crate) stopping: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

pub(crate) fn node(name: &str, address: SocketAddr) -> Node {
    Node { name: name.to_owned(), address, weight: 1, zone: String::new() }
}

impl Reader {
    /// Patient with busy machines, unless `change` says otherwise.
    pub(crate) fn new(nodes: &[(&str, SocketAddr)], security: Security, change: impl FnOnce(&mut PeersConfig)) -> Self {
        let mut config = PeersConfig {
            connect_timeout: Duration::from_secs(20),
            answer_timeout: Duration::from_secs(20),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_millis(200),
            ..PeersConfig::default()
        };
        change(&mut config);
        let (members, membership) = watch::channel(Arc::new(nodes.iter().map(|(name, at)| node(name, *at)).collect()));
        let counters = Arc::new(PeerCounters::default());
        let peers = Peers::new(config, "reader", security, membership, Arc::clone(&counters));
        let stopping = CancellationToken::new();
        let task = tokio::spawn(Arc::clone(&peers).run(stopping.clone()));
        Self { peers, counters, members, stopping, task }
    }

    pub(crate) fn plain(nodes: &[(&str, SocketAddr)]) -> Self {
        Self::new(nodes, Security::Plaintext, |_| {})
    }

    /// Reads some of one block.
    pub(crate) async fn read(&self, node: &str) -> Result<Bytes, larder_cachenode::PeerError> {
        let wants = [want(5, 100, 3000)];
        self.peers.read(node, SNAPSHOT, Some(&token()), &wants, true).await?.remove(0)
    }

    /// Reads until it goes well.
    pub(crate) async fn read_at_last(&self, node: &str) -> Bytes {
        let start = Instant::now();
        loop {
            match self.read(node).await {
                Ok(bytes) => return bytes,
                Err(error) => assert!(start.elapsed() < GENEROUS, "{node} never came back: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
