//! Promises of room, and what the cache has of each snapshot: what a controller of many nodes tells this one, and
//! learns of it.

use std::io;
use std::sync::Arc;

use larder_dataset::SnapshotId;
use larder_store::Promise;
use tracing::{info, warn};

use super::Node;
use super::error::NodeError;
use super::report::{CacheReport, CachedSnapshot};

impl Node {
    /// Replaces the promises, as far as there is room for them, and gives room to the open datasets among them. Errors:
    /// they cannot be written down; those before stand.
    pub async fn promise(self: &Arc<Self>, promises: Vec<Promise>) -> Result<(), NodeError> {
        let _opening = self.opening.lock().await;
        let node = Arc::clone(self);
        let keep = move || {
            node.budget().promise(promises)?;
            node.grow_promised();
            io::Result::Ok(())
        };
        Ok(tokio::task::spawn_blocking(keep).await??)
    }

    /// Gives the open datasets that are promised room what they want of it. Blocks on the disk.
    pub(super) fn grow_promised(&self) {
        let promised = self.budget().promised();
        for dataset in self.short() {
            if promised.contains(&dataset.manifest().snapshot())
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
        let cached = |info: &larder_store::DatasetInfo| {
            let mounts = info.connections.as_ref().map_or(0, |connections| connections.len() as u32);
            let reserved = info.reservation.filter(|_| info.open.is_some() || mounts > 0);
            let reserved = reserved.map_or(0, |reservation| reservation.disk_bytes);
            let wanted = info.open.map(|usage| usage.wanted_bytes);
            CachedSnapshot {
                snapshot: info.snapshot,
                bytes: info.used_bytes,
                wanted_bytes: wanted.or(info.reservation.map(|it| it.wanted_bytes)).unwrap_or(0),
                reserved_disk_bytes: reserved.max(info.promised_disk_bytes),
                mounts,
                last_use_unix_s: Some(info.last_use_unix_s).filter(|at| *at > 0 && info.open.is_none()),
            }
        };
        let snapshots = datasets.iter().map(cached).collect();
        Ok(CacheReport {
            capacity_bytes: totals.capacity_bytes,
            limit: totals.limit,
            promised_bytes: totals.promised_bytes,
            needed_bytes: totals.needed_bytes,
            snapshots,
            promises: self.store.promises(),
        })
    }

    /// Drops what is cached of a snapshot that nobody has open or adopts blocks of, and that was last in use before
    /// `before_unix_s`. True if there was something.
    pub async fn drop_unused(self: &Arc<Self>, snapshot: SnapshotId, before_unix_s: u64) -> Result<bool, NodeError> {
        let _opening = self.opening.lock().await;
        let node = Arc::clone(self);
        let release = move || {
            let datasets = node.store.datasets();
            let is_unused = |info: &&larder_store::DatasetInfo| {
                let is_shown = info.open.is_some() || info.connections.as_ref().is_none_or(|it| !it.is_empty());
                info.snapshot == snapshot && !is_shown && !info.is_ancestor && info.last_use_unix_s < before_unix_s
            };
            let Some(info) = datasets.iter().find(is_unused) else { return Ok(false) };
            info!(dataset = info.name, %snapshot, "cached bytes dropped as requested");
            node.store.release(&snapshot)
        };
        Ok(tokio::task::spawn_blocking(release).await??)
    }
}
