//! The mounts of the node: one FUSE mount for each dataset in use, and its binds at the targets of pods.
//!
//! The parts: a [`Records`] entry describes a published target, the [`Mounter`] creates mounts, and the [`FdKeeper`]
//! holds their connections.
//!
//! Invariants: a bind exists only while its record does. A FUSE mount exists only while a record names it, or while the
//! call that creates it runs. Only one call at a time works on a target. Mounts are created and ended under their lock,
//! which is always taken after the target's lock.

use std::path::Path;
use std::sync::Arc;

use larder_daemon_api::mountinfo::Device;
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
    pub records: Records,
    pub mounter: Mounter,
    pub keeper: FdKeeper,
    pub(crate) busy: BusyTargets,
    pub(crate) locks: MountLocks,
}

/// The right of a publish to change the mount of its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Create the mount, or make the existing mount use the dataset's credentials from now on. For an administrator's
    /// volume, or a tenant's volume with its own mount.
    Renew,
    /// Create the mount, or join the existing mount unchanged. For a dataset that is known to be readable with
    /// larderd's own credentials, or without credentials.
    Make,
    /// Only join an existing mount, since it is unknown whether larderd's own credentials can read the dataset.
    Join,
}

impl Mounts {
    /// Starts with the mounts that `records` describe.
    pub fn new(records: Records, mounter: Mounter, keeper: FdKeeper) -> Self {
        Self { records, mounter, keeper, busy: BusyTargets::default(), locks: MountLocks::default() }
    }

    /// Binds a mount named `dataset_name` at the target of `record`. Creates the mount if it does not exist and `right`
    /// allows that. On failure, everything is undone, since the kubelet does not unpublish a volume that was never
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

    /// Undoes a failed [`place`](Self::place). The caller holds the mount's lock.
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

    /// Creates the FUSE mount and makes larderd serve it, unless it is already served. The caller holds the mount's
    /// lock.
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
        // A dead mount is not reused. Pods that have it keep it, and must be restarted.
        self.release(mount).await?;
        let begun = blocking({
            let (mounts, mount, name) = (Arc::clone(self), mount.clone(), dataset_name.to_owned());
            move || mounts.mounter.begin(&mount, &name)
        })
        .await?;
        let Begun { fd, memory, init } = begun;
        self.keeper.offer(Connection::new(mount.clone(), fd, memory, init, dataset)).await?;
        let (mounts, raised) = (Arc::clone(self), mount.clone());
        blocking(move || mounts.mounter.raise_read_ahead(&raised)).await;
        if let Err(error) = self.device(mount).await {
            debug!(%error, %mount, "cannot note the device of a mount");
        }
        Ok(())
    }

    /// Ends a mount, here and in larderd. The caller holds the mount's lock. Works without larderd; the next session
    /// informs larderd.
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

    /// Removes a volume from its target, and ends the FUSE mount with its last target. The record is removed last, so a
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

    /// Removes the record of a target, if it has one. The caller has locked the target.
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

    /// True if the FUSE mount at a target is the mount that is served now, and not a dead one. If somebody has
    /// unmounted the folder from which mounts are bound, the binds still live.
    pub(crate) async fn has_live(self: &Arc<Self>, mount: &MountId, found: &Found) -> Result<bool, MounterError> {
        let Some(device) = self.device(mount).await? else { return Ok(self.keeper.is_alive(mount)) };
        Ok(*found == Found::Ours(device))
    }

    /// The file system of a mount that is served now: the one that was seen first. `None` if nothing is served, or if
    /// the mount was gone when it was first looked for.
    pub(crate) async fn device(self: &Arc<Self>, mount: &MountId) -> Result<Option<Device>, MounterError> {
        let Some(held) = self.keeper.connection(mount).filter(|held| held.is_alive()) else { return Ok(None) };
        if held.device.get().is_none() {
            let (mounts, mount) = (Arc::clone(self), mount.clone());
            if let Some(device) = blocking(move || mounts.mounter.device(&mount)).await? {
                let _ = held.device.set(device);
            }
        }
        Ok(held.device.get().copied())
    }
}
