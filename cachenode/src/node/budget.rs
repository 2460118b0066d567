//! Decides how much of the cache a dataset gets. The reservation of an open dataset is a promise. A closed dataset keeps its
//! blocks until their room is needed; the one that was unused for longest is released first.

use std::path::{Path, PathBuf};

use larder_dataset::{PolicyKind, SnapshotId};
use larder_store::{DatasetInfo, Store, StoreError};
use tracing::{info, warn};

use super::error::NodeError;
use crate::manifest_file::MappedManifest;

/// A cache without a configured size leaves this share of the free disk space unused: a fifth.
const LEAVE_FREE: u64 = 5;

/// The cache as a whole.
pub(super) struct Budget<'a> {
    pub(super) store: &'a Store,
    pub(super) cache_dir: &'a Path,
    /// Bytes for all datasets; `None`: determined by the disk.
    pub(super) total_bytes: Option<u64>,
}

impl Budget<'_> {
    /// The reservation for the dataset of `manifest` in bytes: `wanted`, or the whole dataset as far as there is room. Blocks
    /// on the disk. Errors: `NoRoom` if a configured budget cannot hold `wanted`, `InUse` if the dataset is open with other
    /// settings.
    pub(super) fn reserve(
        &self,
        manifest: &MappedManifest,
        wanted: Option<u64>,
        policy: PolicyKind,
    ) -> Result<u64, NodeError> {
        let snapshot = manifest.snapshot();
        let datasets = self.store.datasets()?;
        if let Some(open) = datasets.iter().find(|info| info.open && info.snapshot == snapshot) {
            return same_as(open, wanted, policy);
        }
        let budget = match self.total_bytes {
            Some(budget) => budget,
            None => self.disk_share()?,
        };
        let promised: u64 = datasets.iter().filter(|info| info.open).map(|info| info.reservation_bytes).sum();
        let free = budget.saturating_sub(promised);
        let bytes = match wanted {
            Some(bytes) if self.total_bytes.is_some() && bytes > free => {
                return Err(NodeError::NoRoom { wanted: bytes, free, budget });
            }
            Some(bytes) => bytes,
            None => manifest.totals().bytes.min(free),
        };
        if wanted.is_none() && bytes < manifest.totals().bytes {
            warn!(
                wanted = manifest.totals().bytes,
                bytes, "the cache cannot hold the whole dataset and keeps a part of it (--cache-size, --cache-dir)"
            );
        }
        self.release_for(promised.saturating_add(bytes), budget, &snapshot, &datasets)?;
        Ok(bytes)
    }

    /// Releases closed datasets until `needed` and the reservations of the remaining ones fit into `budget`.
    fn release_for(
        &self,
        needed: u64,
        budget: u64,
        keep: &SnapshotId,
        datasets: &[DatasetInfo],
    ) -> Result<(), StoreError> {
        let mut closed: Vec<_> = datasets.iter().filter(|info| !info.open && info.snapshot != *keep).collect();
        closed.sort_by_key(|info| info.last_use_unix_s);
        let mut held: u64 = closed.iter().map(|info| info.reservation_bytes).sum();
        for info in closed {
            if needed.saturating_add(held) <= budget {
                break;
            }
            info!(dataset = info.name, snapshot = %info.snapshot, "closed dataset released from the cache to make room");
            self.store.release(&info.snapshot)?;
            held -= info.reservation_bytes;
        }
        Ok(())
    }

    fn disk_share(&self) -> Result<u64, NodeError> {
        let disk = rustix::fs::statvfs(self.cache_dir).map_err(std::io::Error::from)?;
        let free = disk.f_bavail * disk.f_frsize + folder_bytes(self.cache_dir);
        Ok(free - free / LEAVE_FREE)
    }
}

/// The reservation of a snapshot that is open already: it has only one, whichever origins it is read from.
fn same_as(open: &DatasetInfo, wanted: Option<u64>, policy: PolicyKind) -> Result<u64, NodeError> {
    if wanted.is_some_and(|bytes| bytes != open.reservation_bytes) {
        return Err(NodeError::InUse { what: "cache size", has: format!("{} bytes", open.reservation_bytes) });
    }
    if policy != open.policy {
        return Err(NodeError::InUse { what: "policy", has: open.policy.to_string() });
    }
    Ok(open.reservation_bytes)
}

fn folder_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes += found.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}
