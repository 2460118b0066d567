//! The objects of Kubernetes, cut to the fields that decisions need: what a store keeps of a thousand nodes must be
//! small.

use crate::jobs::objects::JobPod;
pub use larder_kube::key::{Key, Meta};
pub use larder_kube::node::{Node, Taint};
use larder_kube::pod::amounts::Amounts;
use larder_kube::store::Stored;

/// On a job: what exactly it was made for, in words of the controller.
pub const PURPOSE_ANNOTATION: &str = "larder.dev/purpose";
/// On a volume: a digest of its attributes, which cannot be changed.
pub const DESCRIPTION_ANNOTATION: &str = "larder.dev/description";

/// The labels of an object that the controller made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// The uid of its Dataset.
    pub uid: String,
    /// One of the `ROLE_` values.
    pub role: String,
    /// The node that it is for, if any.
    pub node: String,
}

/// A Dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetObject {
    /// Its name and version.
    pub meta: Meta,
    /// The whole object.
    pub dataset: larder_api::Dataset,
}

/// A NodeCache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheObject {
    /// Its name, which is that of the node.
    pub meta: Meta,
    /// Grows with each change of the promises.
    pub generation: i64,
    /// The promises.
    pub spec: larder_api::NodeCacheSpec,
    /// The node's report, once there is one.
    pub status: Option<larder_api::NodeCacheStatus>,
}

/// A pod that uses a volume or room on a node, or that the controller made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Its name and version.
    pub meta: Meta,
    /// Set if it is the controller's.
    pub role: Option<Role>,
    /// The job that made it.
    pub job: String,
    /// Its node, once it has one.
    pub node: String,
    /// Until then, the node on which the scheduler makes room for it; empty if on none.
    pub nominated: String,
    /// It runs no more.
    pub ended: bool,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// The datasets that its inline volumes name.
    pub inline: Vec<String>,
    /// Why it does not run; only for the controller's.
    pub waiting: Option<Waiting>,
    /// Its container runs; only for the controller's.
    pub runs: bool,
    /// How its container ended; only for the controller's.
    pub terminated: Option<Terminated>,
    /// What it requests, while it has a node or is to have one.
    pub requests: Amounts,
    /// Set if it is of a TrainingJob.
    pub of_job: Option<JobPod>,
}

/// Why a pod does not run yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// One word.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

/// The end of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terminated {
    /// Its exit status.
    pub exit_code: i32,
    /// Why, in one word.
    pub reason: String,
    /// Its termination message.
    pub message: String,
}

/// A job of the controller's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// Its name and version.
    pub meta: Meta,
    /// Its labels.
    pub role: Role,
    /// How it ended.
    pub end: Option<JobEnd>,
}

/// The end of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobEnd {
    /// None of its pods succeeded.
    pub failed: bool,
    /// When, in seconds since 1970.
    pub at: i64,
    /// Why, in Kubernetes' words.
    pub why: String,
}

/// A PersistentVolume of the controller's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    /// Its name and version.
    pub meta: Meta,
    /// Its labels.
    pub role: Role,
    /// The claim that it is for.
    pub claim: Key,
    /// The uid of that claim, once they are bound.
    pub claim_uid: String,
    /// [`DESCRIPTION_ANNOTATION`].
    pub description: String,
}

/// A claim of class `larder`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Its name and version.
    pub meta: Meta,
    /// Set if it is the controller's.
    pub role: Option<Role>,
    /// The dataset that it asks for.
    pub wants: Option<String>,
    /// The volume that it names.
    pub volume: String,
    /// It is bound.
    pub bound: bool,
}

/// A Deployment that follows a dataset of its namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deployment {
    /// Its name and version.
    pub meta: Meta,
    /// The dataset.
    pub follows: String,
    /// The snapshot that its pods were last rolled for.
    pub snapshot: String,
}

/// One of the two ConfigMaps that the controller reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigMap {
    /// Its name and version.
    pub meta: Meta,
    /// The value of its one key.
    pub text: String,
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

/// The key that the objects of the Dataset with this uid belong to.
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
    Deployment: |deployment| vec![Key::new(&deployment.meta.key.namespace, &deployment.follows)];
}

impl Pod {
    /// The datasets that its inline volumes name: `NAMESPACE/NAME`, or the name of one of the administrator's.
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
    /// The dataset that it asks for, if the text names one.
    pub fn wanted(&self) -> Option<Key> {
        self.wants.as_deref().and_then(Key::parse)
    }
}
