//! Connections that the keeper has handed over and that are not served yet.
//!
//! The cast: an [`Offer`] is such a connection; [`Offers`] is the table of them, with the mounts that the keeper holds.
//! Each offer is tried independently: one whose manifest is gone and whose origin is down delays no other.
//!
//! Invariants: a connection that was handed over is in this table or among the mounts until its mount ends or the
//! keeper has heard that it is refused, so a new keeper gets it back. A connection that the keeper holds is tried
//! until it is served, or forgotten, or its mount has ended.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_cachenode::{Credentials, DatasetRequest};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::mounts::Connection;

/// A connection that was handed over and is not served yet.
#[derive(Debug)]
pub(super) struct Offer {
    /// The dataset's name on this node.
    pub(super) mount: String,
    pub(super) connection: Arc<Connection>,
    /// With the newest credentials.
    request: Mutex<DatasetRequest>,
    /// Something has changed: it is time to try again.
    pub(super) changed: Notify,
    /// Its mount is gone.
    pub(super) gone: CancellationToken,
}

impl Offer {
    /// The request, with the newest credentials.
    pub(super) fn request(&self) -> DatasetRequest {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, DatasetRequest> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The offers of a daemon, and what the keeper holds.
#[derive(Debug, Default)]
pub(super) struct Offers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    offers: Vec<Arc<Offer>>,
    /// The mounts that the keeper holds; `None`: no keeper has said it yet.
    kept: Option<HashSet<String>>,
    /// Those of them that were neither served nor tried yet.
    untried: HashSet<String>,
}

impl Table {
    fn give_up(&mut self, gone: impl Fn(&Arc<Offer>) -> bool) {
        self.offers.extract_if(.., |offer| gone(offer)).for_each(|offer| offer.gone.cancel());
    }
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection that was handed over.
    pub(super) fn add(&self, mount: String, connection: Connection, request: DatasetRequest) -> Arc<Offer> {
        let offer = Arc::new(Offer {
            mount,
            connection: Arc::new(connection),
            request: Mutex::new(request),
            changed: Notify::new(),
            gone: CancellationToken::new(),
        });
        self.lock().offers.push(Arc::clone(&offer));
        offer
    }

    /// The offers that are neither served nor given up, the oldest first.
    pub(super) fn now(&self) -> Vec<Arc<Offer>> {
        self.lock().offers.clone()
    }

    /// True if the mount is held by the keeper, or its connection was handed over and is not served yet.
    pub(super) fn need(&self, mount: &str) -> bool {
        let table = self.lock();
        table.kept.as_ref().is_some_and(|kept| kept.contains(mount)) || table.offers.iter().any(|it| it.mount == mount)
    }

    /// True once a keeper has said what it holds.
    pub(super) fn keeper_has_spoken(&self) -> bool {
        self.lock().kept.is_some()
    }

    /// True once a keeper has said what it holds and each of these mounts is served or was tried.
    pub(super) fn all_tried(&self) -> bool {
        let table = self.lock();
        table.kept.is_some() && table.untried.is_empty()
    }

    /// Notes the mounts that the keeper holds, of which `served` says which are served. Offers of others are given up.
    pub(super) fn hold(&self, mounts: HashSet<String>, served: impl FnOnce() -> HashSet<String>) {
        let mut table = self.lock();
        // Now, while no offer can leave the table: what has left it is served.
        let served = served();
        table.give_up(|offer| !mounts.contains(&offer.mount));
        let known = |mount: &&String| served.contains(*mount) || table.offers.iter().any(|it| it.mount == **mount);
        table.untried = mounts.iter().filter(|mount| !known(mount)).cloned().collect();
        table.kept = Some(mounts);
    }

    /// Gives up the offers of a mount that is gone.
    pub(super) fn forget(&self, mount: &str) {
        let mut table = self.lock();
        table.give_up(|offer| offer.mount == mount);
        table.untried.remove(mount);
        if let Some(kept) = &mut table.kept {
            kept.remove(mount);
        }
    }

    /// Notes that the mount was tried. True if the offer is to be tried again, because the keeper holds it.
    pub(super) fn tried(&self, offer: &Arc<Offer>, served: bool) -> bool {
        let mut table = self.lock();
        table.untried.remove(&offer.mount);
        if served {
            if let Some(kept) = &mut table.kept {
                kept.insert(offer.mount.clone());
            }
            return false;
        }
        let again = table.kept.as_ref().is_some_and(|kept| kept.contains(&offer.mount));
        if !again {
            table.give_up(|other| Arc::ptr_eq(other, offer));
        }
        again
    }

    /// Removes an offer whose connection has ended.
    pub(super) fn give_up(&self, offer: &Arc<Offer>) {
        self.lock().give_up(|other| Arc::ptr_eq(other, offer));
    }

    /// Removes an offer that is served, unless it got other credentials than those of `request` meanwhile.
    pub(super) fn remove_served(&self, offer: &Arc<Offer>, request: &DatasetRequest) -> bool {
        let mut table = self.lock();
        let same = *offer.lock() == *request;
        if same {
            table.offers.retain(|other| !Arc::ptr_eq(other, offer));
        }
        same
    }

    /// Has the offers of a mount use these credentials, and tries them again.
    pub(super) fn renew(&self, mount: &str, credentials: Option<&Credentials>) {
        for offer in self.lock().offers.iter().filter(|offer| offer.mount == mount) {
            offer.lock().credentials = credentials.cloned();
            offer.changed.notify_one();
        }
    }

    /// Tries the offers of a mount again without waiting.
    pub(super) fn try_again(&self, mount: &str) {
        self.lock().offers.iter().filter(|offer| offer.mount == mount).for_each(|offer| offer.changed.notify_one());
    }
}
