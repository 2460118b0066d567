//! Datasets as objects: applied, warmed, mounted by pods, promised room, switched to another snapshot and removed, by
//! the real controller on a real Kubernetes.

use std::collections::BTreeMap;
use std::time::Instant;

use larder_e2e::SECRET;
use larder_e2e::platform::{Platform, SUMS, TIMEOUT, kill_process, reader_script, sums};
use larder_testkit::larder_binary;
use serde_json::{Value, json};

/// Bytes that no other test has: nodes keep what earlier tests have read.
fn bytes(test: usize) -> impl Fn(usize) -> Vec<u8> {
    move |i| (0..5_000 + (i * 7919) % 90_000).map(|n| ((n * (2 * i + 3)) >> 3) as u8 ^ test as u8).collect()
}

/// A Dataset of the test.
fn dataset(platform: &Platform, name: &str, more: &Value) -> String {
    let mut spec = json!({
        "origin": {
            "source": platform.source(name),
            "endpoint": platform.endpoint(),
            "secretRef": {"name": "origin"},
        },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": name, "namespace": platform.namespace()},
        "spec": spec,
    });
    format!("---\n{object}\n")
}

/// A condition of a Dataset: its status, reason and message.
fn condition(platform: &Platform, name: &str, kind: &str) -> (String, String, String) {
    let told = platform.kubectl(&["get", "dset", name, "-o", "json"]);
    let object: Value = serde_json::from_str(&told).unwrap_or_default();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn wait_for_condition(platform: &Platform, name: &str, kind: &str, reason: &str) -> String {
    let mut message = String::new();
    platform.cluster.wait_for(&format!("{name} is {kind}: {reason}"), TIMEOUT, || {
        let (_, now, told) = condition(platform, name, kind);
        message = told;
        now == reason
    });
    message
}

/// A pod that Kubernetes schedules.
fn scheduled(platform: &Platform, name: &str, claim: &str, script: &str) -> String {
    platform.pod(name, 1, &[claim], script).replace("  nodeName: n1\n", "")
}

/// The labels of data that nodes have, by node.
fn labels(platform: &Platform) -> BTreeMap<String, BTreeMap<String, String>> {
    let nodes = platform.cluster.get_json(&["nodes"]);
    let of = |node: &Value| {
        let labels = node["metadata"]["labels"].as_object().unwrap().iter();
        let own = format!("dataset.larder.dev/{}.", platform.namespace());
        let ours =
            labels.filter_map(|(key, value)| Some((key.strip_prefix(&own)?.to_owned(), value.as_str()?.to_owned())));
        (node["metadata"]["name"].as_str().unwrap().to_owned(), ours.collect())
    };
    nodes["items"].as_array().unwrap().iter().map(of).collect()
}

/// The objects that were made for Datasets of the test, and what nodes promise to them.
fn left(platform: &Platform) -> Vec<String> {
    let own = ["-n", platform.namespace(), "-o", "name"];
    let mut left = platform.kubectl(&[&["get", "dset,jobs,pvc"], &own[2..]].concat());
    let volumes = platform.cluster.get_json(&["pv", "-l", "app.kubernetes.io/managed-by=larder-controller"]);
    for volume in volumes["items"].as_array().unwrap() {
        if volume["spec"]["claimRef"]["namespace"] == platform.namespace() {
            left += &format!("{}\n", volume["metadata"]["name"]);
        }
    }
    let caches = platform.cluster.get_json(&["nodecaches"]);
    for promise in caches["items"].as_array().unwrap().iter().flat_map(|it| it["spec"]["datasets"].as_array().cloned())
    {
        for promise in promise {
            if promise["name"].as_str().unwrap().starts_with(&format!("{}/", platform.namespace())) {
                left += &format!("a promise to {}\n", promise["name"]);
            }
        }
    }
    for (node, labels) in labels(platform) {
        left += &labels.keys().map(|label| format!("the label {label} of {node}\n")).collect::<String>();
    }
    left.lines().map(str::to_owned).collect()
}

fn wait_until_nothing_is_left(platform: &Platform) {
    platform.cluster.wait_for("nothing is left of the datasets", TIMEOUT, || left(platform).is_empty());
}

/// The message of the refusal of a claim.
fn refusal(platform: &Platform, namespace: &str, claim: &str) -> String {
    platform.event(namespace, claim, "may not use the dataset")
}

// SEMANTICS: K12, P4
#[test]
fn one_apply_warms_the_nodes_and_the_first_epoch_of_a_pod_makes_no_get() {
    let platform = Platform::start_datasets("datasets");
    let (cluster, own) = (&platform.cluster, platform.namespace());
    let expected = platform.put_dataset("set", 40, bytes(1));
    let gets = || -> Vec<u64> { expected.keys().map(|path| platform.gets_of("set", path)).collect() };
    let script = format!("cd /set && {SUMS}");
    let started = Instant::now();
    cluster.apply(
        &(platform.secret(own)
            + &dataset(&platform, "set", &json!({"nodes": {"count": 2}}))
            + &scheduled(&platform, "first", "set", &script)),
    );
    wait_for_condition(&platform, "set", "Ready", "Available");
    println!("ready after {:?}", started.elapsed());
    // The pod that imported had the keys, and its container is still known to the runtime.
    platform.assert_secret_is_in_memory_only();
    let listed = platform.server.counters().lists;
    assert_eq!(gets(), vec![2; expected.len()], "each object once for each node");
    assert_eq!(sums(&platform.output("first")), expected);
    println!("first epoch read after {:?}", started.elapsed());
    cluster.apply(&(platform.pod("second", 1, &["set"], &script) + &platform.pod("third", 2, &["set"], &script)));
    for pod in ["second", "third"] {
        assert_eq!(sums(&platform.output(pod)), expected);
    }
    assert_eq!((gets(), platform.server.counters().lists), (vec![2; expected.len()], listed), "all was there");
    // One page: the import of 40 keys.
    assert_eq!(listed, 1, "one listing for the cluster");
    let full = BTreeMap::from([("set".to_owned(), "100".to_owned())]);
    cluster.wait_for("both nodes are labelled", TIMEOUT, || labels(&platform).values().all(|labels| *labels == full));

    // Tenants: who was not granted the dataset is refused, in words that tell nothing.
    let team = format!("{own}-b");
    let claim = |name: &str, of: &str| {
        format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\n\
             metadata: {{name: {name}, namespace: {team}, annotations: {{larder.dev/dataset: {of}}}}}\n\
             spec: {{storageClassName: larder, accessModes: [ReadOnlyMany], resources: \
             {{requests: {{storage: 1Gi}}}}}}\n"
        )
    };
    let claims = claim("set", &format!("{own}/set")) + &claim("none", &format!("{own}/nosuch"));
    cluster.apply(&(platform.namespace_manifest(&team) + &claims));
    let (refused, missing) = (refusal(&platform, &team, "set"), refusal(&platform, &team, "none"));
    assert_eq!(refused.replace("/set", "/nosuch"), missing);
    platform.kubectl(&[
        "patch",
        "dset",
        "set",
        "--type=merge",
        "-p",
        &format!("{{\"spec\":{{\"namespaces\":[\"{team}\"]}}}}"),
    ]);
    let in_team = format!("{team}/fourth");
    cluster.apply(&platform.pod(&in_team, 1, &["set"], &script).replace("  nodeName: n1\n", ""));
    assert_eq!(sums(&platform.output(&in_team)), expected);
    assert_eq!(gets(), vec![2; expected.len()]);
    for account in ["larderd", "larder-controller"] {
        let who = format!("--as=system:serviceaccount:larder-system:{account}");
        let may = cluster.kubectl(&["auth", "can-i", "get", "secrets", "-A", &who]);
        assert_eq!(String::from_utf8_lossy(&may.stdout).trim(), "no", "{account}");
    }

    // Deleted while it is read: it names its users, and goes with the last of them.
    cluster.apply(&platform.pod("reader", 2, &["set"], &reader_script("set", &expected)));
    cluster.wait_for("it reads", TIMEOUT, || platform.logs("reader").contains("round"));
    cluster.kubectl_ok(&["delete", "pods", "-n", &team, "fourth"]);
    platform.kubectl(&["delete", "pods", "first", "second", "third"]);
    platform.kubectl(&["delete", "dset", "set", "--wait=false"]);
    let named = wait_for_condition(&platform, "set", "Ready", "InUse");
    assert!(named.contains(&format!("{own}/reader")), "{named}");
    // The reader notices neither that nor that the API server is away.
    let apiserver = cluster.pids("kube-apiserver");
    assert!(!apiserver.is_empty(), "the API server runs");
    let signal = |signal| {
        for pid in &apiserver {
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
        }
    };
    signal(rustix::process::Signal::STOP);
    std::thread::sleep(std::time::Duration::from_secs(10));
    for pid in cluster.pids("larderd") {
        kill_process(pid);
    }
    std::thread::sleep(std::time::Duration::from_secs(5));
    signal(rustix::process::Signal::CONT);
    let rounds = || platform.logs("reader").matches("round").count();
    let before = rounds();
    cluster.wait_for("it reads on", TIMEOUT, || rounds() > before + 1);
    platform.stop_reader("reader");
    platform.delete_readers();
    wait_until_nothing_is_left(&platform);

    let everything =
        cluster.kubectl_ok(&["get", "nodecaches,jobs,pods,events,pv,pvc,configmaps,nodes", "-A", "-o", "json"]);
    let logs =
        cluster.kubectl_ok(&["logs", "-n", "larder-system", "-l", "app.kubernetes.io/part-of=larder", "--tail=-1"]);
    assert!(!everything.contains(SECRET) && !logs.contains(SECRET), "no Secret in any object or log");
}

