//! The scheduler extender with a second kube-scheduler, configured as in the component `scheduler`: what happens to
//! pods when the extender fails, and to gangs when pods of a higher priority arrive.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use larder_api::Phase;
use larder_api::names::SYSTEM_NAMESPACE;
use larder_fake_platform::program::free_address;
use larder_kube::api::{Patch, PatchParams, PostParams};
use larder_kube::kinds::Kind;
use larder_testkit::{Fault, FaultProxy, built, repository};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::bed::{Bed, GPU, PRODUCTION, Role, TEAM, in_cluster};
use crate::pods::Pod;
use crate::running::Running;

/// A file of the component `scheduler`.
fn component(name: &str) -> String {
    let path = repository().join("deploy/components/scheduler/base").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A second scheduler whose extender is behind a proxy that can disturb their connection.
struct Scheduling<'b> {
    bed: &'b Bed,
    folder: tempfile::TempDir,
    address: SocketAddr,
    proxy: FaultProxy,
    extender: Option<Running>,
    _scheduler: Running,
}

impl<'b> Scheduling<'b> {
    async fn start(bed: &'b Bed) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address().expect("a free port");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let proxy = FaultProxy::serve(listener, address, |_| Fault::None).expect("a proxy");
        std::fs::write(folder.path().join("extender.yaml"), component("extender.yaml")).expect("a file");
        account(bed, &folder.path().join("kubeconfig")).await;
        apply(bed, "policies.yaml", |_| true).await;
        let scheduler = Running::scheduler(bed, &scheduler_config(bed, &proxy.endpoint()), folder.path());
        let mut scheduling = Self { bed, folder, address, proxy, extender: None, _scheduler: scheduler };
        scheduling.start_extender();
        scheduling
    }

    fn start_extender(&mut self) {
        let folder = self.folder.path();
        let mut command = Command::new(built("larder-scheduler-ext"));
        command.env("KUBECONFIG", folder.join("kubeconfig"));
        command.arg(format!("--address={}", self.address));
        command.arg(format!("--config={}", folder.join("extender.yaml").display()));
        self.extender = Some(Running::start(&mut command, folder.join("extender.log")));
    }

    fn extender(&self) -> &Running {
        self.extender.as_ref().expect("it runs")
    }

    /// Creates this many pods that read `d` for this scheduler, waits until all have a node, and returns the nodes.
    async fn place(&self, name: &str, pods: usize) -> Vec<String> {
        self.place_with(name, pods, json!({"larder.dev/datasets": "d"})).await
    }

    async fn place_with(&self, name: &str, pods: usize, annotations: Value) -> Vec<String> {
        let names: Vec<String> = (0..pods).map(|nth| format!("{name}-{nth}")).collect();
        for name in &names {
            let annotations = annotations.clone();
            self.bed.create(Kind::Pod, TEAM, pod(name, annotations, json!({}))).await.expect("a pod");
        }
        let placed = || -> Vec<String> {
            let ever = self.bed.pods.ever();
            let of = |name: &String| Some(ever.iter().find(|pod| pod.name == *name)?.node.clone());
            names.iter().filter_map(of).filter(|node| !node.is_empty()).collect()
        };
        self.bed.wait_for(&format!("all of {name} have nodes"), async || placed().len() == pods).await;
        placed()
    }

    /// Waits until pods prefer f0, the node that holds the data.
    async fn leads_again(&self, after: &str) {
        let nth = std::cell::Cell::new(0);
        self.bed
            .wait_for(&format!("pods are led after {after}"), async || {
                nth.set(nth.get() + 1);
                let nodes = self.place(&format!("after-{after}-{}", nth.get()), 2).await;
                nodes.iter().all(|node| node == "f0")
            })
            .await;
    }
}

/// The component's configuration, with the extender at `extender`.
fn scheduler_config(bed: &Bed, extender: &str) -> Value {
    let mut config: Value = serde_yaml_ng::from_str(&component("scheduler-config.yaml")).expect("YAML");
    config["leaderElection"] = json!({"leaderElect": false});
    config["clientConnection"] = json!({"kubeconfig": bed.kubeconfig(), "qps": 500, "burst": 1000});
    for entry in config["extenders"].as_array_mut().expect("a list") {
        entry["urlPrefix"] = extender.into();
    }
    config
}

