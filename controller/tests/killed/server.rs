//! A real API server with two fake nodes, a simulator of their jobs and larderds, and Larder's controllers as processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use larder_api::names::{LEASE, NODE_LABEL_PREFIX, ROLE_LABEL, ROLE_WARM, UID_LABEL};
use larder_api::{Dataset, NodeCache};
use larder_fake_platform::{Config, FakePlatform, handover};
use larder_kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use larder_kube::config::{KubeConfigOptions, Kubeconfig};
use larder_kube::kinds::Kind;
use larder_kube::{Api, Client};
use larder_testkit::{Cluster, repository};
use serde_json::{Value, json};

use crate::process::Process;
use crate::script::{Step, spec};

const NAMESPACE: &str = "team";

const NODES: [&str; 2] = ["n1", "n2"];

/// Long enough even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(100);

/// The parts of the cluster that matter to its users, under names that are the same in every run.
pub(crate) type State = BTreeMap<String, Value>;

pub(crate) struct Server {
    client: Client,
    kubeconfig: PathBuf,
    logs: tempfile::TempDir,
    processes: AtomicU32,
    _platform: FakePlatform,
}

/// Runs a test in a cluster with a network of its own.
pub(crate) fn in_cluster(test: impl AsyncFn(&Server) + Sync) {
    let cluster = Cluster::of_fake_nodes();
    let nodes = NODES.map(|name| {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            },
        })
    });
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": nodes}).to_string());
    cluster.wait_for("the nodes are ready", TIMEOUT, || {
        let nodes = cluster.get_json(&["nodes"]);
        nodes["items"].as_array().is_some_and(|nodes| {
            nodes.iter().all(|node| {
                let is_ready = node["status"]["conditions"].to_string().contains("KubeletReady");
                is_ready && !node["spec"]["taints"].is_array()
            })
        })
    });
    let crds = repository().join("deploy/crds").display().to_string();
    cluster.kubectl_ok(&["apply", "-k", &crds]);
    let established = ["crd/datasets.larder.dev", "crd/nodecaches.larder.dev"];
    cluster.kubectl_ok(&[&["wait", "--for=condition=Established"][..], &established].concat());
    let kubeconfig = cluster.kubeconfig();
    cluster.in_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let server = Server::connect(kubeconfig).await;
            test(&server).await;
        });
    });
}

impl Server {
    async fn connect(kubeconfig: PathBuf) -> Self {
        let read = Kubeconfig::read_from(&kubeconfig).expect("the cluster's kubeconfig");
        let config = larder_kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("one");
        let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
        created.expect("a namespace");
        handover::hand_over(&client, NAMESPACE).await.expect("jobs can be handed over");
        let config = Config {
            namespace: NAMESPACE.to_owned(),
            nodes: NODES.map(str::to_owned).into(),
            capacity_bytes: 1_000_000_000_000,
            files: 10,
            bytes: 10_000_000_000,
            warming: Duration::from_millis(300),
            report_every: Duration::from_secs(1),
        };
        let platform = FakePlatform::start(&client, config);
        let logs = tempfile::tempdir().expect("a folder");
        Self { client, kubeconfig, logs, processes: AtomicU32::new(0), _platform: platform }
    }

