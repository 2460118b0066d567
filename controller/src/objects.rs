//! Kubernetes objects, reduced to the fields that decisions need, so that a store of a thousand nodes stays small.

mod job_pod;
mod queued_pod;

use crate::time::Seconds;
pub use job_pod::{Devices, JobPod, PodStage};
use larder_api::CacheQuotaStatus;
use larder_api::cache_quota::checked::CheckedQuota;
use larder_api::checked::InvalidField;
use larder_api::settings::Flavor;
pub use larder_kube::key::{Key, Meta};
pub use larder_kube::node::{Node, Taint};
use larder_kube::pod::amounts::Amounts;
use larder_kube::store::Stored;
pub use queued_pod::QueuedPod;

/// Annotation of a job: its exact purpose, in a format of the controller.
pub const PURPOSE_ANNOTATION: &str = "larder.dev/purpose";
/// Annotation of a volume: a digest of its attributes, which are immutable.
pub const DESCRIPTION_ANNOTATION: &str = "larder.dev/description";

/// The labels of an object that the controller created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The uid of the Dataset that the object belongs to.
    pub uid: String,
    /// One of the `ROLE_` values.
    pub role: String,
    /// The node that the object is for; empty for none.
    pub node: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DatasetObject {
    pub meta: Meta,
    pub dataset: larder_api::Dataset,
}

impl DatasetObject {
    /// The owner of its cached bytes; empty if they are not a tenant's.
    pub fn cache_owner(&self) -> &str {
        self.dataset.spec.origin.cache_owner(&self.meta.key.namespace, &self.meta.uid)
    }

    /// Its place among the datasets of a quota. Older ones come first.
    pub fn age(&self) -> (i64, &Key) {
        (self.meta.created, &self.meta.key)
    }
}

/// A CacheQuota.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaObject {
    pub meta: Meta,
    /// Increases with each change of the spec.
    pub generation: i64,
    /// The checked spec, or the error in it.
    pub quota: Result<CheckedQuota, InvalidField>,
    pub status: CacheQuotaStatus,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CacheObject {
    /// The metadata. The name is the node's name.
    pub meta: Meta,
    /// Increases with each change of the promises.
    pub generation: i64,
    pub spec: larder_api::NodeCacheSpec,
    /// The node's report; `None` before the first.
    pub status: Option<larder_api::NodeCacheStatus>,
}

/// A pod that uses a volume or room on a node, or that the controller created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    pub meta: Meta,
    /// The labels of a pod that the controller created; `None` for any other pod.
    pub role: Option<Role>,
    /// The uid of the Job that created it, from its owner reference; empty for none.
    pub job: String,
    /// Its node; empty while it has none.
    pub node: String,
    /// The node on which the scheduler makes room for it; empty for none, or once the pod has a node.
    pub nominated: String,
    /// The pod has terminated.
    pub ended: bool,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// The datasets that its inline volumes name.
    pub inline: Vec<String>,
    /// Why it does not run; only for the controller's pods.
    pub waiting: Option<Waiting>,
    /// Its container runs; only for the controller's pods.
    pub runs: bool,
    /// How its container ended; only for the controller's pods.
    pub terminated: Option<Terminated>,
    /// Its requests, until it has ended, if it has a node, is nominated to one, or is a pod of a training job.
    pub requests: Amounts,
    /// The fields of a pod that belongs to a TrainingJob.
    pub of_job: Option<JobPod>,
    /// The fields of a pod of another program that carries the label of a queue.
    pub queued: Option<QueuedPod>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// The reason, as one CamelCase word.
    pub reason: String,
    /// The reason, as a sentence.
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terminated {
    pub exit_code: i32,
    /// The reason, as one CamelCase word.
    pub reason: String,
    pub message: String,
}

/// A Job that the controller created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    pub meta: Meta,
    pub role: Role,
    /// How the Job ended; `None` while it runs.
    pub end: Option<JobEnd>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobEnd {
    /// None of its pods succeeded.
    pub failed: bool,
    /// When it ended.
    pub at: Seconds,
    /// Why, in Kubernetes' words.
    pub why: String,
}