/// Applies objects of a file of the component.
async fn apply(bed: &Bed, file: &str, is_wanted: impl Fn(&Value) -> bool) {
    use serde::Deserialize;
    for document in serde_yaml_ng::Deserializer::from_str(&component(file)) {
        let object = Value::deserialize(document).expect("YAML");
        if is_wanted(&object) {
            bed.apply(object).await;
        }
    }
}

/// Writes a kubeconfig for an account that has exactly the rights of the component's extender.
async fn account(bed: &Bed, path: &Path) {
    apply(bed, "rbac.yaml", |object| object["kind"] == "ClusterRole").await;
    bed.apply(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "extender"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "larder-scheduler-ext"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": SYSTEM_NAMESPACE}],
    }))
    .await;
    let accounts: larder_kube::Api<ServiceAccount> = larder_kube::Api::namespaced(bed.client(), SYSTEM_NAMESPACE);
    let request = TokenRequest::default();
    let request = accounts.create_token_request("default", &PostParams::default(), &request).await.expect("a token");
    let mut config: Value =
        serde_yaml_ng::from_str(&std::fs::read_to_string(bed.kubeconfig()).expect("a kubeconfig")).expect("YAML");
    config["users"][0]["user"] = json!({"token": request.status.expect("a token").token});
    std::fs::write(path, config.to_string()).expect("a file");
}

fn pod(name: &str, annotations: Value, more: Value) -> Value {
    let mut spec = json!({
        "schedulerName": "larder",
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "larder.dev/none"}],
    });
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})
}

/// The Dataset `d` of 1,000 bytes, and the nodes that hold parts of it.
async fn dataset(bed: &Bed, held: &[(&str, u64)]) {
    let snapshot = "07".repeat(32);
    let status = async |kind: Kind, namespace: &str, name: &str, status: Value| {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = bed.api(kind, namespace).patch_status(name, &PatchParams::default(), &patch).await;
        patched.unwrap_or_else(|error| panic!("the status of {name}: {error}"));
    };
    let spec = json!({"origin": {"source": "s3://bucket/d", "anonymous": true}});
    bed.create(Kind::Dataset, TEAM, json!({"metadata": {"name": "d"}, "spec": spec})).await.expect("a Dataset");
    status(Kind::Dataset, TEAM, "d", json!({"snapshot": snapshot, "bytes": 1_000})).await;
    for (node, bytes) in held {
        let cache = json!({"metadata": {"name": node}, "spec": {}});
        bed.create(Kind::NodeCache, "", cache).await.expect("a NodeCache");
        let holds = json!({
            "snapshot": snapshot, "owner": "anonymous", "bytes": bytes, "wantedBytes": 1_000, "reservedBytes": 0, "mounts": 0,
        });
        status(Kind::NodeCache, "", node, json!({"snapshots": [holds]})).await;
    }
}

/// Each pod is placed in its first attempt, in which the scheduler waits for the extender up to the configured timeout.
// SEMANTICS: X3, X7
#[test]
fn pods_are_placed_without_an_extender_that_is_dead_stopped_slow_or_talks_nonsense() {
    in_cluster(&[0; 6], async |bed| {
        dataset(bed, &[("f0", 1_000), ("f1", 100)]).await;
        let mut scheduling = Scheduling::start(bed).await;
        scheduling.leads_again("start").await;

        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        scheduling.proxy.set_hook(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::None
        });
        scheduling.place_with("without-data", 10, json!({})).await;
        assert_eq!(asked.load(Ordering::Relaxed), 0, "the extender was asked about pods that read no dataset");
        scheduling.place("with-data", 1).await;
        assert!(asked.load(Ordering::Relaxed) >= 2, "filter and prioritize");
        scheduling.proxy.set_hook(|_| Fault::None);

        scheduling.extender().signal(Signal::STOP);
        scheduling.place("stopped", 3).await;
        scheduling.extender().signal(Signal::CONT);
        scheduling.leads_again("stop").await;

        scheduling.extender = None;
        scheduling.place("dead", 3).await;
        scheduling.start_extender();
        scheduling.leads_again("death").await;

        let junk = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nnot json!".to_vec();
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"NodeNames\":[".to_vec();
        for (name, fault) in [
            ("slow", Fault::Delay(Duration::from_secs(1))),
            ("junk", Fault::Answer(junk)),
            ("half", Fault::Answer(half)),
            ("error", Fault::Status { status: 500, code: "InternalError" }),
            ("reset", Fault::Reset),
            ("silent", Fault::StallBeforeHead),
        ] {
            let before = scheduling.proxy.counters().faults;
            scheduling.proxy.set_hook(move |_| fault.clone());
            scheduling.place(name, 2).await;
            assert!(scheduling.proxy.counters().faults > before, "{name}: the extender was not asked");
            scheduling.proxy.set_hook(|_| Fault::None);
            scheduling.leads_again(name).await;
        }
        let events = bed.list(Kind::Event).await;
        let failed: Vec<&Value> = events.iter().filter(|event| event["reason"] == "FailedScheduling").collect();
        assert_eq!(failed, [&json!(null); 0], "pods that were not placed in their first attempt");
    });
}

