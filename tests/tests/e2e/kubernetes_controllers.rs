//! Jobs of other controllers in a queue of a real Kueue: they wait for their data, are grouped for the scheduler, and
//! are explained. Larder has no code for any of these kinds.
//!
//! As in [`kubernetes_kueue`](crate::kubernetes_kueue), the data is stood in for. The pods need no program of their
//! framework: what counts is when they get nodes, and which labels and owners they have.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use larder_testkit::{Cluster, built, repository};
use serde_json::{Value, json};

use crate::kubernetes_kueue::{BYTES, Queue};

/// A kind of job.
struct Kind {
    /// Its name, which is also that of its dataset.
    name: &'static str,
    /// The owner that `larder explain pod` names first.
    owner: &'static str,
    /// The object's resource.
    resource: &'static str,
    /// The number of pods that get nodes.
    pods: usize,
    manifest: fn(&Kind) -> Value,
}

const KINDS: [Kind; 6] = [
    Kind { name: "plain", owner: "Job", resource: "jobs.batch", pods: 2, manifest: plain },
    Kind { name: "set", owner: "JobSet", resource: "jobsets.jobset.x-k8s.io", pods: 3, manifest: job_set },
    Kind { name: "train", owner: "TrainJob", resource: "trainjobs.trainer.kubeflow.org", pods: 2, manifest: train_job },
    Kind { name: "mpi", owner: "MPIJob", resource: "mpijobs.kubeflow.org", pods: 3, manifest: mpi_job },
    Kind { name: "ray", owner: "RayJob", resource: "rayjobs.ray.io", pods: 2, manifest: ray_job },
    Kind {
        name: "lws",
        owner: "LeaderWorkerSet",
        resource: "leaderworkersets.leaderworkerset.x-k8s.io",
        pods: 2,
        manifest: leader_worker_set,
    },
];

impl Kind {
    fn object(&self, version: &str, spec: Value) -> Value {
        let labels = json!({"kueue.x-k8s.io/queue-name": "jobs"});
        json!({
            "apiVersion": version, "kind": self.owner, "spec": spec,
            "metadata": {"namespace": "team-a", "name": self.name, "labels": labels},
        })
    }

    /// A template of pods that read the dataset.
    fn template(&self) -> Value {
        let container = json!({
            "name": "node", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"],
            "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
        });
        json!({
            "metadata": {"annotations": {
                "larder.dev/datasets": self.name, "larder.dev/warm-deadline": "1h",
                "ray.io/overwrite-container-cmd": "true",
            }},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        })
    }

    /// As [`Self::template`], for the pods of Jobs.
    fn ends(&self) -> Value {
        let mut template = self.template();
        template["spec"]["restartPolicy"] = "Never".into();
        template
    }
}

fn plain(kind: &Kind) -> Value {
    kind.object("batch/v1", json!({"parallelism": 2, "completions": 2, "suspend": true, "template": kind.ends()}))
}

fn job_set(kind: &Kind) -> Value {
    let job = |pods: u32| json!({"spec": {"parallelism": pods, "completions": pods, "template": kind.ends()}});
    let jobs = json!([{"name": "leader", "template": job(1)}, {"name": "worker", "template": job(2)}]);
    kind.object("jobset.x-k8s.io/v1alpha2", json!({"replicatedJobs": jobs}))
}

fn train_job(kind: &Kind) -> Value {
    let runtime = json!({"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": kind.name});
    kind.object("trainer.kubeflow.org/v1alpha1", json!({"runtimeRef": runtime, "trainer": {"numNodes": 2}}))
}

/// The runtime of the TrainJob, whose pods read the dataset.
fn runtime(kind: &Kind) -> Value {
    let labels = json!({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"});
    let job = json!({"metadata": {"labels": labels}, "spec": {"template": kind.ends()}});
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
        "metadata": {"namespace": "team-a", "name": kind.name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
        },
    })
}

fn mpi_job(kind: &Kind) -> Value {
    let role = |replicas: u32| json!({"replicas": replicas, "restartPolicy": "Never", "template": kind.template()});
    let roles = json!({"Launcher": role(1), "Worker": role(2)});
    kind.object("kubeflow.org/v2beta1", json!({"mpiReplicaSpecs": roles}))
}

fn ray_job(kind: &Kind) -> Value {
    let workers = json!({"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
        "rayStartParams": {}, "template": kind.template()});
    let cluster = json!({
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": kind.template()},
        "workerGroupSpecs": [workers],
    });
    // Nothing submits to a cluster that never answers.
    let spec = json!({"entrypoint": "sleep 1", "shutdownAfterJobFinishes": true, "rayClusterSpec": cluster});
    kind.object("ray.io/v1", spec)
}

fn leader_worker_set(kind: &Kind) -> Value {
    let group = json!({"size": 2, "workerTemplate": kind.template()});
    kind.object("leaderworkerset.x-k8s.io/v1", json!({"replicas": 1, "leaderWorkerTemplate": group}))
}

