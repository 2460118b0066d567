//! Blocks whose owners do not answer.

use std::net::TcpListener;

use larder_dataset::Placement;
use larder_peers::{Node, Peers, PeersConfig, Security};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;

const FILE_BYTES: u64 = 1_000;
const FILES: u32 = 60;

/// Owners to which the kernel lets anyone connect, and which say nothing.
struct SilentOwners {
    _listeners: Vec<TcpListener>,
    sharing: Arc<Sharing>,
}

impl SilentOwners {
    fn new(cache: larder_dataset::CacheId, placement: Placement) -> Self {
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let node = |name: &str, address| Node { name: name.to_owned(), address, weight: 1, zone: String::new() };
        let mut nodes = vec![node("here", ([127, 0, 0, 1], 1).into())];
        nodes.extend(["a", "b"].iter().zip(&listeners).map(|(name, at)| node(name, at.local_addr().unwrap())));
        let (_, membership) = watch::channel(Arc::new(nodes));
        let peers = Peers::new(PeersConfig::default(), "here", Security::Plaintext, membership, Arc::default());
        Self { _listeners: listeners, sharing: Arc::new(Sharing::new(peers, cache, placement, None)) }
    }
}

/// A node that shares files with two silent ones, and the first file that these two alone may have.
fn world_with(placement: Placement, read_deadline: Duration) -> (World, SilentOwners, u32) {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path(), &[FILE_BYTES; FILES as usize]);
    let owners = SilentOwners::new(manifest.snapshot().into(), placement);
    let config = FetchConfig { read_deadline, ..FetchConfig::DEFAULT };
    let world = world_of(folder, manifest, Some(Arc::clone(&owners.sharing)), config);
    let theirs = (0..FILES).find(|&file| {
        let route = world.fetcher.peers.route(FileIndex(file), world.part(file, 0, 1).block, Asker::Here);
        !route.keep
    });
    (world, owners, theirs.unwrap())
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
