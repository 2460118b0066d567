//! Lets a person tend the datasets in a cache, mounted or not: drop one, or pin it.
//!
//! A pin is a promise of the room that the dataset has: its blocks stay, and no other dataset gets their room, until
//! the pin ends. [`cached`], [`drop_cached`] and [`promises_with_pin`] take a store, so that a command can use them on
//! a cache that no process serves.

use std::sync::Arc;

use larder_dataset::CacheId;
use larder_store::{DatasetInfo, Promise, Store};
use tracing::info;

use super::Node;
use super::budget::is_shown;
use super::error::{CacheRefused, NodeError};

/// The holder of pins among the promises. Uids of Datasets, the other holders, are longer.
const PIN: &str = "pin";

/// A dataset in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// Its state in the store.
    pub info: DatasetInfo,
    /// True if it has a pin.
    pub is_pinned: bool,
}

/// Whether a promise is a pin.
pub(super) fn is_pin(promise: &Promise) -> bool {
    promise.holder == PIN
}

/// The pins of a cache.
pub(super) fn pins(store: &Store) -> impl Iterator<Item = Promise> {
    store.promises().into_iter().filter(is_pin)
}

/// The datasets that a cache holds or keeps room for. Blocks on the disk.
pub fn cached(store: &Store) -> Vec<Cached> {
    let pins: Vec<Promise> = pins(store).collect();
    let of = |info: DatasetInfo| {
        let is_pinned = pins.iter().any(|pin| pin.is_for(&info.key));
        Cached { info, is_pinned }
    };
    store.datasets().into_iter().map(of).collect()
}

fn find(store: &Store, id: &CacheId) -> Result<Cached, CacheRefused> {
    let found = cached(store).into_iter().find(|cached| cached.info.cache() == *id);
    found.ok_or(CacheRefused::Unknown { id: *id })
}

/// Drops what a cache holds of a dataset. Blocks on the disk. Errors: it holds nothing of it, or the dataset is in use
/// or has a promise.
pub fn drop_cached(store: &Store, id: &CacheId) -> Result<(), CacheRefused> {
    let Cached { info, is_pinned } = find(store, id)?;
    let name = info.name.clone();
    if is_shown(&info) || info.is_ancestor {
        return Err(CacheRefused::Used { name });
    }
    if is_pinned {
        return Err(CacheRefused::Pinned { name });
    }
    if info.promised_disk_bytes > 0 {
        return Err(CacheRefused::Promised { name });
    }
    store.release(id)?;
    info!(dataset = name, %id, "cached bytes dropped as requested");
    Ok(())
}

/// The promises of a cache with the pin of a dataset, or without it. Blocks on the disk. Errors: the cache holds
/// nothing of the dataset.
pub fn promises_with_pin(store: &Store, id: &CacheId, is_pinned: bool) -> Result<Vec<Promise>, CacheRefused> {
    let info = find(store, id)?.info;
    let mut promises = store.promises();
    promises.retain(|promise| !is_pin(promise) || !promise.is_for(&info.key));
    if is_pinned {
        let room = info.reservation.map_or(0, |reservation| reservation.disk_bytes).max(info.disk_bytes);
        promises.push(Promise {
            snapshot: info.key.snapshot(),
            owner: info.key.owner().to_owned(),
            holder: PIN.to_owned(),
            name: info.name,
            wanted_disk_bytes: room,
            disk_bytes: room,
        });
    }
    Ok(promises)
}

impl Node {
    /// The datasets that the cache holds or keeps room for. Errors: a panic.
    pub async fn caches(self: &Arc<Self>) -> Result<Vec<Cached>, NodeError> {
        let node = Arc::clone(self);
        Ok(tokio::task::spawn_blocking(move || cached(&node.store)).await?)
    }

    /// Drops what the cache holds of a dataset. Errors: [`drop_cached`].
    pub async fn drop_cache(self: &Arc<Self>, id: CacheId) -> Result<(), NodeError> {
        // No dataset is opened meanwhile.
        let opening = Arc::clone(&self.opening).lock_owned().await;
        let node = Arc::clone(self);
        let dropped = tokio::task::spawn_blocking(move || {
            let _opening = opening;
            drop_cached(&node.store, &id)
        });
        Ok(dropped.await??)
    }

    /// Pins a dataset, or ends its pin. Errors: [`promises_with_pin`], or the promises cannot be written.
    pub async fn pin_cache(self: &Arc<Self>, id: CacheId, is_pinned: bool) -> Result<(), NodeError> {
        self.change_promises(move |store| Ok(promises_with_pin(store, &id, is_pinned)?)).await
    }
}
