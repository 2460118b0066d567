//! Connections that the keeper has handed over, or an earlier process of the service has left, and that are not served
//! yet.
//!
//! Its parts: an [`Offer`] is such a connection; [`Offers`] is the table of all offers, with the names of the mounts
//! that the keeper holds. Each offer is tried independently: an offer whose manifest is lost and whose origin is down
//! delays no other.
//!
//! Invariants: a handed-over connection is in this table or among the mounts until its mount ends or the keeper has
//! received the refusal. A new keeper therefore gets it back. A connection that the keeper holds is tried until it is
//! served or forgotten, or its mount has ended.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_cachenode::{Credentials, DatasetRequest};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::mounts::Connection;

/// A connection that this process has and does not serve yet.
#[derive(Debug)]
pub(super) struct Offer {
    /// The dataset's name on this node.
    pub(super) mount: String,
    pub(super) connection: Arc<Connection>,
    /// The request, with the newest credentials.
    request: Mutex<DatasetRequest>,
    /// Notified when something has changed that makes another attempt worthwhile.
    pub(super) changed: Notify,
    /// Cancelled when the mount of the connection has ended.
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

/// The offers of a daemon, and the mounts that the keeper holds.
#[derive(Debug, Default)]
pub(super) struct Offers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    offers: Vec<Arc<Offer>>,
    /// The mounts that the keeper holds. `None` until a keeper has listed them.
    kept: Option<HashSet<String>>,
    /// The mounts in `kept` that were neither served nor tried yet.
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

    /// True if the keeper holds the mount, or its connection was handed over and is not served yet.
    pub(super) fn need(&self, mount: &str) -> bool {
        let table = self.lock();
        table.kept.as_ref().is_some_and(|kept| kept.contains(mount)) || table.offers.iter().any(|it| it.mount == mount)
    }

    /// True once a keeper has listed the mounts that it holds.
    pub(super) fn keeper_has_spoken(&self) -> bool {
        self.lock().kept.is_some()
    }

    /// True once a keeper has listed its mounts and each of them is served or was tried.
    pub(super) fn all_tried(&self) -> bool {
        let table = self.lock();
        table.kept.is_some() && table.untried.is_empty()
    }

    /// Records the mounts that the keeper holds. `served` returns the names of the served mounts. Gives up offers of
    /// mounts that the keeper does not hold.
    pub(super) fn hold(&self, mounts: HashSet<String>, served: impl FnOnce() -> HashSet<String>) {
        let mut table = self.lock();
        // Called under the lock, while no offer can leave the table: an offer that has left it is served.
        let served = served();
        // A mount of our own is none of the keeper's.
        table.give_up(|offer| offer.connection.own.is_none() && !mounts.contains(&offer.mount));
        let known = |mount: &&String| served.contains(*mount) || table.offers.iter().any(|it| it.mount == **mount);
        table.untried = mounts.iter().filter(|mount| !known(mount)).cloned().collect();
        table.kept = Some(mounts);
    }

    /// Gives up the offers of a mount that was unmounted.
    pub(super) fn forget(&self, mount: &str) {
        let mut table = self.lock();
        table.give_up(|offer| offer.mount == mount);
        table.untried.remove(mount);
        if let Some(kept) = &mut table.kept {
            kept.remove(mount);
        }
    }

    /// Records that the mount was tried. True if the offer must be tried again, because the keeper holds it.
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

    /// Removes an offer that is served. False if it has received other credentials than those in `request` since.
    pub(super) fn remove_served(&self, offer: &Arc<Offer>, request: &DatasetRequest) -> bool {
        let mut table = self.lock();
        let same = *offer.lock() == *request;
        if same {
            table.offers.retain(|other| !Arc::ptr_eq(other, offer));
        }
        same
    }

    /// Makes the offers of a mount use these credentials, and tries them again.
    pub(super) fn renew(&self, mount: &str, credentials: Option<&Credentials>) {
        for offer in self.lock().offers.iter().filter(|offer| offer.mount == mount) {
            offer.lock().credentials = credentials.cloned();
            offer.changed.notify_one();
        }
    }

    /// Tries the offers of a mount again without a pause.
    pub(super) fn try_again(&self, mount: &str) {
        self.lock().offers.iter().filter(|offer| offer.mount == mount).for_each(|offer| offer.changed.notify_one());
    }
}