// SEMANTICS: M5, M8
#[test]
fn a_mirror_gets_the_snapshot_and_nodes_near_to_it_read_it_while_others_read_the_origin() {
    let platform = Platform::start_datasets("mirrors");
    let (cluster, own) = (&platform.cluster, platform.namespace());
    let expected = platform.put_dataset("mirrored", 40, bytes(11));
    let gets = |of: &str| -> u64 { expected.keys().map(|path| platform.gets_of(of, path)).sum() };
    // No other test has this label.
    let label = format!("{own}/site");
    cluster.kubectl_ok(&["label", "node", "n2", &format!("{label}=b")]);
    let mirror = json!({
        "name": "near",
        "origin": {"source": platform.source("copy")},
        "near": {label.as_str(): "b"},
        "kept": true,
    });
    cluster.apply(&(platform.secret(own) + &dataset(&platform, "mirrored", &json!({"mirrors": [mirror]}))));
    let status = || -> Value {
        let shown = platform.kubectl(&["get", "dset", "mirrored", "-o", "json"]);
        serde_json::from_str::<Value>(&shown).unwrap_or_default()["status"].clone()
    };
    cluster.wait_for("the mirror has the snapshot", TIMEOUT, || {
        let status = status();
        let mirror = &status["mirrors"][0];
        mirror["snapshot"].is_string() && mirror["snapshot"] == status["snapshot"]
    });
    assert_eq!((&status()["mirrors"][0]["percent"], &status()["mirrors"][0]["behindBytes"]), (&json!(100), &json!(0)));
    cluster.wait_for("the node knows its label", TIMEOUT, || {
        let cache = cluster.get_json(&["nodecache", "n2"]);
        cache["spec"]["labels"][label.as_str()] == "b"
    });
    wait_for_condition(&platform, "mirrored", "Ready", "Available");
    let script = format!("cd /mirrored && {SUMS}");
    let of_mirror = gets("copy");
    cluster.apply(&platform.pod("far", 1, &["mirrored"], &script));
    assert_eq!(sums(&platform.output("far")), expected);
    assert_eq!(gets("copy"), of_mirror, "it is near to n2 alone");
    cluster.apply(&platform.pod("close", 2, &["mirrored"], &script));
    assert_eq!(sums(&platform.output("close")), expected);
    assert!(gets("copy") > of_mirror, "n2 reads the mirror");
    platform.kubectl(&["delete", "pods", "far", "close"]);
    platform.kubectl(&["delete", "dset", "mirrored"]);
    cluster.kubectl_ok(&["label", "node", "n2", &format!("{label}-")]);
    wait_until_nothing_is_left(&platform);
}

