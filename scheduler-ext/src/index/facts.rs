//! The fields of objects that an answer can depend on.

use std::sync::Arc;

use larder_api::checked::is_granted;
use larder_dataset::CacheId;
use larder_kube::pod::amounts::Amounts;

/// A name that many objects share.
pub type Name = Arc<str>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Its failure domain; empty if it has none.
    pub zone: Name,
    /// Its rack; empty if it has none.
    pub rack: Name,
    /// The number of devices of each configured kind.
    pub devices: Box<[u32]>,
}

/// The cache of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheFacts {
    /// Sorted by cache.
    pub held: Box<[Held]>,
    /// Why no new pods should read from the cache: the value of the annotation `larder.dev/cordon`.
    pub cordon: Option<Name>,
}

/// A snapshot in the cache of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub cache: CacheId,
    /// The cached bytes.
    pub bytes: u64,
    /// The bytes that should be cached; 0 if unknown.
    pub wanted: u64,
    /// The remaining bytes are being fetched: the snapshot was promised to the node, or is mounted there.
    pub comes: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetFacts {
    pub uid: Name,
    /// The bytes that new pods read: those of a snapshot, for its owner.
    pub cache: Option<CacheId>,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of copies of each block, if nodes share their caches.
    pub copies: Option<u8>,
    /// It is a directory on the nodes, which is read in place.
    pub is_folder: bool,
    /// The other namespaces that may read it; `*` for all.
    pub namespaces: Box<[Name]>,
}

impl DatasetFacts {
    /// True if pods of `namespace` may read the Dataset, which is in the namespace `own`.
    pub fn is_granted(&self, own: &str, namespace: &str) -> bool {
        is_granted(&self.namespaces, own, namespace)
    }
}

/// A volume of a Dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeFacts {
    /// The claim that it is reserved for, as `NAMESPACE/NAME`.
    pub claim: Name,
    /// The Dataset, as `NAMESPACE/NAME`.
    pub dataset: Name,
    pub uid: Name,
}

/// A pod that has a node and has not ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// Its namespace and name.
    pub key: Name,
    pub uid: Name,
    pub node: Name,
    pub priority: i32,
    /// It is terminating.
    pub leaving: bool,
    /// It has the annotation `larder.dev/pinned: "true"`.
    pub pinned: bool,
    /// It may block other pods by more than its requests: by a host port or an affinity.
    pub entangled: bool,
    /// For a larderd pod, whether it is ready; `None` for any other pod.
    pub larderd: Option<bool>,
    /// The group of pods that it works with.
    pub group: Option<Name>,
    /// Its position in a TrainingJob.
    pub seat: Option<Seat>,
    pub requests: Arc<Amounts>,
    /// The datasets that it reads.
    pub reads: Box<[Read]>,
}

/// A pod without a node, for which the scheduler makes room on one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nomination {
    pub uid: Name,
    pub node: Name,
}

/// How a pod refers to a dataset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// By a claim, `NAMESPACE/NAME`.
    Claim(Name),
    /// By the Dataset, `NAMESPACE/NAME`.
    Dataset(Name),
}

/// The position of a pod in a TrainingJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The job, as `NAMESPACE/NAME`.
    pub job: Name,
    /// The job's uid, from the pod's owner reference.
    pub uid: Name,
    pub role: Name,
    /// The index within the role.
    pub index: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFacts {
    pub uid: Name,
    /// Per role, its minimum.
    pub floors: Box<[(Name, u32)]>,
    /// It should have pods and does not have them yet.
    pub waits: bool,
    /// It is being deleted.
    pub leaving: bool,
}
