//! Clusters, and the copies of jobs in them, reduced to the fields that decisions need.

use std::collections::BTreeMap;

use larder_api::cluster::ClusterStatus;
use larder_api::names::{
    FENCE_ANNOTATION, HOME_GENERATION_ANNOTATION, HOME_JOB_LABEL, HOME_LABEL, HOME_READ_ANNOTATION,
    LEASE_ANNOTATION_PREFIX,
};
use larder_api::{Cluster, TrainingJob, TrainingJobStatus};
use larder_kube::Resource;
use larder_kube::api::DynamicObject;
use larder_kube::fields::{Parts, annotation, label, meta, whole};
use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;
use serde::de::IgnoredAny;
use serde_json::Error;

use super::fence::Home;
use crate::time::Seconds;

/// A Cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterObject {
    pub meta: Meta,
    /// Increases with each change of the spec.
    pub generation: i64,
    /// The Secret with its kubeconfig; `None`: the Cluster is this one.
    pub secret: Option<String>,
    /// The cost of a byte that must be brought to it.
    pub cost: u32,
    pub weight: u32,
    /// The leases of homes, by their ids.
    pub leases: BTreeMap<String, Seconds>,
    pub status: ClusterStatus,
}

impl Stored for ClusterObject {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}

/// The leases of homes, by their ids, in the annotations of a Cluster.
pub(crate) fn leases(cluster: &impl Resource) -> BTreeMap<String, Seconds> {
    let lease = |(key, time): (&String, &String)| {
        Some((key.strip_prefix(LEASE_ANNOTATION_PREFIX)?.to_owned(), Seconds(time.parse().ok()?)))
    };
    cluster.meta().annotations.iter().flatten().filter_map(lease).collect()
}

pub(crate) fn cluster(object: DynamicObject) -> Result<Option<ClusterObject>, Error> {
    let (meta, leases) = (meta(&object), leases(&object));
    let Cluster { metadata, spec, status } = whole(object)?;
    Ok(Some(ClusterObject {
        meta,
        generation: metadata.generation.unwrap_or_default(),
        secret: spec.kubeconfig.map(|kubeconfig| kubeconfig.secret),
        cost: spec.cost.unwrap_or(1),
        weight: spec.weight.unwrap_or(1).max(1),
        leases,
        status: status.unwrap_or_default(),
    }))
}

/// The home of a TrainingJob; `None` for a job of this cluster.
pub(crate) fn home(object: &impl Resource) -> Option<Home> {
    let number = |key: &str| annotation(object, key).and_then(|text| text.parse::<i64>().ok());
    Some(Home {
        id: label(object, HOME_LABEL)?.to_owned(),
        job: label(object, HOME_JOB_LABEL).unwrap_or_default().to_owned(),
        generation: number(HOME_GENERATION_ANNOTATION).unwrap_or_default(),
        read: Seconds(number(HOME_READ_ANNOTATION).unwrap_or_default()),
        fence_after: number(FENCE_ANNOTATION),
    })
}

/// The copy of a job in another cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteJob {
    pub meta: Meta,
    pub home: Home,
    /// The generation over there.
    pub generation: i64,
    pub status: TrainingJobStatus,
}

/// A copy that was created a moment ago; `None` for a job without a home.
pub(crate) fn created(object: &TrainingJob) -> Option<RemoteJob> {
    let generation = object.metadata.generation.unwrap_or_default();
    Some(RemoteJob { meta: meta(object), home: home(object)?, generation, ..RemoteJob::default() })
}

/// The most characters of a text in the status of a copy.
const TEXT_MAX: usize = 1000;
/// The most conditions of a copy.
const CONDITIONS_MAX: usize = 16;

/// Reads a copy; `None` for a job without a home. Its status is cut to the form that this cluster's schema accepts:
/// another cluster may have written anything. One that cannot be read counts as none, and the copy is known all the
/// same.
pub(crate) fn remote_job(object: DynamicObject) -> Option<RemoteJob> {
    let home = home(&object)?;
    let meta = meta(&object);
    let generation = object.metadata.generation.unwrap_or_default();
    let mut status = Parts::<IgnoredAny, TrainingJobStatus>::read_leniently(object.data).status.unwrap_or_default();
    (status.record, status.placement, status.sweep) = (None, None, None);
    let cut = |text: &mut String| *text = text.chars().take(TEXT_MAX).collect();
    status.waiting_for.iter_mut().chain(&mut status.result).for_each(cut);
    status.roles.truncate(larder_api::training_job::checked::ROLES_MAX);
    status.roles.iter_mut().for_each(|role| cut(&mut role.name));
    status.conditions.truncate(CONDITIONS_MAX);
    for condition in &mut status.conditions {
        [&mut condition.message, &mut condition.reason, &mut condition.type_].into_iter().for_each(cut);
    }
    if let Some(shown) = &mut status.shown {
        [&mut shown.ready, &mut shown.data, &mut shown.why].into_iter().for_each(cut);
    }
    Some(RemoteJob { meta, home, generation, status })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lease_is_an_annotation_of_the_cluster_and_one_that_is_no_time_counts_as_none() {
        let annotations = json!({"home.larder.dev/a": "17", "home.larder.dev/b": "soon", "other": "3"});
        let object = json!({"metadata": {"name": "here", "annotations": annotations}, "spec": {}});
        let here = cluster(serde_json::from_value(object).unwrap()).unwrap().unwrap();
        assert_eq!(here.leases, [("a".to_owned(), Seconds(17))].into());
        assert_eq!((here.secret, here.cost, here.weight), (None, 1, 1));
    }

    #[test]
    fn a_copy_has_no_more_than_a_job_of_this_cluster_may_have() {
        let condition = json!({"type": "Valid", "status": "True", "reason": "Accepted", "message": "x".repeat(9_000),
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let annotations = json!({"larder.dev/home-generation": "3", "larder.dev/home-read": "100",
            "larder.dev/fence-after": "60"});
        let object = json!({
            "metadata": {"name": "train", "namespace": "team-a", "annotations": annotations,
                "labels": {"larder.dev/home": "h", "larder.dev/home-job": "u"}},
            "status": {"phase": "Running", "record": "{}", "placement": {"cluster": "other"},
                "waitingFor": "y".repeat(9_000), "result": "7".repeat(9_000), "conditions": vec![condition; 100]},
        });
        let copy = remote_job(serde_json::from_value(object).unwrap()).unwrap();
        assert_eq!((copy.home.job.as_str(), copy.home.generation, copy.home.fence_after), ("u", 3, Some(60)));
        let status = copy.status;
        assert_eq!((status.record, status.placement, status.conditions.len()), (None, None, CONDITIONS_MAX));
        assert_eq!(status.conditions[0].message.len(), TEXT_MAX);
        assert_eq!(status.waiting_for.map(|text| text.len()), Some(TEXT_MAX));
        assert_eq!(status.result.map(|text| text.len()), Some(TEXT_MAX));
        assert_eq!(remote_job(serde_json::from_value(json!({"metadata": {"name": "own"}})).unwrap()), None);
    }

    // SEMANTICS: J20
    #[test]
    fn a_copy_with_a_status_that_cannot_be_read_is_known_all_the_same() {
        let object = json!({
            "metadata": {"name": "train", "labels": {"larder.dev/home": "h", "larder.dev/home-job": "u"}},
            "status": {"phase": "OfALaterVersion", "conditions": "none"},
        });
        let copy = remote_job(serde_json::from_value(object).unwrap()).unwrap();
        assert_eq!((copy.home.job.as_str(), copy.status), ("u", TrainingJobStatus::default()));
    }
}