// SEMANTICS: K12
#[test]
fn a_dataset_whose_secret_comes_later_says_so_and_is_imported_then() {
    let platform = Platform::start_datasets("late");
    platform.put_dataset("set", 3, bytes(7));
    platform.cluster.apply(&dataset(&platform, "set", &json!({})));
    let said = wait_for_condition(&platform, "set", "Imported", "SecretMissing");
    assert!(said.contains("no credentials in /etc/larder/origin"), "{said}");
    platform.cluster.apply(&platform.secret(platform.namespace()));
    wait_for_condition(&platform, "set", "Ready", "Available");
    platform.kubectl(&["delete", "dset", "set"]);
    wait_until_nothing_is_left(&platform);
}

// SEMANTICS: C17
#[test]
fn a_promised_dataset_loses_no_block_to_others_and_who_waits_for_room_goes_on_by_itself() {
    let platform = Platform::start_datasets("promises");
    let cluster = &platform.cluster;
    let set_size = |patch: Value| {
        cluster.kubectl_ok(&[
            "patch",
            "daemonset",
            "larderd",
            "-n",
            "larder-system",
            "--type=json",
            "-p",
            &patch.to_string(),
        ]);
        platform.wait_until_ready();
    };
    let arguments = "/spec/template/spec/containers/0/args";
    set_size(json!([{"op": "add", "path": format!("{arguments}/0"), "value": "--cache-size=3MiB"}]));
    // About 1.8 MB each.
    let first = platform.put_dataset("first", 40, bytes(2));
    let second = platform.put_dataset("second", 40, bytes(3));
    let all = json!({"nodes": {"count": "all"}});
    cluster.apply(&(platform.secret(platform.namespace()) + &dataset(&platform, "first", &all)));
    wait_for_condition(&platform, "first", "Ready", "Available");
    let gets =
        |name: &str, of: &BTreeMap<String, String>| -> u64 { of.keys().map(|path| platform.gets_of(name, path)).sum() };
    assert_eq!(gets("first", &first), 80);

    cluster.apply(&dataset(&platform, "second", &all));
    let told = wait_for_condition(&platform, "second", "Placed", "NotEnoughRoom");
    assert!(told.contains("n1: wants ") && told.contains("/first "), "the arithmetic: {told}");
    // It is read all the same, and more than fits.
    for round in 0..2 {
        let pod = format!("reader{round}");
        cluster.apply(&platform.pod(&pod, 1, &["second"], &format!("cd /second && {SUMS}")));
        assert_eq!(sums(&platform.output(&pod)), second);
        for pid in cluster.pids("larderd") {
            kill_process(pid);
        }
        platform.wait_until_ready();
    }
    platform.delete_readers();
    cluster.apply(&platform.pod("again", 1, &["first"], &format!("cd /first && {SUMS}")));
    assert_eq!(sums(&platform.output("again")), first);
    assert_eq!(gets("first", &first), 80, "no block was lost");

    platform.delete_readers();
    platform.kubectl(&["delete", "dset", "first", "--wait=false"]);
    wait_for_condition(&platform, "second", "Warm", "Cached");
    platform.kubectl(&["delete", "dset", "second", "--wait=false"]);
    wait_until_nothing_is_left(&platform);
    set_size(json!([{"op": "remove", "path": format!("{arguments}/0")}]));
}

