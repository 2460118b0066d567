//! The Workloads of an elastic job. Kueue fixes the pods of a Workload that has quota, so a job that grows requests all
//! of its pods by another Workload, which replaces the first (a workload slice). Kueue counts only the difference. Once
//! the replacement has quota, the replaced Workload is finished, and Larder removes it.
//!
//! Nothing here depends on when Kueue finishes a replaced Workload, or on whether it knows slices at all: an older
//! Workload beside a newer one with quota is removed in any case.

use crate::kueue::workload::JobWorkload;

/// The Workloads of a job, by what they are for.
pub(super) struct Slices<'a> {
    /// The Workload that decides about the job.
    pub(super) current: Option<&'a JobWorkload>,
    /// The request for more pods, which would replace `current` and has no quota yet.
    pub(super) next: Option<&'a JobWorkload>,
    /// Workloads that would hold quota without using it.
    pub(super) others: Vec<&'a JobWorkload>,
}

/// Sorts the Workloads of the job with this uid. `root` is the name of its first Workload.
pub(super) fn slices<'a>(root: &str, uid: &str, workloads: &[&'a JobWorkload]) -> Slices<'a> {
    let all = workloads.iter().copied().filter(|workload| workload.is_of(uid));
    let (mut own, mut others): (Vec<_>, Vec<_>) = all.partition(|workload| is_slice(workload, root));
    own.sort_by(|a, b| age(a).cmp(&age(b)));
    // The newest with quota. Without any, the one that replaces none of the others.
    let with_quota = own.iter().rfind(|workload| has_quota(workload)).copied();
    let first = || own.iter().find(|workload| !own.iter().any(|other| replaces(workload, other))).copied();
    let current = with_quota.or_else(first);
    let is_next =
        |workload: &JobWorkload| !has_quota(workload) && current.is_some_and(|current| replaces(workload, current));
    let next = own.iter().find(|workload| is_next(workload)).copied();
    let kept = [current, next].map(|kept| kept.map(|kept| &kept.meta.key));
    others.extend(own.iter().filter(|workload| !kept.contains(&Some(&workload.meta.key))).copied());
    Slices { current, next, others }
}

/// True if the Workload may run pods before it is admitted: it has quota, and replaces a Workload that was admitted.
/// Its admission checks hold back only the additional pods.
pub(super) fn continues(workload: &JobWorkload) -> bool {
    workload.replaces.is_some() && has_quota(workload)
}

/// True for the job's first Workload and those that replace it, unless it was replaced itself.
fn is_slice(workload: &JobWorkload, root: &str) -> bool {
    let rest = workload.meta.key.name.strip_prefix(root);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        && workload.holding("Finished").is_none_or(|finished| finished.reason != "WorkloadSliceReplaced")
}

/// Orders Workloads by their creation. Within a second, the first has the shortest name.
fn age(workload: &JobWorkload) -> (i64, usize, &str) {
    let name = workload.meta.key.name.as_str();
    (workload.meta.created, name.len(), name)
}

fn has_quota(workload: &JobWorkload) -> bool {
    workload.holding("QuotaReserved").is_some()
}

fn replaces(workload: &JobWorkload, other: &JobWorkload) -> bool {
    let key = &other.meta.key;
    workload.replaces.as_ref().is_some_and(|replaced| *replaced == format!("{}/{}", key.namespace, key.name))
}
