//! The component `scheduler`, deployed as its users deploy it: a kube-scheduler with the extender beside it, in pods, for the pods
//! of a labelled namespace. Two nodes are real, twenty are not.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use larder_e2e::platform::{TIMEOUT, kill_process, load_larder};
use larder_testkit::{Cluster, built, repository};
use serde_json::{Value, json};

/// The namespace of the pods.
const TEAM: &str = "team";

/// The nodes that hold the Dataset `set`. None of them is real: pods that run there would take the CPUs of those that
/// place them.
const HOLDERS: [&str; 6] = ["f0", "f3", "f7", "f11", "f15", "f19"];

struct Lab {
    cluster: Cluster,
}

impl Lab {
    fn start() -> Self {
        let lab = Self { cluster: Cluster::of_fake_and_real_nodes(2) };
        load_larder(&lab.cluster);
        lab.load_scheduler();
        lab.deploy();
        // After the scheduler, whose own pods must run for real.
        let nodes: Vec<Value> = (0..20).map(fake_node).collect();
        lab.apply_all(&nodes);
        lab.cluster.wait_for("all nodes are ready", TIMEOUT, || {
            let nodes = lab.cluster.get_json(&["nodes"]);
            let nodes = nodes["items"].as_array().unwrap();
            nodes.len() == 22 && nodes.iter().all(|node| !node["spec"]["taints"].is_array())
        });
        let labels = json!({"larder.dev/scheduler": "larder"});
        lab.apply_all(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": labels}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}),
        ]);
        lab.cluster.wait_for("the namespace has an account", TIMEOUT, || {
            lab.cluster.kubectl(&["get", "-n", TEAM, "serviceaccount", "default"]).status.success()
        });
        lab
    }

    /// kube-scheduler's image: here, the program of which the test's cluster is made.
    fn load_scheduler(&self) {
        let folder = tempfile::tempdir().unwrap();
        let rootfs = folder.path().join("rootfs");
        let program = self.cluster.folder().join("bin/kube-scheduler");
        let put = |from: &Path, at: &str| {
            let to = rootfs.join(at.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        put(&program, "/usr/bin/kube-scheduler");
        let libraries = Command::new("ldd").arg(&program).output().unwrap();
        let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            put(Path::new(library), library);
        }
        std::fs::create_dir(rootfs.join("tmp")).unwrap();
        let image = folder.path().join("scheduler.tar");
        let mut build = Command::new(repository().join("deploy/images/build"));
        build.arg("--uncompressed").arg("--rootfs").arg(&rootfs).args(["--name", &scheduler_image()]).arg(&image);
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        self.cluster.load_image(&image);
    }

    /// The definitions, and the component by itself: of Larder's other parts only what they write is there.
    fn deploy(&self) {
        let deploy = repository().join("deploy");
        self.cluster.kubectl_ok(&["apply", "--server-side", "-k", deploy.join("crds").to_str().unwrap()]);
        self.cluster.kubectl_ok(&["wait", "--for=condition=Established", "crd", "--all"]);
        let overlay = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-r").arg(&deploy).arg(overlay.path().join("deploy")).status();
        assert!(copied.unwrap().success(), "copy deploy");
        // A busy machine may take longer for an answer than nodes of a cluster do. Without one, a pod is placed anywhere,
        // and the extender is restarted, which forgets its decisions. The tests of the controller have one that is slow.
        let replace = |file: &str, from: &str, times: usize, to: &str| {
            let path = overlay.path().join("deploy/components/scheduler/base").join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(from).count(), times, "{file}: {from}");
            std::fs::write(path, text.replace(from, to)).unwrap();
        };
        replace("scheduler-config.yaml", "httpTimeout: 500ms", 2, "httpTimeout: 60s");
        replace("scheduler.yaml", "timeoutSeconds: 2\n", 1, "timeoutSeconds: 30\n");
        let lines = "resources: [deploy/namespace.yaml]\ncomponents: [deploy/components/scheduler]\n";
        std::fs::write(overlay.path().join("kustomization.yaml"), lines).unwrap();
        self.cluster.kubectl_ok(&["apply", "-k", overlay.path().to_str().unwrap()]);
        let rollout = ["-n", "larder-system", "rollout", "status", "deployment/larder-scheduler", "--timeout=240s"];
        self.cluster.kubectl_ok(&rollout);
    }

    fn apply_all(&self, objects: &[Value]) {
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
    }

    /// A Dataset of 1,000 bytes, granted to nobody, whose snapshot these nodes hold.
    fn dataset(&self, namespace: &str, name: &str, number: u8, held: &[(&str, u64)]) {
        let snapshot = format!("{number:02x}").repeat(32);
        let metadata = json!({"namespace": namespace, "name": name});
        let spec = json!({"origin": {"source": "s3://bucket/set", "anonymous": true}});
        self.apply_all(&[
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": metadata, "spec": spec}),
        ]);
        let status = json!({"status": {"snapshot": snapshot, "bytes": 1_000}});
        self.patch_status(&["-n", namespace, "dataset", name], &status);
        let missing =
            held.iter().filter(|(node, _)| !self.cluster.kubectl(&["get", "nodecache", node]).status.success());
        let caches: Vec<Value> = missing
            .map(|(node, _)| json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": node}, "spec": {}}))
            .collect();
        self.apply_all(&caches);
        for (node, bytes) in held {
            self.holds(node, number, *bytes);
        }
    }

    fn holds(&self, node: &str, number: u8, bytes: u64) {
        let snapshot = format!("{number:02x}").repeat(32);
        let held = json!({
            "snapshot": snapshot, "owner": "anonymous", "bytes": bytes, "wantedBytes": 1_000, "reservedBytes": 0, "mounts": 0,
        });
        self.patch_status(&["nodecache", node], &json!({"status": {"snapshots": [held]}}));
    }

    fn patch_status(&self, what: &[&str], status: &Value) {
        let patch = ["--subresource=status", "--type=merge", "-p", &status.to_string()];
        self.cluster.kubectl_ok(&[&["patch"], what, &patch].concat());
    }

    fn pods(&self, namespace: &str) -> BTreeMap<String, Value> {
        let pods = self.cluster.get_json(&["pods", "-n", namespace]);
        let named = |pod: &Value| (pod["metadata"]["name"].as_str().unwrap().to_owned(), pod.clone());
        pods["items"].as_array().unwrap().iter().map(named).collect()
    }

    /// The node of a pod, once it has one.
    fn node_of(&self, pod: &str) -> String {
        self.nodes_of(|name| name == pod, 1).remove(0)
    }

    /// The nodes of so many pods, once all of them have one.
    fn nodes_of(&self, is_ours: impl Fn(&str) -> bool, pods: usize) -> Vec<String> {
        let mut nodes = Vec::new();
        let columns = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}";
        self.cluster.wait_for(&format!("{pods} pods have nodes"), TIMEOUT, || {
            let all = self.cluster.kubectl_ok(&["get", "pods", "-n", TEAM, "-o", columns]);
            let ours = all.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| is_ours(name));
            nodes = ours.map(|(_, node)| node.to_owned()).filter(|node| !node.is_empty()).collect();
            nodes.len() == pods
        });
        nodes
    }

    /// Waits until pods that read `set` are led to nodes that hold it: so many at a time that all of them are there by
    /// chance once in thousands of times.
    fn leads(&self, what: &str) {
        const AT_A_TIME: usize = 6;
        let mut nth = 0;
        self.cluster.wait_for(&format!("pods are led {what}"), TIMEOUT, || {
            nth += 1;
            let prefix = format!("{what}-{nth}-");
            let reads = json!({"larder.dev/datasets": "set"});
            let pods: Vec<Value> = (0..AT_A_TIME).map(|pod_nth| pod(&format!("{prefix}{pod_nth}"), &reads)).collect();
            self.apply_all(&pods);
            let nodes = self.nodes_of(|name| name.starts_with(&prefix), AT_A_TIME);
            nodes.iter().all(|node| HOLDERS.contains(&node.as_str()))
        });
    }

    /// What `larder explain pod` says, in the cluster.
    fn explain(&self, pod: &str) -> String {
        let (larder, pod) = (built("larder").display().to_string(), format!("{TEAM}/{pod}"));
        let output = self.cluster.exec(&[&larder, "explain", "pod", &pod]);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        out.into_owned()
    }

    /// Waits for an event of a pod with this text, and returns all of its events' messages.
    fn event(&self, pod: &str, text: &str) -> String {
        let mut said = String::new();
        self.cluster.wait_for(&format!("an event of {pod} says {text:?}"), TIMEOUT, || {
            let field = format!("involvedObject.name={pod}");
            let messages = "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}";
            said = self.cluster.kubectl_ok(&["get", "events", "-n", TEAM, "--field-selector", &field, "-o", messages]);
            said.contains(text)
        });
        said
    }
}

