//! Blocks that other nodes own: one that answers while the origin hangs, and some that do not answer.

use std::net::TcpListener;

use larder_dataset::{BlockRange, CacheId, Placement};
use larder_peers::{
    AskedDataset, Blocks, DatasetStats, Node, Peers, PeersConfig, ReadError, ReadRequest, Security, Server,
    ServerConfig,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;

const FILE_BYTES: u64 = 1_000;
const FILES: u32 = 60;

/// No wait is longer than this in a test that passes.
const PATIENCE: Duration = Duration::from_secs(30);

/// An owner that has every block.
#[derive(Debug)]
struct Having;

#[async_trait]
impl Blocks for Having {
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
        let BlockRange { start, len, .. } = request.range;
        Ok(BlockBytes::whole((start..start + len).map(|at| at as u8).collect()))
    }

    fn stats(&self, _: &[AskedDataset]) -> Vec<DatasetStats> {
        Vec::new()
    }

    fn name(&self, _: CacheId) -> Option<String> {
        None
    }
}

fn node(name: &str, address: std::net::SocketAddr) -> Node {
    Node { name: name.to_owned(), address, weight: 1, zone: String::new() }
}

/// Shares the blocks of `cache` among these nodes, of which the first is this one.
fn sharing_among(nodes: Vec<Node>, cache: CacheId, placement: Placement) -> Arc<Sharing> {
    let (_, membership) = watch::channel(Arc::new(nodes));
    let peers = Peers::new(PeersConfig::default(), "here", Security::Plaintext, membership, Arc::default());
    Arc::new(Sharing::new(peers, cache, placement, None))
}

/// The first file that other nodes own.
fn first_of_theirs(world: &World) -> u32 {
    let is_theirs = |&file: &u32| {
        let route = world.fetcher.peers.route(FileIndex(file), world.part(file, 0, 1).block, Asker::Here);
        !route.keep
    };
    (0..FILES).find(is_theirs).unwrap()
}

/// Owners to which the kernel lets anyone connect, and which say nothing.
struct SilentOwners {
    _listeners: Vec<TcpListener>,
    sharing: Arc<Sharing>,
}

impl SilentOwners {
    fn new(cache: CacheId, placement: Placement) -> Self {
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut nodes = vec![node("here", ([127, 0, 0, 1], 1).into())];
        nodes.extend(["a", "b"].iter().zip(&listeners).map(|(name, at)| node(name, at.local_addr().unwrap())));
        Self { _listeners: listeners, sharing: sharing_among(nodes, cache, placement) }
    }
}

/// A node that shares files with two silent ones, and the first file that these two alone may have.
fn world_with(placement: Placement, read_deadline: Duration) -> (World, SilentOwners, u32) {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[FILE_BYTES; FILES as usize]);
    let owners = SilentOwners::new(manifest.snapshot().into(), placement);
    let config = FetchConfig { read_deadline, ..FetchConfig::DEFAULT };
    let world = world_of(folder, manifest, Some(Arc::clone(&owners.sharing)), config);
    let theirs = first_of_theirs(&world);
    (world, owners, theirs)
}

// SEMANTICS: S4
#[tokio::test]
async fn a_block_that_its_owner_has_is_read_while_fetches_that_hang_at_the_origin_have_all_memory() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nodes = vec![node("here", ([127, 0, 0, 1], 1).into()), node("a", listener.local_addr().unwrap())];
    let stopping = CancellationToken::new();
    let server =
        Server::new(ServerConfig::new("a"), Security::Plaintext, Arc::new(Having), Arc::default(), stopping.clone());
    let serving = tokio::spawn(server.serve(listener));
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[FILE_BYTES; FILES as usize]);
    let sharing = sharing_among(nodes, manifest.snapshot().into(), Placement::Partitioned);
    let world = world_of(folder, manifest, Some(sharing), FetchConfig::DEFAULT);
    let file = first_of_theirs(&world);

    let all = world.fetcher.memory.available() as u32;
    let _hung = world.fetcher.memory.acquire(all).await;
    tokio::time::timeout(PATIENCE, world.read(file, 0, FILE_BYTES)).await.expect("it waits for the origin's memory");
    let (part, deadline) = (world.part(file, 100, 200), world.fetcher.deadline());
    let phase = Arc::default();
    let piece = world.fetcher.fetch_piece(FileIndex(file), part, Asker::Here, deadline, &phase);
    let piece = tokio::time::timeout(PATIENCE, piece).await.expect("a piece waits for it").unwrap();
    assert_eq!((piece.tier, piece.bytes.len()), (Tier::Peer, 200));
    assert_eq!(world.origin.take(), []);
    stopping.cancel();
    tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap().unwrap();
}

/// The clock runs ahead while a connection is made, so a read may take less than what is promised, and never more.
// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn silent_owners_delay_a_read_by_the_promised_time_and_then_one_get_follows() {
    for (placement, hedges, most) in [
        (Placement::Partitioned, 0, Duration::from_millis(1_500)),
        (Placement::Replicated(2.try_into().unwrap()), 1, Duration::from_millis(2_000)),
    ] {
        let (world, _owners, file) = world_with(placement, FetchConfig::DEFAULT.read_deadline);
        let started = Instant::now();
        world.read(file, 0, FILE_BYTES).await;
        let took = started.elapsed();
        assert!(took <= most, "{placement:?}: {took:?}");
        assert_eq!(world.origin.take().len(), 1);
        let counters = &world.fetcher.context.counters;
        assert!(counters.peer_errors.load(SeqCst) > 0);
        assert!(
            counters.peer_hedges.load(SeqCst) <= hedges,
            "where there is one owner, nobody else is asked meanwhile"
        );
        assert_eq!(counters.peer_hedges_won.load(SeqCst), 0);

        // They are known to be down now.
        let started = Instant::now();
        world.fetcher.wait_idle().await;
        let again = (0..FILES).rev().find(|&file| {
            let route = world.fetcher.peers.route(FileIndex(file), world.part(file, 0, 1).block, Asker::Here);
            !route.keep && route.peers.is_empty()
        });
        world.read(again.unwrap(), 0, FILE_BYTES).await;
        assert_eq!(world.origin.take().len(), 1);
        assert!(started.elapsed() < Duration::from_millis(100));
    }
}

// SEMANTICS: S4
#[tokio::test(start_paused = true)]
async fn owners_get_half_of_the_read_deadline_and_the_origin_the_rest() {
    let deadline = Duration::from_millis(600);
    let (world, _owners, file) = world_with(Placement::Partitioned, deadline);
    let started = Instant::now();
    world.read(file, 0, FILE_BYTES).await;
    assert!(started.elapsed() <= deadline / 2 + Duration::from_millis(1), "{:?}", started.elapsed());
    assert_eq!(world.origin.take().len(), 1);
    assert_eq!(world.fetcher.context.counters.peer_errors.load(SeqCst), 1);
}
