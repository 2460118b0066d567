//! Jobs in a queue of a real Kueue.

use larder_api::Phase;
use larder_kube::api::{DeleteParams, ListParams, PropagationPolicy};
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};
use serde_json::{Value, json};

use crate::bed::{Bed, GPU, Role, TEAM, in_cluster_with_kueue, runs_for};

/// The GPUs of the queue. The cluster has more.
const QUOTA: u64 = 8;

const WORKLOAD: Kind = Kind::Kueue(KueueKind::Workload, KueueVersion::V1beta2);

#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn jobs_in_a_queue_of_kueues_run_when_it_says_so_and_leave_nothing() {
    in_cluster_with_kueue(&[4; 4], async |bed| {
        for object in queues() {
            bed.apply(object).await;
        }
        bed.pods.require(|pods, _| {
            let used: u64 = pods.values().filter(|pod| !pod.is_gone && !pod.has_ended()).map(|pod| pod.gpus).sum();
            (used > QUOTA).then(|| format!("{used} GPUs are used"))
        });
        let controller = bed.start("a");

        // A job that fits runs. The next one has no pods until it is admitted.
        put(bed, "first", "", gang(6)).await;
        bed.wait_for_phase("first", Phase::Running).await;
        put(bed, "second", "", gang(4)).await;
        let says = async || bed.status("second").await.waiting_for.is_some_and(|why| why.contains("quota"));
        bed.wait_for("it says what Kueue says", says).await;
        assert!(bed.pods.ever().iter().all(|pod| pod.job != "second"));
        bed.annotate(&bed.pods.live("first"), &runs_for("0s")).await;
        bed.wait_for_phase("first", Phase::Succeeded).await;
        bed.wait_for_phase("second", Phase::Running).await;

        // A job that Kueue evicts for another one ends, and gives its quota back once its pods are gone, no matter
        // which controller runs then.
        put(bed, "urgent", "urgent", gang(6)).await;
        bed.wait_for("the second one ends", async || bed.pods.live("second").is_empty()).await;
        drop(controller);
        let _controller = bed.start("b");
        bed.wait_for_phase("urgent", Phase::Running).await;
        bed.wait_for_phase("second", Phase::Queued).await;
        bed.annotate(&bed.pods.live("urgent"), &runs_for("0s")).await;
        bed.wait_for_phase("urgent", Phase::Succeeded).await;
        bed.wait_for("the second one is back", async || bed.pods.are_ready("second", 4)).await;

        // An elastic job is admitted with the pods that fit.
        let elastic = Role { min: 2, ..role(8) };
        put(bed, "elastic", "", elastic.job("pytorch-elastic")).await;
        bed.wait_for("it has what is left", async || bed.pods.are_ready("elastic", 4)).await;

        // A suspended job leaves its quota to other jobs.
        bed.change("elastic", json!({"suspend": true})).await;
        put(bed, "last", "", gang(3)).await;
        bed.wait_for_phase("last", Phase::Running).await;

        for job in ["elastic", "last"] {
            bed.delete(Kind::TrainingJob, job).await;
        }

        // A job that grows by a second Workload. The queue has room for its pods once, not for both Workloads.
        let spec = Role { min: 2, ..role(4) }.job("pytorch-elastic");
        let annotations = json!({"kueue.x-k8s.io/elastic-job": "true"});
        let metadata = json!({"name": "grows", "labels": labels(""), "annotations": annotations});
        let grows = json!({"metadata": metadata, "spec": spec});
        bed.create(Kind::TrainingJob, TEAM, grows).await.expect("a TrainingJob");
        bed.wait_for("it has grown", async || bed.pods.are_ready("grows", 4)).await;
        bed.wait_for("it has one Workload again", async || bed.list(WORKLOAD).await.len() == 4).await;
        bed.delete(Kind::TrainingJob, "grows").await;

        // Its pods and its Workload lose their owner.
        let orphans = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        bed.jobs().delete("second", &orphans).await.expect("a job can be deleted");
        let gone = async || bed.pods.ever().iter().all(|pod| pod.is_gone || pod.has_ended());
        bed.wait_for("the pods are gone", gone).await;
        for job in ["first", "urgent"] {
            bed.delete(Kind::TrainingJob, job).await;
        }
        bed.wait_for("no Workload is left", async || bed.list(WORKLOAD).await.is_empty()).await;
        assert!(bed.jobs().list(&ListParams::default()).await.expect("a list").items.is_empty());
    });
}

/// Pods of one GPU each that take two seconds to terminate.
fn role(replicas: u32) -> Role<'static> {
    let annotations = json!({"test.larder.dev/leaves-after": "2s"});
    Role { name: "worker", replicas, gpus: 1, annotations, ..Role::default() }
}

fn gang(replicas: u32) -> Value {
    role(replicas).job("single")
}

/// Creates a job in the queue.
async fn put(bed: &Bed, name: &str, priority: &str, spec: Value) {
    let job = json!({"metadata": {"name": name, "labels": labels(priority)}, "spec": spec});
    bed.create(Kind::TrainingJob, TEAM, job).await.expect("a TrainingJob");
}

/// The labels of a job in the queue.
fn labels(priority: &str) -> Value {
    let mut labels = json!({"kueue.x-k8s.io/queue-name": "training"});
    if !priority.is_empty() {
        labels["kueue.x-k8s.io/priority-class"] = priority.into();
    }
    labels
}

/// A queue of GPUs in which a higher priority comes first.
fn queues() -> [Value; 4] {
    let object = |kind: &str, name: &str, spec: Value| {
        let metadata = json!({"name": name});
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let plenty = |resource: &str| json!({"name": resource, "nominalQuota": "1000Gi"});
    let gpus = json!({"name": GPU, "nominalQuota": QUOTA});
    let quota = json!({"name": "gpus", "resources": [plenty("cpu"), plenty("memory"), gpus]});
    let queue = json!({
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu", "memory", GPU], "flavors": [quota]}],
    });
    let mut of_team = object("LocalQueue", "training", json!({"clusterQueue": "training"}));
    of_team["metadata"]["namespace"] = TEAM.into();
    let mut urgent = object("WorkloadPriorityClass", "urgent", Value::Null);
    urgent["value"] = 1000.into();
    urgent.as_object_mut().expect("an object").remove("spec");
    [object("ResourceFlavor", "gpus", json!({})), urgent, object("ClusterQueue", "training", queue), of_team]
}
