//! How a dataset is shared among nodes: which node owns a block, which peers to ask for it, and whether to keep it.
//!
//! The cast: [`Sharing`] applies the dataset's [`Placement`] to the present nodes; a `Route` is the result for one
//! block, and `OwnedKeys` is what this node owns by one list of nodes. The owner of a block asks the origin. Every
//! other node asks the owner, and then the origin if no owner answers. Of several owners, a second one is asked for
//! what it has before the first has failed (`Peers::read_from_any`); an owner that has no other beside it is waited
//! for, so that a slow origin does not get two GETs for each block.
//!
//! A node whose reads go over a costlier link than they are meant to, because its nearest origin fails, first asks the
//! other owners in its zone for what they have.
//!
//! Invariant: at most two other nodes are between a reader and the origin: a second owner, which asks the first. Nodes
//! that see different members for a moment send one more request to the origin than necessary, and nothing else
//! happens.

mod others;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use larder_dataset::{BlockRange, CacheId, Member, Members, PlaceKey, Placement};
use larder_peers::{AskedDataset, HedgeCounts, Node, Peers, ReadRequest, Token};

pub(crate) use others::OtherSnapshots;

/// The node that wants a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// This node.
    Here,
    /// A peer; `forwarded` if no other peer may be asked.
    Peer { forwarded: bool },
}

/// Where to get a block from, and whether to keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The peers to ask before the origin, in this order.
    pub(crate) peers: Vec<RoutePeer>,
    /// The store may keep it.
    pub(crate) keep: bool,
}

/// A peer to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutePeer {
    name: String,
    /// It must not ask another peer.
    forwarded: bool,
    /// It must not ask the origin either.
    cached_only: bool,
}

impl Route {
    /// The route on a node without peers.
    pub(crate) const ALONE: Self = Self { peers: Vec::new(), keep: true };

    /// The route while no members are known: the owner of the block may be another node, so this one must not keep it.
    const LOST: Self = Self { peers: Vec::new(), keep: false };
}

/// A dataset that nodes share. One whose placement is `local` has none of this, so that no peer reads or sees it.
#[derive(Debug)]
pub struct Sharing {
    peers: Arc<Peers>,
    cache: CacheId,
    /// A hash of the origin; empty: no peer is asked for other snapshots of it.
    origin: String,
    others: OtherSnapshots,
    placement: Placement,
    /// Replaced when newer credentials arrive.
    token: RwLock<Option<Token>>,
    /// The nodes as they were when they were last asked for.
    view: Mutex<View>,
}

/// A list of nodes.
#[derive(Clone, Debug)]
struct View {
    nodes: Arc<Vec<Node>>,
    members: Arc<Members>,
    /// Another one for each list with other owners.
    version: u64,
}

/// The part of a dataset that this node owns, by one list of nodes.
#[derive(Debug)]
pub(crate) struct OwnedKeys {
    placement: Placement,
    members: Arc<Members>,
    /// This node's position among the members, if it is one.
    own: Option<u32>,
    version: u64,
}

impl OwnedKeys {
    /// The version of the list: lists of the same version have the same owners.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// True if this node is on the list.
    pub(crate) fn is_member(&self) -> bool {
        self.own.is_some()
    }

    /// True if this node owns the blocks of `key`.
    pub(crate) fn contains(&self, key: PlaceKey) -> bool {
        self.own.is_some_and(|own| self.members.owners(self.placement, key).contains(&own))
    }
}

impl Sharing {
    /// The blocks of `cache`, distributed by `placement` over the nodes that `peers` knows.
    pub fn new(peers: Arc<Peers>, cache: CacheId, placement: Placement, token: Option<Token>) -> Self {
        let view = Mutex::new(View { nodes: Arc::default(), members: Arc::default(), version: 0 });
        let (origin, others) = Default::default();
        Self { peers, cache, origin, others, placement, token: RwLock::new(token), view }
    }

    /// The same, of an origin of which peers may share other snapshots: `origin` is a hash of its URL, server and
    /// account.
    #[must_use]
    pub(crate) fn of_origin(self, origin: String) -> Self {
        Self { origin, ..self }
    }

    /// The hash of the origin; empty if there is none.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// The peers that share other snapshots of the origin.
    pub(crate) fn others(&self) -> &OtherSnapshots {
        &self.others
    }

