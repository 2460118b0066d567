//! Jobs in the queues of a real Kueue wait for their data.
//!
//! The controller is real, with the rights that it is deployed with. larderd, the listing and the bytes are stood in
//! for: the test writes the status of the Datasets once, and that of the NodeCaches as larderd would. So pods that warm
//! never run, and what the jobs' pods would read is not there; they say which datasets they use by an annotation.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use larder_testkit::{Cluster, built, repository};
use serde_json::{Value, json};

/// Long enough on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The size of each dataset.
pub(crate) const BYTES: u64 = 1_000_000;

/// A cluster with Kueue, a queue whose jobs wait for data, and the controller.
pub(crate) struct Queue {
    controller: Child,
    log: PathBuf,
    pub(crate) cluster: Cluster,
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.controller.kill();
        let _ = self.controller.wait();
        if std::thread::panicking() {
            eprintln!("--- the controller's log\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
            let states = self.cluster.kubectl(&["get", "-A", "-o", "yaml", "workloads.kueue.x-k8s.io,nodecaches"]);
            eprintln!("--- workloads and caches\n{}", String::from_utf8_lossy(&states.stdout));
        }
    }
}

impl Queue {
    fn start(datasets: &[&str]) -> Self {
        Self::start_in(Cluster::start(2), datasets)
    }

    /// Starts Kueue and the controller in a cluster, with these datasets in the namespace team-a.
    pub(crate) fn start_in(cluster: Cluster, datasets: &[&str]) -> Self {
        cluster.start_kueue(&[]);
        let deploy = repository().join("deploy");
        let file = |name: &str| deploy.join(name).display().to_string();
        for args in [
            &["create", "namespace", "larder-system"][..],
            &["create", "namespace", "team-a"],
            &["create", "serviceaccount", "larder-controller", "-n", "larder-system"],
            &["apply", "-n", "larder-system", "-f", &file("components/datasets/base/rbac.yaml")],
            &["apply", "-k", &file("crds")],
            &["wait", "--for=condition=Established", "crd/datasets.larder.dev", "crd/nodecaches.larder.dev"],
        ] {
            cluster.kubectl_ok(args);
        }
        cluster.apply(QUEUES);
        for name in datasets {
            put_dataset(&cluster, name);
        }
        let log = cluster.folder().join("log/larder-controller.log");
        let queue = Self { controller: start_controller(&cluster, &log), log, cluster };
        queue.wait_for("the check is active, and so is its queue", |cluster| {
            condition(&cluster.get_json(&["clusterqueue", "jobs"]), "Active") == "True"
        });
        queue
    }

    pub(crate) fn wait_for(&self, what: &str, mut done: impl FnMut(&Cluster) -> bool) {
        self.cluster.wait_for(what, TIMEOUT, || done(&self.cluster));
    }

    /// Waits while each node has so many bytes of every snapshot that it has promised room to.
    pub(crate) fn wait_while_nodes_have(&self, bytes: u64, what: &str, mut done: impl FnMut(&Cluster) -> bool) {
        self.wait_for(what, |cluster| {
            report(cluster, bytes);
            done(cluster)
        });
    }

    fn restart_controller(&mut self) {
        self.controller.kill().unwrap();
        self.controller.wait().unwrap();
        // A lease that was not given back runs out first; a test need not wait for that.
        self.cluster.kubectl_ok(&["delete", "lease", "-n", "larder-system", "larder-controller"]);
        self.controller = start_controller(&self.cluster, &self.log);
    }
}

/// The controller as a process in the cluster's network, with its deployment's rights.
fn start_controller(cluster: &Cluster, log: &std::path::Path) -> Child {
    let token = cluster.kubectl_ok(&["create", "token", "larder-controller", "-n", "larder-system", "--duration=1h"]);
    let config = cluster.folder().join("controller.yaml");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{}", Cluster::HOST), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "controller", "user": {"token": token.trim()}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "controller"}}],
    });
    std::fs::write(&config, kubeconfig.to_string()).unwrap();
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(built("larder-controller"));
    // No node has this image: what warms waits for ever.
    command.args(["--image", "larder.dev/none:1", "--identity", "test"]).env("KUBECONFIG", config);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    cluster.in_network(move || command.spawn().unwrap())
}