/// A PersistentVolume that the controller created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    pub meta: Meta,
    pub role: Role,
    /// The claim that the volume is reserved for.
    pub claim: Key,
    /// The uid of that claim, once the volume is bound.
    pub claim_uid: String,
    /// The value of [`DESCRIPTION_ANNOTATION`].
    pub description: String,
}

/// A claim of the storage class `larder`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    pub meta: Meta,
    /// The labels of a claim that the controller created; `None` for any other claim.
    pub role: Option<Role>,
    /// The dataset that it requests.
    pub wants: Option<String>,
    /// The volume that it names.
    pub volume: String,
    pub bound: bool,
}

/// A Deployment that follows a dataset of its namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deployment {
    pub meta: Meta,
    pub follows: String,
    /// The snapshot for which its pods were last rolled.
    pub snapshot: String,
}

/// The ConfigMap that resolves inline volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigMap {
    pub meta: Meta,
    /// The value of its only key.
    pub text: String,
}

/// The LarderSettings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SettingsObject {
    pub meta: Meta,
    /// The servers that any Dataset may name.
    pub endpoints: Vec<String>,
    /// The JobTypes that policies know.
    pub job_types: Vec<String>,
    /// The flavors of nodes.
    pub flavors: Vec<Flavor>,
    pub clusters: Vec<String>,
}

macro_rules! stored {
    ($($name:ident: $of:expr;)+) => {
        $(impl Stored for $name {
            fn meta(&self) -> &Meta {
                &self.meta
            }

            fn meta_mut(&mut self) -> &mut Meta {
                &mut self.meta
            }

            fn belongs_to(&self) -> Vec<Key> {
                let of: fn(&Self) -> Vec<Key> = $of;
                of(self)
            }
        })+
    };
}

/// The key under which the objects of the Dataset or sweep with this uid are stored.
pub fn by_uid(uid: &str) -> Key {
    Key::cluster(uid)
}

stored! {
    DatasetObject: |dataset| vec![by_uid(&dataset.meta.uid)];
    CacheObject: |cache| {
        let mut uids: Vec<_> = cache.spec.datasets.iter().map(|promise| by_uid(&promise.uid)).collect();
        uids.dedup();
        uids
    };
    Pod: |pod| {
        let claims = pod.claims.iter().map(|claim| Key::new(&pod.meta.key.namespace, claim));
        claims.chain(pod.role.iter().map(|role| by_uid(&role.uid))).chain(pod.inline_keys()).collect()
    };
    Job: |job| vec![by_uid(&job.role.uid)];
    Volume: |volume| vec![by_uid(&volume.role.uid)];
    Claim: |claim| claim.role.iter().map(|role| by_uid(&role.uid)).chain(claim.wanted()).collect();
    ConfigMap: |_| Vec::new();
    SettingsObject: |_| Vec::new();
    QuotaObject: |_| Vec::new();
    Deployment: |deployment| vec![Key::new(&deployment.meta.key.namespace, &deployment.follows)];
}

impl Pod {
    /// True if this Job created the pod. Any user can set the labels of a Job's pods, in any namespace.
    pub fn is_of(&self, job: &Job) -> bool {
        self.job == job.meta.uid && self.meta.key.namespace == job.meta.key.namespace
    }

    /// The datasets that its inline volumes name: `NAMESPACE/NAME`, or the name of an administrator's dataset.
    pub fn inline_keys(&self) -> impl Iterator<Item = Key> {
        self.inline.iter().filter_map(|name| {
            if name.contains('/') {
                Key::parse(name)
            } else {
                Some(Key::new(larder_api::names::SYSTEM_NAMESPACE, name))
            }
        })
    }
}

impl Claim {
    /// The dataset that the claim requests, if the text is a valid name.
    pub fn wanted(&self) -> Option<Key> {
        self.wants.as_deref().and_then(Key::parse)
    }
}
