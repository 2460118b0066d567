//! The inputs and the result of a decision about one dataset.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::cache_quota::checked::CheckedQuota;
use larder_api::rights::Endpoints;
use larder_api::{CleanedSnapshot, PromisedDataset};

use crate::datasets::slots::Needs;
use crate::objects::{CacheObject, Claim, DatasetObject, Deployment, Job, Key, Node, Pod, Volume};
use crate::time::Seconds;
use crate::warm_request::{Progress, Requester, WarmRequest};
use crate::write::Write;
use larder_kube::kinds::Kind;

/// The administrator's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The image of the pods that import and warm.
    pub image: String,
    /// The servers that any Dataset may name.
    pub endpoints: Endpoints,
    /// How long pods of training jobs wait for nodes that an autoscaler adds, in seconds; `None`: there is none.
    pub wait_for_nodes: Option<i64>,
    /// How long ended training jobs are kept, in seconds; `None`: until somebody deletes them.
    pub keep_ended_jobs: Option<i64>,
    /// After how many seconds a node that is not ready is lost to training jobs.
    pub node_lost_after: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            image: String::new(),
            endpoints: Endpoints::default(),
            wait_for_nodes: None,
            keep_ended_jobs: None,
            node_lost_after: 60,
        }
    }
}

/// A node and its cache.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    pub node: &'a Node,
    /// Its NodeCache, if it exists.
    pub cache: Option<&'a CacheObject>,
    /// All promises of the node: written, or decided and about to be written.
    pub promised: &'a [PromisedDataset],
    /// The owner of the dataset's cached bytes.
    pub owner: &'a str,
}

/// The CacheQuota of a dataset's namespace, and what other datasets use of it.
#[derive(Clone, Copy, Debug)]
pub struct QuotaView<'a> {
    pub name: &'a str,
    pub limits: &'a CheckedQuota,
    /// The room that is promised to all of its datasets, this one included.
    pub promised: u64,
    /// The room that older datasets of the quota wait for and can have.
    pub kept: u64,
    /// The number of its datasets that are older.
    pub older: usize,
    /// The imports of its other datasets that run, or have waited for longer.
    pub imports: usize,
}

/// The inputs of a decision about one dataset.
#[derive(Debug)]
pub struct DatasetView<'a> {
    pub now: Seconds,
    pub settings: &'a Settings,
    pub key: &'a Key,
    /// The Dataset; `None` if it does not exist.
    pub dataset: Option<&'a DatasetObject>,
    pub nodes: Vec<NodeFacts<'a>>,
    /// The Jobs that the controller created for the dataset.
    pub jobs: Vec<&'a Job>,
    pub job_pods: Vec<&'a Pod>,
    /// The pods that use the dataset and have not ended.
    pub users: Vec<&'a Pod>,
    /// The claims that the controller created for the dataset, and the claims that request it.
    pub claims: Vec<&'a Claim>,
    pub volumes: Vec<&'a Volume>,
    /// The Deployments that follow the dataset.
    pub deployments: Vec<&'a Deployment>,
    /// The warm requests of jobs for the dataset.
    pub warm_requests: Vec<WarmRequest>,
    /// True while further warm requests may exist that are not known yet.
    pub warm_requests_unknown: bool,
    /// Inline volumes cannot name the dataset, because it does not fit into their ConfigMap.
    pub is_left_out: bool,
    /// How many more of its pods may warm.
    pub warming_slots: u32,
    /// The quota of its namespace; `None` if it has none.
    pub quota: Option<QuotaView<'a>>,
    /// Seconds since this process last wrote the status. Small changes of the status are delayed by this.
    pub status_age: i64,
    /// The names of the Events that this process has written.
    pub emitted: &'a BTreeSet<String>,
    /// The writes that the API rejected at their last attempt.
    pub refused: &'a Refusals,
}

/// Objects whose writes the API rejected, with its messages. A retry would be rejected again.
pub type Refusals = BTreeMap<(Kind, Key), String>;

#[derive(Debug, Default)]
pub struct Decision {
    /// The writes, in order. After a failure the remaining writes are postponed; after a rejection only the writes that
    /// need the rejected object are skipped.
    pub writes: Vec<Write>,
    /// The room that nodes should promise to the dataset, by node.
    pub promises: BTreeMap<String, Vec<PromisedDataset>>,
    /// The bytes of the dataset that nodes should drop, by node.
    pub clean: BTreeMap<String, Vec<CleanedSnapshot>>,
    /// The progress of warm requests.
    pub progress: BTreeMap<Requester, Progress>,
    /// Decide again at this time if nothing changes before.
    pub again_at: Option<Seconds>,
    /// The nodes that can be warmed now, those that get a slot with this decision among them.
    pub needs: Needs,
    /// The quota of the namespace prevents promises or the import; the bytes for which younger datasets leave room.
    pub over_quota: Option<u64>,
    /// The quota of the namespace prevents an import until another one ends.
    pub awaits_import: bool,
    /// Fewer nodes than requested have room for the dataset.
    pub is_starved: bool,
    /// Nodes have not yet dropped all requested bytes.
    pub is_cleaning: bool,
}

impl Decision {
    /// Requests another decision at `at` or earlier.
    pub fn again(&mut self, at: Seconds) {
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }
}

impl<'a> NodeFacts<'a> {
    /// The entry of the dataset's bytes of a snapshot in the node's cache.
    pub fn snapshot(&self, snapshot: &str) -> Option<&'a larder_api::SnapshotCache> {
        let status = self.cache?.status.as_ref()?;
        status.snapshots.iter().find(|cached| cached.is_of(snapshot, self.owner))
    }

    /// True once the node's larderd knows its promise to a snapshot of the Dataset `uid`, even if it has no room yet.
    /// How much a new snapshot shares with the old one is known only after the new one is mounted.
    pub fn has_taken(&self, uid: &str, snapshot: &str) -> bool {
        let Some(cache) = self.cache else { return false };
        let Some(status) = &cache.status else { return false };
        let is_this = |promise: &&PromisedDataset| promise.uid == uid && promise.snapshot == snapshot;
        let Some(promise) = cache.spec.datasets.iter().find(is_this) else { return false };
        // Changes about other datasets also increase the generation, and do not affect this dataset's room.
        let has_room = self.snapshot(snapshot).is_some_and(|here| here.reserved_bytes >= promise.bytes);
        has_room || status.observed_generation.unwrap_or(0) >= cache.generation
    }

    /// True once the node also has the room.
    pub fn has_promised(&self, uid: &str, snapshot: &str) -> bool {
        let unkept = self.cache.and_then(|cache| cache.status.as_ref()).into_iter().flat_map(|status| &status.unkept);
        self.has_taken(uid, snapshot) && !unkept.into_iter().any(|there| there.uid == uid && there.snapshot == snapshot)
    }
}