const QUEUES: &str = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: linux}
spec: {nodeLabels: {kubernetes.io/os: linux}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: data}
spec: {controllerName: larder.dev/data}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: jobs}
spec:
  namespaceSelector: {}
  admissionChecksStrategy: {admissionChecks: [{name: data}]}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors: [{name: linux, resources: [{name: cpu, nominalQuota: 10}, {name: memory, nominalQuota: 10Gi}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: team-a}
spec: {clusterQueue: jobs}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: hosts}
spec: {levels: [{nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: hosts}
spec: {nodeLabels: {kubernetes.io/os: linux}, topologyName: hosts}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: near}
spec:
  namespaceSelector: {}
  admissionChecksStrategy: {admissionChecks: [{name: data}]}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors: [{name: hosts, resources: [{name: cpu, nominalQuota: 10}, {name: memory, nominalQuota: 10Gi}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: near, namespace: team-a}
spec: {clusterQueue: near}
";

/// The snapshot of a dataset: 64 hex digits.
fn snapshot(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>().repeat(64).chars().take(64).collect()
}

/// A Dataset that was imported.
fn put_dataset(cluster: &Cluster, name: &str) {
    let object = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": {"namespace": "team-a", "name": name},
        "spec": {"origin": {"source": format!("s3://bucket/{name}"), "anonymous": true}},
    });
    cluster.apply(&object.to_string());
    let listed = "2026-01-01T00:00:00Z";
    let status = json!({"status": {
        "snapshot": snapshot(name),
        "snapshots": [{"id": snapshot(name), "files": 1, "bytes": BYTES, "listed": listed}],
        "conditions": [{"type": "Imported", "status": "True", "reason": "Listed", "message": "",
            "lastTransitionTime": listed}],
    }});
    patch_status(cluster, &["dataset", name, "-n", "team-a"], &status);
}

fn patch_status(cluster: &Cluster, of: &[&str], status: &Value) {
    let patch = status.to_string();
    cluster.kubectl_ok(&[&["patch"], of, &["--subresource=status", "--type=merge", "-p", &patch]].concat());
}

/// Writes of each node what its larderd would: it has taken its promises, and has so many bytes of each.
fn report(cluster: &Cluster, bytes: u64) {
    for cache in cluster.get_json(&["nodecaches"])["items"].as_array().unwrap() {
        let promises = cache["spec"]["datasets"].as_array().cloned().unwrap_or_default();
        let snapshots: Vec<Value> = promises
            .iter()
            .map(|promise| {
                json!({"snapshot": promise["snapshot"], "owner": promise["owner"], "bytes": bytes, "wantedBytes": BYTES,
                "reservedBytes": promise["bytes"], "mounts": 0})
            })
            .collect();
        let promised: u64 = promises.iter().filter_map(|promise| promise["bytes"].as_u64()).sum();
        let capacity = 10 * BYTES;
        let status = json!({
            "observedGeneration": cache["metadata"]["generation"], "capacityBytes": capacity,
            "promisedBytes": promised, "freeBytes": capacity - promised, "snapshots": snapshots,
        });
        if cache["status"] != status {
            patch_status(
                cluster,
                &["nodecache", cache["metadata"]["name"].as_str().unwrap()],
                &json!({"status": status}),
            );
        }
    }
}

fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    found["status"].as_str().unwrap_or_default().to_owned()
}

/// A plain Job of two pods that read a dataset.
fn job(name: &str, dataset: &str, deadline: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": "team-a", "name": name, "labels": {"kueue.x-k8s.io/queue-name": "jobs"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {
            "metadata": {"annotations": {"larder.dev/datasets": dataset, "larder.dev/warm-deadline": deadline}},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sleep", "3600"], "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}}}],
            },
        }},
    })
}

