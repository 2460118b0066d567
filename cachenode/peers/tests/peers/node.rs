//! A node with simulated blocks, a node that reads, and a lane that a test drives directly.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Request, SUM_BYTES, WireRange};
use larder_dataset::{BlockIndex, BlockRange, CacheId};
use larder_peers::{
    AskedDataset, BlockBytes, Blocks, DatasetStats, Node, PeerCounters, PeerError, Peers, PeersConfig, ReadError,
    ReadRequest, Security, Server, ServerConfig, Token,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;

pub(crate) const SNAPSHOT: CacheId = CacheId([7; 32]);
pub(crate) const OTHER_SNAPSHOT: CacheId = CacheId([8; 32]);

/// The first block number that does not exist.
pub(crate) const BLOCKS: u32 = 10_000;
/// Blocks with a special behaviour.
pub(crate) const PANICS: u32 = 9_000;
pub(crate) const GONE: u32 = 9_001;
pub(crate) const NEVER: u32 = 9_002;
/// This block arrives as [`Fake::arrives`] specifies.
pub(crate) const ARRIVES: u32 = 9_003;

/// A piece of [`ARRIVES`]. None causes a panic.
pub(crate) type Arrival = Option<Result<Bytes, ReadError>>;

pub(crate) fn token() -> Token {
    Token::new("sesame").unwrap()
}

pub(crate) fn range(block: u32, start: u32, len: u32) -> BlockRange {
    BlockRange { block: BlockIndex(block), start, len }
}

/// A request for a range of [`SNAPSHOT`] with its token, which must not be forwarded to another node.
pub(crate) fn request(range: BlockRange) -> ReadRequest {
    ReadRequest { cache: SNAPSHOT, range, token: Some(token()), forwarded: true, cached_only: false }
}

/// The contents of a block. No other block has the same bytes at the same offset.
pub(crate) fn content(block: u32, start: u32, len: u32) -> Bytes {
    (start..start + len).map(|at| (at.wrapping_mul(31) ^ (at >> 11) ^ block.wrapping_mul(0x9e37)) as u8).collect()
}

/// The timeout of a condition that must become true.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// Waits until `is` returns true.
pub(crate) async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < GENEROUS, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Simulated blocks: the contents of every block are [`content`].
#[derive(Debug)]
pub(crate) struct Fake {
    /// Reads wait for a permit. A closed gate has none.
    pub(crate) gate: Semaphore,
    pub(crate) reading: AtomicU64,
    pub(crate) forwarded: AtomicU64,
    arriving: Mutex<Option<mpsc::UnboundedReceiver<Arrival>>>,
}

impl Fake {
    fn with_permits(permits: usize) -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(permits),
            reading: AtomicU64::default(),
            forwarded: AtomicU64::default(),
            arriving: Mutex::default(),
        })
    }

    pub(crate) fn open() -> Arc<Self> {
        Self::with_permits(1 << 20)
    }

    pub(crate) fn shut() -> Arc<Self> {
        Self::with_permits(0)
    }

    /// The next read of [`ARRIVES`] returns the pieces that are sent to this channel.
    pub(crate) fn arrives(&self) -> mpsc::UnboundedSender<Arrival> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.arriving.lock().unwrap() = Some(receiver);
        sender
    }

    fn admit(&self, snapshot: CacheId, shown: Option<&Token>) -> Result<(), ReadError> {
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
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
        self.admit(request.cache, request.token.as_ref())?;
        self.reading.fetch_add(1, Ordering::SeqCst);
        let _reading = Reading(&self.reading);
        self.forwarded.fetch_add(u64::from(request.forwarded), Ordering::SeqCst);
        let _pass = self.gate.acquire().await.unwrap();
        match request.range.block.0 {
            BLOCKS.. => Err(ReadError::NoSuchRange),
            PANICS => panic!("made up"),
            GONE => Err(ReadError::Gone),
            NEVER => std::future::pending().await,
            ARRIVES => {
                let arriving = self.arriving.lock().unwrap().take().unwrap();
                let arriving = UnboundedReceiverStream::new(arriving);
                let pieces = arriving.map(|piece| piece.unwrap_or_else(|| panic!("made up")));
                Ok(BlockBytes::Arriving(Box::pin(pieces)))
            }
            block => Ok(BlockBytes::whole(content(block, request.range.start, request.range.len))),
        }
    }

    fn stats(&self, asked: &[AskedDataset]) -> Vec<DatasetStats> {
        let admitted = asked.iter().filter(|asked| self.admit(asked.cache, asked.token.as_ref()).is_ok());
        let stats = |asked: &AskedDataset| DatasetStats {
            cache: asked.cache,
            name: "made-up".to_owned(),
            blocks_cached: 1,
            bytes_cached: 2,
            capacity_bytes: 3,
        };
        admitted.map(stats).collect()
    }

    fn name(&self, snapshot: CacheId) -> Option<String> {
        (snapshot == SNAPSHOT).then(|| "made-up".to_owned())
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
    /// Creates a reader with timeouts for busy machines, unless `change` sets others.
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

    /// Reads part of one block.
    pub(crate) async fn read(&self, peer: &str) -> Result<Bytes, PeerError> {
        self.read_some(peer, range(5, 100, 3000)).await
    }

    pub(crate) async fn read_some(&self, peer: &str, range: BlockRange) -> Result<Bytes, PeerError> {
        self.peers.read(peer, &request(range)).await
    }

    /// Repeats a read until it succeeds.
    pub(crate) async fn read_at_last(&self, peer: &str) -> Bytes {
        let start = Instant::now();
        loop {
            match self.read(peer).await {
                Ok(bytes) => return bytes,
                Err(error) => assert!(start.elapsed() < GENEROUS, "{peer} never came back: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) fn wire(range: BlockRange) -> WireRange {
    WireRange { snapshot: SNAPSHOT.0, block: range.block.0, start: range.start, len: range.len }
}

/// A lane without a client: the test writes its requests and reads its answers.
#[derive(Debug)]
pub(crate) struct RawLane(pub(crate) TcpStream);

impl RawLane {
    /// Connects from another address than readers have, with a small receive buffer.
    pub(crate) async fn connect(server: &TestNode) -> Self {
        Self::try_connect(server).await.unwrap()
    }

    /// Connects as soon as the server has a free place.
    pub(crate) async fn connect_at_last(server: &TestNode) -> Self {
        let start = Instant::now();
        loop {
            match Self::try_connect(server).await {
                Ok(lane) => return lane,
                Err(error) => assert!(start.elapsed() < GENEROUS, "no place: {error}"),
            }
        }
    }

    async fn try_connect(server: &TestNode) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        socket.bind("127.0.0.2:0".parse().unwrap())?;
        let mut lane = Self(socket.connect(server.address).await?);
        lane.0.write_all(&Hello { protocol: PROTOCOL }.encode()).await?;
        assert_eq!(lane.hello().await?, Hello { protocol: PROTOCOL });
        Ok(lane)
    }

    pub(crate) async fn hello(&mut self) -> std::io::Result<Hello> {
        let mut hello = [0; HELLO_BYTES];
        self.0.read_exact(&mut hello).await?;
        Ok(Hello::decode(&hello).unwrap())
    }

    pub(crate) async fn ask(&mut self, tag: u32, range: BlockRange, token: &str, deadline_ms: u32) {
        self.ask_for(SNAPSHOT, tag, range, token, deadline_ms).await;
    }

    pub(crate) async fn ask_for(
        &mut self,
        snapshot: CacheId,
        tag: u32,
        range: BlockRange,
        token: &str,
        deadline_ms: u32,
    ) {
        let range = WireRange { snapshot: snapshot.0, ..wire(range) };
        let token_len = token.len() as u16;
        let mut frame = Vec::new();
        Request::Read { tag, range, token_len, forwarded: true, cached_only: false, deadline_ms }.encode(&mut frame);
        frame.extend_from_slice(token.as_bytes());
        self.0.write_all(&frame).await.unwrap();
    }

    /// The next answer and its body, without a sum. It must not be a piece that others follow.
    pub(crate) async fn answer(&mut self) -> (Answer, Vec<u8>) {
        let (answer, body) = self.piece().await;
        if let Answer::Bytes { .. } = answer {
            self.sum().await;
        }
        (answer, body)
    }

    /// The next answer and its body. A sum may follow.
    pub(crate) async fn piece(&mut self) -> (Answer, Vec<u8>) {
        let mut head = [0; ANSWER_BYTES];
        self.0.read_exact(&mut head).await.unwrap();
        let answer = Answer::decode(&head).unwrap();
        let len = match answer {
            Answer::Bytes { len, .. } | Answer::Refusal { len, .. } => len,
            Answer::Pong | Answer::Goodbye => 0,
        };
        let mut body = vec![0; len as usize];
        self.0.read_exact(&mut body).await.unwrap();
        (answer, body)
    }

    pub(crate) async fn sum(&mut self) -> u32 {
        let mut sum = [0; SUM_BYTES];
        self.0.read_exact(&mut sum).await.unwrap();
        u32::from_le_bytes(sum)
    }

    /// Reads until the node closes the lane.
    pub(crate) async fn is_over(&mut self) {
        let mut scrap = vec![0; 1 << 16];
        while self.0.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    }
}