/// Lists the dataset as it is now, and keeps the manifest under its id. Returns the id.
fn list(platform: &Platform, name: &str) -> String {
    let larder = larder_binary();
    let source = platform.source(name);
    let (key, secret) =
        (format!("AWS_ACCESS_KEY_ID={}", platform.server.access_key()), format!("AWS_SECRET_ACCESS_KEY={SECRET}"));
    let to = format!("{source}/.larder/{{snapshot}}.manifest");
    let larder = larder.to_str().unwrap();
    let endpoint = platform.endpoint();
    let args =
        ["env", &key, &secret, "HOME=/tmp", larder, "import", &source, "--to", &to, "--endpoint", &endpoint, "--json"];
    let done = platform.cluster.exec(&args);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    told["snapshot"].as_str().unwrap().to_owned()
}

#[test]
fn another_snapshot_is_warmed_beside_the_old_one_and_followed_and_rolled_back() {
    let platform = Platform::start_datasets("switched");
    let (cluster, own) = (&platform.cluster, platform.namespace());
    let old_files = platform.put_dataset("set", 30, bytes(4));
    let old = list(&platform, "set");
    let new_files = platform.put_dataset("set", 36, bytes(4));
    let new = list(&platform, "set");
    assert!(old != new && new_files.len() == 36);
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server", "namespace": own, "annotations": {"larder.dev/follow": "set"}},
        "spec": {
            "selector": {"matchLabels": {"app": "server"}},
            "template": {
                "metadata": {"labels": {"app": "server"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main",
                        "image": larder_testkit::Cluster::BUSYBOX,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", "find /set -type f | wc -l; exec tail -f /dev/null"],
                        "volumeMounts": [{"name": "set", "mountPath": "/set"}],
                    }],
                    "volumes": [{"name": "set", "persistentVolumeClaim": {"claimName": "set"}}],
                },
            },
        },
    });
    cluster.apply(
        &(platform.secret(own)
            + &dataset(&platform, "set", &json!({"nodes": {"count": 2}, "snapshot": old}))
            + &format!("---\n{deployment}\n")),
    );
    wait_for_condition(&platform, "set", "Ready", "Available");
    cluster.apply(&platform.pod("reader", 1, &["set"], &reader_script("set", &old_files)));
    // The snapshot that the pods of the Deployment have seen, once it is rolled out.
    let served = || {
        platform.kubectl(&["rollout", "status", "deployment/server", "--timeout=60s"]);
        platform.kubectl(&["logs", "deployment/server"]).trim().to_owned()
    };
    cluster.wait_for("the Deployment serves the old snapshot", TIMEOUT, || served() == "30");
    cluster.wait_for("it reads", TIMEOUT, || platform.logs("reader").contains("round"));
    let gets = || -> Vec<u64> { new_files.keys().map(|path| platform.gets_of("set", path)).collect() };
    let snapshot = |id: &str| {
        platform.kubectl(&[
            "patch",
            "dset",
            "set",
            "--type=merge",
            "-p",
            &format!("{{\"spec\":{{\"snapshot\":\"{id}\"}}}}"),
        ]);
        cluster.wait_for("the dataset has the snapshot", TIMEOUT, || {
            platform.kubectl(&["get", "dset", "set", "-o", "jsonpath={.status.snapshot}"]) == id
        });
    };
    snapshot(&new);
    cluster.wait_for("the Deployment serves the new snapshot", TIMEOUT, || served() == "36");
    assert_eq!(
        gets(),
        vec![2; 36],
        "what is unchanged is not fetched again, and what is new was there before its pods"
    );
    snapshot(&old);
    cluster.wait_for("the Deployment serves the old snapshot again", TIMEOUT, || served() == "30");
    platform.stop_reader("reader");
    // The whole namespace goes, with the dataset in it.
    cluster.kubectl_ok(&["delete", "namespace", own, "--wait=false"]);
    wait_until_nothing_is_left(&platform);
}

