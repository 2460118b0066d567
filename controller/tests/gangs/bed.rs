//! A real API server with Kubernetes' own controllers and scheduler, on fake nodes, and Larder's controllers as
//! processes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ServiceAccount};
use larder_api::names::{CONTROLLER_ACCOUNT, LEASE, SETTINGS, SYSTEM_NAMESPACE};
use larder_api::{Phase, TrainingJob, TrainingJobStatus};
use larder_kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use larder_kube::config::{KubeConfigOptions, Kubeconfig};
use larder_kube::core::GroupVersion;
use larder_kube::kinds::Kind;
use larder_kube::{Client, Error};
use larder_testkit::{Cluster, repository};
use serde_json::{Value, json};

use crate::pods::{Pod, Pods};
use crate::process::Process;

/// The namespace of the jobs.
pub(crate) const TEAM: &str = "team";
pub(crate) const GPU: &str = "nvidia.com/gpu";
/// Label of a job's pods: its queue.
pub(crate) const QUEUE_LABEL: &str = "test.larder.dev/queue";
/// The PriorityClass of the jobs that preempt others.
pub(crate) const PRODUCTION: &str = "production";

/// Long enough even on a busy machine: longer than the five minutes after which kube-scheduler tries a pod again that no
/// event has woken.
const TIMEOUT: Duration = Duration::from_secs(400);
const PAUSE: Duration = Duration::from_millis(100);

const SETTINGS_FILE: &str = "datasets/base/settings";

/// The rights of the controller's account, and the policies that hold it to its work.
const RIGHTS: [&str; 9] = [
    "datasets/base/rbac",
    "datasets/base/policies",
    "datasets/base/controller-policies",
    "jobs/base/rbac",
    "jobs/base/native",
    "jobs/base/kueue",
    "jobs/base/policies",
    "jobs/base/controller-policies",
    "jobs/base/pod-fields",
];

/// A cluster and its contents.
pub(crate) struct Bed {
    client: Client,
    kubeconfig: PathBuf,
    /// That of the controllers' account, with the rights and policies of `deploy`.
    of_controllers: PathBuf,
    pub(crate) pods: Pods,
    logs: tempfile::TempDir,
    processes: AtomicU32,
}

/// Runs a test in a cluster with a network of its own, and with fake nodes that have these numbers of GPUs.
pub(crate) fn in_cluster(gpus_of_nodes: &[u32], test: impl AsyncFn(&Bed) + Sync) {
    run(&Cluster::of_fake_nodes(), gpus_of_nodes, test);
}

/// Like [`in_cluster`], with a scheduler that has gang scheduling.
pub(crate) fn in_cluster_with_gangs(gpus_of_nodes: &[u32], test: impl AsyncFn(&Bed) + Sync) {
    run(&Cluster::of_fake_nodes_with_gangs(), gpus_of_nodes, test);
}

/// Like [`in_cluster`], with Kueue.
pub(crate) fn in_cluster_with_kueue(gpus_of_nodes: &[u32], test: impl AsyncFn(&Bed) + Sync) {
    let cluster = Cluster::of_fake_nodes();
    cluster.start_kueue(&[]);
    run(&cluster, gpus_of_nodes, test);
}