    /// How the blocks are distributed.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// True if a peer with `token` may read this dataset: the token is this node's own, or neither has one.
    pub fn admits(&self, token: Option<&Token>) -> bool {
        self.token.read().unwrap_or_else(PoisonError::into_inner).as_ref() == token
    }

    /// The dataset as this node asks its peers for it.
    pub fn asked(&self) -> AskedDataset {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        AskedDataset { cache: self.cache, token, origin: self.origin.clone() }
    }

    /// Presents and expects `token` from now on.
    pub fn replace_token(&self, token: Option<Token>) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn view(&self) -> View {
        let nodes = self.peers.nodes();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&view.nodes, &nodes) {
            let member = |node: &Node| Member { name: node.name.clone(), weight: node.weight, zone: node.zone.clone() };
            let members = Members::new(nodes.iter().map(member));
            view.nodes = nodes;
            // A node with a new address owns what it did.
            if *view.members != members {
                view.members = Arc::new(members);
                view.version += 1;
            }
        }
        view.clone()
    }

    /// This node's part by the present list of nodes. None if no node is known.
    pub(crate) fn owned(&self) -> Option<OwnedKeys> {
        let placement = self.placement;
        let View { members, version, .. } = self.view();
        let own = members.position(self.peers.own_name());
        (!members.is_empty()).then_some(OwnedKeys { placement, members, own, version })
    }

    /// The route of the blocks of `key`.
    pub(crate) fn route(&self, key: PlaceKey, asker: Asker) -> Route {
        let View { nodes, members, .. } = self.view();
        let owners: Vec<&Member> = members.owners(self.placement, key).iter().map(|&at| members.get(at)).collect();
        let own = self.peers.own_name();
        let Some(first) = owners.first() else { return Route::LOST };
        let keep = owners.iter().any(|owner| owner.name == own);
        let ask = |owner: &&Member| RoutePeer {
            name: owner.name.clone(),
            forwarded: owner.name == first.name,
            cached_only: false,
        };
        let nodes = match asker {
            _ if first.name == own => Vec::new(),
            Asker::Peer { forwarded: true } => Vec::new(),
            _ if keep => vec![ask(first)],
            // The requesting peer takes this node for an owner: it sees other members.
            Asker::Peer { forwarded: false } => Vec::new(),
            Asker::Here => {
                let zone = nodes.iter().find(|node| node.name == own).map(|node| node.zone.as_str());
                let near = |owner: &&&Member| !owner.zone.is_empty() && Some(owner.zone.as_str()) == zone;
                owners.iter().filter(near).chain(owners.iter().filter(|owner| !near(owner))).map(ask).collect()
            }
        };
        Route { peers: nodes.into_iter().filter(|node| self.peers.is_up(&node.name)).collect(), keep }
    }

    /// The other owners of the blocks of `key` in this node's zone. They are asked only for what they have: one that
    /// fetches the block may be waiting for this node.
    pub(crate) fn near_owners(&self, key: PlaceKey) -> Vec<RoutePeer> {
        let View { nodes, members, .. } = self.view();
        let own = self.peers.own_name();
        let zone = nodes.iter().find(|node| node.name == own).map(|node| node.zone.as_str());
        let owners = members.owners(self.placement, key);
        let near = owners.iter().map(|&at| members.get(at)).filter(|owner| {
            let is_near = !owner.zone.is_empty() && Some(owner.zone.as_str()) == zone;
            is_near && owner.name != own && self.peers.is_up(&owner.name)
        });
        near.map(|owner| RoutePeer { name: owner.name.clone(), forwarded: true, cached_only: true }).collect()
    }

    /// Reads a range of a block from the peers of a route, see [`Peers::read_from_any`]. Cancel-safe.
    pub(crate) async fn read(
        &self,
        route: &Route,
        range: BlockRange,
        is_right: impl Fn(&Bytes) -> bool,
        counts: HedgeCounts<'_>,
    ) -> Option<Bytes> {
        let AskedDataset { cache, token, .. } = self.asked();
        let request = |peer: &RoutePeer| {
            let (token, forwarded, cached_only) = (token.clone(), peer.forwarded, peer.cached_only);
            ReadRequest { cache, range, token, forwarded, cached_only }
        };
        let peers: Vec<_> = route.peers.iter().map(|peer| (peer.name.as_str(), request(peer))).collect();
        self.peers.read_from_any(&peers, is_right, counts).await
    }
}

