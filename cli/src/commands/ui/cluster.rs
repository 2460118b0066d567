//! A cluster's objects as the page shows them, as far as the user may list them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use larder_api::conditions::ConditionKind;
use larder_api::explain::job::Around;
use larder_api::names::DEVICE_FAULT_CONDITION;
use larder_api::node_cache::CacheConditionKind;
use larder_api::quantity::words::show_part;
use larder_api::queue::account::accounts;
use larder_api::{Dataset, NodeCache, Phase, Queue, TrainingJob, explain, explain_job};
use larder_dataset::Chain;
use larder_kube::ResourceExt;
use larder_kube::api::DynamicObject;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{Asked, Cluster, DATASET, Kind, NODE, NODE_CACHE, is_denied, typed};
use crate::queues::{self, Seen};

/// How often nodes are listed: their objects are large, and only a fault of their devices is of interest.
const NODES_EVERY: Duration = Duration::from_secs(30);

/// A cluster, as far as the user may see it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ClusterView {
    /// Why the objects are not current.
    error: Option<String>,
    /// Missing parts, each with the reason.
    notes: Vec<String>,
    datasets: Vec<DatasetView>,
    queues: Vec<QueueView>,
    jobs: Vec<JobView>,
    nodes: Vec<NodeView>,
}

impl ClusterView {
    /// The same objects, which cannot be read any more.
    pub(super) fn failed(self, error: &anyhow::Error) -> Self {
        Self { error: Some(Chain(&**error).to_string()), ..self }
    }
}

#[derive(Clone, Debug, Serialize)]
struct DatasetView {
    name: String,
    ready: bool,
    reason: String,
    sentence: String,
    percent: Option<u32>,
}

#[derive(Clone, Debug, Serialize)]
struct QueueView {
    name: String,
    waiting: u32,
    running: u32,
    stopped: bool,
    quota: Vec<QuotaView>,
}

/// How much of a resource a queue uses.
#[derive(Clone, Debug, Serialize)]
struct QuotaView {
    text: String,
    used: u64,
    /// The most that it may use now.
    most: u64,
}

#[derive(Clone, Debug, Serialize)]
struct JobView {
    name: String,
    queue: String,
    phase: String,
    standing: Standing,
    sentence: String,
}

/// The phases of jobs, as far as a person who looks at many jobs tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Waits,
    Runs,
    Suspended,
    Succeeded,
    Failed,
}

