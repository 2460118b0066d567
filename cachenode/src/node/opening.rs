//! Opens a node's datasets.
//!
//! Invariant: what a node owns of a dataset is counted, which may take seconds, before the lock is taken that all
//! openings share. A dataset that keeps its reservation, as after a restart, gives this lock back before its files are
//! opened. Two openings of one cache never run at the same time.

use std::sync::Arc;

use larder_dataset::CacheId;
use larder_store::Ownership;
use tracing::{info, warn};

use super::Node;
use super::budget::{Claim, Share};
use super::error::NodeError;
use super::find::Found;
use super::open::{OpenDataset, User, check_settings, has_all, renew, wanted_of};
use crate::dataset::{CacheSpec, Dataset};
use crate::fetch::FetchConfig;
use crate::ownership::OwnedBlocks;
use crate::request::DatasetRequest;
use crate::sharing::Sharing;

/// How often an opening counts what this node owns. A list of nodes that changes again and again must not keep it
/// waiting.
const COUNTS_MOST: u32 = 2;

/// How a dataset that is about to be opened is shared, and what this node owns of it.
struct Counted {
    sharing: Option<Arc<Sharing>>,
    owned: Option<Owned>,
}

/// The blocks that this node owns, by one list of nodes.
struct Owned {
    blocks: OwnedBlocks,
    version: Option<u64>,
    bytes: Option<u64>,
}

impl Owned {
    /// Reads the manifest.
    fn count(blocks: OwnedBlocks) -> Self {
        // First: a list that changes during the count makes it out of date.
        let version = blocks.version();
        let bytes = blocks.bytes();
        Self { blocks, version, bytes }
    }

    fn is_current(&self) -> bool {
        self.blocks.version() == self.version
    }
}

impl Counted {
    fn is_current(&self) -> bool {
        self.owned.as_ref().is_none_or(Owned::is_current)
    }
}

impl Node {
    /// Opens a dataset that was found, or joins its other users. Errors: `Stopping`; for a [`User::Mount`] also `InUse`
    /// if it is open with other settings, and `NoRoom`.
    pub async fn open_dataset(
        self: &Arc<Self>,
        found: Found,
        request: &DatasetRequest,
        user: User,
    ) -> Result<OpenDataset, NodeError> {
        let (mut counted, mut counts) = (None::<Counted>, 0);
        let one = self.opening_each.lock(found.key.id()).await;
        let (opening, counted) = loop {
            let opening = Arc::clone(&self.opening).lock_owned().await;
            if self.stopping.is_cancelled() {
                return Err(NodeError::Stopping);
            }
            if let Some(open) = self.open.join(&found.id, user) {
                if user == User::Mount {
                    check_settings(&open, request, user)?;
                }
                renew(&open, found.origin, self.token(request)?);
                open.refreshed(found.refresh_failed, found.order, found.renewal);
                if user == User::Connection {
                    let (node, request) = (Arc::clone(self), request.clone());
                    let join = move || {
                        let (_one, _opening) = (one, opening);
                        let open = node.hold(open);
                        node.join_settings(&open, &request)?;
                        Ok(open)
                    };
                    return tokio::task::spawn_blocking(join).await?;
                }
                return Ok(open);
            }
            match counted.take_if(|counted| counted.is_current() || counts == COUNTS_MOST) {
                Some(counted) => break (opening, counted),
                None => drop(opening),
            }
            counted = Some(self.count(&found, request).await?);
            counts += 1;
        };
        let deadline = self.finder.origin_config(request).deadline;
        let (node, request) = (Arc::clone(self), request.clone());
        let open = move || {
            let (_one, opening) = (one, opening);
            let Counted { sharing, owned } = counted;
            let owned_bytes = owned.as_ref().and_then(|owned| owned.bytes);
            let (spec, exactly) = (&request.spec, user == User::Mount);
            let datasets = node.store.datasets();
            let earlier = node.earlier(&found, &datasets);
            let adopts: Vec<CacheId> = earlier.iter().map(|earlier| earlier.cache).collect();
            let (key, is_known_as_ours) = (found.key.clone(), node.is_known_as_ours(&found, &datasets));
            let (manifest, payer) = (&*found.manifest, &*request.payer);
            let claim = Claim { key: &key, manifest, spec, payer, owned_bytes, exactly, adopts: &adopts };
            let (share, wanted_bytes) = (node.budget().reserve(claim)?, claim.wanted());
            let Share { promised, bytes: reservation_bytes, policy, payer, shortage, .. } = share;
            let Share { is_open, is_kept, promised_earlier, .. } = share;
            // Other datasets may be opened meanwhile, unless they could take room that this one is about to have, or
            // release what it adopts.
            let _opening = Some(opening).filter(|_| is_open || !is_kept || !adopts.is_empty());
            info!(mount = found.id, reservation_bytes, wanted_bytes = promised.wanted_bytes, %policy, "dataset open");
            let seed = u64::from(std::process::id());
            let cache = CacheSpec { key, is_known_as_ours, reservation_bytes, promised, policy, seed };
            let dataset = Dataset::open(
                found.manifest,
                &node.store,
                cache,
                found.origin,
                sharing,
                &node.runtime,
                FetchConfig {
                    read_deadline: deadline,
                    warm_rate: node.config.origin.limits.warming(),
                    memory: Some(Arc::clone(&node.config.memory)),
                    disk_threads: Some(node.disk_threads.clone()),
                    ..FetchConfig::DEFAULT
                },
            )?;
            dataset.refreshed(found.refresh_failed, found.order, found.renewal);
            dataset.set_payer(&payer);
            dataset.set_shortage(shortage);
            if spec.cache_bytes.is_none() {
                dataset.follow_owned();
            }
            node.adopt(&dataset, earlier, &promised_earlier);
            if let Some(socket) = &node.config.socket {
                dataset.served_at(socket.clone());
            }
            let open = node.open.add(found.id, dataset, user);
            let open = if user == User::Connection { node.hold(open) } else { open };
            if is_open && user == User::Connection {
                node.widen(&open, wanted_bytes, &request.payer);
                check_settings(&open, &request, user)?;
            }
            // A list that changed meanwhile was followed without it, or another user of the cache has a smaller
            // reservation.
            let capacity_bytes = open.cache_usage().capacity_bytes;
            if owned.is_some_and(|owned| !owned.is_current() || owned.bytes > Some(capacity_bytes)) {
                node.open.follow_again();
            }
            Ok(open)
        };
        tokio::task::spawn_blocking(open).await?
    }