#[cfg(test)]
mod tests {
    use larder_peers::{PeersConfig, Security};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::*;

    // SEMANTICS: S3
    #[tokio::test]
    async fn a_node_that_knows_of_no_node_keeps_nothing_that_may_be_anothers() {
        let (sender, membership) = watch::channel(Arc::new(Vec::new()));
        let peers = Peers::new(PeersConfig::default(), "a", Security::Plaintext, membership, Arc::default());
        let cache = CacheId([7; 32]);
        let key = PlaceKey::of_origin("s3://bucket").name(b"a").number(0);
        let partitioned = Sharing::new(Arc::clone(&peers), cache, Placement::Partitioned, None);
        assert_eq!(partitioned.route(key, Asker::Here), Route::LOST);
        let own = Node { name: "a".into(), address: ([127, 0, 0, 1], 1).into(), weight: 1, zone: String::new() };
        sender.send_replace(Arc::new(vec![own]));
        assert_eq!(partitioned.route(key, Asker::Here), Route::ALONE);
    }

    #[tokio::test]
    async fn a_list_of_other_owners_has_another_version_and_one_of_other_addresses_has_not() {
        let (sender, membership) = watch::channel(Arc::new(Vec::new()));
        let peers = Peers::new(PeersConfig::default(), "a", Security::Plaintext, membership, Arc::default());
        let cache = CacheId([7; 32]);
        let partitioned = Sharing::new(Arc::clone(&peers), cache, Placement::Partitioned, None);
        let list = |names: &[&str], port| {
            let node = |(name, at): (&&str, u16)| Node {
                name: (*name).into(),
                address: ([127, 0, 0, 1], port + at).into(),
                weight: 1,
                zone: String::new(),
            };
            sender.send_replace(Arc::new(names.iter().zip(0..).map(node).collect()));
        };
        let key = |block: u64| PlaceKey::of_origin("s3://bucket").name(b"a").number(block);
        let share = |owned: &OwnedKeys| (0..1000).filter(|&block| owned.contains(key(block))).count();
        assert!(partitioned.owned().is_none(), "while no node is known, nothing is owned or disowned");

        list(&["a"], 1);
        let alone = partitioned.owned().unwrap();
        assert_eq!(share(&alone), 1000);
        list(&["a", "b"], 1);
        let two = partitioned.owned().unwrap();
        assert!((400..600).contains(&share(&two)) && two.version() != alone.version());
        for block in 0..1000 {
            assert_eq!(partitioned.route(key(block), Asker::Here).keep, two.contains(key(block)), "{block}");
        }
        list(&["a", "b"], 100);
        assert_eq!(partitioned.owned().unwrap().version(), two.version());
        list(&["b", "c"], 1);
        let away = partitioned.owned().unwrap();
        assert_eq!(share(&away), 0, "who is not on the list owns nothing");
        assert_ne!(away.version(), two.version());
    }

    // SEMANTICS: M6
    #[tokio::test]
    async fn owners_in_the_zone_are_asked_only_for_what_they_have() {
        let (sender, membership) = watch::channel(Arc::new(Vec::new()));
        let peers = Peers::new(PeersConfig::default(), "a", Security::Plaintext, membership, Arc::default());
        let node = |(name, zone): (&str, &str)| Node {
            name: name.into(),
            address: ([127, 0, 0, 1], 1).into(),
            weight: 1,
            zone: zone.into(),
        };
        let list =
            |nodes: [(&str, &str); 3]| drop(sender.send_replace(Arc::new(nodes.into_iter().map(node).collect())));
        let replicated = "replicated:3".parse().unwrap();
        let sharing = Sharing::new(Arc::clone(&peers), CacheId([7; 32]), replicated, None);
        let key = PlaceKey::of_origin("s3://bucket").name(b"a").number(0);
        list([("a", "z1"), ("b", "z1"), ("c", "z2")]);
        tokio::spawn(Arc::clone(&peers).run(CancellationToken::new()));
        while !peers.is_up("b") {
            tokio::task::yield_now().await;
        }
        let near = RoutePeer { name: "b".into(), forwarded: true, cached_only: true };
        assert_eq!(sharing.near_owners(key), [near]);
        list([("a", ""), ("b", ""), ("c", "z2")]);
        assert_eq!(sharing.near_owners(key), [], "nodes without a zone are near to nobody");
    }
}