impl From<Option<Phase>> for Standing {
    fn from(phase: Option<Phase>) -> Self {
        match phase {
            None | Some(Phase::Queued | Phase::DataWarming | Phase::Starting) => Self::Waits,
            Some(Phase::Running | Phase::Shrinking | Phase::Growing | Phase::Recovering) => Self::Runs,
            Some(Phase::Suspended) => Self::Suspended,
            Some(Phase::Succeeded) => Self::Succeeded,
            Some(Phase::Failed) => Self::Failed,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct NodeView {
    name: String,
    capacity: u64,
    promised: u64,
    free: u64,
    datasets: usize,
    mounts: u32,
    ready: bool,
    why: String,
    /// The fault of its devices.
    fault: Option<String>,
}

/// Reads a cluster's objects.
pub(super) struct Reader {
    cluster: Cluster,
    faults: Option<Faults>,
}

/// The faults of devices by node, as they were read last.
struct Faults {
    read: Instant,
    by_node: BTreeMap<String, String>,
    /// Why some are missing.
    notes: Vec<String>,
}

impl Reader {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self { cluster, faults: None }
    }

    /// Errors: the cluster cannot be reached.
    pub(super) async fn read(&mut self) -> anyhow::Result<ClusterView> {
        let mut notes = Vec::new();
        let cluster = self.cluster.clone();
        let datasets: Vec<Dataset> = listed(&cluster, DATASET, true, &mut notes).await?;
        let caches: Vec<NodeCache> = listed(&cluster, NODE_CACHE, false, &mut notes).await?;
        let Seen { jobs, priorities, notes: missing } = queues::jobs(&cluster, &cluster.namespace, |_| true).await?;
        notes.extend(missing);
        let queues = queues::seen(&cluster).await?;
        let priorities = queues::with_queues(priorities, &queues);
        let faults = match self.faults.take().filter(|faults| faults.read.elapsed() < NODES_EVERY) {
            Some(faults) => faults,
            None => {
                let mut notes = Vec::new();
                let nodes: Vec<Node> = listed(&cluster, NODE, false, &mut notes).await?;
                Faults { read: Instant::now(), by_node: nodes.iter().filter_map(fault).collect(), notes }
            }
        };
        let faults = self.faults.insert(faults);
        notes.extend(faults.notes.iter().cloned());
        let around = Around { queues, jobs, priorities, now: queues::now() };
        Ok(ClusterView {
            error: None,
            notes,
            datasets: datasets.iter().map(dataset).collect(),
            queues: around.queues.iter().map(|queue| queue_view(queue, &around.queues)).collect(),
            jobs: around.jobs.iter().map(|job| job_view(job, &around)).collect(),
            nodes: caches.iter().map(|cache| node(cache, &faults.by_node)).collect(),
        })
    }
}

/// All objects of a kind: of all namespaces if the user may list them, otherwise of the user's own, if the kind has
/// any. Objects that cannot be decoded are left out. Errors: the cluster cannot be reached.
async fn listed<T: DeserializeOwned>(
    cluster: &Cluster,
    kind: Kind,
    has_namespaces: bool,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<T>> {
    let own = has_namespaces.then_some(Some(cluster.namespace.as_str()));
    for namespace in [Some(None), own].into_iter().flatten() {
        let asked = Asked::all(kind, namespace);
        let mut found = Vec::new();
        let take = |object: DynamicObject| found.extend(typed::<T>(object).ok());
        match cluster.list(&asked, None, take).await {
            Ok(()) => return Ok(found),
            Err(error) if is_denied(&error) => notes.push(cluster.in_words(error, &asked).to_string()),
            Err(error) => return Err(cluster.in_words(error, &asked)),
        }
    }
    Ok(Vec::new())
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn dataset(dataset: &Dataset) -> DatasetView {
    let (key, explanation) = (key(dataset), explain(dataset));
    let status = dataset.status.clone().unwrap_or_default();
    let condition = ConditionKind::Ready.find(&status.conditions).map(|ready| ready.reason.clone());
    DatasetView {
        ready: explanation.ready,
        reason: explanation.reason.clone().or(condition).unwrap_or_default(),
        sentence: explanation.sentence(&key),
        percent: status.percent,
        name: key,
    }
}

fn queue_view(queue: &Queue, all: &[Queue]) -> QueueView {
    let status = queue.status.clone().unwrap_or_default();
    let quota = accounts(queue, all).into_iter().map(|account| QuotaView {
        text: show_part(&account.resource, account.used, account.nominal),
        used: account.used,
        most: account.may_use.max(account.nominal),
    });
    QueueView {
        name: queue.name_any(),
        waiting: status.waiting,
        running: status.running,
        stopped: queue.spec.stop.is_some(),
        quota: quota.collect(),
    }
}

fn job_view(job: &TrainingJob, around: &Around) -> JobView {
    let key = key(job);
    let phase = job.status.as_ref().and_then(|status| status.phase);
    JobView {
        queue: job.spec.queue.clone().unwrap_or_default(),
        phase: phase.map_or("Submitted".to_owned(), |phase| format!("{phase:?}")),
        sentence: explain_job(job, around).sentence(&key),
        standing: phase.into(),
        name: key,
    }
}

fn node(cache: &NodeCache, faults: &BTreeMap<String, String>) -> NodeView {
    let name = cache.name_any();
    let status = cache.status.clone().unwrap_or_default();
    let ready = CacheConditionKind::Ready.find(&status.conditions);
    let why = ready.map_or("its larderd has not reported yet".to_owned(), |ready| match ready.message.as_str() {
        "" => ready.reason.clone(),
        message => message.to_owned(),
    });
    NodeView {
        capacity: status.capacity_bytes,
        promised: status.promised_bytes,
        free: status.free_bytes,
        datasets: status.snapshots.len(),
        mounts: status.snapshots.iter().map(|snapshot| snapshot.mounts).sum(),
        ready: ready.is_some_and(|ready| ready.status == "True"),
        why,
        fault: faults.get(&name).cloned(),
        name,
    }
}

/// The fault of a node's devices, if there is one.
fn fault(node: &Node) -> Option<(String, String)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let fault = conditions.iter().find(|there| there.type_ == DEVICE_FAULT_CONDITION && there.status == "True")?;
    let why = fault.message.clone().or_else(|| fault.reason.clone()).unwrap_or_default();
    Some((node.metadata.name.clone()?, why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_shows_its_cache_and_the_fault_of_its_devices() {
        let cache: NodeCache = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": "n1"}, "spec": {},
            "status": {
                "capacityBytes": 100, "promisedBytes": 60, "freeBytes": 40,
                "snapshots": [{"snapshot": "ab".repeat(32), "bytes": 1, "mounts": 2}],
                "conditions": [{
                    "type": "Ready", "status": "False", "reason": "NoRoom", "message": "the disk is full",
                    "lastTransitionTime": "2026-01-31T08:00:00Z",
                }],
            },
        }))
        .unwrap();
        let with = |status: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n1"},
                "status": {"conditions": [
                    {"type": "Ready", "status": "True"},
                    {"type": "larder.dev/DeviceFault", "status": status, "message": "GPU 1: Xid 79"},
                ]},
            }))
            .unwrap()
        };
        assert_eq!(fault(&with("False")), None);
        let faults = BTreeMap::from([fault(&with("True")).unwrap()]);
        let view = node(&cache, &faults);
        assert_eq!((view.capacity, view.promised, view.free, view.datasets, view.mounts), (100, 60, 40, 1, 2));
        assert_eq!(
            (view.ready, view.why.as_str(), view.fault.as_deref()),
            (false, "the disk is full", Some("GPU 1: Xid 79"))
        );
    }

    #[test]
    fn datasets_and_jobs_have_the_sentences_of_explain() {
        let found: Dataset = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": {"namespace": "team-a", "name": "pets"},
            "spec": {"origin": {"source": "s3://b", "anonymous": true}},
        }))
        .unwrap();
        let view = dataset(&found);
        assert!(!view.ready && view.sentence.starts_with("team-a/pets is not ready: "), "{view:?}");
        let job: TrainingJob = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"namespace": "team-a", "name": "resnet"},
            "spec": {"type": "pytorch", "queue": "vision", "roles": []},
            "status": {"phase": "Queued", "waitingFor": "queue vision uses all of its quota"},
        }))
        .unwrap();
        let view = job_view(&job, &Around::default());
        assert_eq!((view.standing, view.phase.as_str(), view.queue.as_str()), (Standing::Waits, "Queued", "vision"));
        assert!(view.sentence.starts_with("team-a/resnet "), "{view:?}");
    }

    #[test]
    fn jobs_that_have_ended_do_not_count_as_running() {
        let names = Phase::ALL.map(|phase| serde_json::to_value(Standing::from(Some(phase))).unwrap());
        let ended = ["suspended", "succeeded", "failed"];
        assert_eq!(names, ["waits", "waits", "waits", "runs", "runs", "runs", "runs", ended[0], ended[1], ended[2]]);
    }

    #[test]
    fn objects_stay_while_the_cluster_cannot_be_read() {
        let view = ClusterView { notes: vec!["a".to_owned()], ..ClusterView::default() };
        let failed = view.failed(&anyhow::anyhow!("gone"));
        assert_eq!((failed.error.as_deref(), failed.notes.len()), (Some("gone"), 1));
    }
}
