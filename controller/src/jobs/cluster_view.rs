//! The snapshot of the cluster that a round decides from, and lookups in it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use larder_api::names::{DatasetKey, OUT_OF_SERVICE_TAINT};
use larder_api::settings::Flavor;
use larder_api::training_job::checked::CheckedJob;

use crate::clusters::fence::Void;
use crate::jobs::index::Jobs;
use crate::jobs::machine::loss::is_lost;
use crate::jobs::machine::{NodeHealth, Pod, PodId};
use crate::jobs::objects::JobObject;
use crate::jobs::plan::NodeRoom;
use crate::jobs::queue::LeftoverPod;
use crate::kueue::known::Kueue;
use crate::objects::JobPod;
use crate::objects::{self, CacheObject, DatasetObject, Node};
use crate::time::Seconds;
use larder_kube::key::Key;
use larder_kube::store::Store;

/// An unknown node is lost this long after a pod was bound to it.
const UNKNOWN_NODE_SECONDS: i64 = 60;

/// The inputs of a round.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    pub now: Seconds,
    /// The image that contains larder-agent, for jobs with a launcher.
    pub image: &'a str,
    /// How long pods wait for nodes that an autoscaler adds, in seconds; `None`: there is no autoscaler.
    pub wait_for_nodes: Option<i64>,
    /// How long ended jobs are kept, in seconds; `None`: until somebody deletes them.
    pub keep_ended_jobs: Option<i64>,
    /// After how many seconds a node that is not ready is lost, unless the job sets another time.
    pub node_lost_after: i64,
    pub nodes: &'a Store<Node>,
    /// The caches of the nodes.
    pub caches: &'a Store<CacheObject>,
    pub datasets: &'a Store<DatasetObject>,
    pub pods: &'a Store<objects::Pod>,
    /// Training jobs and the objects that they depend on.
    pub jobs: &'a Jobs,
    pub kueue: &'a Kueue,
    /// The flavors of nodes, each node being of one at most.
    pub flavors: &'a [Flavor],
    /// The leases of other clusters whose jobs are here, by their ids.
    pub leases: &'a BTreeMap<String, Seconds>,
    /// The times that do not count in them.
    pub void: &'a Void,
    /// The quota that jobs in other clusters use.
    pub elsewhere: &'a [LeftoverPod],
}

/// A pod of a job: its object, and its reduction for the state machine.
pub struct Seen<'a> {
    pub pod: Pod,
    pub object: &'a objects::Pod,
    /// The fields that only pods of a job have.
    pub of_job: &'a JobPod,
}

