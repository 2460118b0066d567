use larder_dataset::{DatasetSpec, SnapshotId};
use larder_peers::{AskedDataset, Security};
use tempfile::TempDir;
use tokio::sync::watch as channel;

use super::open::{PeerAccess, User};
use super::*;
use crate::request::Credentials;

/// A node with peers.
struct World {
    folder: TempDir,
    node: Arc<Node>,
    /// Keeps the membership.
    _members: channel::Sender<Arc<Vec<larder_peers::Node>>>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (members, membership) = channel::channel(Arc::default());
        let node = Node::open(NodeConfig {
            cache_dir: folder.path().join("store"),
            cache_bytes: Some(1 << 20),
            keep_free_percent: 0,
            home: Home::new(folder.path().join("home")),
            origin: OriginConfig::default(),
            peers: Some(PeerConfig { name: "n".to_owned(), listen: None, membership, security: Security::Plaintext }),
            socket: None,
        });
        Self { folder, node: node.unwrap(), _members: members }
    }

    /// Opens the dataset in the folder `name`, which has one file.
    async fn open(&self, name: &str, placement: Placement, token: Option<&str>) -> OpenDataset {
        let data = self.folder.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("file"), name).unwrap();
        let source = format!("file://{}", data.display());
        let credentials = token.map(|token| Credentials::from_iter([(PEER_TOKEN.to_owned(), token.to_owned())]));
        let spec = DatasetSpec { placement: Some(placement), ..DatasetSpec::new(source) };
        let request = DatasetRequest { spec, credentials, ..DatasetRequest::default() };
        let found = self.node.find(&request).await.unwrap();
        self.node.open_dataset(found, &request, User::Mount).await.unwrap()
    }

    fn is_served(&self, snapshot: SnapshotId, token: Option<&str>) -> bool {
        let token = token.map(|token| Token::new(token).unwrap());
        matches!(self.node.open.for_peer(snapshot, token.as_ref()), PeerAccess::Granted(_))
    }

    /// The snapshots that a peer is told about that asks for all of these with one token.
    fn told(&self, snapshots: &[SnapshotId], token: Option<&str>) -> Vec<SnapshotId> {
        let token = token.map(|token| Token::new(token).unwrap());
        let asked: Vec<_> = snapshots.iter().map(|&snapshot| AskedDataset { snapshot, token: token.clone() }).collect();
        self.node.open.cached_for_peer(&asked).into_iter().map(|cached| cached.snapshot).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_shared_is_served_and_listed_and_each_by_its_own_token() {
    let world = World::new();
    let own = world.open("own", Placement::Local, None).await;
    let own_with_token = world.open("own with a token", Placement::Local, Some("one")).await;
    let anybodys = world.open("anybody's", Placement::Partitioned, None).await;
    let ones = world.open("one's", Placement::Partitioned, Some("one")).await;
    let twos = world.open("two's", "replicated:2".parse().unwrap(), Some("two")).await;
    let all = [&own, &own_with_token, &anybodys, &ones, &twos].map(|open| open.manifest().snapshot());
    for (token, may_read) in [(None, &anybodys), (Some("one"), &ones), (Some("two"), &twos)] {
        let may_read = may_read.manifest().snapshot();
        for snapshot in all {
            assert_eq!(world.is_served(snapshot, token), snapshot == may_read, "{token:?}");
        }
        assert_eq!(world.told(&all, token), [may_read], "{token:?}");
    }
    assert_eq!(world.told(&all, Some("three")), []);
    let mut asks_for: Vec<_> = world.node.open.shared().into_iter().map(|asked| asked.snapshot).collect();
    let mut shared = all[2..].to_vec();
    asks_for.sort_by_key(|snapshot| snapshot.0);
    shared.sort_by_key(|snapshot| snapshot.0);
    assert_eq!(asks_for, shared, "a node asks its peers about what it shares");
    assert_eq!(world.node.open.cached().len(), 5, "and knows all that it has");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_open_twice_is_served_as_the_one_that_is_shared() {
    let world = World::new();
    let shared = world.open("data", Placement::Partitioned, Some("one")).await;
    let snapshot = shared.manifest().snapshot();
    // The same snapshot from another server has another name on the node.
    let request = DatasetSpec::new(format!("file://{}", world.folder.path().join("data").display())).into();
    let found = world.node.find(&request).await.unwrap();
    let found = Found { id: format!("{}-elsewhere", found.id), ..found };
    let local = world.node.open_dataset(found, &request, User::Mount).await.unwrap();
    assert_eq!(local.manifest().snapshot(), snapshot);
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
