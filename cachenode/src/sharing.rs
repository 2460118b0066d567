//! A dataset's place among the nodes that share it: who owns a block, whom to ask for it, and whether to keep it.
//!
//! The cast: [`Sharing`] joins the dataset's [`Placement`] with the nodes there are now; [`Route`] is what it says about one
//! block. The owner of a block asks the origin; everybody else asks the owner, and the origin if no owner answers.
//!
//! Invariant: at most two other nodes stand between a reader and the origin: a second owner, which asks the first. Nodes
//! that see different members for a moment ask the origin once more than need be, and nothing else.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use larder_dataset::{BlockPart, Member, Members, PlaceKey, Placement, SnapshotId};
use larder_peers::{Node, PeerError, Peers, ReadRequest, Token};

/// Who wants a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// This node.
    Here,
    /// Another node; `forwarded` if it wants no third one asked.
    Peer { forwarded: bool },
}

/// Where a block comes from, and whether it stays here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Nodes to ask, in this order, before the origin.
    pub(crate) nodes: Vec<Asked>,
    /// The store may keep it.
    pub(crate) keep: bool,
}

/// A node to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    name: String,
    /// It must not ask a third one.
    forwarded: bool,
}

impl Route {
    /// What a node does that shares with nobody.
    pub(crate) const ALONE: Self = Self { nodes: Vec::new(), keep: true };

    /// What a node does as long as it knows of no node: what it would keep now may be another's for good.
    const LOST: Self = Self { nodes: Vec::new(), keep: false };
}

/// A dataset as its nodes share it.
#[derive(Debug)]
pub struct Sharing {
    peers: Arc<Peers>,
    snapshot: SnapshotId,
    placement: Placement,
    /// Replaced when newer credentials come.
    token: RwLock<Option<Token>>,
    /// The nodes as they were looked at last, and the same as members.
    view: Mutex<(Arc<Vec<Node>>, Arc<Members>)>,
}

impl Sharing {
    /// The blocks of `snapshot`, spread by `placement` over the nodes that `peers` knows.
    pub fn new(peers: Arc<Peers>, snapshot: SnapshotId, placement: Placement, token: Option<Token>) -> Self {
        let view = Mutex::new((Arc::default(), Arc::new(Members::new([]))));
        Self { peers, snapshot, placement, token: RwLock::new(token), view }
    }

    /// How the blocks are spread.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// True if `token` opens this dataset to another node: it is the one that this node shows, or neither has one.
    pub fn admits(&self, token: Option<&Token>) -> bool {
        self.token.read().unwrap_or_else(PoisonError::into_inner).as_ref() == token
    }

    /// Shows and wants `token` from now on.
    pub fn replace_token(&self, token: Token) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    fn members(&self) -> (Arc<Vec<Node>>, Arc<Members>) {
        let nodes = self.peers.nodes();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&view.0, &nodes) {
            let member = |node: &Node| Member { name: node.name.clone(), weight: node.weight, zone: node.zone.clone() };
            let members = Arc::new(Members::new(nodes.iter().map(member)));
            *view = (nodes, members);
        }
        view.clone()
    }

    /// Where the blocks of `key` come from.
    pub(crate) fn route(&self, key: PlaceKey, asker: Asker) -> Route {
        if self.placement == Placement::Local {
            return Route::ALONE;
        }
        let (nodes, members) = self.members();
        let owners: Vec<&Member> = members.owners(self.placement, key).iter().map(|&at| members.get(at)).collect();
        let own = self.peers.own_name();
        let Some(first) = owners.first() else { return Route::LOST };
        let keep = owners.iter().any(|owner| owner.name == own);
        let ask = |owner: &&Member| Asked { name: owner.name.clone(), forwarded: owner.name == first.name };
        let nodes = match asker {
            _ if first.name == own => Vec::new(),
            Asker::Peer { forwarded: true } => Vec::new(),
            _ if keep => vec![ask(first)],
            // Who asks takes us for an owner: it sees other members than we do.
            Asker::Peer { forwarded: false } => Vec::new(),
            Asker::Here => {
                let zone = nodes.iter().find(|node| node.name == own).map(|node| node.zone.as_str());
                let near = |owner: &&&Member| !owner.zone.is_empty() && Some(owner.zone.as_str()) == zone;
                owners.iter().filter(near).chain(owners.iter().filter(|owner| !near(owner))).map(ask).collect()
            }
        };
        Route { nodes: nodes.into_iter().filter(|node| self.peers.is_up(&node.name)).collect(), keep }
    }

    /// A whole block from another node. Bounded in time, see [`Peers::read`]. Cancel-safe.
    pub(crate) async fn read(&self, node: &Asked, part: &BlockPart) -> Result<Bytes, PeerError> {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        let request =
            ReadRequest { snapshot: self.snapshot, range: part.whole_block(), token, forwarded: node.forwarded };
        self.peers.read(&node.name, &request).await
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::BlockIndex;
    use larder_peers::{PeersConfig, Security};
    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn a_node_that_knows_of_no_node_keeps_nothing_that_may_be_anothers() {
        let (sender, membership) = watch::channel(Arc::new(Vec::new()));
        let peers = Peers::new(PeersConfig::default(), "a", Security::Plaintext, membership, Arc::default());
        let snapshot = SnapshotId([7; 32]);
        let key = PlaceKey::block(&snapshot, BlockIndex(1));
        let sharing = |placement| Sharing::new(Arc::clone(&peers), snapshot, placement, None);
        let partitioned = sharing(Placement::Partitioned);
        assert_eq!(partitioned.route(key, Asker::Here), Route::LOST);
        assert_eq!(sharing(Placement::Local).route(key, Asker::Here), Route::ALONE);
        let own = Node { name: "a".into(), address: ([127, 0, 0, 1], 1).into(), weight: 1, zone: String::new() };
        sender.send_replace(Arc::new(vec![own]));
        assert_eq!(partitioned.route(key, Asker::Here), Route::ALONE);
    }
}
