//! The objects that training jobs depend on, cut to the fields that decisions need.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::job_type::checked::CheckedType;
use larder_api::queue::checked::CheckedQueue;
use larder_api::training_job::checked::CheckedJob;
use larder_api::{InvalidField, QueueStatus, TrainingJobStatus};

use crate::jobs::machine::pod::{Devices, PodStage};
use crate::time::Seconds;
use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;

#[derive(Clone, Debug, PartialEq)]
pub struct JobObject {
    pub meta: Meta,
    /// Grows with each change of its spec.
    pub generation: i64,
    /// Its spec, or the mistake in it.
    pub job: Result<CheckedJob, InvalidField>,
    /// `managedBy` names another controller.
    pub is_of_others: bool,
    /// Labels that are for Kueue.
    pub labels: BTreeMap<String, String>,
    /// Annotations that are for Kueue.
    pub annotations: BTreeMap<String, String>,
    pub status: TrainingJobStatus,
}

impl JobObject {
    /// True if it is this controller that runs it.
    pub fn is_ours(&self) -> bool {
        !self.is_of_others && !self.meta.deleting
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TypeObject {
    pub meta: Meta,
    /// Grows with each change of its spec.
    pub generation: i64,
    /// Its spec, or the mistake in it.
    pub kind: Result<CheckedType, InvalidField>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueObject {
    pub meta: Meta,
    /// Grows with each change of its spec.
    pub generation: i64,
    /// Its spec, or the mistake in it.
    pub queue: Result<CheckedQueue, InvalidField>,
    pub status: QueueStatus,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassObject {
    pub meta: Meta,
    /// The priority.
    pub value: i32,
    /// It is that of pods that name none.
    pub is_default: bool,
}

/// A pod of a TrainingJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPod {
    /// The job's name.
    pub job: Key,
    /// The job's uid.
    pub uid: String,
    /// The queue that has admitted it, as its label says; empty for none.
    pub queue: String,
    /// How far it is.
    pub stage: PodStage,
    /// When it got its node; as long as it has none, when it was made.
    pub bound_at: Seconds,
    /// It is ending, and should be gone at this time.
    pub leaving: Option<Seconds>,
    /// `status.reason`.
    pub reason: String,
    /// No container of it was ever begun, as far as its status says.
    pub never_ran: bool,
    /// Why it has no node, as the scheduler says.
    pub unscheduled: String,
    /// The reason of its condition `DisruptionTarget`, if that is true.
    pub disruption: String,
    /// What is known of its devices.
    pub devices: Devices,
    /// The job's service leads to it.
    pub serves: bool,
}

macro_rules! stored {
    ($($name:ident)+) => {
        $(impl Stored for $name {
            fn meta(&self) -> &Meta {
                &self.meta
            }

            fn meta_mut(&mut self) -> &mut Meta {
                &mut self.meta
            }

            fn belongs_to(&self) -> Vec<Key> {
                Vec::new()
            }
        })+
    };
}

stored! { JobObject TypeObject QueueObject ClassObject }