fn put_job(cluster: &Cluster, name: &str, dataset: &str, deadline: &str) {
    cluster.apply(&job(name, dataset, deadline).to_string());
}

/// The Workload that Kueue made for a job.
fn workload(cluster: &Cluster, job: &str) -> Value {
    let all = cluster.get_json(&["workloads.kueue.x-k8s.io", "-n", "team-a"]);
    let of = |workload: &&Value| workload["metadata"]["ownerReferences"][0]["name"] == job;
    all["items"].as_array().unwrap().iter().find(of).cloned().unwrap_or_default()
}

/// The message of the check of a job's Workload.
fn said(cluster: &Cluster, job: &str) -> String {
    workload(cluster, job)["status"]["admissionChecks"][0]["message"].as_str().unwrap_or_default().to_owned()
}

/// The pods of a job: when they were made, and the phases that they are in.
fn pods(cluster: &Cluster, job: &str) -> Vec<(String, String)> {
    let pods = cluster.get_json(&["pods", "-n", "team-a", "-l", &format!("job-name={job}")]);
    let text = |pod: &Value, pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let pods = pods["items"].as_array().unwrap().iter();
    pods.map(|pod| (text(pod, "/metadata/creationTimestamp"), text(pod, "/status/phase"))).collect()
}

fn runs(cluster: &Cluster, job: &str) -> bool {
    pods(cluster, job).iter().filter(|(_, phase)| phase == "Running").count() == 2
}

/// The nodes that have promised room to a dataset, and the jobs that warm it.
fn warming(cluster: &Cluster, dataset: &str) -> (usize, usize) {
    let caches = cluster.get_json(&["nodecaches"]);
    let holds = |cache: &&Value| cache["spec"].to_string().contains(&snapshot(dataset));
    let jobs = cluster.get_json(&["jobs", "-n", "team-a", "-l", "larder.dev/role=warm"]);
    let warms = |job: &&Value| job["metadata"]["annotations"].to_string().contains(&snapshot(dataset));
    let count =
        |objects: &Value, of: &dyn Fn(&&Value) -> bool| objects["items"].as_array().unwrap().iter().filter(of).count();
    (count(&caches, &holds), count(&jobs, &warms))
}

