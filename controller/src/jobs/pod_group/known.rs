//! Existing PodGroups, reduced to the fields that decisions need.

use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use larder_api::TrainingJob;
use larder_api::names::JOB_LABEL;
use larder_kube::fields::controller;
use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;

/// An existing PodGroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownGroup {
    pub meta: Meta,
    /// The job in its label.
    pub job: Key,
    /// The uid of the TrainingJob that controls the group; empty if another object does.
    pub owner: String,
    /// The number of its pods that start together.
    pub min_count: i32,
    /// The scheduler's report about the group.
    pub said: Option<Said>,
}

/// The scheduler's report about a group that has not started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `Unschedulable` or `SchedulerError`.
    pub reason: String,
    pub message: String,
}

/// Reads a PodGroup; `None` if it has no job label.
pub fn known(meta: Meta, group: &PodGroup) -> Option<KnownGroup> {
    let metadata = &group.metadata;
    let job = metadata.labels.as_ref()?.get(JOB_LABEL)?;
    let owner = controller::<TrainingJob>(group);
    let conditions = group.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut waits = conditions.filter(|there| there.type_ == "PodGroupInitiallyScheduled" && there.status == "False");
    Some(KnownGroup {
        job: Key::new(&meta.key.namespace, job),
        owner: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        min_count: group.spec.scheduling_policy.gang.as_ref().map_or(0, |gang| gang.min_count),
        said: waits.next().map(|there| Said { reason: there.reason.clone(), message: there.message.clone() }),
        meta,
    })
}

impl Stored for KnownGroup {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        vec![self.job.clone()]
    }
}
