//! The node service: publishes a volume at a target, unpublishes it, and reports its usage.
//!
//! The parts: [`Datasets`] decides which dataset a pod may use, larderd ([`Daemon`]) prepares it, and [`Mounts`] mounts
//! it.
//!
//! The kubelet repeats a publish about once a minute while the pod runs. Such a call changes nothing but the
//! credentials of the mount, if the pod's Secret or token has changed (`Given`).
//!
//! After each new session with larderd, a sweep restores the invariants of [`Mounts`], even if a process was killed
//! between two steps.

mod error;
mod given;
mod mounts;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_csi_api::csi;
use larder_csi_api::csi::volume_usage::Unit;
use larder_daemon_api::v1;
use larder_dataset::DatasetSpec;
use larder_dataset::environment::OWNER;
use larder_dataset::mirrors::MirrorSpec;
use larder_dataset::written::Rules;
use tracing::{debug, warn};

use crate::attributes::{AttributeError, Attributes, Identity};
use crate::calls::blocking;
use crate::daemon::Daemon;
use crate::datasets::Datasets;
use crate::fdkeeper::SessionState;
use crate::mount_id::MountId;
use crate::mounter::Found;
use crate::pod_identity;
use crate::records::Record;
use crate::secrets::{check_keys, credentials};
use crate::target_path::{TargetError, TargetRoots};
use crate::volume_request::{arguments_hash, check_capability, check_volume_id};

pub use error::{PublishError, StatsError, UnpublishError};
pub(crate) use given::Given;
use given::{given, has_pod_identity};
pub use mounts::Mounts;
use mounts::Right;

/// The node service, with all that it uses.
#[derive(Debug)]
pub struct Node {
    /// The node's name.
    pub node_id: String,
    /// Report the node as a topology segment.
    pub topology: bool,
    /// The folders that may contain targets.
    pub roots: TargetRoots,
    /// The allowed values of attributes.
    pub rules: Rules,
    /// The datasets that pods may use.
    pub datasets: Datasets,
    pub daemon: Daemon,
    pub mounts: Arc<Mounts>,
    /// True after the first sweep, when it is known which connections are alive.
    pub(crate) swept: AtomicBool,
    pub(crate) given: Given,
}

/// A request whose attributes, Secret and token are good, and whose pod may use the dataset.
struct Granted {
    attributes: Attributes,
    /// With the credentials.
    dataset: v1::Dataset,
}

impl Node {
    /// True if a publish can succeed: larderd is connected, and the first sweep is done.
    pub fn is_ready(&self) -> bool {
        self.swept.load(Ordering::Acquire) && self.mounts.keeper.session().borrow().connected
    }

