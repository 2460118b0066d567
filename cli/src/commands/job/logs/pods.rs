//! The pods of a job, by role, index and attempt.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use larder_api::TrainingJob;
use larder_api::names::{JOB_ATTEMPT_LABEL, JOB_INDEX_LABEL, JOB_LABEL, JOB_ROLE_LABEL};
use larder_kube::ResourceExt;
use larder_kube::api::DynamicObject;

use crate::args::cluster::ObjectKey;
use crate::cluster::{Asked, Cluster, POD, typed};

/// A pod of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobPod {
    pub(super) role: String,
    pub(super) index: u32,
    pub(super) attempt: u32,
    pub(super) name: String,
    /// The names of its containers, in the order of its spec.
    pub(super) containers: Vec<String>,
    /// Whether it has succeeded or failed.
    pub(super) has_ended: bool,
}

/// The pods to show.
#[derive(Clone, Debug)]
pub(super) enum Which {
    /// All pods of the job.
    All,
    /// The pods of one role and index.
    One(String, u32),
}

impl Which {
    /// The label selector of the pods.
    fn selector(&self, job: &str) -> String {
        match self {
            Self::All => format!("{JOB_LABEL}={job}"),
            Self::One(role, index) => {
                format!("{JOB_LABEL}={job},{JOB_ROLE_LABEL}={role},{JOB_INDEX_LABEL}={index}")
            }
        }
    }
}

/// The role of the most informative pod: `launcher`, or else the job's first role.
pub(super) fn first_role(job: &TrainingJob) -> &str {
    let names = || job.spec.roles.iter().map(|role| role.name.as_str());
    names().find(|name| *name == "launcher").or_else(|| names().next()).unwrap_or("worker")
}

/// Lists the pods of the job with this uid. Pods without a role and an index are left out. Errors: the client's.
pub(super) async fn list(
    cluster: &Cluster,
    key: &ObjectKey,
    uid: &str,
    which: &Which,
) -> Result<Vec<JobPod>, larder_kube::Error> {
    let mut pods = Vec::new();
    let asked = Asked::all(POD, Some(&key.namespace));
    // An earlier job of the same name may have left pods.
    let is_own = |object: &DynamicObject| object.owner_references().iter().any(|owner| owner.uid == uid);
    let tell = |object| pods.extend(Some(object).filter(is_own).and_then(pod));
    cluster.list(&asked, Some(which.selector(&key.name)), tell).await?;
    pods.sort();
    Ok(pods)
}

fn pod(object: DynamicObject) -> Option<JobPod> {
    let pod: Pod = typed(object).ok()?;
    let labels = pod.metadata.labels.unwrap_or_default();
    let number = |key: &str| labels.get(key)?.parse().ok();
    let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
    Some(JobPod {
        role: labels.get(JOB_ROLE_LABEL)?.clone(),
        index: number(JOB_INDEX_LABEL)?,
        attempt: number(JOB_ATTEMPT_LABEL)?,
        name: pod.metadata.name?,
        containers: pod.spec?.containers.into_iter().map(|container| container.name).collect(),
        has_ended: phase == "Succeeded" || phase == "Failed",
    })
}

/// The newest pod of each role and index, or the second newest with `previous`.
pub(super) fn newest(pods: Vec<JobPod>, previous: bool) -> Vec<JobPod> {
    let mut by_place: BTreeMap<(String, u32), Vec<JobPod>> = BTreeMap::new();
    for pod in pods {
        by_place.entry((pod.role.clone(), pod.index)).or_default().push(pod);
    }
    let one = |mut pods: Vec<JobPod>| {
        pods.sort_by_key(|pod| pod.attempt);
        pods.into_iter().rev().nth(usize::from(previous))
    };
    by_place.into_values().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(labels: Value, phase: &str) -> Option<JobPod> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels},
            "spec": {"containers": [{"name": "train"}, {"name": "side"}]}, "status": {"phase": phase},
        });
        pod_of(pod)
    }

    fn pod_of(pod: Value) -> Option<JobPod> {
        super::pod(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn pods_are_distinguished_by_their_labels() {
        let labels = json!({JOB_ROLE_LABEL: "worker", JOB_INDEX_LABEL: "2", JOB_ATTEMPT_LABEL: "1"});
        let found = of(labels, "Failed").unwrap();
        assert_eq!((found.role.as_str(), found.index, found.attempt, found.has_ended), ("worker", 2, 1, true));
        assert_eq!(found.containers, ["train", "side"]);
        assert_eq!(
            of(json!({JOB_ROLE_LABEL: "worker", JOB_INDEX_LABEL: "x", JOB_ATTEMPT_LABEL: "1"}), "Running"),
            None
        );
        assert_eq!(of(json!({}), "Running"), None);
        assert_eq!(pod_of(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": 1})), None);
    }

    #[test]
    fn the_newest_attempt_of_each_index_counts() {
        let pod = |role: &str, index: u32, attempt: u32| JobPod {
            role: role.to_owned(),
            index,
            attempt,
            name: format!("j-{role}-{index}-{attempt}"),
            containers: Vec::new(),
            has_ended: false,
        };
        let pods = vec![pod("worker", 0, 9), pod("worker", 0, 10), pod("ps", 0, 0), pod("worker", 1, 2)];
        let names = |previous: bool| newest(pods.clone(), previous).into_iter().map(|pod| pod.name).collect::<Vec<_>>();
        assert_eq!(names(false), ["j-ps-0-0", "j-worker-0-10", "j-worker-1-2"]);
        assert_eq!(names(true), ["j-worker-0-9"]);
    }
}