#[test]
#[ignore = "needs Kueue, which takes a quarter of an hour to build: tests/cluster/kueue.sh install"]
fn a_plain_job_starts_with_its_data_or_at_its_deadline_and_an_evicted_one_warms_nothing() {
    let mut queue = Queue::start(&["imagenet", "coco", "laion", "places"]);

    // No pod before the data is warm.
    put_job(&queue.cluster, "warm", "imagenet", "1h");
    queue.wait_while_nodes_have(0, "the job waits", |cluster| {
        let message = said(cluster, "warm");
        message.starts_with("team-a/imagenet 0 % on 2 of 2 nodes, ready at 90 % or ")
            && warming(cluster, "imagenet") == (2, 2)
    });
    queue.wait_while_nodes_have(BYTES / 2, "it says that half is there", |cluster| {
        said(cluster, "warm").contains(" 50 % ")
    });
    assert_eq!(pods(&queue.cluster, "warm"), []);
    queue.wait_while_nodes_have(BYTES, "it runs with its data", |cluster| runs(cluster, "warm"));
    assert_eq!(said(&queue.cluster, "warm"), "team-a/imagenet 100 % on 2 of 2 nodes");

    // Nor before the deadline, which a restart of the controller does not move.
    put_job(&queue.cluster, "late", "team-a/coco", "40s");
    queue.wait_while_nodes_have(0, "it waits", |cluster| {
        said(cluster, "late").contains("team-a/coco 0 % on 2 of 2 nodes")
    });
    queue.restart_controller();
    queue.wait_while_nodes_have(0, "it runs without its data", |cluster| runs(cluster, "late"));
    let found = workload(&queue.cluster, "late");
    let conditions = found["status"]["conditions"].as_array().unwrap();
    let reserved = conditions.iter().find(|condition| condition["type"] == "QuotaReserved").unwrap();
    let waited = |since: &Value, until: &str| {
        let seconds = |text: &str| queue.cluster.exec(&["date", "-d", text, "+%s"]).stdout;
        let number = |text: &str| String::from_utf8(seconds(text)).unwrap().trim().parse::<i64>().unwrap();
        number(until) - number(since.as_str().unwrap())
    };
    for (made, _) in pods(&queue.cluster, "late") {
        let waited = waited(&reserved["lastTransitionTime"], &made);
        assert!(waited >= 40, "a pod was made {waited} s after the reservation");
        eprintln!("a pod was made {waited} s after the reservation");
    }
    assert!(said(&queue.cluster, "late").contains("; it starts at its deadline, "), "{}", said(&queue.cluster, "late"));

    // One that loses its quota meanwhile warms nothing any more.
    put_job(&queue.cluster, "evicted", "laion", "1h");
    queue.wait_while_nodes_have(0, "it is warmed", |cluster| warming(cluster, "laion") == (2, 2));
    let name = workload(&queue.cluster, "evicted")["metadata"]["name"].as_str().unwrap().to_owned();
    let inactive = r#"{"spec":{"active":false}}"#;
    queue.cluster.kubectl_ok(&[
        "patch",
        "workloads.kueue.x-k8s.io",
        &name,
        "-n",
        "team-a",
        "--type=merge",
        "-p",
        inactive,
    ]);
    queue.wait_while_nodes_have(0, "the warming stops", |cluster| warming(cluster, "laion") == (0, 0));
    assert_eq!(condition(&workload(&queue.cluster, "evicted"), "Evicted"), "True");
    assert_eq!(pods(&queue.cluster, "evicted"), []);
    assert_eq!(warming(&queue.cluster, "imagenet").0, 2, "the others keep theirs");

    // Kueue has chosen one node for both pods, so the data goes there, and nowhere else.
    let mut near = job("near", "places", "1h");
    near["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "near".into();
    let annotations = &mut near["spec"]["template"]["metadata"]["annotations"];
    annotations["kueue.x-k8s.io/podset-required-topology"] = "kubernetes.io/hostname".into();
    queue.cluster.apply(&near.to_string());
    queue.wait_while_nodes_have(0, "one node is warmed", |cluster| {
        said(cluster, "near").starts_with("team-a/places 0 % on 1 of 1 nodes") && warming(cluster, "places").0 == 1
    });
    let chosen = workload(&queue.cluster, "near");
    let chosen = &chosen["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]["slices"];
    let chosen = chosen[0]["valuesPerLevel"][0]["universal"].as_str().unwrap().to_owned();
    let cache = queue.cluster.get_json(&["nodecache", &chosen]);
    assert!(cache["spec"].to_string().contains(&snapshot("places")), "{cache:#}");
    queue.wait_while_nodes_have(BYTES, "it runs with its data", |cluster| runs(cluster, "near"));
    let pods = queue.cluster.get_json(&["pods", "-n", "team-a", "-l", "job-name=near"]);
    assert!(pods["items"].as_array().unwrap().iter().all(|pod| pod["spec"]["nodeName"] == chosen.as_str()), "{pods:#}");

    let log = std::fs::read_to_string(&queue.log).unwrap();
    // The client warns of each connection whose certificate is not verified.
    let is_trouble =
        |line: &&str| (line.contains("WARN") || line.contains("ERROR")) && line.contains("larder_controller");
    let troubles: Vec<&str> = log.lines().filter(is_trouble).collect();
    assert!(troubles.is_empty(), "{troubles:#?}");
}
