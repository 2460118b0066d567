//! What readers see of the cluster at one moment: a request is answered from one [`Snapshot`].

use std::sync::Arc;

use larder_dataset::CacheId;

use super::facts::{CacheFacts, DatasetFacts, Held, JobFacts, Name, NodeFacts, PodFacts};
use super::shards::Shards;

/// The cluster at one moment. Cloning copies only a few pointers.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Increases with each published snapshot.
    pub version: u64,
    /// All kinds have been listed at least once.
    pub is_complete: bool,
    /// By name.
    pub nodes: Shards<Name, Arc<NodeState>>,
    /// By `NAMESPACE/NAME`.
    pub datasets: Shards<Name, Arc<DatasetFacts>>,
    /// The Datasets of claims: key and uid, by `NAMESPACE/NAME` of the claim.
    pub claims: Shards<Name, (Name, Name)>,
    /// Pods that have a node and have not ended, by uid.
    pub pods: Shards<Name, Arc<PodFacts>>,
    /// The nodes on which the scheduler makes room for pods, by pod uid.
    pub nominated: Shards<Name, Name>,
    /// TrainingJobs by `NAMESPACE/NAME`.
    pub jobs: Shards<Name, Arc<JobState>>,
    /// Groups of pods that work together, by group name.
    pub groups: Shards<Name, Arc<GroupState>>,
    /// Where a snapshot is cached for an owner.
    pub spreads: Shards<CacheId, Arc<Spread>>,
    /// The number of TrainingJobs that should have pods and do not have them yet.
    pub waiting_jobs: u32,
    /// The number of larderd pods.
    pub larderds: u32,
}

/// A node and what runs on it. There is an entry for every node name that any object mentions.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// The Node object's fields, if it is known.
    pub facts: Option<Arc<NodeFacts>>,
    /// The NodeCache's fields, if it has one.
    pub cache: Option<Arc<CacheFacts>>,
    /// The first 8 bytes of each cached entry's id, sorted, so that a lookup does not read all entries.
    pub snapshots: Box<[u64]>,
    /// Why no new pods should read from this cache; `None` if they may.
    pub cordon: Option<Name>,
    pub pods: Vec<Arc<PodFacts>>,
    /// The devices that its pods request, per device kind.
    pub used: Box<[u32]>,
    /// The Datasets that its pods read, sorted by name, with the number of these pods.
    pub readers: Vec<(Name, u32)>,
    /// The number of ready larderd pods on it.
    pub larderds: u32,
}

impl NodeState {
    /// True if nothing is known about it any more.
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

    /// The entry of these bytes in its cache.
    pub fn holds(&self, cache: &CacheId) -> Option<&Held> {
        let first = first_bytes(cache);
        let begin = self.snapshots.partition_point(|known| *known < first);
        if self.snapshots.get(begin) != Some(&first) {
            return None;
        }
        self.cache.as_ref()?.held[begin..].iter().find(|held| held.cache == *cache)
    }

    /// True if a pod on it reads the Dataset. `dataset` must be the interned name from [`Snapshot::datasets`]: names
    /// are compared by pointer.
    pub fn is_read(&self, dataset: &Name) -> bool {
        self.readers.iter().any(|(known, _)| Arc::ptr_eq(known, dataset))
    }
}

/// The first 8 bytes of an id as a number, which sorts like the id.
pub fn first_bytes(cache: &CacheId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = cache.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A TrainingJob with its pods.
#[derive(Clone, Debug, Default)]
pub struct JobState {
    /// The TrainingJob's fields, if it is known.
    pub facts: Option<JobFacts>,
    /// Per role, the number of pods that have a node, have not ended and are not terminating.
    pub live: Vec<(Name, u32)>,
}

impl JobState {
    /// The number of live pods of a role.
    pub fn live(&self, role: &str) -> u32 {
        self.live.iter().find(|(name, _)| &**name == role).map_or(0, |(_, pods)| *pods)
    }

    /// The minimum of a role; `None` if it is not known.
    pub fn floor(&self, role: &str) -> Option<u32> {
        let facts = self.facts.as_ref()?;
        if facts.leaving {
            return Some(0);
        }
        facts.floors.iter().find(|(name, _)| &**name == role).map(|(_, floor)| *floor)
    }
}

/// The number of running pods of a group, in total and per domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupState {
    /// The total.
    pub pods: u32,
    /// By zone.
    pub zones: Vec<(Name, u32)>,
    /// By rack.
    pub racks: Vec<(Name, u32)>,
}

/// Where a snapshot is cached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// The bytes on all nodes together.
    pub bytes: u64,
    /// By zone.
    pub zones: Vec<(Name, u64)>,
}
