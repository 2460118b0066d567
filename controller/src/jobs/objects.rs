//! The objects that training jobs depend on, reduced to the fields that decisions need.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::job_type::checked::CheckedType;
use larder_api::names::{ELSEWHERE_FINALIZER, HERE};
use larder_api::queue::checked::CheckedQueue;
use larder_api::training_job::checked::{CheckedJob, Clusters, Queueing};
use larder_api::{InvalidField, Phase, QueueStatus, TrainingJobStatus};

use crate::clusters::fence::Home;
use crate::jobs::kueue::names;
use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;
use serde_json::Value;

use crate::objects::by_uid;

#[derive(Clone, Debug, PartialEq)]
pub struct JobObject {
    pub meta: Meta,
    /// Increases with each change of the spec.
    pub generation: i64,
    /// The checked spec, or the error in it.
    pub job: Result<CheckedJob, InvalidField>,
    /// `managedBy` names another controller.
    pub is_of_others: bool,
    /// `managedBy` names MultiKueue, which is another controller.
    pub is_of_multikueue: bool,
    /// A newer version of the controller has run the job. It and its pods are left alone, and nothing of its status is
    /// known. Of a status that MultiKueue has copied, everything is known that this version can read.
    pub is_of_newer: bool,
    /// Another cluster has placed the job here.
    pub home: Option<Home>,
    pub finalizers: Vec<String>,
    /// The labels that Kueue reads.
    pub labels: BTreeMap<String, String>,
    /// The annotations that Kueue reads.
    pub annotations: BTreeMap<String, String>,
    pub status: TrainingJobStatus,
    /// The spec of its trials, if it is a sweep.
    pub trial_spec: Option<Value>,
    /// The sweep that it is a trial of, and the sweep's uid.
    pub trial_of: Option<(Key, String)>,
}

impl JobObject {
    /// True if this controller runs the job, in this cluster.
    pub fn is_ours(&self) -> bool {
        !self.is_of_others && !self.is_of_newer && !self.meta.deleting && self.is_here()
    }

    /// True if the job may run in other clusters, so that a cluster is chosen for it. A sweep stays here: a cluster is
    /// chosen for each of its trials.
    pub fn is_spread(&self) -> bool {
        let is_spread = self.job.as_ref().is_ok_and(|job| job.clusters != Clusters::Here && job.sweep.is_none());
        !self.is_of_others && !self.is_of_newer && (is_spread || self.is_finalized())
    }

    /// True if MultiKueue runs the job in another cluster, and this controller makes its Workload here. A job of a newer
    /// version is among them, because its status is a copy.
    pub fn is_moved(&self) -> bool {
        self.is_of_multikueue && self.trial_spec.is_none() && self.is_in_kueue()
    }

    /// True if a job that MultiKueue moves has pods in another cluster, or may have some, because a newer version runs
    /// it there in a phase that this version does not know.
    pub fn has_pods_elsewhere(&self) -> bool {
        self.status.phase.map_or(self.is_of_newer, Phase::has_pods)
    }

    /// True if MultiKueue has created the job here, with its Workload. It deletes both in the end.
    pub fn is_copy(&self) -> bool {
        names::is_of_origin(&self.labels) && self.prebuilt().is_some() && self.is_in_kueue()
    }

    /// True if the job is in a queue of Kueue.
    fn is_in_kueue(&self) -> bool {
        let is_queued = |job: &CheckedJob| matches!(job.queueing, Queueing::Kueue(_));
        self.job.as_ref().is_ok_and(is_queued)
    }

    /// The Workload that MultiKueue has made for the job, which is a copy; `None`: this controller makes it.
    pub fn prebuilt(&self) -> Option<&str> {
        names::prebuilt(&self.labels, &self.annotations)
    }

    /// The name of its Workload.
    pub fn workload(&self) -> String {
        let own = || names::workload(&self.meta.key.name, &self.meta.uid);
        self.prebuilt().map_or_else(own, str::to_owned)
    }

    /// How long its cluster may not answer before the job starts in another one, in seconds; `None`: it stays.
    pub fn failover(&self) -> Option<i64> {
        let failover = self.job.as_ref().ok()?.failover?;
        Some(i64::try_from(failover.as_secs()).unwrap_or(i64::MAX))
    }

    /// True if the job is to run in this cluster and no other.
    fn is_here(&self) -> bool {
        !self.is_spread() || self.status.placement.as_ref().is_some_and(|placement| placement.cluster == HERE)
    }

    /// True if the job stays until no other cluster has a copy of it.
    pub fn is_finalized(&self) -> bool {
        self.finalizers.iter().any(|name| name == ELSEWHERE_FINALIZER)
    }

    /// True if this controller makes steps for the job. It makes none for a job whose spec has become invalid, whose pods
    /// run on.
    pub fn has_steps(&self) -> bool {
        self.may_have_pods() && self.job.is_ok()
    }

    /// True if the job's own steps end its pods, or no lease of another cluster limits them.
    pub fn ends_own_pods(&self) -> bool {
        self.home.is_none() || self.has_steps()
    }

    /// True if the job may have pods: it is no sweep, whose trials have them.
    pub fn may_have_pods(&self) -> bool {
        self.is_ours() && self.trial_spec.is_none()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TypeObject {
    pub meta: Meta,
    /// Increases with each change of the spec.
    pub generation: i64,
    /// The checked spec, or the error in it.
    pub kind: Result<CheckedType, InvalidField>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueObject {
    pub meta: Meta,
    /// Increases with each change of the spec.
    pub generation: i64,
    /// The checked spec, or the error in it.
    pub queue: Result<CheckedQueue, InvalidField>,
    pub status: QueueStatus,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassObject {
    pub meta: Meta,
    pub value: i32,
    /// The default for pods that name no PriorityClass.
    pub is_default: bool,
}

impl Stored for JobObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        self.trial_of.iter().map(|(_, uid)| by_uid(uid)).collect()
    }
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

stored! { TypeObject QueueObject ClassObject }
