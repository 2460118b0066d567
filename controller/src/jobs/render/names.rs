//! The names of a job's objects.
//!
//! A pod is named `JOB-ROLE-INDEX-ATTEMPT`, and its host name is `JOB-ROLE-INDEX`, with a long name of the job cut. The
//! next attempt of an index therefore never needs the name of a pod that still exists on a dead node, and other pods
//! reach it under the same host name.

use larder_api::names::DatasetKey;

pub fn pod(job: &str, role: &str, index: u32, attempt: u32) -> String {
    format!("{job}-{role}-{index}-{attempt}")
}

/// A label of DNS has at most so many characters.
const LABEL_MAX: usize = 63;

/// The host name of a pod. It is unique within the job, whose service is a part of the DNS name.
pub fn hostname(job: &str, role: &str, index: u32) -> String {
    let end = format!("-{role}-{index}");
    let job: String = job.chars().take(LABEL_MAX.saturating_sub(end.len())).collect();
    format!("{job}{end}")
}

/// The DNS name by which other pods reach it, from any namespace and with any cluster domain.
pub fn host(namespace: &str, job: &str, role: &str, index: u32) -> String {
    format!("{}.{job}.{namespace}.svc", hostname(job, role, index))
}

pub fn service(job: &str) -> String {
    job.to_owned()
}

/// The ConfigMap with the files of the JobType. The controller never reads it, so the uid in its name shows that it
/// belongs to this job.
pub fn config_map(job: &str, uid: &str) -> String {
    format!("{job}-files-{}", own(uid))
}

/// The Secret with the key of the launcher. The controller never reads it, so the uid in its name shows that it belongs
/// to this job and not to an earlier job of the same name.
pub fn secret(job: &str, uid: &str) -> String {
    format!("{job}-key-{}", own(uid))
}

fn own(uid: &str) -> String {
    uid.chars().take(8).collect()
}

/// The PersistentVolumeClaim by which pods of `namespace` mount a dataset. The claim of a dataset in the same namespace
/// has the dataset's name.
pub fn claim(namespace: &str, dataset: &DatasetKey) -> String {
    if dataset.namespace == namespace {
        dataset.name.clone()
    } else {
        format!("larder.{}.{}", dataset.namespace, dataset.name)
    }
}
