//! Cleans up what killed processes and deleted pods left behind. It runs after each new session with larderd, when it
//! is known which connections are alive.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};

use crate::calls::blocking;
use crate::mount_id::MountId;
use crate::node::mounts::Mounts;
use crate::target_path::{TargetPath, TargetRoots};

/// Removes the records of deleted targets, and ends mounts that no record names or whose connection is dead. Logs
/// failures; the next sweep retries.
pub(crate) async fn sweep(mounts: &Arc<Mounts>, roots: &TargetRoots) {
    remove_left_records(mounts).await;
    remove_gone_targets(mounts, roots).await;
    end_unused_mounts(mounts).await;
}

/// Retries the removal of record files that could not be removed from the disk.
async fn remove_left_records(mounts: &Arc<Mounts>) {
    for target in mounts.records.left() {
        let Some(_busy) = mounts.busy.take(&target) else { continue };
        if mounts.records.at(&target).is_none() {
            mounts.remove_record(&target).await;
        }
    }
}

async fn remove_gone_targets(mounts: &Arc<Mounts>, roots: &TargetRoots) {
    for record in mounts.records.all() {
        let Ok(target) = roots.parse(&record.target.to_string_lossy()) else { continue };
        // Checked before the target is locked, so that no call for a running pod is rejected, and again afterwards.
        if !is_gone(&target).await {
            continue;
        }
        let Some(busy) = mounts.busy.take(&record.target) else { continue };
        let Some(record) = mounts.records.at(target.as_path()) else { continue };
        if is_gone(&target).await {
            info!(volume = %record.volume_id, "the pod's directory was deleted: removing the volume's record");
            if let Err(error) = mounts.withdraw(&target, &record, &busy).await {
                warn!(%error, volume = %record.volume_id, "cannot clean up");
            }
        }
    }
}

async fn end_unused_mounts(mounts: &Arc<Mounts>) {
    let looking = Arc::clone(mounts);
    let left_over = blocking(move || looking.mounter.left_over()).await;
    let left_over = left_over.inspect_err(|error| warn!(%error, "cannot look for mounts")).unwrap_or_default();
    let all: BTreeSet<MountId> = mounts.keeper.mounts().into_iter().chain(left_over).collect();
    for mount in all {
        let _lock = mounts.locks.lock(&mount).await;
        let alive = mounts.keeper.is_alive(&mount);
        if alive && mounts.records.uses(&mount, None) {
            // Noted now, before somebody unmounts it.
            if let Err(error) = mounts.device(&mount).await {
                warn!(%error, %mount, "cannot look at a mount");
            }
            continue;
        }
        info!(%mount, alive, "removing an orphaned mount");
        if let Err(error) = mounts.release(&mount).await {
            warn!(%error, %mount, "cannot clean up");
        }
    }
}

/// True if the pod's folder was deleted, and with it the target.
async fn is_gone(target: &TargetPath) -> bool {
    let target = target.clone();
    blocking(move || matches!(target.open_parent(), Ok(None))).await
}
