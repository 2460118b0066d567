//! PodGroups that are there, cut to the fields that decisions need.

use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use larder_api::names::JOB_LABEL;

use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;

/// A PodGroup that is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownGroup {
    pub meta: Meta,
    /// The job that it is labelled with.
    pub job: Key,
    /// The uid of the job that controls it; empty for somebody else's.
    pub owner: String,
    /// How many of its pods start together.
    pub min_count: i32,
    /// What the scheduler says of it.
    pub said: Option<Said>,
}

/// What the scheduler says of a group that has not started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// `Unschedulable` or `SchedulerError`.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

/// Reads a PodGroup; `None` if it has no job's label.
pub fn known(meta: Meta, group: &PodGroup) -> Option<KnownGroup> {
    let metadata = &group.metadata;
    let job = metadata.labels.as_ref()?.get(JOB_LABEL)?;
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
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

    /// Its job.
    fn belongs_to(&self) -> Vec<Key> {
        vec![self.job.clone()]
    }
}