const FAKE_NODES: usize = 20;
/// The node that has their data makes a sandbox and a mount for each.
const PODS: usize = 40;

/// Nodes with room for pods and without a kubelet. They count as ready for about 40 s. Larder's own pods do not go
/// there.
fn fake_nodes() -> String {
    let room = json!({"cpu": "32", "memory": "64Gi", "pods": "110"});
    let node = |number: usize| {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Fake", "message": "fake",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": format!("fake{number}"), "labels": {"larder-fake": "true"}},
            "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
        });
        format!("---\n{node}\n")
    };
    (0..FAKE_NODES).map(node).collect()
}

/// Pods with an inline volume of the dataset. None of them runs: their image is nowhere.
fn inline_pods(platform: &Platform, prefix: &str, count: usize) -> String {
    let (own, mut all) = (platform.namespace(), String::new());
    for number in 0..count {
        let volume = json!({
            "name": "set",
            "csi": {
                "driver": "csi.larder.dev",
                "readOnly": true,
                "volumeAttributes": {"dataset": format!("{own}/set")},
            },
        });
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("{prefix}{number}"), "namespace": own, "labels": {"app": "reader"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "nowhere", "imagePullPolicy": "Never"}],
                "volumes": [volume],
            },
        });
        all += &format!("---\n{pod}\n");
    }
    all
}