fn scheduler_image() -> String {
    let manifest =
        std::fs::read_to_string(repository().join("deploy/components/scheduler/base/scheduler.yaml")).unwrap();
    let image = manifest.lines().find_map(|line| line.trim().strip_prefix("image: registry.k8s.io/"));
    format!("registry.k8s.io/{}", image.unwrap())
}

fn fake_node(number: usize) -> Value {
    let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    let name = format!("f{number}");
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "status": {"allocatable": resources, "capacity": resources},
    })
}

/// A pod as its users write it: no word of a scheduler.
fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": TEAM, "name": name, "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "infinity"]}],
        },
    })
}

// SEMANTICS: X2
#[test]
fn pods_of_a_labelled_namespace_land_where_their_data_is_and_wait_for_it_if_they_require_it() {
    let lab = Lab::start();
    let holders: Vec<(&str, u64)> = HOLDERS.iter().map(|node| (*node, 1_000)).collect();
    lab.dataset(TEAM, "set", 1, &holders);
    lab.dataset("other", "secret", 2, &[("f5", 1_000)]);

    // The index has heard of it once a pod is led there.
    lab.leads("first");
    let many: Vec<Value> =
        (0..200).map(|nth| pod(&format!("many-{nth}"), &json!({"larder.dev/datasets": "set"}))).collect();
    lab.apply_all(&many);
    let nodes = lab.nodes_of(|name| name.starts_with("many-"), 200);
    let held = nodes.iter().filter(|node| HOLDERS.contains(&node.as_str())).count();
    eprintln!("{held} of 200 pods are on nodes that hold their data");
    assert!(held >= 196, "{held} of 200");
    let scheduler = |name: &str| lab.pods(TEAM)[name]["spec"]["schedulerName"].clone();
    assert_eq!(scheduler("many-7"), "larder");

    // Data that is required.
    lab.dataset(TEAM, "cold", 3, &[("f2", 120)]);
    let required = json!({"larder.dev/datasets": "cold", "larder.dev/data": "required"});
    lab.apply_all(&[pod("patient", &required)]);
    let said = lab.event("patient", "holds less than 90 percent of team/cold, which is required");
    assert!(said.contains("FailedScheduling") && lab.pods(TEAM)["patient"]["spec"]["nodeName"].is_null(), "{said}");
    lab.holds("f2", 3, 900);
    // As the controller does once a NodeCache says so: a change of a node is what wakes pods that the extender has refused.
    // Woken before the extender knows, the pod waits for the next change.
    let mut percent = 89;
    lab.cluster.wait_for("the patient pod has a node", TIMEOUT, || {
        percent = if percent == 100 { 90 } else { percent + 1 };
        let label = format!("dataset.larder.dev/team.cold={percent}");
        lab.cluster.kubectl_ok(&["label", "--overwrite", "node", "f2", &label]);
        !lab.pods(TEAM)["patient"]["spec"]["nodeName"].is_null()
    });
    assert_eq!(lab.node_of("patient"), "f2");

    // Why it went there, and why it waited.
    let explained = lab.explain("patient");
    eprintln!("{explained}");
    assert!(explained.starts_with("team/patient went to f2, which holds 90 % of team/cold"), "{explained}");

    // A Dataset that the pod may not read.
    lab.apply_all(&[pod("curious", &json!({"larder.dev/datasets": "other/secret"}))]);
    lab.node_of("curious");
    let said = lab.event("curious", "there is no Dataset other/secret that pods of team may read");
    assert!(!said.contains("holds"), "{said}");
    let strict = json!({"larder.dev/datasets": "other/secret", "larder.dev/data": "required"});
    lab.apply_all(&[pod("strict", &strict)]);
    lab.event("strict", "there is no Dataset other/secret that pods of team may read, and its data is required");

    // A pod that nobody may end needs a word of the administrator's.
    let pinned = pod("pinned", &json!({"larder.dev/pinned": "true"}));
    std::fs::write(lab.cluster.note("pinned"), pinned.to_string()).unwrap();
    let apply = || lab.cluster.kubectl(&["apply", "-f", lab.cluster.note("pinned").to_str().unwrap()]);
    let refused = String::from_utf8_lossy(&apply().stderr).into_owned();
    assert!(refused.contains("kubectl label namespace team larder.dev/pinning=allowed"), "{refused}");
    lab.cluster.kubectl_ok(&["label", "namespace", TEAM, "larder.dev/pinning=allowed"]);
    lab.cluster.wait_for("it is admitted", TIMEOUT, || apply().status.success());

    // Pods of others keep their scheduler.
    let mut foreign = pod("foreign", &json!({}));
    foreign["metadata"]["namespace"] = "other".into();
    lab.apply_all(&[foreign]);
    assert_eq!(lab.pods("other")["foreign"]["spec"]["schedulerName"], "default-scheduler");

    // Killed, it comes back by itself, and pods are led again.
    let mut extenders = Vec::new();
    // A busy machine may have kept one from answering its probe, and it was restarted.
    lab.cluster.wait_for("both extenders run", TIMEOUT, || {
        extenders = lab.cluster.pids("larder-scheduler-ext");
        extenders.len() == 2
    });
    for pid in extenders {
        kill_process(pid);
    }
    lab.apply_all(&[pod("without", &json!({"larder.dev/datasets": "set"}))]);
    lab.node_of("without");
    lab.leads("again");
    lab.reads_no_secret();
}

impl Lab {
    /// The account of scheduler and extender together.
    fn reads_no_secret(&self) {
        let may = |verb: &str, resource: &str| {
            let account = "--as=system:serviceaccount:larder-system:larder-scheduler";
            let answer = self.cluster.kubectl(&["auth", "can-i", verb, resource, account, "-A"]);
            String::from_utf8_lossy(&answer.stdout).trim() == "yes"
        };
        for (verb, resource) in [("list", "nodecaches.larder.dev"), ("watch", "datasets.larder.dev"), ("list", "pods")]
        {
            assert!(may(verb, resource), "{verb} {resource}");
        }
        for (verb, resource) in [
            ("get", "secrets"),
            ("patch", "nodecaches.larder.dev"),
            ("patch", "datasets.larder.dev"),
            ("create", "pods"),
            ("patch", "nodes"),
        ] {
            assert!(!may(verb, resource), "{verb} {resource}");
        }
    }
}