impl<'a> ClusterView<'a> {
    /// The pods of a job.
    pub fn pods_of(&self, object: &JobObject, job: &CheckedJob) -> Vec<Seen<'a>> {
        let keys = self.jobs.pods.get(&object.meta.key).into_iter().flatten();
        let pods = keys.filter_map(|key| self.pods.get(key)).filter_map(|pod| {
            let of_job = pod.of_job.as_ref().filter(|of_job| of_job.uid == object.meta.uid)?;
            let id = pod_id(&object.meta.key.name, job, &pod.meta.key.name)?;
            // The controller has deleted the pod, and the watch has not reported that yet. Until it does, the deadline
            // is unknown, and the current time is used instead.
            let leaving = of_job.leaving.or_else(|| pod.meta.deleting.then_some(self.now));
            let leaving = if job.at_most_once { leaving.map(|_| Seconds::NEVER) } else { leaving };
            let seen = Pod {
                id,
                stage: of_job.stage,
                leaving,
                is_refused: of_job.is_refused,
                reason: of_job.reason.clone(),
                exit_code: of_job.exit_code,
                restarts: of_job.restarts,
                result: of_job.result.clone(),
                never_ran: of_job.never_ran,
                disruption: of_job.disruption.clone(),
                devices: of_job.devices,
                node: (!pod.node.is_empty()).then(|| self.health(&pod.node, of_job.bound_at, Some(job))),
                since: of_job.bound_at,
            };
            Some(Seen { pod: seen, object: pod, of_job })
        });
        pods.collect()
    }

    /// The latest attempt that has a pod. This includes pods that an earlier job of the same name left behind.
    pub fn last_attempt(&self, object: &JobObject, job: &CheckedJob) -> u32 {
        let Key { namespace, name } = &object.meta.key;
        let begin = Key::new(namespace, &format!("{name}-"));
        let ids = self.pods.named(&begin).filter_map(|pod| pod_id(name, job, &pod.meta.key.name));
        ids.map(|id| id.attempt).max().unwrap_or(0)
    }

    /// True if kube-scheduler has gang scheduling.
    pub fn has_gangs(&self) -> bool {
        self.jobs.gangs.is_there() && !self.jobs.drops_groups
    }

    /// True if pods of the job with this uid may still run.
    pub fn has_live_pods(&self, job: &Key, uid: &str) -> bool {
        let pods = self.jobs.pods.get(job).into_iter().flatten().filter_map(|key| self.pods.get(key));
        pods.filter_map(|pod| Some((pod, pod.of_job.as_ref()?))).any(|(pod, of_job)| {
            let has_lost_node =
                || !pod.node.is_empty() && is_lost(self.health(&pod.node, of_job.bound_at, None), self.now);
            of_job.uid == uid && !of_job.stage.has_ended() && !has_lost_node()
        })
    }

    /// The job with this name and uid, if this controller runs it.
    pub fn job(&self, key: &Key, uid: &str) -> Option<&'a JobObject> {
        self.jobs.jobs.get(key).filter(|object| object.meta.uid == uid && object.may_have_pods())
    }

    /// True if this controller runs the job with this name and uid.
    pub fn has(&self, key: &Key, uid: &str) -> bool {
        self.job(key, uid).is_some()
    }

    /// Until when a job that another cluster has placed here may have pods; `None`: without limit.
    pub fn runs_until(&self, object: &JobObject) -> Option<Seconds> {
        let home = object.home.as_ref()?;
        let lease = self.leases.get(&home.id).copied();
        home.runs_until(&object.meta.uid, Seconds(object.meta.created), lease, self.void)
    }

    /// True if the job is a trial of a sweep, which deletes it.
    pub fn is_trial(&self, object: &JobObject) -> bool {
        let sweep = object.trial_of.as_ref().and_then(|(sweep, uid)| Some((self.jobs.jobs.get(sweep)?, uid)));
        sweep.is_some_and(|(sweep, uid)| sweep.meta.uid == *uid && sweep.trial_spec.is_some())
    }

    /// The health of a node for a pod of this job; without a job, by the administrator's settings. The watch of pods
    /// may be ahead of the watch of nodes, so an unknown node is lost some time after the pod was bound.
    pub fn health(&self, node: &str, bound_at: Seconds, job: Option<&CheckedJob>) -> NodeHealth {
        let Some(node) = self.nodes.get(&Key::cluster(node)) else {
            return NodeHealth { lost_at: Some(bound_at + UNKNOWN_NODE_SECONDS), ..NodeHealth::default() };
        };
        NodeHealth {
            lost_at: self.node_lost_after(job).and_then(|after| self.jobs.outages.lost_at(node, after)),
            is_out_of_service: node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
            device_fault: node.device_fault,
        }
    }

    /// After how many seconds a node that is not ready is lost to a job; `None`: only if it is gone or out of service.
    fn node_lost_after(&self, job: Option<&CheckedJob>) -> Option<i64> {
        let Some(job) = job else { return Some(self.node_lost_after) };
        let own = job.node_lost_after.map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
        (!job.at_most_once).then_some(own.unwrap_or(self.node_lost_after))
    }

    /// The nodes with the resources that are used on them. `datasets` are the datasets whose cached bytes matter.
    pub fn rooms(&self, datasets: &[Key]) -> Vec<NodeRoom<'a>> {
        let snapshot = |key| Some((key, self.snapshot(key)?, self.datasets.get(key)?.cache_owner()));
        let snapshots: Vec<(&Key, &str, &str)> = datasets.iter().filter_map(snapshot).collect();
        let room = |node: &'a Node| {
            let cache = self.caches.get(&node.meta.key).filter(|_| !snapshots.is_empty());
            let cached = cache.and_then(|cache| cache.status.as_ref());
            let held = cached.into_iter().flat_map(|status| &status.snapshots).flat_map(|here| {
                let of = snapshots.iter().filter(|(_, snapshot, owner)| here.is_of(snapshot, owner));
                of.map(|(key, ..)| ((*key).clone(), here.bytes))
            });
            NodeRoom {
                node,
                allocatable: Cow::Borrowed(&node.allocatable),
                used: self.jobs.usage.of(&node.meta.key.name).map(Cow::Borrowed).unwrap_or_default(),
                held: held.collect(),
            }
        };
        self.nodes.iter().map(room).collect()
    }

    pub fn snapshot(&self, key: &Key) -> Option<&'a str> {
        self.datasets.get(key)?.dataset.status.as_ref()?.snapshot.as_deref()
    }

    /// The size of a dataset in bytes.
    pub fn bytes(&self, key: &Key) -> u64 {
        let status = self.datasets.get(key).and_then(|object| object.dataset.status.as_ref());
        status.and_then(|status| status.bytes).unwrap_or(0)
    }

    pub fn priority(&self, job: &CheckedJob) -> i32 {
        let templates = job.roles.iter().map(|role| &role.template);
        self.jobs.priorities.in_queue(job.queue(), job.priority.as_deref(), templates)
    }
}

/// The object key of a Dataset.
pub fn dataset_key(dataset: &DatasetKey) -> Key {
    Key::new(&dataset.namespace, &dataset.name)
}

/// Parses a pod name of the form `JOB-ROLE-INDEX-ATTEMPT`.
pub fn pod_id(name: &str, job: &CheckedJob, pod: &str) -> Option<PodId> {
    let rest = pod.strip_prefix(name)?.strip_prefix('-')?;
    let (rest, attempt) = rest.rsplit_once('-')?;
    let (role, index) = rest.rsplit_once('-')?;
    let role = job.roles.iter().position(|there| there.name == role)?;
    // Rejects other spellings of a number, such as `01`: a pod has exactly one valid name.
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    Some(PodId { role, index: number(index)?, attempt: number(attempt)? })
}
