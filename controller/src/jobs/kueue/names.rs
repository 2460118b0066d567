//! Names that Kueue and the job's Workload know each other by.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// On a Workload: the digest of the spec that Larder wrote, so that it is written again only if another is wanted.
pub(super) const DIGEST_ANNOTATION: &str = "larder.dev/spec-digest";
/// Kueue's finalizer of Workloads. Whoever makes a Workload takes it off, once the quota is free.
pub(super) const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// On a Workload: the uid of its job.
pub(super) const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// On a job: its WorkloadPriorityClass.
pub(super) const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// On a job: how long it may be admitted.
pub(super) const MAX_SECONDS_LABEL: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// The prefix of annotations of jobs that are parameters of ProvisioningRequests.
pub(super) const PROVISIONING_PREFIX: &str = "provreq.kueue.x-k8s.io/";
/// On a pod: its pod set.
pub(super) const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// On a pod: its Workload.
pub(super) const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// The gate of pods for which Kueue chooses nodes.
pub(super) const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";

/// How pods may request topology domains; the first annotation counts.
pub(super) const TOPOLOGY_REQUESTS: [&str; 3] = ["required", "preferred", "unconstrained"];

/// The most pod sets of a Workload.
pub(super) const POD_SETS_MAX: usize = 8;

/// The prefix of Kueue's labels.
const KUEUE_PREFIX: &str = "kueue.x-k8s.io/";

const PREFIX: &str = "trainingjob-";

type Texts = BTreeMap<String, String>;

/// The name of a job's Workload. A job of the same name that is made later has another one, as its predecessor's may still be
/// there.
pub fn workload(job: &str, uid: &str) -> String {
    let hash = Sha256::digest(format!("{job}\n{uid}"));
    format!("{PREFIX}{job}-{}", hex(&hash[..3]))
}

/// The labels and annotations of a job that are for Kueue.
pub fn for_kueue(labels: Option<Texts>, annotations: Option<Texts>) -> (Texts, Texts) {
    let mut all = (labels.unwrap_or_default(), annotations.unwrap_or_default());
    all.0.retain(|name, _| name.starts_with(KUEUE_PREFIX));
    all.1.retain(|name, _| name.starts_with(PROVISIONING_PREFIX));
    all
}

/// True if it may be the name of a job's Workload.
pub(super) fn is_of_job(name: &str) -> bool {
    name.starts_with(PREFIX)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The annotation of pods with such a request.
pub(super) fn topology_annotation(request: &str) -> String {
    format!("kueue.x-k8s.io/podset-{request}-topology")
}
