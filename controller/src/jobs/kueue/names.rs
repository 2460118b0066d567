//! The names by which Kueue and a job's Workload refer to each other.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::kueue::workload::JOB_PREFIX;

/// Kueue's finalizer of Workloads. The creator of a Workload removes it once the quota is free.
pub(super) const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Label of a job: its WorkloadPriorityClass.
pub(super) const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Label of a job: how long it may stay admitted.
pub(super) const MAX_SECONDS_LABEL: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// The prefix of a job's annotations that become parameters of ProvisioningRequests.
pub(super) const PROVISIONING_PREFIX: &str = "provreq.kueue.x-k8s.io/";
/// Annotation of a job, and of its Workloads: the job grows by Workloads that replace each other.
pub(super) const ELASTIC_ANNOTATION: &str = "kueue.x-k8s.io/elastic-job";
/// Annotation of an elastic job's Workloads: the name of the first.
pub(super) const SLICE_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-name";
/// Label or annotation of a job: the Workload that was made for it. From 0.18 on, Kueue uses the annotation.
const PREBUILT: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// Label of a job that MultiKueue has created here: its name of the home.
const ORIGIN_LABEL: &str = "kueue.x-k8s.io/multikueue-origin";
/// Label of a pod: its pod set.
pub(super) const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// Annotation of a pod: its Workload.
pub(super) const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// The scheduling gate of pods whose nodes Kueue chooses.
pub(super) const TOPOLOGY_GATE: &str = "kueue.x-k8s.io/topology";

/// The ways in which pods may request topology domains. The first annotation that exists counts.
pub(super) const TOPOLOGY_REQUESTS: [&str; 3] = ["required", "preferred", "unconstrained"];

/// The most pod sets that a Workload may have.
pub(super) const POD_SETS_MAX: usize = 8;

/// The prefix of Kueue's labels.
const KUEUE_PREFIX: &str = "kueue.x-k8s.io/";

type Texts = BTreeMap<String, String>;

/// The name of a job's Workload. It contains the uid, because the Workload of an earlier job of the same name may still
/// exist.
pub fn workload(job: &str, uid: &str) -> String {
    let hash = Sha256::digest(format!("{job}\n{uid}"));
    format!("{JOB_PREFIX}{job}-{}", hex(&hash[..3]))
}

/// The name of the Workload that replaces another one. It depends on that alone, so a controller that is killed makes
/// no second one.
pub(super) fn replacement(root: &str, replaced_uid: &str) -> String {
    format!("{root}-{}", hex(&Sha256::digest(replaced_uid)[..3]))
}

/// True if a job with these annotations grows by Workloads that replace each other.
pub fn is_elastic(annotations: &Texts) -> bool {
    annotations.get(ELASTIC_ANNOTATION).is_some_and(|value| value == "true")
}

/// The labels and annotations of a job that Kueue reads. `is_moved`: MultiKueue runs the job in another cluster.
pub fn for_kueue(is_moved: bool, labels: Option<Texts>, annotations: Option<Texts>) -> (Texts, Texts) {
    let mut all = (labels.unwrap_or_default(), annotations.unwrap_or_default());
    all.0.retain(|name, _| name.starts_with(KUEUE_PREFIX));
    all.1.retain(|name, _| {
        name.starts_with(PROVISIONING_PREFIX) || [ELASTIC_ANNOTATION, PREBUILT].contains(&name.as_str())
    });
    // In its home, a job has the Workload that this controller makes.
    if is_moved {
        all.0.remove(PREBUILT);
        all.1.remove(PREBUILT);
    }
    // MultiKueue does not pass on changes of such a job, so the job cannot grow in either cluster.
    if is_moved || prebuilt(&all.0, &all.1).is_some() {
        all.1.remove(ELASTIC_ANNOTATION);
    }
    all
}

/// The Workload that was made for a job with these labels and annotations; `None`: larder-controller makes it.
pub fn prebuilt<'a>(labels: &'a Texts, annotations: &'a Texts) -> Option<&'a str> {
    let named = annotations.get(PREBUILT).filter(|name| !name.is_empty()).or_else(|| labels.get(PREBUILT));
    named.map(String::as_str).filter(|name| !name.is_empty())
}

/// True if these labels name the home from which MultiKueue has copied a job.
pub fn is_of_origin(labels: &Texts) -> bool {
    labels.contains_key(ORIGIN_LABEL)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The pod annotation of a topology request.
pub(super) fn topology_annotation(request: &str) -> String {
    format!("kueue.x-k8s.io/podset-{request}-topology")
}
