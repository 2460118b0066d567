//! Whether the API server would admit the pods of a job: it is asked for one of each role, and makes none.

use std::collections::BTreeMap;

use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedRole;

use crate::jobs::objects::JobObject;
use crate::jobs::render::{Facts, Place, Rendered, Renderer};
use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// What the API server says of pods that it was asked about, by their likeness.
pub type Trials = BTreeMap<String, Trial>;

/// The answer to a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It was asked on account of this job.
    Asked(Key),
    /// It admits them.
    Accepted,
    /// It does not. It is asked again for this job.
    Refused(Key, String),
    /// It would, if a ResourceQuota of their namespace were not used up: this one, with what is used of it. It has said so when it
    /// was asked, or when a pod of this job was to be made, and is asked again for this job.
    Short(Key, String),
}

impl Trial {
    /// The job that has it asked.
    pub fn asker(&self) -> Option<&Key> {
        match self {
            Self::Asked(job) | Self::Refused(job, _) | Self::Short(job, _) => Some(job),
            Self::Accepted => None,
        }
    }

    /// The answer for a job: the API server's words against its pods, or none.
    pub fn answered(job: &Key, refusal: Option<&str>) -> Self {
        match refusal.map(|why| (why, shortage(why))) {
            None => Self::Accepted,
            Some((_, Some(quota))) => Self::Short(job.clone(), quota.to_owned()),
            Some((why, None)) => Self::Refused(job.clone(), why.to_owned()),
        }
    }

    /// What is missing for the pods, in a sentence.
    pub fn shortage(&self) -> Option<String> {
        match self {
            Self::Short(_, quota) => Some(used_up(quota)),
            Self::Asked(_) | Self::Accepted | Self::Refused(..) => None,
        }
    }

    /// The API server's words against the pods.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused(_, why) => Some(why),
            Self::Asked(_) | Self::Accepted | Self::Short(..) => None,
        }
    }
}

/// The ResourceQuota that is used up, by the API server's words about a pod, which it says after all others: that alone is in the
/// way.
pub fn shortage(why: &str) -> Option<&str> {
    why.split_once("exceeded quota: ").map(|(_, quota)| quota)
}

/// That in a sentence.
pub fn used_up(quota: &str) -> String {
    format!("a ResourceQuota of its namespace is used up: {quota}")
}

/// The trials of a job: a pod of each of its roles.
pub fn tries(object: &JobObject, kind: &CheckedType, image: &str) -> Vec<Write> {
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
