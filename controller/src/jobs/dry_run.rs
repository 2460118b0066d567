//! Whether the API server would create the pods of a job: a dry run of one pod of each role.

use std::collections::BTreeMap;

use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedRole;

use crate::jobs::objects::JobObject;
use crate::jobs::render::{Facts, Place, Rendered, Renderer};
use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// The dry runs by the hash of the pod specs: jobs whose pods are alike share one.
pub type DryRuns = BTreeMap<String, DryRun>;

/// A dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// The API server was asked for this job, and has not answered.
    Asked(Key),
    /// It would create the pods.
    Accepted,
    /// It would not; these are its words. It is asked again for this job.
    Refused(Key, String),
    /// It would, but for a ResourceQuota of their namespace that is used up: this one, with its use. It said so in a dry run, or
    /// when a pod of this job was to be created, and is asked again for this job.
    QuotaUsed(Key, String),
}

impl DryRun {
    /// The job for which the API server is asked.
    pub fn asker(&self) -> Option<&Key> {
        match self {
            Self::Asked(job) | Self::Refused(job, _) | Self::QuotaUsed(job, _) => Some(job),
            Self::Accepted => None,
        }
    }

    /// The answer for a job: the API server's words if it refused the pods.
    pub fn answered(job: &Key, refusal: Option<&str>) -> Self {
        match refusal.map(|why| (why, shortage(why))) {
            None => Self::Accepted,
            Some((_, Some(quota))) => Self::QuotaUsed(job.clone(), quota.to_owned()),
            Some((why, None)) => Self::Refused(job.clone(), why.to_owned()),
        }
    }

    /// True if only a ResourceQuota is in the way.
    pub fn is_short(&self) -> bool {
        matches!(self, Self::QuotaUsed(..))
    }
}

/// The ResourceQuota that is used up, from the API server's words about a pod. It checks quota last, so nothing else is in the way.
pub fn shortage(why: &str) -> Option<&str> {
    why.split_once("exceeded quota: ").map(|(_, quota)| quota)
}

/// A ResourceQuota that is used up, in a sentence.
pub fn used_up(quota: &str) -> String {
    format!("a ResourceQuota of its namespace is used up: {quota}")
}

/// The requests of a dry run: a pod of each role of the job.
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
        // No attempt is the 0th, so no pod has the name.
        let pod = renderer.pod(&role.name, 0, 0, &Place::default()).ok()?;
        let name = pod.metadata.name.clone()?;
        Some(Write::new(Kind::Pod, &key.namespace, &name, Change::Try(serde_json::to_value(&pod).ok()?)))
    };
    job.roles.iter().filter_map(write).collect()
}
