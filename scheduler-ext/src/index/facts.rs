//! What is kept of the objects of a cluster: the few fields that an answer can depend on.

use std::sync::Arc;

use larder_api::checked::is_granted;
use larder_dataset::SnapshotId;
use larder_kube::pod::amounts::Amounts;

/// A name that many objects share.
pub type Name = Arc<str>;

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Its failure domain; empty if it has none.
    pub zone: Name,
    /// Its rack; empty if it has none.
    pub rack: Name,
    /// Of each kind of devices of the configuration: how many it has.
    pub devices: Box<[u32]>,
}

/// The cache of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheFacts {
    /// In the order of snapshots.
    pub held: Box<[Held]>,
    /// Why no new pods are to read there: the value of the annotation `larder.dev/cordon`.
    pub cordon: Option<Name>,
}

/// A snapshot in the cache of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The bytes that are there.
    pub bytes: u64,
    /// The bytes that are to be there; 0 if that is not known.
    pub wanted: u64,
    /// The rest is on its way: the node was promised it, or has it mounted.
    pub comes: bool,
}

/// A Dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetFacts {
    /// The uid of its object.
    pub uid: Name,
    /// The snapshot that new pods read.
    pub snapshot: Option<SnapshotId>,
    /// Its bytes.
    pub bytes: u64,
    /// The copies of each block, where nodes share their caches.
    pub copies: Option<u8>,
    /// It is a folder of the nodes, read as it is.
    pub is_folder: bool,
    /// The other namespaces that may read it; `*` for all.
    pub namespaces: Box<[Name]>,
}

impl DatasetFacts {
    /// True if pods of `namespace` may read it, which is in the namespace `own`.
    pub fn is_granted(&self, own: &str, namespace: &str) -> bool {
        is_granted(&self.namespaces, own, namespace)
    }
}

/// A volume of a Dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeFacts {
    /// The claim that it is for, as `NAMESPACE/NAME`.
    pub claim: Name,
    /// The Dataset, as `NAMESPACE/NAME`.
    pub dataset: Name,
    /// The uid of the Dataset.
    pub uid: Name,
}

/// A pod that has a node and has not ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// Its namespace and name.
    pub key: Name,
    /// Its uid.
    pub uid: Name,
    /// Its node.
    pub node: Name,
    /// Its priority.
    pub priority: i32,
    /// It was told to end.
    pub leaving: bool,
    /// It has the annotation `larder.dev/pinned: "true"`.
    pub pinned: bool,
    /// It may be in the way by more than what it requests: by a port, or by an affinity.
    pub entangled: bool,
    /// It is a larderd, and ready or not.
    pub larderd: Option<bool>,
    /// The pods that it works with.
    pub group: Option<Name>,
    /// Its place in a TrainingJob.
    pub seat: Option<Seat>,
    /// What it requests.
    pub requests: Arc<Amounts>,
    /// What it reads.
    pub reads: Box<[Read]>,
}

/// A pod without a node, for which the scheduler makes room on one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nomination {
    /// The uid of the pod.
    pub uid: Name,
    /// The node.
    pub node: Name,
}

/// How a pod names a dataset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// By a claim, `NAMESPACE/NAME`.
    Claim(Name),
    /// By the Dataset, `NAMESPACE/NAME`.
    Dataset(Name),
}

/// The place of a pod in a TrainingJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The job, as `NAMESPACE/NAME`.
    pub job: Name,
    /// Its uid, as the pod has it.
    pub uid: Name,
    /// Its role.
    pub role: Name,
    /// Its index in the role.
    pub index: u32,
}

/// A TrainingJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFacts {
    /// Its uid.
    pub uid: Name,
    /// Of each role: the fewest pods that the job can run with.
    pub floors: Box<[(Name, u32)]>,
    /// It is to have pods and does not have them yet.
    pub waits: bool,
    /// It is being deleted.
    pub leaving: bool,
}
