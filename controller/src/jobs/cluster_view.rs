//! The snapshot of the cluster that a round looks at, and what is looked up in it.

use larder_api::names::{DatasetKey, OUT_OF_SERVICE_TAINT};
use larder_api::training_job::checked::CheckedJob;

use crate::jobs::index::Jobs;
use crate::jobs::machine::{NodeHealth, Pod, PodId};
use crate::jobs::objects::{JobObject, JobPod};
use crate::jobs::plan::NodeRoom;
use crate::kueue::known::Kueue;
use crate::objects::{self, CacheObject, DatasetObject, Node};
use crate::time::Seconds;
use larder_kube::key::Key;
use larder_kube::store::Store;

/// What a round looks at.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    /// The time.
    pub now: Seconds,
    /// The image that has the agent of launchers.
    pub image: &'a str,
    pub nodes: &'a Store<Node>,
    /// Their caches.
    pub caches: &'a Store<CacheObject>,
    pub datasets: &'a Store<DatasetObject>,
    /// All pods.
    pub pods: &'a Store<objects::Pod>,
    /// The jobs, and what they depend on.
    pub jobs: &'a Jobs,
    /// Kueue's objects.
    pub kueue: &'a Kueue,
}

/// A pod of a job as the state machine sees it, and the object.
pub struct Seen<'a> {
    /// Which one it is, and how far.
    pub pod: Pod,
    /// Its object.
    pub object: &'a objects::Pod,
    /// What it is to its job.
    pub of_job: &'a JobPod,
}

impl<'a> ClusterView<'a> {
    /// The pods of a job.
    pub fn pods_of(&self, object: &JobObject, job: &CheckedJob) -> Vec<Seen<'a>> {
        let keys = self.jobs.pods.get(&object.meta.key).into_iter().flatten();
        let pods = keys.filter_map(|key| self.pods.get(key)).filter_map(|pod| {
            let of_job = pod.of_job.as_ref().filter(|of_job| of_job.uid == object.meta.uid)?;
            let id = pod_id(&object.meta.key.name, job, &pod.meta.key.name)?;
            // The watch has not shown the deletion that this process asked for: until it does, the time is unknown.
            let leaving = of_job.leaving.or_else(|| pod.meta.deleting.then_some(self.now));
            let seen = Pod {
                id,
                stage: of_job.stage,
                leaving,
                reason: of_job.reason.clone(),
                never_ran: of_job.never_ran,
                disruption: of_job.disruption.clone(),
                devices: of_job.devices,
                node: (!pod.node.is_empty()).then(|| self.health(&pod.node, of_job.bound_at)),
            };
            Some(Seen { pod: seen, object: pod, of_job })
        });
        pods.collect()
    }

    /// The last attempt that has a pod, even another's: an earlier job of the same name may have left pods behind.
    pub fn last_attempt(&self, object: &JobObject, job: &CheckedJob) -> u32 {
        let Key { namespace, name } = &object.meta.key;
        let begin = Key::new(namespace, &format!("{name}-"));
        let ids = self.pods.named(&begin).filter_map(|pod| pod_id(name, job, &pod.meta.key.name));
        ids.map(|id| id.attempt).max().unwrap_or(0)
    }

    /// True if the scheduler has gangs.
    pub fn has_gangs(&self) -> bool {
        self.jobs.gangs.is_there() && !self.jobs.drops_groups
    }

    /// True if there is a job of this name and uid that this controller runs.
    pub fn has(&self, job: &Key, uid: &str) -> bool {
        self.jobs.jobs.get(job).is_some_and(|object| object.is_ours() && object.meta.uid == uid)
    }

    /// The health of a pod's node. The watch of pods may be ahead of that of nodes, so an unknown node counts as not ready since the
    /// pod was bound.
    pub fn health(&self, node: &str, bound_at: Seconds) -> NodeHealth {
        let Some(node) = self.nodes.get(&Key::cluster(node)) else {
            return NodeHealth { unready_since: Some(bound_at), ..NodeHealth::default() };
        };
        NodeHealth {
            unready_since: node.unready_since.map(Seconds),
            is_out_of_service: node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
            device_fault: node.device_fault,
        }
    }

    /// The nodes with what is used there. `datasets` are those whose bytes count.
    pub fn rooms(&self, datasets: &[Key]) -> Vec<NodeRoom<'a>> {
        let snapshots: Vec<(&Key, &str)> = datasets.iter().filter_map(|key| Some((key, self.snapshot(key)?))).collect();
        let room = |node: &'a Node| {
            let cache = self.caches.get(&node.meta.key).filter(|_| !snapshots.is_empty());
            let cached = cache.and_then(|cache| cache.status.as_ref());
            let held = cached.into_iter().flat_map(|status| &status.snapshots).flat_map(|here| {
                let of = snapshots.iter().filter(|(_, snapshot)| *snapshot == here.snapshot);
                of.map(|(key, _)| ((*key).clone(), here.bytes))
            });
            NodeRoom {
                node,
                allocatable: node.allocatable.clone(),
                used: self.jobs.usage.of(&node.meta.key.name),
                held: held.collect(),
            }
        };
        self.nodes.iter().map(room).collect()
    }

    /// The snapshot of a dataset that pods read.
    pub fn snapshot(&self, key: &Key) -> Option<&'a str> {
        self.datasets.get(key)?.dataset.status.as_ref()?.snapshot.as_deref()
    }

    /// The bytes of a dataset.
    pub fn bytes(&self, key: &Key) -> u64 {
        let status = self.datasets.get(key).and_then(|object| object.dataset.status.as_ref());
        status.and_then(|status| status.bytes).unwrap_or(0)
    }

    /// The priority of a job.
    pub fn priority(&self, job: &CheckedJob) -> i32 {
        self.jobs.priorities.of(job.roles.iter().map(|role| &role.template))
    }
}

/// The name of a Dataset's object.
pub fn dataset_key(dataset: &DatasetKey) -> Key {
    Key::new(&dataset.namespace, &dataset.name)
}

/// The pod that a name, `JOB-ROLE-INDEX-ATTEMPT`, stands for.
pub fn pod_id(name: &str, job: &CheckedJob, pod: &str) -> Option<PodId> {
    let rest = pod.strip_prefix(name)?.strip_prefix('-')?;
    let (rest, attempt) = rest.rsplit_once('-')?;
    let (role, index) = rest.rsplit_once('-')?;
    let role = job.roles.iter().position(|there| there.name == role)?;
    // A number has one name, and so does a pod.
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    Some(PodId { role, index: number(index)?, attempt: number(attempt)? })
}