    /// Starts a controller with this identity.
    pub(crate) fn start<'a>(&self, identity: &'a str) -> Process<'a> {
        let nth = self.processes.fetch_add(1, Ordering::Relaxed);
        Process::start(&self.kubeconfig, NAMESPACE, identity, self.logs.path().join(format!("{nth}.log")))
    }

    fn datasets(&self) -> Api<Dataset> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Applies a Dataset that this many nodes should hold.
    pub(crate) async fn apply(&self, name: &str, count: u32) {
        self.take(&Step::Create(name.to_owned(), spec(&format!("s3://{name}"), &json!({"count": count})))).await;
    }

    /// Executes a step of a script.
    pub(crate) async fn take(&self, step: &Step) {
        let (api, merge) = (self.datasets(), PatchParams::default());
        match step {
            Step::Create(name, spec) => {
                let object = json!({
                    "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": name}, "spec": spec,
                });
                let object = serde_json::from_value(object).expect("a Dataset");
                api.create(&PostParams::default(), &object).await.map(drop)
            }
            Step::Change(name, change) => {
                api.patch(name, &merge, &Patch::Merge(json!({"spec": change}))).await.map(drop)
            }
            Step::Delete(name) => api.delete(name, &DeleteParams::default()).await.map(drop),
        }
        .unwrap_or_else(|error| panic!("{step:?}: {error}"));
    }

    pub(crate) async fn delete_all(&self) {
        let deleted = self.datasets().delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        deleted.expect("the Datasets are deleted");
    }

    /// Whether a Dataset is ready. False if the API does not answer in time, as etcd on a busy disk may not.
    pub(crate) async fn is_ready(&self, name: &str) -> bool {
        let ready = |dataset: Dataset| conditions(&json!(dataset.status)).contains(&"Ready True Available".to_owned());
        self.datasets().get(name).await.is_ok_and(ready)
    }

    /// The leader according to the Lease, and how often it has changed.
    pub(crate) async fn lease(&self) -> (String, i32) {
        let lease = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE).get(LEASE).await.expect("a Lease");
        let spec = lease.spec.expect("its spec");
        (spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default())
    }

    async fn list(&self, kind: Kind) -> Vec<Value> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
        api.list(&ListParams::default()).await.expect("a list").into_iter().map(|object| json!(object)).collect()
    }

    /// The current state of the cluster. An object that belongs to no Dataset is an `orphan`.
    pub(crate) async fn state(&self) -> State {
        let mut state = State::new();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for dataset in self.datasets().list(&ListParams::default()).await.expect("a list") {
            let name = dataset.metadata.name.clone().unwrap_or_default();
            names.insert(dataset.metadata.uid.clone().unwrap_or_default(), name.clone());
            state.insert(format!("dataset {name}"), observed(&dataset));
        }
        for cache in Api::<NodeCache>::all(self.client.clone()).list(&ListParams::default()).await.expect("a list") {
            let node = cache.metadata.name.unwrap_or_default();
            for promise in cache.spec.datasets {
                let owner = names.get(&promise.uid).map_or("orphan", String::as_str);
                state.insert(format!("promise {node} {owner} {}", promise.snapshot), promise.bytes.into());
            }
        }
        for node in self.list(Kind::Node).await {
            let labels = node["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            for (key, value) in labels.into_iter().filter(|(key, _)| key.starts_with(NODE_LABEL_PREFIX)) {
                state.insert(format!("label {} {key}", node["metadata"]["name"]), value);
            }
        }
        for kind in [Kind::Job, Kind::Claim, Kind::Volume] {
            for object in self.list(kind).await {
                let labels = &object["metadata"]["labels"];
                let (Some(uid), Some(role)) = (labels[UID_LABEL].as_str(), labels[ROLE_LABEL].as_str()) else {
                    continue;
                };
                let Some(owner) = names.get(uid) else {
                    state.insert(
                        format!("orphan {} {}", kind.name(), object["metadata"]["name"]),
                        object["status"].clone(),
                    );
                    continue;
                };
                // Jobs that have ended remain for their logs. The warming claim is created with the first job and
                // deleted when the spec changes. It is recreated only if there is something to warm.
                if kind != Kind::Job && role != ROLE_WARM {
                    state.insert(format!("{} {owner} {role}", kind.name()), object["status"]["phase"].clone());
                }
            }
        }
        state
    }

    /// Waits until the cluster has the given state.
    pub(crate) async fn wait_until(&self, wanted: &State) {
        let started = Instant::now();
        loop {
            let state = self.state().await;
            if state == *wanted {
                return;
            }
            if started.elapsed() > TIMEOUT {
                // Prints the difference.
                assert_eq!(state, *wanted);
            }
            tokio::time::sleep(PAUSE * 5).await;
        }
    }

    /// Waits until the cluster has not changed for this long, and returns its state.
    pub(crate) async fn settled(&self, time: Duration) -> State {
        let started = Instant::now();
        let (mut state, mut since) = (self.state().await, Instant::now());
        while since.elapsed() < time {
            tokio::time::sleep(PAUSE * 5).await;
            let now = self.state().await;
            if now != state {
                (state, since) = (now, Instant::now());
            }
            assert!(started.elapsed() < TIMEOUT, "the cluster still changes after {TIMEOUT:?}");
        }
        state
    }

    pub(crate) async fn wait_for(&self, what: &str, done: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !done().await {
            assert!(started.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain until {what}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Spec and status without times, counters and messages.
fn observed(dataset: &Dataset) -> Value {
    let status = json!(dataset.status);
    let mut snapshots: Vec<&str> =
        status["snapshots"].as_array().into_iter().flatten().filter_map(|known| known["id"].as_str()).collect();
    snapshots.sort_unstable();
    json!({
        "deleting": dataset.metadata.deletion_timestamp.is_some(),
        "spec": dataset.spec,
        "status": {
            "snapshot": status["snapshot"],
            "next": status["next"],
            "snapshots": snapshots,
            "files": status["files"],
            "bytes": status["bytes"],
            "nodes": status["nodes"],
            "percent": status["percent"],
            "lagging": status["lagging"],
            "conditions": conditions(&status),
        },
    })
}

fn conditions(status: &Value) -> Vec<String> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let text = |condition: &Value| {
        ["type", "status", "reason"].map(|field| condition[field].as_str().unwrap_or_default().to_owned()).join(" ")
    };
    conditions.map(text).collect()
}
