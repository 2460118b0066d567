//! Promises of room, and what the cache has of each snapshot: what a controller of many nodes tells this one, and
//! learns of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use larder_dataset::SnapshotId;
use larder_store::{DatasetInfo, Promise, Store, StoreError};
use tracing::{info, warn};

use super::Node;
use super::caches::{is_pin, pins};
use super::error::NodeError;
use super::report::{CacheReport, CachedSnapshot};

impl Node {
    /// Replaces the promises to Datasets, as far as there is room for them, and gives room to the open datasets among
    /// them. Pins stay: a person ends them. Errors: they cannot be written down; those before stand.
    pub async fn promise(self: &Arc<Self>, promises: Vec<Promise>) -> Result<(), NodeError> {
        self.change_promises(move |store| Ok(pins(store).chain(promises).collect())).await
    }

    /// Replaces the promises by those that `change` makes of the store's. One change follows the other, so none is
    /// lost. Errors: those of `change`, or they cannot be written down; those before stand.
    pub(super) async fn change_promises(
        self: &Arc<Self>,
        change: impl FnOnce(&Store) -> Result<Vec<Promise>, NodeError> + Send + 'static,
    ) -> Result<(), NodeError> {
        let opening = Arc::clone(&self.opening).lock_owned().await;
        let node = Arc::clone(self);
        let keep = move || {
            let _opening = opening;
            node.budget().promise(change(&node.store)?)?;
            node.grow_promised();
            Ok::<_, NodeError>(())
        };
        tokio::task::spawn_blocking(keep).await?
    }

    /// Gives the open datasets that are promised room what they want of it. Blocks on the disk.
    pub(super) fn grow_promised(&self) {
        for dataset in self.short() {
            if self.budget().is_promised(dataset.key())
                && let Err(error) = self.budget().grow_promised(&dataset)
            {
                warn!(dataset = dataset.name(), %error, "cannot adjust a reservation to its promise");
            }
        }
    }

    /// A report about the cache. Errors: the free space of the disk cannot be read.
    pub async fn cache_report(self: &Arc<Self>) -> Result<CacheReport, NodeError> {
        let node = Arc::clone(self);
        Ok(tokio::task::spawn_blocking(move || node.report()).await??)
    }

    fn report(&self) -> io::Result<CacheReport> {
        let datasets = self.store.datasets();
        let totals = self.budget().totals(&datasets)?;
        let cached = |info: &DatasetInfo| {
            let mounts = info.connections.as_ref().map_or(0, |connections| connections.len() as u32);
            let reserved = info.reservation.filter(|_| info.open.is_some() || mounts > 0);
            let reserved = reserved.map_or(0, |reservation| reservation.disk_bytes);
            let wanted = info.open.map(|usage| usage.wanted_bytes);
            CachedSnapshot {
                snapshot: info.key.snapshot(),
                owner: info.key.owner().to_owned(),
                bytes: info.used_bytes,
                wanted_bytes: wanted.or(info.reservation.map(|it| it.wanted_bytes)).unwrap_or(0),
                reserved_disk_bytes: reserved.max(info.promised_disk_bytes),
                mounts,
                last_use_unix_s: Some(info.last_use_unix_s).filter(|at| *at > 0 && info.open.is_none()),
            }
        };
        // An owner has several caches of a snapshot if the place of a dataset was changed.
        let mut snapshots: BTreeMap<([u8; 32], &str), CachedSnapshot> = BTreeMap::new();
        for info in &datasets {
            let cached = cached(info);
            let merged = snapshots.entry((info.key.snapshot().0, info.key.owner())).or_insert_with(|| cached.clone());
            *merged = CachedSnapshot {
                reserved_disk_bytes: merged.reserved_disk_bytes.max(cached.reserved_disk_bytes),
                mounts: merged.mounts.max(cached.mounts),
                ..if cached.bytes > merged.bytes { cached } else { merged.clone() }
            };
        }
        Ok(CacheReport {
            capacity_bytes: totals.capacity_bytes,
            limit: totals.limit,
            promised_bytes: totals.promised_bytes,
            needed_bytes: totals.needed_bytes,
            snapshots: snapshots.into_values().collect(),
            // A controller knows nothing of pins.
            promises: self.store.promises().into_iter().filter(|promise| !is_pin(promise)).collect(),
        })
    }

    /// Drops what is cached of a snapshot for an owner, if no dataset has it open or adopts its blocks, and it was last
    /// in use before `before_unix_s`. True if there was something.
    pub async fn drop_unused(
        self: &Arc<Self>,
        snapshot: SnapshotId,
        owner: &str,
        before_unix_s: u64,
    ) -> Result<bool, NodeError> {
        let opening = Arc::clone(&self.opening).lock_owned().await;
        let (node, owner) = (Arc::clone(self), owner.to_owned());
        let release = move || {
            let _opening = opening;
            let is_unused = |info: &DatasetInfo| {
                let is_shown = info.open.is_some() || info.connections.as_ref().is_none_or(|it| !it.is_empty());
                !is_shown && !info.is_ancestor && info.last_use_unix_s < before_unix_s
            };
            let is_of = |info: &DatasetInfo| info.key.snapshot() == snapshot && info.key.owner() == owner;
            let mut had_some = false;
            for info in node.store.datasets().iter().filter(|info| is_of(info) && is_unused(info)) {
                info!(dataset = info.name, %snapshot, "cached bytes dropped as requested");
                had_some |= node.store.release(&info.cache())?;
            }
            Ok::<_, StoreError>(had_some)
        };
        Ok(tokio::task::spawn_blocking(release).await??)
    }
}
