//! What readers see of a cluster at one time: every question of a pod is answered from one [`Snapshot`].

use std::sync::Arc;

use larder_dataset::SnapshotId;

use super::facts::{CacheFacts, DatasetFacts, Held, JobFacts, Name, NodeFacts, PodFacts};
use super::shards::Shards;

/// A cluster at one time. A copy is a few pointers.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Grows with each snapshot that is shown to readers.
    pub version: u64,
    /// All kinds were listed once.
    pub is_complete: bool,
    /// By name.
    pub nodes: Shards<Name, Arc<NodeState>>,
    /// By `NAMESPACE/NAME`.
    pub datasets: Shards<Name, Arc<DatasetFacts>>,
    /// The Datasets of claims: key and uid, by `NAMESPACE/NAME` of the claim.
    pub claims: Shards<Name, (Name, Name)>,
    /// Pods that have a node and have not ended, by uid.
    pub pods: Shards<Name, Arc<PodFacts>>,
    /// The nodes on which the scheduler makes room for pods, by the pods' uids.
    pub nominated: Shards<Name, Name>,
    /// TrainingJobs by `NAMESPACE/NAME`.
    pub jobs: Shards<Name, Arc<JobState>>,
    /// Pods that work together, by the name of their group.
    pub groups: Shards<Name, Arc<GroupState>>,
    /// Where a snapshot is cached.
    pub spreads: Shards<SnapshotId, Arc<Spread>>,
    /// TrainingJobs that are to have pods and do not have them yet.
    pub waiting_jobs: u32,
    /// Pods that are a larderd.
    pub larderds: u32,
}

/// A node with what is on it. There is one for each name that any object has for a node.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// The node's own object, if it is known.
    pub facts: Option<Arc<NodeFacts>>,
    /// Its cache, if it has one.
    pub cache: Option<Arc<CacheFacts>>,
    /// The first bytes of the snapshots in its cache, in their order: what is there is found without reading all of it.
    pub snapshots: Box<[u64]>,
    /// Why no new pods are to read there.
    pub cordon: Option<Name>,
    /// Its pods.
    pub pods: Vec<Arc<PodFacts>>,
    /// The devices that these request, by kind.
    pub used: Box<[u32]>,
    /// The Datasets that its pods read, in the order of names, and how many do.
    pub readers: Vec<(Name, u32)>,
    /// Larderds on it that are ready.
    pub larderds: u32,
}

impl NodeState {
    /// True if nothing is known of it any more.
    pub fn is_nothing(&self) -> bool {
        self.facts.is_none() && self.cache.is_none() && self.pods.is_empty()
    }

    /// Its failure domain; empty if it has none.
    pub fn zone(&self) -> &str {
        self.facts.as_ref().map_or("", |facts| &facts.zone)
    }

    /// Its rack; empty if it has none.
    pub fn rack(&self) -> &str {
        self.facts.as_ref().map_or("", |facts| &facts.rack)
    }

    /// What its cache has of a snapshot.
    pub fn holds(&self, snapshot: &SnapshotId) -> Option<&Held> {
        let first = first_bytes(snapshot);
        let begin = self.snapshots.partition_point(|known| *known < first);
        if self.snapshots.get(begin) != Some(&first) {
            return None;
        }
        self.cache.as_ref()?.held[begin..].iter().find(|held| held.snapshot == *snapshot)
    }

    /// True if a pod on it reads the Dataset. The name has to be the one that [`Snapshot::datasets`] has for it: names that are equal
    /// are the same there.
    pub fn is_read(&self, dataset: &Name) -> bool {
        self.readers.iter().any(|(known, _)| Arc::ptr_eq(known, dataset))
    }
}

/// The first bytes of a snapshot's id, which have the order of ids.
pub fn first_bytes(snapshot: &SnapshotId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = snapshot.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A TrainingJob with its pods.
#[derive(Clone, Debug, Default)]
pub struct JobState {
    /// Its own object, if it is known.
    pub facts: Option<JobFacts>,
    /// Of each role: its pods that have a node, have not ended and were not told to.
    pub live: Vec<(Name, u32)>,
}

impl JobState {
    /// How many pods of a role there are.
    pub fn live(&self, role: &str) -> u32 {
        self.live.iter().find(|(name, _)| &**name == role).map_or(0, |(_, pods)| *pods)
    }

    /// The fewest pods of a role that the job can run with; `None` if nobody knows.
    pub fn floor(&self, role: &str) -> Option<u32> {
        let facts = self.facts.as_ref()?;
        if facts.leaving {
            return Some(0);
        }
        facts.floors.iter().find(|(name, _)| &**name == role).map(|(_, floor)| *floor)
    }
}

/// How many pods of a group run, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupState {
    /// All of them.
    pub pods: u32,
    /// By zone.
    pub zones: Vec<(Name, u32)>,
    /// By rack.
    pub racks: Vec<(Name, u32)>,
}

/// Where a snapshot is cached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// The bytes that all nodes have together.
    pub bytes: u64,
    /// By zone.
    pub zones: Vec<(Name, u64)>,
}
