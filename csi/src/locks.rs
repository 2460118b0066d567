//! Exclusive access: a target belongs to one call at a time, and further calls are refused; for a mount, calls queue.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::mount_id::MountId;

/// The targets on which calls work.
#[derive(Debug, Default)]
pub(crate) struct BusyTargets(Arc<Mutex<BTreeSet<PathBuf>>>);

/// The right to work on a target, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    targets: Arc<Mutex<BTreeSet<PathBuf>>>,
    path: PathBuf,
}

impl BusyTargets {
    /// `None`: another call works on it.
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

/// One lock per mount, held while the mount is made, counted or ended. Taken after a target, never before one.
#[derive(Debug, Default)]
pub(crate) struct MountLocks(Mutex<BTreeMap<MountId, Arc<tokio::sync::Mutex<()>>>>);

impl MountLocks {
    /// Waits for the lock. Cancel-safe.
    pub(crate) async fn lock(&self, mount: &MountId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Forget the locks that nobody holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(mount.clone()).or_default())
        };
        lock.lock_owned().await
    }
}
