mod caches;
mod members;

use larder_dataset::{CacheId, DatasetSpec};
use larder_peers::{AskedDataset, Security};
use tempfile::TempDir;
use tokio::sync::watch as channel;

use super::open::{PeerAccess, User};
use super::*;
use crate::request::Credentials;

/// Nodes of which none answers but this one.
fn list(names: &[&str]) -> Arc<Vec<larder_peers::Node>> {
    let node = |(&name, port): (&&str, u16)| larder_peers::Node {
        name: name.to_owned(),
        address: ([127, 0, 0, 1], port).into(),
        weight: 1,
        zone: String::new(),
    };
    Arc::new(names.iter().zip(1..).map(node).collect())
}

/// A node with peers.
struct World {
    folder: TempDir,
    node: Arc<Node>,
    members: channel::Sender<Arc<Vec<larder_peers::Node>>>,
}

impl World {
    fn new() -> Self {
        Self::with_own_token(None)
    }

    fn with_own_token(token: Option<&str>) -> Self {
        Self::at(tempfile::tempdir().unwrap(), &[], token)
    }

    /// The node `n`, which knows these nodes from its start.
    fn at(folder: TempDir, names: &[&str], token: Option<&str>) -> Self {
        let env = token.map(|token| (PEER_TOKEN, token)).into_iter().collect();
        let (members, membership) = channel::channel(list(names));
        let node = Node::open(NodeConfig {
            cache_dir: folder.path().join("store"),
            more_cache_dirs: Vec::new(),
            cache_bytes: Some(1 << 20),
            keep_free_percent: 0,
            home: Home::new(folder.path().join("home")),
            origin: OriginConfig { env, ..OriginConfig::default() },
            importer: Importer::Here,
            peers: Some(PeerConfig {
                name: "n".to_owned(),
                listen: None,
                connections_each_most: 256,
                membership,
                security: Security::Plaintext,
            }),
            memory: Arc::default(),
            socket: None,
        });
        Self { folder, node: node.unwrap(), members }
    }

    /// Opens the dataset in the folder `name`, which has one file.
    async fn open(&self, name: &str, placement: Placement, token: Option<&str>) -> OpenDataset {
        let request = self.request(name, placement, token);
        let found = self.node.find(&request).await.unwrap();
        self.node.open_dataset(found, &request, User::Mount).await.unwrap()
    }

    fn request(&self, name: &str, placement: Placement, token: Option<&str>) -> DatasetRequest {
        let source = self.make(name, &[("file", name.as_bytes())]);
        let credentials = token.map(|token| Credentials::from_iter([(PEER_TOKEN.to_owned(), token.to_owned())]));
        let spec = DatasetSpec { placement: Some(placement), ..DatasetSpec::new(source) };
        DatasetRequest { spec, credentials, ..DatasetRequest::default() }
    }

    /// Makes the folder `name` with these files; returns its URL.
    fn make(&self, name: &str, files: &[(&str, &[u8])]) -> String {
        let data = self.folder.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(data.join(file), bytes).unwrap());
        format!("file://{}", data.display())
    }

    fn is_served(&self, snapshot: CacheId, token: Option<&str>) -> bool {
        let token = token.map(|token| Token::new(token).unwrap());
        matches!(self.node.open.for_peer(snapshot, token.as_ref()), PeerAccess::Granted(_))
    }

    /// The snapshots that a peer is told about that asks for all of these with one token.
    fn told(&self, snapshots: &[CacheId], token: Option<&str>) -> Vec<CacheId> {
        let token = token.map(|token| Token::new(token).unwrap());
        let asked = |&snapshot| AskedDataset { cache: snapshot, token: token.clone(), origin: String::new() };
        let asked: Vec<_> = snapshots.iter().map(asked).collect();
        self.node.open.cached_for_peer(&asked).into_iter().map(|cached| cached.cache).collect()
    }
}

// SEMANTICS: S6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_shared_is_served_and_listed_and_each_by_its_own_token() {
    let world = World::new();
    let own = world.open("own", Placement::Local, None).await;
    let own_with_token = world.open("own with a token", Placement::Local, Some("one")).await;
    let anybodys = world.open("anybody's", Placement::Partitioned, None).await;
    let ones = world.open("one's", Placement::Partitioned, Some("one")).await;
    let twos = world.open("two's", "replicated:2".parse().unwrap(), Some("two")).await;
    let all = [&own, &own_with_token, &anybodys, &ones, &twos].map(|open| open.cache_id());
    for (token, may_read) in [(None, &anybodys), (Some("one"), &ones), (Some("two"), &twos)] {
        let may_read = may_read.cache_id();
        for snapshot in all {
            assert_eq!(world.is_served(snapshot, token), snapshot == may_read, "{token:?}");
        }
        assert_eq!(world.told(&all, token), [may_read], "{token:?}");
    }
    assert_eq!(world.told(&all, Some("three")), []);
    let mut asks_for: Vec<_> = world.node.open.shared().into_iter().map(|asked| asked.cache).collect();
    let mut shared = all[2..].to_vec();
    asks_for.sort_by_key(|snapshot| snapshot.0);
    shared.sort_by_key(|snapshot| snapshot.0);
    assert_eq!(asks_for, shared, "a node asks its peers about what it shares");
    assert_eq!(world.node.open.cached().len(), 5, "and knows all that it has");
}