fn run(cluster: &Cluster, gpus_of_nodes: &[u32], test: impl AsyncFn(&Bed) + Sync) {
    let folder = |name: &str| repository().join("deploy").join(name).display().to_string();
    cluster.kubectl_ok(&["apply", "--server-side", "-k", &folder("crds")]);
    // kubectl fails on a definition that has no conditions yet.
    cluster.wait_for("the definitions are established", TIMEOUT, || {
        cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]).status.success()
    });
    cluster.kubectl_ok(&["apply", "-k", &folder("components/jobs/types")]);
    cluster.kubectl_ok(&["create", "namespace", SYSTEM_NAMESPACE]);
    cluster.kubectl_ok(&["create", "serviceaccount", CONTROLLER_ACCOUNT, "-n", SYSTEM_NAMESPACE]);
    let apply = |files: &[&str]| {
        let files: Vec<String> = files.iter().map(|file| folder(&format!("components/{file}.yaml"))).collect();
        let files = files.iter().flat_map(|file| ["-f", file.as_str()]);
        let args: Vec<&str> = ["apply", "-n", SYSTEM_NAMESPACE].into_iter().chain(files).collect();
        cluster.kubectl_ok(&args);
    };
    apply(&[SETTINGS_FILE]);
    // Before the policy reads it: many tests are about jobs that no quota limits.
    let without = r#"{"spec":{"jobsWithoutQueue":true}}"#;
    cluster.kubectl_ok(&["patch", "lardersettings", SETTINGS, "--type=merge", "-p", without]);
    apply(&RIGHTS);
    let kubeconfig = cluster.kubeconfig();
    let folder = tempfile::tempdir().expect("a folder");
    let of_controllers = folder.path().join("kubeconfig");
    let token = cluster.kubectl_ok(&["create", "token", CONTROLLER_ACCOUNT, "-n", SYSTEM_NAMESPACE, "--duration=24h"]);
    let text = std::fs::read_to_string(&kubeconfig).expect("the cluster's kubeconfig");
    let mut config: Value = serde_yaml_ng::from_str(&text).expect("YAML");
    config["users"][0]["user"]["token"] = token.trim().into();
    std::fs::write(&of_controllers, config.to_string()).expect("written");
    cluster.in_network(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let bed = Bed::connect(kubeconfig, of_controllers, gpus_of_nodes).await;
            test(&bed).await;
            bed.pods.assert_rules();
        });
    });
}

impl Bed {
    async fn connect(kubeconfig: PathBuf, of_controllers: PathBuf, gpus_of_nodes: &[u32]) -> Self {
        let read = Kubeconfig::read_from(&kubeconfig).expect("the cluster's kubeconfig");
        let config = larder_kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let pods = Pods::watch(&client);
        let logs = tempfile::tempdir().expect("a folder");
        let bed = Self { client, kubeconfig, of_controllers, pods, logs, processes: AtomicU32::new(0) };
        bed.namespace(TEAM, json!({})).await;
        let class = json!({"metadata": {"name": PRODUCTION}, "value": 1000});
        bed.create(Kind::PriorityClass, "", class).await.expect("a PriorityClass");
        for (nth, gpus) in gpus_of_nodes.iter().enumerate() {
            bed.add_node(&format!("f{nth}"), *gpus).await;
        }
        bed.wait_for("the nodes are ready", async || {
            let nodes = bed.list(Kind::Node).await;
            nodes.iter().all(|node| {
                !node["spec"]["taints"].is_array() && node["status"]["conditions"].to_string().contains("KubeletReady")
            })
        })
        .await;
        bed
    }