    /// Sweeps after each new session with larderd. Never returns.
    pub async fn keep_clean(self: Arc<Self>) {
        let mut session = self.mounts.keeper.session();
        let mut last = 0;
        loop {
            let SessionState { connected, count, .. } = *session.borrow_and_update();
            if connected && count > last {
                last = count;
                sweep::sweep(&self.mounts, &self.roots).await;
                self.swept.store(true, Ordering::Release);
            }
            if session.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn publish(self: Arc<Self>, request: csi::NodePublishVolumeRequest) -> Result<(), PublishError> {
        check_volume_id(&request.volume_id)?;
        if request.target_path.is_empty() {
            return Err(AttributeError::field("target_path", "is missing").into());
        }
        check_capability(request.volume_capability.as_ref())?;
        let target = self.roots.parse(&request.target_path)?;
        let arguments = arguments_hash(&request);
        let busy = self.mounts.busy.take(target.as_path()).ok_or(PublishError::Busy)?;

        let found = self.mounts.look(&target).await?;
        let before = self.mounts.records.at(target.as_path());
        if let Found::Foreign { fs_type } = found {
            return Err(TargetError::Foreign { path: target.as_path().to_owned(), fs_type }.into());
        }
        if let (Some(before), Found::Ours(_)) = (&before, &found) {
            if before.volume_id != request.volume_id || before.arguments != arguments {
                return Err(PublishError::Taken { volume_id: before.volume_id.clone() });
            }
            if self.mounts.has_live(&before.mount, &found).await? {
                debug!("already published");
                return self.renew(&request, before).await;
            }
            // The mount may be alive in larderd, and the pod may be reading.
            if !self.is_ready() {
                return Err(PublishError::NotReady);
            }
        }

        let given = given(&request);
        let Granted { attributes, mut dataset } = self.grant(&request).await?;
        let Attributes { pod, inline, identity, owner, .. } = attributes;
        if inline && dataset.credentials.is_some() {
            // A pod author's key may see fewer files, so it must not refresh a listing that other pods use.
            dataset.refresh.clear();
        }
        let (_coming, volumes) = self.mounts.records.announce(target.as_path(), &pod.namespace);
        // A volume that was admitted before stays, whatever its quota allows by now.
        let is_new = before.as_ref().is_none_or(|before| before.volume_id != request.volume_id);
        let asks = is_new.then(|| v1::Pod { namespace: pod.namespace.clone(), volumes });
        let prepared = self.daemon.prepare(dataset.clone(), asks).await?;
        if !self.is_ready() {
            return Err(PublishError::NotReady);
        }
        // A restarted larderd must serve the snapshot that was found now.
        dataset.snapshot = prepared.snapshot;
        dataset.refresh.clear();

        // Leftovers of a killed call, of a dead connection, or of a lost state folder.
        match &before {
            Some(before) => self.mounts.withdraw(&target, before, &busy).await?,
            None if found != Found::Nothing => self.mounts.unbind(&target).await.map_err(UnpublishError::Target)?,
            None => {}
        }
        // Decided after the step above, since that may have ended the mount.
        let right = match (inline, dataset.credentials.is_some()) {
            // The mount belongs to the identity, which this pod's token has proved.
            _ if matches!(identity, Identity::Pod(_)) => match self.may_renew(&identity, &prepared.mount, &dataset) {
                true => Right::Renew,
                false => Right::Make,
            },
            (true, true) => self.check_own_credentials(&mut dataset, &prepared.mount).await?,
            (true, false) => Right::Make,
            // A tenant's volume without credentials shares the common mount, which belongs to the administrator, so it
            // must not change that mount's credentials.
            (false, false) if owner.is_some() => Right::Make,
            (false, _) => Right::Renew,
        };
        let record = Record {
            volume_id: request.volume_id,
            target: target.as_path().to_owned(),
            mount: prepared.mount,
            arguments,
            files: prepared.files,
            bytes: prepared.bytes,
            pod_namespace: pod.namespace,
            pod_uid: pod.uid,
        };
        self.mounts.place(&target, record, &prepared.name, dataset, right, &busy).await?;
        self.given.note(target.as_path(), given);
        Ok(())
    }

    /// Checks the attributes, the Secret and the token of a request, and the grant of its pod.
    async fn grant(self: &Arc<Self>, request: &csi::NodePublishVolumeRequest) -> Result<Granted, PublishError> {
        let attributes = Attributes::parse(&request.volume_context, &self.rules)?;
        let secret = credentials(&request.secrets, attributes.inline)?;
        let (spec, attributes) = blocking({
            let node = Arc::clone(self);
            move || node.datasets.resolve(&attributes).map(|spec| (spec, attributes))
        })
        .await?;
        let Attributes { pod, identity, owner, ownership, .. } = &attributes;
        let is_shared = owner.is_some() && secret.is_none() && !matches!(identity, Identity::Pod(_));
        if is_shared && !attributes.mirrors.is_empty() {
            // Everybody would read the cached bytes, and the mirrors are the tenant's.
            return Err(AttributeError::value("mirrors", "needs a Secret with the dataset's keys").into());
        }
        let credentials = match identity {
            Identity::Pod(identity) => {
                identity.check(&spec, secret.is_some())?;
                Some(pod_identity::credentials(pod_identity::tokens(request), identity, owner.as_deref(), pod)?)
            }
            Identity::Any | Identity::Secret => {
                check_keys(secret.as_ref(), &spec, *identity == Identity::Secret)?;
                secret.map(|mut secret| {
                    secret.variables.extend(owner.clone().map(|owner| (OWNER.to_owned(), owner)));
                    secret
                })
            }
        };
        let spec = DatasetSpec { ownership: *ownership, ..spec };
        let (payer, mirrors) = (attributes.payer().to_owned(), attributes.mirrors.iter().map(mirror).collect());
        Ok(Granted { dataset: v1::Dataset { credentials, payer, mirrors, ..v1::Dataset::from(&spec) }, attributes })
    }

    /// Makes the mount of a running pod use the pod's Secret or token, if it has changed and may read the dataset. The
    /// mount stays in any case. The caller has locked the target.
    async fn renew(
        self: &Arc<Self>,
        request: &csi::NodePublishVolumeRequest,
        record: &Record,
    ) -> Result<(), PublishError> {
        let given = given(request);
        let before = self.given.before(&record.target);
        if given.is_none() {
            return Ok(());
        }
        if given != before {
            let renewed = self.renew_with(request, record, before.is_some());
            renewed.await.map_err(|error| PublishError::Renewal(Box::new(error)))?;
            self.given.note(&record.target, given);
        }
        // An answer is the only way into the events of the pod.
        let trouble = if has_pod_identity(request) { self.daemon.trouble(&record.mount).await } else { None };
        trouble.map_or(Ok(()), |trouble| Err(PublishError::NoKeys(trouble)))
    }

    async fn renew_with(
        self: &Arc<Self>,
        request: &csi::NodePublishVolumeRequest,
        record: &Record,
        has_changed: bool,
    ) -> Result<(), PublishError> {
        let Granted { attributes: Attributes { identity, .. }, mut dataset } = self.grant(request).await?;
        let held = self.mounts.keeper.connection(&record.mount).and_then(|held| held.credentials());
        // After a restart it is unknown which of several volumes has the newest Secret.
        let is_unknown = !has_changed && self.mounts.records.has_other_volume(&record.mount, &record.volume_id);
        if is_unknown && !matches!(identity, Identity::Pod(_)) {
            return Ok(());
        }
        if dataset.credentials == held {
            // larderd may not have received them.
            return Ok(self.mounts.keeper.renew(&record.mount, held).await?);
        }
        // The pod keeps its snapshot, whichever is the newest.
        dataset.refresh.clear();
        dataset.snapshot.clear();
        self.daemon.prepare(dataset.clone(), None).await?;
        let _lock = self.mounts.locks.lock(&record.mount).await;
        if self.may_renew(&identity, &record.mount, &dataset) {
            self.mounts.keeper.renew(&record.mount, dataset.credentials).await?;
        }
        Ok(())
    }

    /// False if the mount is read with a pod's token that is good for longer than this one.
    fn may_renew(&self, identity: &Identity, mount: &MountId, dataset: &v1::Dataset) -> bool {
        let held = self.mounts.keeper.connection(mount).and_then(|held| held.credentials());
        match (identity, &dataset.credentials) {
            (Identity::Pod(_), Some(new)) => pod_identity::is_later(new, held.as_ref()),
            (Identity::Any | Identity::Secret | Identity::Pod(_), _) => true,
        }
    }

    /// Removes a pod author's credentials from `dataset`: they have proved that the pod may read it, and are not used
    /// for anything else. An existing mount keeps its credentials. A new mount uses larderd's own credentials, so it
    /// may be created only if these can read the dataset.
    async fn check_own_credentials(&self, dataset: &mut v1::Dataset, mount: &MountId) -> Result<Right, PublishError> {
        dataset.credentials = None;
        if self.mounts.keeper.is_alive(mount) {
            return Ok(Right::Join);
        }
        let own = self.daemon.prepare(dataset.clone(), None).await.map_err(PublishError::OwnCredentials)?;
        if own.mount != *mount {
            return Err(PublishError::OtherAccount);
        }
        Ok(Right::Make)
    }

    pub(crate) async fn unpublish(
        self: Arc<Self>,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Result<(), UnpublishError> {
        check_volume_id(&request.volume_id)?;
        if request.target_path.is_empty() {
            return Err(AttributeError::field("target_path", "is missing").into());
        }
        let target = self.roots.parse(&request.target_path)?;
        let busy = self.mounts.busy.take(target.as_path()).ok_or(UnpublishError::Busy)?;
        self.given.forget(target.as_path());
        match self.mounts.records.at(target.as_path()) {
            Some(record) if record.volume_id == request.volume_id => {
                self.mounts.withdraw(&target, &record, &busy).await
            }
            Some(record) => {
                warn!(other = %record.volume_id, "the target has another volume, which stays");
                Ok(())
            }
            // The state folder was lost or cannot be read, but the mount is ours.
            None => {
                match self.mounts.look(&target).await {
                    Ok(Found::Ours(_)) => self.mounts.unbind(&target).await?,
                    Ok(Found::Nothing | Found::Foreign { .. }) | Err(TargetError::NotAFolder { .. }) => {
                        debug!("nothing is published there");
                    }
                    Err(error) => return Err(error.into()),
                }
                self.mounts.remove_record(target.as_path()).await;
                Ok(())
            }
        }
    }

    pub(crate) fn stats(
        &self,
        request: &csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, StatsError> {
        check_volume_id(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(AttributeError::field("volume_path", "is missing").into());
        }
        let unknown = || StatsError::Unknown { volume_id: request.volume_id.clone() };
        let path = self.roots.parse(&request.volume_path).map_err(|_| unknown())?;
        let record = self.mounts.records.at(path.as_path()).filter(|record| record.volume_id == request.volume_id);
        let record = record.ok_or_else(unknown)?;
        let usage = |count: u64, unit: Unit| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            csi::VolumeUsage { available: 0, total: count, used: count, unit: unit.into() }
        };
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: vec![usage(record.bytes, Unit::Bytes), usage(record.files, Unit::Inodes)],
            volume_condition: None,
        })
    }
}

/// A mirror as larderd is asked for it.
fn mirror(mirror: &MirrorSpec) -> v1::Mirror {
    v1::Mirror {
        name: mirror.name.clone(),
        source: mirror.source.clone(),
        endpoint: mirror.endpoint.clone().unwrap_or_default(),
        region: mirror.region.clone().unwrap_or_default(),
        anonymous: mirror.anonymous,
        near: mirror.near.clone().into_iter().collect(),
        cost: mirror.cost,
        always_near: false,
    }
}