/// The pods that read the dataset of a job.
fn pods(cluster: &Cluster, kind: &Kind) -> Vec<Value> {
    let all = cluster.get_json(&["pods", "-n", "team-a"]);
    let reads = |pod: &&Value| pod["metadata"]["annotations"]["larder.dev/datasets"] == kind.name;
    all["items"].as_array().unwrap().iter().filter(reads).cloned().collect()
}

fn with_nodes(cluster: &Cluster, kind: &Kind) -> usize {
    pods(cluster, kind).iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count()
}

/// The messages of Larder's check about the dataset of a job.
fn said(cluster: &Cluster, kind: &Kind) -> Vec<String> {
    let all = cluster.get_json(&["workloads.kueue.x-k8s.io", "-n", "team-a"]);
    let checks = all["items"].as_array().unwrap().iter().flat_map(|one| one["status"]["admissionChecks"].as_array());
    let messages = checks.flatten().filter_map(|check| check["message"].as_str());
    let about = format!("team-a/{} ", kind.name);
    messages.filter(|message| message.starts_with(&about)).map(str::to_owned).collect()
}

/// The labels by which the extender groups pods, as deployed.
fn group_labels() -> Vec<String> {
    let file = repository().join("deploy/components/scheduler/base/extender.yaml");
    let file = std::fs::read_to_string(file).unwrap();
    let lines = file.lines().skip_while(|line| *line != "groupLabels:").skip(1);
    let labels = lines.map_while(|line| line.strip_prefix("  - "));
    labels.map(|label| label.split_whitespace().next().unwrap().to_owned()).collect()
}

/// The group of a pod.
fn group(labels: &[String], pod: &Value) -> Option<String> {
    labels.iter().find_map(|label| Some(format!("{label}={}", pod["metadata"]["labels"][label].as_str()?)))
}

#[test]
#[ignore = "needs Kueue and controllers of other jobs, which take half an hour to build: make platform-peers"]
fn jobs_of_other_controllers_wait_for_data_are_one_group_and_are_explained() {
    let cluster = Cluster::start(2);
    cluster.start_controllers();
    let queue = Queue::start_in(cluster, &KINDS.map(|kind| kind.name));
    let _extender = Extender::start(&queue.cluster);
    let labels = group_labels();
    assert!(labels.len() > 3, "{labels:?}");
    for kind in &KINDS {
        let (name, owner) = (kind.name, kind.owner);
        if owner == "TrainJob" {
            queue.cluster.apply(&runtime(kind).to_string());
        }
        // Kueue learns of each kind some seconds after its definition, and until then its webhook refuses it.
        let manifest = (kind.manifest)(kind).to_string();
        let file = queue.cluster.folder().join(format!("{name}.json"));
        std::fs::write(&file, manifest).unwrap();
        let apply = ["apply", "-f", file.to_str().unwrap()];
        queue.wait_for(&format!("{owner} is accepted"), |cluster| cluster.kubectl(&apply).status.success());

        queue.wait_while_nodes_have(0, &format!("{owner} waits for its data"), |cluster| {
            said(cluster, kind).iter().any(|message| message.contains(" 0 % on "))
        });
        assert_eq!(with_nodes(&queue.cluster, kind), 0, "{owner}: no pod runs without its data");
        queue.wait_while_nodes_have(BYTES, &format!("the pods of {owner} have nodes"), |cluster| {
            with_nodes(cluster, kind) == kind.pods
        });

        let pods = pods(&queue.cluster, kind);
        let groups: BTreeSet<Option<String>> = pods.iter().map(|pod| group(&labels, pod)).collect();
        assert!(groups.len() == 1 && !groups.contains(&None), "{owner}: {groups:?}");
        for pod in &pods {
            let pod = format!("team-a/{}", pod["metadata"]["name"].as_str().unwrap());
            let (job, as_workload) = explain(&queue, &pod);
            assert!(job.starts_with(&format!("{owner} {name}")), "{pod}: {job}");
            assert!(as_workload.starts_with("jobs of Kueue, as Workload "), "{pod}: {as_workload}");
        }

        queue.cluster.kubectl_ok(&["delete", kind.resource, name, "-n", "team-a", "--cascade=foreground"]);
        queue.wait_for("its pods are gone", |cluster| self::pods(cluster, kind).is_empty());
    }
}

/// The extender, without a scheduler that asks it: `larder explain pod` needs one.
struct Extender(Child);

impl Extender {
    fn start(cluster: &Cluster) -> Self {
        let mut command = Command::new(built("larder-scheduler-ext"));
        command.env("KUBECONFIG", cluster.folder().join("kubeconfig"));
        let log = std::fs::File::create(cluster.folder().join("log/larder-scheduler-ext.log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(cluster.in_network(move || command.spawn().unwrap()))
    }
}

impl Drop for Extender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines `job` and `queue` of what `larder explain pod` says about a pod.
fn explain(queue: &Queue, pod: &str) -> (String, String) {
    let larder = built("larder").display().to_string();
    let mut text = String::new();
    queue.wait_for(&format!("{pod} is explained"), |cluster| {
        let output = cluster.exec(&[&larder, "explain", "pod", pod, "--extender", "http://127.0.0.1:9468"]);
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success()
    });
    let line = |what: &str| {
        let start = format!("  {what:<9} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().to_owned()
    };
    (line("job"), line("queue"))
}
