//! Reservations of open datasets follow the list of nodes, where nobody stated a size, and the free room of the disk,
//! where no size of the whole cache was configured: a dataset that got less than it wants grows when the disk has room.
//!
//! A snapshot that is open several times has one cache. Its reservation follows the list only while those of all these
//! datasets do, and is what the one needs that owns most. A connection that showed it before a restart and has not come
//! back yet counts as a dataset whose reservation does not follow.
//!
//! Invariant: what this node owns is counted, which may take seconds, before the lock is taken that all openings share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{BLOCK_BYTES, CacheId};
use larder_peers::Membership;
use tokio::task::JoinError;
use tracing::warn;

use super::Node;
use crate::dataset::Dataset;
use crate::ownership::OwnedBlocks;

/// How long the list of nodes must have been known before reservations follow it: it may change a few times in a row.
const MEMBERS_SETTLE: Duration = Duration::from_secs(1);

/// Interval between two looks at the free room of the disk, while a dataset has less than it wants.
const ROOM_EVERY: Duration = Duration::from_secs(10);

impl Node {
    /// Follows the free room of the disk until the node stops.
    pub(super) async fn follow_room(self: &Arc<Self>) {
        if self.config.cache_bytes.is_some() {
            return self.stopping.cancelled().await;
        }
        // The least that was free since datasets grew last. Room that they fill themselves is no reason to look again.
        let mut least = None::<u64>;
        while self.stopping.run_until_cancelled(tokio::time::sleep(ROOM_EVERY)).await.is_some() {
            if self.short().is_empty() {
                least = None;
            } else if let Ok(spare) = self.store.spare_bytes() {
                if least.is_none_or(|least| spare >= least.saturating_add(BLOCK_BYTES)) {
                    self.grow().await;
                    least = Some(spare);
                }
                least = least.map(|least| least.min(spare));
            }
        }
    }