    /// Writes down that a connection shows the dataset. Blocks on the disk.
    fn hold(&self, open: OpenDataset) -> OpenDataset {
        let awaited = open.awaits_connections();
        open.hold(open.id());
        if awaited && !open.awaits_connections() {
            self.open.follow_again();
        }
        open
    }

    /// Has an open dataset serve another connection too: it gets the room that the request wants, as far as there is
    /// some, and keeps its other settings. Blocks on the disk.
    pub(super) fn join_settings(&self, open: &OpenDataset, request: &DatasetRequest) -> Result<(), NodeError> {
        match request.spec.cache_bytes {
            // The reservation follows what this node owns.
            _ if open.followed().is_some() => {}
            None if open.sharing().is_some() => {
                open.follow_owned();
                self.open.follow_again();
            }
            _ => self.widen(open, wanted_of(open, request), &request.payer),
        }
        check_settings(open, request, User::Connection)
    }

    /// Gives an open dataset the bytes that another volume wants, as far as there is room, so that the first mount does
    /// not decide its size. Blocks on the disk.
    fn widen(&self, open: &OpenDataset, wanted_bytes: u64, payer: &str) {
        if has_all(open, wanted_bytes) {
            return;
        }
        if let Err(error) = self.budget().widen(open.dataset(), wanted_bytes, payer) {
            warn!(dataset = open.name(), %error, "cannot adjust a reservation to another volume");
        }
    }

    /// Counts what this node owns of a dataset, if its reservation is to be that.
    async fn count(&self, found: &Found, request: &DatasetRequest) -> Result<Counted, NodeError> {
        let sharing = self.sharing(found, request)?;
        let follows = sharing.clone().filter(|_| request.spec.cache_bytes.is_none());
        let owned = match follows.map(|sharing| OwnedBlocks::new(Arc::clone(&found.manifest), sharing)) {
            Some(blocks) => Some(tokio::task::spawn_blocking(move || Owned::count(blocks)).await?),
            None => None,
        };
        Ok(Counted { sharing, owned })
    }
}
