//! The names of a job's objects.
//!
//! A pod is `JOB-ROLE-INDEX-ATTEMPT` and its host name `JOB-ROLE-INDEX`: the next attempt of an index needs no name that a pod
//! on a dead node still has, and others reach it by the name that they know.

use larder_api::names::DatasetKey;

/// The name of a pod.
pub fn pod(job: &str, role: &str, index: u32, attempt: u32) -> String {
    format!("{job}-{role}-{index}-{attempt}")
}

/// The host name of a pod.
pub fn hostname(job: &str, role: &str, index: u32) -> String {
    format!("{job}-{role}-{index}")
}

/// The name by which other pods reach it, in any namespace and whatever the cluster's domain.
pub fn host(namespace: &str, job: &str, role: &str, index: u32) -> String {
    format!("{}.{job}.{namespace}.svc", hostname(job, role, index))
}

/// The headless service.
pub fn service(job: &str) -> String {
    job.to_owned()
}

/// The ConfigMap with the files of the JobType. It is never read, so its name tells that it is that of this job, and nobody
/// else's.
pub fn config_map(job: &str, uid: &str) -> String {
    format!("{job}-files-{}", own(uid))
}

/// The Secret with the key of the launcher. It is never read, so its name tells that it is that of this job, and not of an
/// earlier one of the same name.
pub fn secret(job: &str, uid: &str) -> String {
    format!("{job}-key-{}", own(uid))
}

fn own(uid: &str) -> String {
    uid.chars().take(8).collect()
}

/// The claim by which pods of `namespace` mount a dataset. That of a dataset of their own namespace has its name.
pub fn claim(namespace: &str, dataset: &DatasetKey) -> String {
    if dataset.namespace == namespace {
        dataset.name.clone()
    } else {
        format!("larder.{}.{}", dataset.namespace, dataset.name)
    }
}
