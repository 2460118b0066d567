//! Exclusive access. Only one call at a time works on a target, and other calls are rejected. For a mount, calls wait
//! in a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::mount_id::MountId;

/// The targets that calls are working on.
#[derive(Debug, Default)]
pub(crate) struct BusyTargets(Arc<Mutex<BTreeSet<PathBuf>>>);

/// The exclusive right to work on a target, until dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    targets: Arc<Mutex<BTreeSet<PathBuf>>>,
    path: PathBuf,
}

impl BusyTargets {
    /// Locks the target; `None` if another call is working on it.
    pub(crate) fn take(&self, path: &Path) -> Option<Busy> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        taken.then(|| Busy { targets: Arc::clone(&self.0), path: path.to_owned() })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// One lock per mount, held while the mount is created, counted or ended. Always taken after a target's lock.
#[derive(Debug, Default)]
pub(crate) struct MountLocks(Mutex<BTreeMap<MountId, Arc<tokio::sync::Mutex<()>>>>);

impl MountLocks {
    /// Waits for the lock. Cancel-safe.
    pub(crate) async fn lock(&self, mount: &MountId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove the locks that no call holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(mount.clone()).or_default())
        };
        lock.lock_owned().await
    }
}