/// The nodes of pods whose names begin with `prefix`, once all are scheduled.
fn nodes_of(platform: &Platform, prefix: &str, count: usize) -> Vec<String> {
    let mut nodes = Vec::new();
    platform.cluster.wait_for("all pods are scheduled", TIMEOUT, || {
        let pods = platform.cluster.get_json(&["pods", "-n", platform.namespace(), "-l", "app=reader"]);
        let pods = pods["items"].as_array().unwrap().iter();
        let ours = pods.filter(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with(prefix));
        nodes = ours.filter_map(|pod| Some(pod["spec"]["nodeName"].as_str()?.to_owned())).collect();
        nodes.len() == count
    });
    nodes
}

#[test]
fn pods_with_inline_volumes_are_scheduled_where_their_data_is_and_elsewhere_once_it_is_gone() {
    let platform = Platform::start_datasets("steered");
    let (cluster, own) = (&platform.cluster, platform.namespace());
    platform.put_dataset("set", 10, bytes(5));
    cluster.apply(&(platform.secret(own) + &dataset(&platform, "set", &json!({"nodes": {"count": 1}}))));
    wait_for_condition(&platform, "set", "Ready", "Available");
    let holders = || -> Vec<String> {
        let labels = labels(&platform);
        labels.into_iter().filter(|(_, labels)| !labels.is_empty()).map(|(node, _)| node).collect()
    };
    cluster.wait_for("its node is labelled", TIMEOUT, || holders().len() == 1);
    let holder = holders().remove(0);
    cluster.apply(&fake_nodes());
    cluster.wait_for("the fake nodes take pods", TIMEOUT, || {
        let nodes = cluster.get_json(&["nodes", "-l", "larder-fake"]);
        nodes["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
    });
    cluster.apply(&inline_pods(&platform, "first", PODS));
    let nodes = nodes_of(&platform, "first", PODS);
    let there = nodes.iter().filter(|node| **node == holder).count();
    println!("{there} of {PODS} on {holder}");
    assert!(there * 100 >= PODS * 95, "{nodes:?}");
    platform.delete_readers();

    platform.kubectl(&["delete", "dset", "set", "--wait=false"]);
    wait_until_nothing_is_left(&platform);
    // The fake nodes count as lost by now: they are made anew.
    cluster.kubectl_ok(&["delete", "nodes", "-l", "larder-fake"]);
    cluster.apply(&fake_nodes());
    cluster.wait_for("the fake nodes take pods", TIMEOUT, || {
        let nodes = cluster.get_json(&["nodes", "-l", "larder-fake"]);
        nodes["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
    });
    cluster.apply(&inline_pods(&platform, "later", 10));
    let nodes = nodes_of(&platform, "later", 10);
    assert!(nodes.iter().filter(|node| **node == holder).count() <= 2, "nothing draws them there: {nodes:?}");
    cluster.kubectl_ok(&["delete", "pods", "-n", own, "-l", "app=reader", "--force", "--grace-period=0"]);
    cluster.kubectl_ok(&["delete", "nodes", "-l", "larder-fake"]);
}
