//! The input of a decision about one dataset, and its result.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::rights::Endpoints;
use larder_api::{CleanedSnapshot, PromisedDataset};

use crate::objects::{CacheObject, Claim, DatasetObject, Deployment, Job, Key, Node, Pod, Volume};
use crate::warm_request::{Progress, Requester, WarmRequest};
use crate::write::Write;
use larder_kube::kinds::Kind;

/// Settings of the administrator.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The image of the pods that import and warm.
    pub image: String,
    /// The servers that any Dataset may name.
    pub endpoints: Endpoints,
}

/// A node, and what is known of its cache.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    /// The node.
    pub node: &'a Node,
    /// Its cache, once it has such an object.
    pub cache: Option<&'a CacheObject>,
    /// All that is promised there: written, or decided and about to be.
    pub promised: &'a [PromisedDataset],
}

/// The view of the cluster from which one dataset is decided: everything that the decision depends on.
#[derive(Debug)]
pub struct DatasetView<'a> {
    /// Seconds since 1970.
    pub now: i64,
    /// Settings of the administrator.
    pub settings: &'a Settings,
    /// The name of the dataset.
    pub key: &'a Key,
    /// The Dataset, if there is one of that name.
    pub dataset: Option<&'a DatasetObject>,
    /// All nodes.
    pub nodes: Vec<NodeFacts<'a>>,
    /// The dataset's jobs.
    pub jobs: Vec<&'a Job>,
    /// Their pods.
    pub job_pods: Vec<&'a Pod>,
    /// The pods that use the dataset and have not ended.
    pub users: Vec<&'a Pod>,
    /// The claims that the controller made for it, and those that ask for it.
    pub claims: Vec<&'a Claim>,
    /// Its volumes.
    pub volumes: Vec<&'a Volume>,
    /// The Deployments that follow it.
    pub deployments: Vec<&'a Deployment>,
    /// The wishes of jobs for it.
    pub wishes: Vec<WarmRequest>,
    /// There may be others.
    pub wishes_unknown: bool,
    /// Inline volumes cannot name it: there is no room for it in their ConfigMap.
    pub is_left_out: bool,
    /// How many more pods may warm.
    pub warming_slots: u32,
    /// Seconds since this process last wrote the status. Small changes of the status wait for this.
    pub status_age: i64,
    /// The names of the Events that this process has written.
    pub emitted: &'a BTreeSet<String>,
    /// The writes that the API refused at their last attempt.
    pub refused: &'a Refusals,
}

/// Objects whose writes the API refused, with its messages. A retry does not change the answer.
pub type Refusals = BTreeMap<(Kind, Key), String>;

/// The result of a decision about a dataset.
#[derive(Debug, Default)]
pub struct Decision {
    /// The writes, in their order. A failure leaves the rest for later, a refusal those that need what was refused.
    pub writes: Vec<Write>,
    /// The room that nodes are to promise to it, by node.
    pub promises: BTreeMap<String, Vec<PromisedDataset>>,
    /// The bytes of it that nodes are to drop, by node.
    pub clean: BTreeMap<String, Vec<CleanedSnapshot>>,
    /// How far it is on the nodes of those jobs.
    pub progress: BTreeMap<Requester, Progress>,
    /// Decide again at this time, if nothing happens before.
    pub again_at: Option<i64>,
    /// More pods would warm if there were slots for them.
    pub is_queued: bool,
    /// There is no room for it on as many nodes as it wants.
    pub is_starved: bool,
    /// Nodes have not dropped yet what they were asked to.
    pub is_cleaning: bool,
}

impl Decision {
    /// Decide again at `at` or before.
    pub fn again(&mut self, at: i64) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

impl<'a> NodeFacts<'a> {
    /// A snapshot in the node's cache.
    pub fn snapshot(&self, snapshot: &str) -> Option<&'a larder_api::SnapshotCache> {
        let status = self.cache?.status.as_ref()?;
        status.snapshots.iter().find(|cached| cached.snapshot == snapshot)
    }

    /// True once the node's larderd knows of its promise to a snapshot of the Dataset `uid`, even if it has no room
    /// yet: what a new snapshot shares with the old one it knows only when that is mounted.
    pub fn has_taken(&self, uid: &str, snapshot: &str) -> bool {
        let Some(cache) = self.cache else { return false };
        let Some(status) = &cache.status else { return false };
        let is_this = |promise: &&PromisedDataset| promise.uid == uid && promise.snapshot == snapshot;
        let Some(promise) = cache.spec.datasets.iter().find(is_this) else { return false };
        // News of other datasets make a new generation, and leave the room that this one has.
        let has_room = self.snapshot(snapshot).is_some_and(|here| here.reserved_bytes >= promise.bytes);
        has_room || status.observed_generation.unwrap_or(0) >= cache.generation
    }

    /// True once it has the room, too.
    pub fn has_promised(&self, uid: &str, snapshot: &str) -> bool {
        let unkept = self.cache.and_then(|cache| cache.status.as_ref()).into_iter().flat_map(|status| &status.unkept);
        self.has_taken(uid, snapshot) && !unkept.into_iter().any(|there| there.uid == uid && there.snapshot == snapshot)
    }
}