    /// Gives the open datasets that have less than they want what there is room for.
    pub(super) async fn grow(self: &Arc<Self>) {
        let opening = Arc::clone(&self.opening).lock_owned().await;
        let node = Arc::clone(self);
        let grow = move || {
            let _opening = opening;
            for dataset in node.short() {
                if let Err(error) = node.budget().grow(&dataset) {
                    warn!(
                        dataset = dataset.name(), %error,
                        "cannot adjust a reservation to the free disk space"
                    );
                }
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(grow).await {
            warn!(%error, "cannot adjust reservations to the free disk space");
        }
    }

    /// The open datasets that have less than they want and whose blocks are counted.
    pub(super) fn short(&self) -> Vec<Arc<Dataset>> {
        let is_short = |dataset: &Arc<Dataset>| {
            let usage = dataset.cache_usage();
            usage.capacity_bytes < usage.wanted_bytes && !usage.rebuilding && !dataset.is_adopting()
        };
        self.open.all().into_iter().filter(is_short).collect()
    }

    /// Follows the list until the node stops.
    pub(super) async fn follow_members(self: &Arc<Self>, mut members: Membership) {
        let follow = async {
            loop {
                tokio::select! {
                    changed = members.changed() => if changed.is_err() { break },
                    () = self.open.is_to_follow_again() => {}
                }
                tokio::time::sleep(MEMBERS_SETTLE).await;
                // Before a rebuild has counted it and an adoption has ended, it is not known what a cache holds.
                while self.open.all().iter().any(|it| it.cache_usage().rebuilding || it.is_adopting()) {
                    tokio::time::sleep(MEMBERS_SETTLE).await;
                }
                members.mark_unchanged();
                self.follow_owned().await;
                self.follow_sizes().await;
            }
            // The watcher has stopped. The last list stays.
            self.stopping.cancelled().await;
        };
        self.stopping.run_until_cancelled(follow).await;
    }

    /// Makes each reservation that follows the list what this node owns now.
    pub(super) async fn follow_owned(self: &Arc<Self>) {
        if let Err(error) = self.count_and_reserve().await {
            warn!(%error, "cannot adjust reservations to the list of nodes");
        }
    }

    /// Has the caches that keep the smallest blocks keep those of what this node owns now.
    pub(super) async fn follow_sizes(&self) {
        let sized = |dataset: &Arc<Dataset>| Some((Arc::clone(dataset.sized()?), Arc::downgrade(dataset)));
        // None of the datasets is held open meanwhile.
        let each: Vec<_> = self.open.all().iter().filter_map(sized).collect();
        let count = move || {
            for (owned, dataset) in each {
                let sizes = owned.sizes();
                if let Some(dataset) = dataset.upgrade() {
                    dataset.set_sizes(sizes);
                }
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(count).await {
            warn!(%error, "cannot adjust the sizes of cached blocks to the list of nodes");
        }
    }

    async fn count_and_reserve(self: &Arc<Self>) -> Result<(), JoinError> {
        let mut counted = HashMap::new();
        loop {
            let opening = Arc::clone(&self.opening).lock_owned().await;
            let uncounted = self.uncounted(&counted);
            if uncounted.is_empty() {
                let node = Arc::clone(self);
                let reserve = move || {
                    let _opening = opening;
                    node.reserve_owned(&counted);
                };
                return tokio::task::spawn_blocking(reserve).await;
            }
            // A dataset that is opened during the count is counted next.
            drop(opening);
            counted.extend(tokio::task::spawn_blocking(move || count(uncounted)).await?);
        }
    }

    /// The caches whose reservation follows the list and of whose users not all are `counted`, with what these own.
    /// None of their datasets is held open.
    pub(super) fn uncounted(&self, counted: &HashMap<CacheId, Counted>) -> HashMap<CacheId, Vec<Arc<OwnedBlocks>>> {
        let blocks = |(cache, users): (CacheId, Vec<Arc<Dataset>>)| {
            (cache, users.iter().filter_map(|user| user.followed()).map(Arc::clone).collect())
        };
        let mut followed: HashMap<CacheId, Vec<Arc<OwnedBlocks>>> = self.followed().into_iter().map(blocks).collect();
        followed.retain(|cache, users| {
            let counted = counted.get(cache).map_or(&[][..], |counted| &counted.users);
            users.iter().any(|user| !counted.iter().any(|other| Arc::ptr_eq(other, user)))
        });
        followed
    }

    fn reserve_owned(&self, counted: &HashMap<CacheId, Counted>) {
        let users = self.followed().into_iter().filter_map(|(cache, mut users)| Some((cache, users.pop()?)));
        let mut owned: Vec<_> = users.filter_map(|(cache, user)| Some((counted.get(&cache)?.bytes?, user))).collect();
        // Those that give room back come first.
        owned.sort_by_key(|(bytes, dataset)| *bytes > dataset.cache_usage().capacity_bytes);
        for (bytes, dataset) in owned {
            if let Err(error) = self.budget().follow_owned(&dataset, bytes) {
                warn!(dataset = dataset.name(), %error, "cannot adjust a reservation to the list of nodes");
            }
        }
    }

    /// The caches whose reservation follows the list, each with its open datasets. Leaves out what is being rebuilt:
    /// it was opened after the list had changed. And what awaits a connection: its reservation may be that
    /// connection's.
    fn followed(&self) -> HashMap<CacheId, Vec<Arc<Dataset>>> {
        let mut users: HashMap<CacheId, Vec<Arc<Dataset>>> = HashMap::new();
        for dataset in self.open.all() {
            users.entry(dataset.cache_id()).or_default().push(dataset);
        }
        let is_whole =
            |user: &Arc<Dataset>| !user.cache_usage().rebuilding && !user.is_adopting() && !user.awaits_connections();
        let follows = |user: &Arc<Dataset>| user.followed().is_some() && is_whole(user);
        users.retain(|_, users| users.iter().all(follows));
        users
    }
}

/// This node's part of a cache, counted.
pub(super) struct Counted {
    /// By these of its users.
    users: Vec<Arc<OwnedBlocks>>,
    /// None if this node is not on the list of nodes.
    bytes: Option<u64>,
}

/// Counts what this node owns of each cache.
pub(super) fn count(followed: HashMap<CacheId, Vec<Arc<OwnedBlocks>>>) -> HashMap<CacheId, Counted> {
    let most = |users: &[Arc<OwnedBlocks>]| {
        users.iter().map(|blocks| blocks.bytes()).collect::<Option<Vec<_>>>()?.into_iter().max()
    };
    followed.into_iter().map(|(cache, users)| (cache, Counted { bytes: most(&users), users })).collect()
}
