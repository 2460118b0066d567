//! A new snapshot of an origin adopts the blocks that the cache has of an earlier one.
//!
//! Invariant: two snapshots are of one origin only if their URLs and the servers and accounts that they are read from
//! are the same. The name under which a manifest was kept for its mount is a hash of these, so a manifest under that
//! name is the proof.

use std::collections::HashSet;
use std::sync::Arc;

use larder_dataset::CacheId;
use larder_store::DatasetInfo;
use tracing::warn;

use super::Node;
use super::find::Found;
use crate::dataset::Dataset;
use crate::earlier::EarlierCache;

/// Snapshots whose blocks a dataset adopts: the last one may have been mounted for too short a time to fill the
/// cache.
const EARLIER_MOST: usize = 4;

impl Node {
    /// The caches of the newest snapshots of the same origin and owner of which the store has anything, newest first.
    /// `datasets` are those of the store. Blocks on the disk.
    pub(super) fn earlier(&self, found: &Found, datasets: &[DatasetInfo]) -> Vec<EarlierCache> {
        let key = &found.key;
        let is_ours = |info: &DatasetInfo| match info.is_keyed {
            true => (info.key.place(), info.key.owner()) == (key.place(), key.owner()),
            false => self.finder.is_only_of(found, info.key.snapshot()),
        };
        let has_some = |info: &DatasetInfo| info.disk_bytes > 0 || info.open.is_some();
        let is_earlier = |info: &&DatasetInfo| info.cache() != key.id() && has_some(info) && is_ours(info);
        let earlier = |info: &DatasetInfo| {
            let manifest = self.finder.earlier(found, info.cache(), info.key.snapshot())?;
            Some(EarlierCache { cache: info.cache(), manifest })
        };
        let known: HashSet<CacheId> = datasets.iter().map(DatasetInfo::cache).collect();
        self.finder.forget_urls(|cache| known.contains(cache));
        let mut earlier: Vec<_> = datasets.iter().filter(is_earlier).filter_map(earlier).collect();
        earlier.sort_by_key(|earlier| std::cmp::Reverse(earlier.manifest.created_ns()));
        earlier.truncate(EARLIER_MOST);
        earlier
    }

    /// True if all blocks that an earlier version cached of the snapshot, without a key, are those of this key's
    /// readers. `datasets` are those of the store. Blocks on the disk.
    pub(super) fn is_known_as_ours(&self, found: &Found, datasets: &[DatasetInfo]) -> bool {
        let is_unkeyed = |info: &DatasetInfo| info.cache() == found.key.id() && !info.is_keyed;
        datasets.iter().any(is_unkeyed) && self.finder.is_only_of(found, found.key.snapshot())
    }

    /// Makes a dataset that was just opened adopt the blocks of earlier snapshots, in the background; those of them
    /// that are `promised` have room of their own. Without any, its opening has released what was in its way.
    pub(super) fn adopt(self: &Arc<Self>, dataset: &Arc<Dataset>, earlier: Vec<EarlierCache>, promised: &[CacheId]) {
        if earlier.is_empty() {
            return;
        }
        let (node, runtime, adopting) = (Arc::downgrade(self), self.runtime.clone(), Arc::downgrade(dataset));
        dataset.adopt(earlier, promised, move |is_complete| {
            if !is_complete {
                // What is left is adopted when the dataset is opened again, unless its room is needed before.
                return;
            }
            runtime.spawn(async move {
                let Some(node) = node.upgrade() else { return };
                let opening = Arc::clone(&node.opening).lock_owned().await;
                let settling = Arc::clone(&node);
                let settle = move || {
                    let _opening = opening;
                    if let Some(dataset) = adopting.upgrade()
                        && let Err(error) = settling.budget().grow_adopted(&dataset)
                    {
                        warn!(dataset = dataset.name(), %error, "cannot adjust the reservation to the adopted \
                        blocks");
                    }
                    settling.tidy();
                    // What had to wait for the earlier snapshots.
                    settling.grow_promised();
                    // Of those that this released, too.
                    settling.open.all().iter().for_each(|dataset| dataset.free_unused());
                };
                if let Err(error) = tokio::task::spawn_blocking(settle).await {
                    warn!(%error, "cannot free the room that earlier snapshots no longer need");
                }
            });
        });
    }

    /// Releases closed datasets for which there is no room, now that it is known what datasets share.
    fn tidy(&self) {
        if let Err(error) = self.budget().tidy() {
            warn!(%error, "cannot release closed datasets to make room for open ones");
        }
    }
}
