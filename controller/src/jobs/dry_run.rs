//! Whether the API server would create the pods of a job, determined by a dry run of one pod per role.

use std::collections::BTreeMap;

use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedRole;

use crate::jobs::objects::JobObject;
use crate::jobs::render::{Facts, Place, Rendered, Renderer};
use crate::write::{Change, Write, to_text};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// Dry runs by pod-spec hash: jobs with the same hash share one.
pub type DryRuns = BTreeMap<String, DryRun>;

/// The state of a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// Requested for this job; no answer yet.
    Asked(Key),
    /// The API server would create the pods.
    Accepted,
    /// The API server would reject the pods, with this message. The dry run is repeated for this job.
    Refused(Key, String),
    /// The pods are valid, but this ResourceQuota of their namespace is used up; the text includes its usage. The API
    /// server reported this in a dry run or when a pod of this job was created. The dry run is repeated for this job.
    QuotaUsed(Key, String),
}

impl DryRun {
    /// The job for which the dry run is made.
    pub fn asker(&self) -> Option<&Key> {
        match self {
            Self::Asked(job) | Self::Refused(job, _) | Self::QuotaUsed(job, _) => Some(job),
            Self::Accepted => None,
        }
    }

    /// The state after the answer for a job. `refusal` is the API server's message if it rejected the pods.
    pub fn answered(job: &Key, refusal: Option<&str>) -> Self {
        match refusal.map(|why| (why, shortage(why))) {
            None => Self::Accepted,
            Some((_, Some(quota))) => Self::QuotaUsed(job.clone(), quota.to_owned()),
            Some((why, None)) => Self::Refused(job.clone(), why.to_owned()),
        }
    }

    /// True if only a ResourceQuota prevents the pods.
    pub fn is_short(&self) -> bool {
        matches!(self, Self::QuotaUsed(..))
    }
}

/// Extracts the exhausted ResourceQuota from an error message of the API server. Quota is checked last, so nothing else
/// prevents the pod.
pub fn shortage(why: &str) -> Option<&str> {
    why.split_once("exceeded quota: ").map(|(_, quota)| quota)
}

/// A sentence about an exhausted ResourceQuota.
pub fn used_up(quota: &str) -> String {
    format!("a ResourceQuota of its namespace is used up: {quota}")
}

/// The dry-run requests of a job: one pod per role.
pub fn requests(object: &JobObject, kind: &CheckedType, image: &str) -> Vec<Write> {
    let Ok(job) = &object.job else { return Vec::new() };
    if job.fit(kind).is_err() {
        return Vec::new();
    }
    let key = &object.meta.key;
    let rendered = Rendered { namespace: &key.namespace, name: &key.name, uid: &object.meta.uid, job, kind };
    let facts = Facts { agent_image: image.to_owned(), ..Facts::default() };
    let renderer = Renderer::new(rendered, &facts);
    let write = |role: &CheckedRole| {
        // Attempts start at 1, so attempt 0 never collides with an existing pod.
        let pod = renderer.pod(&role.name, 0, 0, &Place::default()).ok()?;
        let name = pod.metadata.name.clone()?;
        Some(Write::new(Kind::Pod, &key.namespace, &name, Change::Try(to_text(&pod))))
    };
    job.roles.iter().filter_map(write).collect()
}