// SEMANTICS: S6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_open_twice_is_served_as_the_one_that_is_shared() {
    let world = World::new();
    let shared = world.open("data", Placement::Partitioned, Some("one")).await;
    let snapshot = shared.cache_id();
    // The same snapshot from another server has another name on the node.
    let request = DatasetSpec::new(format!("file://{}", world.folder.path().join("data").display())).into();
    let found = world.node.find(&request).await.unwrap();
    let found = Found { id: format!("{}-elsewhere", found.id), ..found };
    let local = world.node.open_dataset(found, &request, User::Mount).await.unwrap();
    assert_eq!(local.cache_id(), snapshot);
    assert!(local.sharing().is_none());
    assert!(world.is_served(snapshot, Some("one")) && !world.is_served(snapshot, None));
    assert_eq!((world.told(&[snapshot], Some("one")), world.told(&[snapshot], None)), (vec![snapshot], vec![]));
    let PeerAccess::Granted(served) = world.node.open.for_peer(snapshot, Some(&Token::new("one").unwrap())) else {
        panic!("it is served");
    };
    assert!(Arc::ptr_eq(&served, shared.dataset()), "with the credentials of the one that is shared");
    drop((served, shared));
    assert!(!world.is_served(snapshot, Some("one")) && !world.is_served(snapshot, None), "what is left is local");
    assert!(matches!(world.node.open.for_peer(snapshot, None), PeerAccess::NotShared), "as if it were not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_of_a_volume_goes_with_its_credentials() {
    for own in [None, Some("own")] {
        let world = World::with_own_token(own);
        let first = world.open("first", Placement::Partitioned, Some("one")).await;
        let second = world.open("second", Placement::Partitioned, Some("one")).await;
        // Of a volume without a token, the node's own counts.
        for (given, counts) in [(Some("one"), Some("one")), (None, own), (Some("two"), Some("two")), (None, own)] {
            world.node.renew(first.id(), &world.request("first", Placement::Partitioned, given)).unwrap();
            for token in [None, Some("own"), Some("one"), Some("two")] {
                let served = [&first, &second].map(|open| world.is_served(open.cache_id(), token));
                assert_eq!(served, [token == counts, token == Some("one")], "{own:?}, {given:?}, {token:?}");
            }
        }
    }
}

/// They wait for the threads that all datasets have for their writes.
#[tokio::test]
async fn a_close_waits_for_all_datasets_at_once() {
    let world = World::new();
    let stalled = world.node.disk_threads.hang_writes();
    let mut open = Vec::new();
    for name in ["a", "b", "c"] {
        let dataset = world.open(name, Placement::Local, None).await;
        dataset.read_file(0, 0, 1).await.unwrap();
        open.push(dataset);
    }
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    world.node.close().await.unwrap();
    let took = begun.elapsed();
    assert!((DRAIN_TIMEOUT..2 * DRAIN_TIMEOUT).contains(&took), "{took:?}");
    drop((stalled, open));
}

// SEMANTICS: V5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_another_snapshot_learns_only_what_is_shared_under_its_token() {
    let world = World::new();
    let shared = world.open("data", Placement::Partitioned, Some("one")).await;
    let own = world.open("own", Placement::Local, Some("one")).await;
    let (snapshot, cache) = (shared.manifest().snapshot(), shared.cache_id());
    let origin = |name: &str| {
        let request = world.request(name, Placement::Partitioned, Some("one"));
        let open = if name == "own" { &own } else { &shared };
        world.node.finder.origin_hash(open.manifest(), &request).unwrap()
    };
    let asked = |cache, token: Option<&str>, origin: &str| AskedDataset {
        cache,
        token: token.map(|token| Token::new(token).unwrap()),
        origin: origin.to_owned(),
    };
    let elsewhere = CacheId([7; 32]);
    let told = |asked: AskedDataset| world.node.open.other_for_peer(&asked).map(|other| other.snapshot);
    assert_eq!(told(asked(elsewhere, Some("one"), &origin("data"))), Some(snapshot));
    assert_eq!(told(asked(cache, Some("one"), &origin("data"))), None, "it is shared");
    assert_eq!(told(asked(elsewhere, Some("two"), &origin("data"))), None);
    assert_eq!(told(asked(elsewhere, None, &origin("data"))), None);
    assert_eq!(told(asked(elsewhere, Some("one"), "")), None);
    assert_eq!(told(asked(elsewhere, Some("one"), &origin("own"))), None, "it is not shared");
}
