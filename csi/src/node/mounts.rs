//! The mounts of the node: one FUSE mount for each dataset in use, and its binds at the targets of pods.
//!
//! The cast: a [`Records`] entry says what is published where, the [`Mounter`] makes mounts, the [`FdKeeper`] holds
//! their connections.
//!
//! Invariants: a bind exists only while its record does. A FUSE mount exists only while a record names it, or while the
//! call that makes it runs. One call at a time works on a target; mounts are made and ended under their lock, which is
//! taken after the target, never before.

use std::path::Path;
use std::sync::Arc;

use larder_daemon_api::v1;
use tracing::{debug, warn};

use crate::calls::blocking;
use crate::fdkeeper::{Connection, FdKeeper};
use crate::locks::{Busy, BusyTargets, MountLocks};
use crate::mount_id::MountId;
use crate::mounter::{Begun, Found, Mounter, MounterError};
use crate::node::error::{PublishError, UnpublishError};
use crate::records::{Record, Records};
use crate::target_path::{TargetError, TargetPath};

/// All mounts of the node.
#[derive(Debug)]
pub struct Mounts {
    /// The published targets.
    pub records: Records,
    /// Makes mounts.
    pub mounter: Mounter,
    /// Holds connections.
    pub keeper: FdKeeper,
    pub(crate) busy: BusyTargets,
    pub(crate) locks: MountLocks,
}

/// How far a publish may go with the mount of its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Make it, or have the one that exists read with the credentials of the dataset from now on: an administrator's
    /// volume, or a tenant's with a mount of its own.
    Renew,
    /// Make it, or join the one that exists as it is: larderd's own credentials, or none, were found to read the dataset.
    Make,
    /// Join the one that exists: whether larderd's own credentials can read the dataset is not known.
    Join,
}

impl Mounts {
    /// The mounts that `records` describe.
    pub fn new(records: Records, mounter: Mounter, keeper: FdKeeper) -> Self {
        Self { records, mounter, keeper, busy: BusyTargets::default(), locks: MountLocks::default() }
    }

    /// Binds a mount named `dataset_name` at the target of `record`, and makes the mount if there is none and `right`
    /// allows that. On failure nothing is left behind: the kubelet does not unpublish a volume that was never
    /// published.
    pub(crate) async fn place(
        self: &Arc<Self>,
        target: &TargetPath,
        record: Record,
        dataset_name: &str,
        dataset: v1::Dataset,
        right: Right,
        _busy: &Busy,
    ) -> Result<(), PublishError> {
        let mount = record.mount.clone();
        let _lock = self.locks.lock(&mount).await;
        let placed = async {
            if right == Right::Renew {
                self.keeper.renew(&mount, dataset.credentials.clone()).await?;
            }
            self.connect(&mount, dataset_name, dataset, right).await?;
            let (mounts, target, mount) = (Arc::clone(self), target.clone(), mount.clone());
            blocking(move || {
                mounts.records.put(record).map_err(PublishError::Record)?;
                Ok(mounts.mounter.bind(&mount, &target)?)
            })
            .await
        };
        let placed = placed.await;
        if placed.is_err() {
            self.undo(target, &mount).await;
        }
        placed
    }

    /// Takes back what a failed [`place`](Self::place) began. The caller holds the mount's lock.
    async fn undo(self: &Arc<Self>, target: &TargetPath, mount: &MountId) {
        let (mounts, path) = (Arc::clone(self), target.clone());
        let cleaned = blocking(move || {
            mounts.mounter.unbind(&path)?;
            mounts.records.remove(path.as_path());
            Ok::<(), UnpublishError>(())
        });
        if let Err(error) = cleaned.await {
            warn!(%error, "cannot undo a failed publish");
        }
        if !self.records.uses(mount, None)
            && let Err(error) = self.release(mount).await
        {
            warn!(%error, "cannot undo a failed mount");
        }
    }

    /// Makes the FUSE mount and has larderd serve it, unless that is so already. The caller holds the mount's lock.
    async fn connect(
        self: &Arc<Self>,
        mount: &MountId,
        dataset_name: &str,
        dataset: v1::Dataset,
        right: Right,
    ) -> Result<(), PublishError> {
        if self.keeper.is_alive(mount) {
            return Ok(());
        }
        if right == Right::Join {
            return Err(PublishError::Ended);
        }
        // A dead mount is not shared with the new one. The pods that have it keep it, and must be restarted.
        self.release(mount).await?;
        let begun = blocking({
            let (mounts, mount, name) = (Arc::clone(self), mount.clone(), dataset_name.to_owned());
            move || mounts.mounter.begin(&mount, &name)
        })
        .await?;
        let Begun { fd, memory, init } = begun;
        self.keeper.offer(Connection::new(mount.clone(), fd, memory, init, dataset)).await?;
        let (mounts, mount) = (Arc::clone(self), mount.clone());
        blocking(move || mounts.mounter.raise_read_ahead(&mount)).await;
        Ok(())
    }

    /// Ends a mount, here and at larderd. The caller holds its lock. Works without larderd, which learns of it in the
    /// next session.
    pub(crate) async fn release(self: &Arc<Self>, mount: &MountId) -> Result<(), MounterError> {
        let connection = self.keeper.connection(mount);
        if let Err(error) = self.keeper.forget(mount).await {
            debug!(%error, %mount, "cannot tell larderd that a mount is gone");
        }
        let ended = blocking({
            let (mounts, mount) = (Arc::clone(self), mount.clone());
            move || mounts.mounter.end(&mount)
        });
        let ended = ended.await;
        drop(connection);
        ended
    }

    /// Removes a volume from its target, and ends the FUSE mount with its last target. The record goes last, so a
    /// failed step is retried.
    pub(crate) async fn withdraw(
        self: &Arc<Self>,
        target: &TargetPath,
        record: &Record,
        _busy: &Busy,
    ) -> Result<(), UnpublishError> {
        self.unbind(target).await?;
        let _lock = self.locks.lock(&record.mount).await;
        if !self.records.uses(&record.mount, Some(target.as_path())) {
            self.release(&record.mount).await?;
        }
        self.remove_record(target.as_path()).await;
        Ok(())
    }

    /// Removes the record of a target that is taken, if there is one.
    pub(crate) async fn remove_record(self: &Arc<Self>, target: &Path) {
        let (mounts, target) = (Arc::clone(self), target.to_owned());
        blocking(move || mounts.records.remove(&target)).await;
    }

    pub(crate) async fn look(self: &Arc<Self>, target: &TargetPath) -> Result<Found, TargetError> {
        let (mounts, target) = (Arc::clone(self), target.clone());
        blocking(move || mounts.mounter.look(&target)).await
    }

    pub(crate) async fn unbind(self: &Arc<Self>, target: &TargetPath) -> Result<(), TargetError> {
        let (mounts, target) = (Arc::clone(self), target.clone());
        blocking(move || mounts.mounter.unbind(&target)).await
    }

    /// True if a target has the FUSE mount that is served, not one that has died.
    pub(crate) async fn has_live(self: &Arc<Self>, mount: &MountId, found: &Found) -> Result<bool, MounterError> {
        if !self.keeper.is_alive(mount) {
            return Ok(false);
        }
        let (mounts, mount) = (Arc::clone(self), mount.clone());
        let device = blocking(move || mounts.mounter.device(&mount)).await?;
        Ok(device.is_some_and(|device| *found == Found::Ours(device)))
    }
}