/// Two elastic gangs use all GPUs, half of them above their minimums. Pods of a higher priority get all pods above the
/// minimums, and no others.
// SEMANTICS: X5
#[test]
fn pods_of_a_higher_priority_end_surplus_workers_and_no_gang_falls_below_its_floor() {
    const EACH: u32 = 50;
    const FLOOR: usize = 25;
    in_cluster(&[10; 10], async |bed| {
        dataset(bed, &[]).await;
        let _controller = bed.start("a");
        let gang = Role { name: "worker", replicas: EACH, min: FLOOR as u32, gpus: 1, ..Role::default() };
        for job in ["one", "other"] {
            bed.job(job, gang.job("pytorch-elastic")).await;
        }
        for job in ["one", "other"] {
            bed.wait_for(&format!("{job} has its surplus"), async || bed.pods.are_ready(job, EACH as usize)).await;
            bed.wait_for_phase(job, Phase::Running).await;
        }
        let firsts: Vec<String> = ["one", "other"].map(|job| bed.pods.live(job)[0].uid.clone()).into();
        bed.pods.require(move |pods, _| {
            let mut live: BTreeMap<&str, usize> = [("one", 0), ("other", 0)].into();
            for pod in pods.values().filter(|pod| pod.is_live() && pod.is_bound()) {
                live.entry(&pod.job).and_modify(|pods| *pods += 1);
            }
            let short = live.iter().find(|(_, pods)| **pods < FLOOR);
            let lost = firsts.iter().find(|uid| !pods[*uid].is_live());
            lost.map(|uid| format!("the first pod {uid} ended"))
                .or_else(|| short.map(|(job, pods)| format!("{job} has {pods} pods")))
        });

        let scheduling = Scheduling::start(bed).await;
        // Without an answer of the extender, no pod is preempted, regardless of the scheduler's choice.
        scheduling.proxy.set_hook(|request| if request.path == "/preempt" { Fault::Reset } else { Fault::None });
        let create = async |nth: u32| {
            let more = json!({
                "priorityClassName": PRODUCTION,
                "containers": [{
                    "name": "main",
                    "image": "larder.dev/none",
                    "resources": {"limits": {GPU: "1"}},
                }],
            });
            let urgent = pod(&format!("urgent-{nth}"), json!({}), more);
            bed.create(Kind::Pod, TEAM, urgent).await.expect("a pod");
        };
        for nth in 1..EACH {
            create(nth).await;
        }
        bed.wait_for("answers fail", async || scheduling.proxy.counters().faults >= 20).await;
        assert!(["one", "other"].iter().all(|job| bed.pods.are_ready(job, EACH as usize)), "a worker ended");
        scheduling.proxy.set_hook(|_| Fault::None);
        // The scheduler may have tried all others in vain by now. It tries them again once pods end, which this one
        // causes.
        create(0).await;
        bed.wait_for("all urgent pods run", async || {
            let ever = bed.pods.ever();
            let runs = |pod: &&Pod| pod.name.starts_with("urgent-") && pod.is_live() && pod.is_ready;
            ever.iter().filter(runs).count() == EACH as usize
        })
        .await;
        for job in ["one", "other"] {
            bed.wait_for(&format!("{job} has its floor"), async || bed.pods.are_ready(job, FLOOR)).await;
        }
    });
}