    /// Creates a fake node with this number of GPUs.
    pub(crate) async fn add_node(&self, name: &str, gpus: u32) {
        let resources = json!({"cpu": "96", "memory": "1Ti", "pods": "110", GPU: gpus.to_string()});
        let node = json!({
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"kubernetes.io/hostname": name},
            },
            "status": {"allocatable": resources, "capacity": resources},
        });
        self.create(Kind::Node, "", node).await.expect("a Node");
    }

    /// Deletes a node with its pods, as an autoscaler does.
    pub(crate) async fn remove_node(&self, name: &str) {
        let deleted = self.api(Kind::Node, "").delete(name, &DeleteParams::default()).await;
        deleted.expect("a node can be deleted");
        for pod in self.pods.ever().into_iter().filter(|pod| pod.node == name && !pod.is_gone) {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            match self.api(Kind::Pod, TEAM).delete(&pod.name, &now).await {
                Err(Error::Api(status)) if status.code == 404 => {}
                deleted => drop(deleted.expect("a pod can be deleted")),
            }
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => Api::all_with(self.client.clone(), &kind.resource()),
            _ => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
        }
    }

    pub(crate) fn jobs(&self) -> Api<TrainingJob> {
        self.jobs_of(TEAM)
    }

    pub(crate) fn jobs_of(&self, namespace: &str) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// All objects of a kind.
    pub(crate) async fn list(&self, kind: Kind) -> Vec<Value> {
        let list = self.api(kind, "").list(&ListParams::default()).await;
        list.expect("a list").into_iter().map(|object| json!(object)).collect()
    }

    pub(crate) async fn create(&self, kind: Kind, namespace: &str, mut object: Value) -> Result<(), Error> {
        (object["apiVersion"], object["kind"]) = (kind.api_version().into(), kind.name().into());
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        self.api(kind, namespace).create(&PostParams::default(), &object).await.map(drop)
    }

    /// Creates or updates an object of any kind.
    pub(crate) async fn apply(&self, object: Value) {
        let text = |field: &str| object[field].as_str().expect("a text").to_owned();
        let version: GroupVersion = text("apiVersion").parse().expect("a group and a version");
        let resource = ApiResource::from_gvk(&version.with_kind(&text("kind")));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let name = object["metadata"]["name"].as_str().expect("a name");
        let applied = api.patch(name, &PatchParams::apply("test"), &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|error| panic!("{object:#}: {error}"));
    }

    /// Creates a namespace with labels, and waits for its ServiceAccount.
    pub(crate) async fn namespace(&self, name: &str, labels: Value) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let object = json!({"metadata": {"name": name, "labels": labels}});
        let object = serde_json::from_value(object).expect("a Namespace");
        namespaces.create(&PostParams::default(), &object).await.expect("a namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
        self.wait_for("the namespace has an account", async || accounts.get("default").await.is_ok()).await;
    }

    /// Creates a LimitRange.
    pub(crate) async fn limit(&self, namespace: &str, limits: Value) {
        let limits = serde_json::from_value(limits).expect("a LimitRange");
        let api: Api<LimitRange> = Api::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &limits).await.expect("a LimitRange");
    }

    /// Creates a Queue with a quota of GPUs.
    pub(crate) async fn queue(&self, name: &str, quota: Value, cohort: Option<&str>) {
        let mut spec = json!({"namespaces": [TEAM], "quota": {GPU: quota}});
        if let Some(cohort) = cohort {
            spec["cohort"] = cohort.into();
        }
        self.create(Kind::JobQueue, "", json!({"metadata": {"name": name}, "spec": spec})).await.expect("a Queue");
    }

    /// Creates a TrainingJob.
    pub(crate) async fn job(&self, name: &str, spec: Value) {
        let job = json!({"metadata": {"name": name}, "spec": spec});
        self.create(Kind::TrainingJob, TEAM, job).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub(crate) async fn change(&self, job: &str, change: Value) {
        let patch = Patch::Merge(json!({"spec": change}));
        self.jobs().patch(job, &PatchParams::default(), &patch).await.expect("a job can be changed");
    }

    /// Creates a pod that belongs to no job, for kube-scheduler to place.
    pub(crate) async fn foreign(&self, name: &str, gpus: u32, annotations: Value) {
        let pod = json!({"metadata": {"name": name, "annotations": annotations}, "spec": pod_spec(gpus)});
        self.create(Kind::Pod, TEAM, pod).await.expect("a pod");
    }

    pub(crate) async fn delete(&self, kind: Kind, name: &str) {
        match self.api(kind, TEAM).delete(name, &DeleteParams::default()).await {
            Err(Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted.expect("an object can be deleted")),
        }
    }

    /// Sets annotations of pods, which make them end.
    pub(crate) async fn annotate(&self, pods: &[Pod], annotations: &Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        for pod in pods {
            match self.api(Kind::Pod, TEAM).patch(&pod.name, &PatchParams::default(), &patch).await {
                Err(Error::Api(status)) if status.code == 404 => {}
                patched => drop(patched.expect("a pod can be annotated")),
            }
        }
    }

    /// From now on the node is not ready and reports nothing.
    pub(crate) async fn lose(&self, node: &str) {
        let (api, params) = (self.api(Kind::Node, ""), PatchParams::default());
        let unmanaged = json!({"metadata": {"annotations": {"kwok.x-k8s.io/node": null}}});
        api.patch(node, &params, &Patch::Merge(unmanaged)).await.expect("a node can be patched");
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let unknown =
            json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now});
        let lost = Patch::Strategic(json!({"status": {"conditions": [unknown]}}));
        api.patch_status(node, &params, &lost).await.expect("a node can be patched");
    }

    /// Brings the node back.
    pub(crate) async fn find(&self, node: &str) {
        let managed = Patch::Merge(json!({"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}}));
        self.api(Kind::Node, "").patch(node, &PatchParams::default(), &managed).await.expect("a node can be patched");
    }

    pub(crate) async fn status(&self, job: &str) -> TrainingJobStatus {
        self.jobs().get(job).await.expect("a job").status.unwrap_or_default()
    }

    pub(crate) async fn is_in(&self, job: &str, phase: Phase) -> bool {
        self.status(job).await.phase == Some(phase)
    }

    /// Starts a controller with this identity.
    pub(crate) fn start<'a>(&self, identity: &'a str) -> Process<'a> {
        let nth = self.processes.fetch_add(1, Ordering::Relaxed);
        Process::start(&self.of_controllers, SYSTEM_NAMESPACE, identity, self.logs.path().join(format!("{nth:04}.log")))
    }

    /// The leader according to the Lease, and how often the Lease has changed hands.
    pub(crate) async fn lease(&self) -> (String, i32) {
        let lease = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE).get(LEASE).await.expect("a Lease");
        let spec = lease.spec.expect("its spec");
        (spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default())
    }

    /// Waits until `done`.
    ///
    /// # Panics
    /// If that takes too long, or a rule about pods is broken in the meantime.
    pub(crate) async fn wait_for(&self, what: &str, done: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !done().await {
            if started.elapsed() > TIMEOUT || !self.pods.keep_rules() {
                self.tell().await;
                self.pods.assert_rules();
                panic!("waited {TIMEOUT:?} in vain until {what}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) async fn wait_for_phase(&self, job: &str, phase: Phase) {
        let is_there = async || {
            let status = self.status(job).await;
            let has_ended = status.phase.is_some_and(Phase::is_terminal);
            assert!(!has_ended || status.phase == Some(phase), "{job} is never {phase:?}: {status:#?}");
            status.phase == Some(phase)
        };
        self.wait_for(&format!("{job} is {phase:?}"), is_there).await;
    }

    /// Prints the jobs and their pods.
    async fn tell(&self) {
        for job in self.jobs().list(&ListParams::default()).await.expect("a list") {
            eprintln!("{} {:#}", job.metadata.name.unwrap_or_default(), json!(job.status));
        }
        for pod in self.pods.ever() {
            eprintln!("{pod:?}");
        }
    }
}

fn pod_spec(gpus: u32) -> Value {
    let limits = if gpus == 0 { json!({}) } else { json!({GPU: gpus.to_string()}) };
    let main = json!({"name": "main", "image": "larder.dev/none", "resources": {"limits": limits}});
    json!({"restartPolicy": "Never", "containers": [main]})
}

/// A role of pods with this many GPUs each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Role<'a> {
    pub(crate) name: &'a str,
    pub(crate) replicas: u32,
    /// 0 means the same as `replicas`.
    pub(crate) min: u32,
    pub(crate) gpus: u32,
    pub(crate) priority: &'a str,
    pub(crate) queue: &'a str,
    pub(crate) annotations: Value,
}

impl Role<'_> {
    pub(crate) fn json(&self) -> Value {
        let mut spec = pod_spec(self.gpus);
        spec.as_object_mut().expect("an object").remove("restartPolicy");
        if !self.priority.is_empty() {
            spec["priorityClassName"] = self.priority.into();
        }
        let mut metadata = json!({"annotations": self.annotations});
        if !self.queue.is_empty() {
            metadata["labels"] = json!({QUEUE_LABEL: self.queue});
        }
        let min = if self.min == 0 { self.replicas } else { self.min };
        let template = json!({"metadata": metadata, "spec": spec});
        json!({"name": self.name, "replicas": self.replicas, "min": min, "template": template})
    }

    /// The spec of a job with only this role.
    pub(crate) fn job(&self, kind: &str) -> Value {
        let mut spec = json!({"type": kind, "roles": [self.json()]});
        if !self.queue.is_empty() {
            spec["queue"] = self.queue.into();
        }
        spec
    }
}

/// The annotation that makes a pod end after this time.
pub(crate) fn runs_for(time: &str) -> Value {
    json!({"test.larder.dev/runs-for": time})
}
