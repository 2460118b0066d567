//! Tenants of a real Kubernetes: each reads its own bytes and no others, and none of them ends what all depend on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_e2e::platform::{Platform, SUMS, TIMEOUT, kill_process, reader_script, sums};
use larder_testkit::{RealServer, ServerKind, scaled};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::floods::flood;
use crate::kubernetes::{VICTIMS, together};

/// Files of each tenant's dataset. All have the same names.
const FILES: usize = 8;

/// A port of the cluster's network that leads to a server of this machine. Returns its URL.
fn forward(platform: &Platform, server: &str) -> String {
    let listener = platform.cluster.listen(0);
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let server = server.strip_prefix("http://").unwrap().to_owned();
    platform.runtime().spawn(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    format!("http://{at}")
}

/// A tenant: its namespace, a Secret with its key, and its Dataset `im` of a bucket whose name all tenants use.
fn tenant(platform: &Platform, namespace: &str, endpoint: &str, key: &str) -> String {
    let origin = json!({"source": format!("s3://{}/im", RealServer::BUCKET), "endpoint": endpoint,
        "secretRef": {"name": "origin"}});
    let dataset = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "im", "namespace": namespace}, "spec": {"origin": origin, "nodes": {"count": 2}}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "origin", "namespace": namespace},
        "stringData": {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": RealServer::SECRET_KEY}});
    format!("{}---\n{secret}\n---\n{dataset}\n", platform.namespace_manifest(namespace))
}

/// The conditions of a Dataset; none while the API server does not answer.
fn conditions(platform: &Platform, namespace: &str, name: &str) -> Vec<Value> {
    let output = platform.cluster.kubectl(&["get", "dset", "-n", namespace, name, "-o", "json"]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    object["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

/// The conditions that are not True and say why: their reasons and messages.
fn unmet_of(conditions: &[Value]) -> Vec<(String, String)> {
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let is_unmet = |condition: &&Value| condition["status"] != "True";
    let unmet = conditions.iter().filter(is_unmet).map(|it| (text(it, "reason"), text(it, "message")));
    unmet.filter(|(_, message)| !message.is_empty()).collect()
}

fn wait_until_ready(platform: &Platform, namespace: &str, name: &str) {
    platform.cluster.wait_for(&format!("{namespace}/{name} is ready"), TIMEOUT, || {
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        conditions(platform, namespace, name).iter().any(is_ready)
    });
}

/// Waits until no condition is unmet: right after a restart, a node has yet to say what it has.
fn wait_until_all_is_met(platform: &Platform, namespace: &str, name: &str) {
    platform.cluster.wait_for(&format!("{namespace}/{name} lacks nothing"), TIMEOUT, || {
        let conditions = conditions(platform, namespace, name);
        !conditions.is_empty() && unmet_of(&conditions).is_empty()
    });
}

/// Kills one program of one node once both hold so many connections, and waits until they do so again.
fn kill_and_wait(platform: &Platform, node: u32, victim: &str, connections: usize) {
    let mut before = Vec::new();
    platform.cluster.wait_for(&format!("{victim} runs on node {node}"), TIMEOUT, || {
        before = platform.cluster.pids_on_node(node, victim);
        before.len() == 1 && together(platform, node, connections)
    });
    kill_process(before[0]);
    platform.cluster.wait_for(&format!("{victim} is back on node {node}"), TIMEOUT, || {
        let now = platform.cluster.pids_on_node(node, victim);
        now.len() == 1 && now != before && together(platform, node, connections)
    });
}

// SEMANTICS: C19, K7
#[test]
fn tenants_of_one_ceph_read_their_own_bytes_through_kills_and_one_who_may_only_list_reads_nothing() {
    let Some(ceph) = RealServer::start(ServerKind::Ceph) else { return };
    let platform = Platform::start_datasets("apart");
    let cluster = &platform.cluster;
    let endpoint = forward(&platform, ceph.endpoint());
    platform.list_endpoints(&[&platform.endpoint(), &endpoint]);
    let bucket = RealServer::BUCKET;

    // Equal names and sizes, other bytes.
    let tenants = ["one", "two"].map(|tenant| {
        let key = ceph.make_user(tenant, "writer");
        let salt = tenant.len() + usize::from(tenant.as_bytes()[0]);
        let bytes = |i: usize| vec![(salt * 8 + i) as u8; 50_000 + i];
        ceph.put_as(&key, bucket, b"");
        let expected = platform.put_dataset(tenant, FILES, bytes);
        for (i, path) in (0..FILES).map(|i| (i, format!("d{}/f{i}", i % 5))) {
            ceph.put_as(&key, &format!("{bucket}/im/{path}"), &bytes(i));
        }
        (format!("apart-{tenant}"), key, expected)
    });
    let [(one, key, _), _] = &tenants;
    let lister = ceph.make_user("one", "lister");
    let policy = json!({"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam::one:user/lister"]}, "Action": ["s3:ListBucket"],
        "Resource": [format!("arn:aws:s3::one:{bucket}")]}]});
    ceph.put_as(key, &format!("{bucket}?policy="), policy.to_string().as_bytes());

    for (namespace, key, _) in &tenants {
        cluster.apply(&tenant(&platform, namespace, &endpoint, key));
    }
    for (namespace, ..) in &tenants {
        wait_until_ready(&platform, namespace, "im");
    }
    let pod = |name: &str, node: u32, script: &str| platform.pod(name, node, &["im"], script);
    let mut readers = Vec::new();
    for (namespace, _, expected) in &tenants {
        for node in [1, 2] {
            let reader = format!("{namespace}/reader{node}");
            cluster.apply(&pod(&reader, node, &reader_script("im", expected)));
            readers.push(reader);
        }
    }
    for reader in &readers {
        cluster.wait_for("a reader reads", TIMEOUT, || platform.logs(reader).contains("round"));
    }
    // On both nodes at the same time.
    let kills = scaled(1) as usize;
    std::thread::scope(|scope| {
        for node in [1, 2] {
            let (platform, connections) = (&platform, tenants.len());
            scope.spawn(move || {
                VICTIMS.repeat(kills).into_iter().for_each(|victim| kill_and_wait(platform, node, victim, connections));
            });
        }
    });

    // The first tenant's bytes are cached on both nodes, and its bucket's list is this user's to read.
    let team = "apart-lister";
    cluster.apply(&(tenant(&platform, team, &endpoint, &lister) + &pod(&format!("{team}/thief"), 1, SUMS)));
    // The nodes that the Dataset wants get nothing: the pods that warm them are refused.
    cluster.wait_for("its pods' events say why", TIMEOUT, || {
        let events = ["get", "events", "-n", team, "-o", "jsonpath={.items[*].message}"];
        String::from_utf8_lossy(&cluster.kubectl(&events).stdout).contains("PermissionDenied")
    });
    // Nor by a volume of its own, past any Dataset.
    let volume = platform.volume(&format!("{team}/alone"), "none", "ReadOnlyMany", "");
    let volume = volume.replace(&platform.source("none"), &format!("s3://{bucket}/im"));
    let volume = volume.replace(&platform.endpoint(), &endpoint);
    cluster.apply(&(volume + &platform.pod(&format!("{team}/alone"), 1, &["alone"], SUMS)));
    platform.event(team, "alone", "PermissionDenied");
    for thief in ["thief", "alone"] {
        cluster.wait_for(&format!("the phase of {thief}"), TIMEOUT, || {
            let phase = platform.phase(team, thief);
            // A busy API server may not answer the first time.
            assert!(["", "Pending"].contains(&phase.as_str()), "{thief} is {phase}");
            !phase.is_empty()
        });
    }

    for reader in &readers {
        platform.stop_reader(reader);
    }
    platform.delete_readers();
    // From what is on the nodes, after a restart of both programs.
    cluster.kubectl_ok(&["rollout", "restart", "-n", "larder-system", "daemonset/larder-csi", "daemonset/larderd"]);
    platform.wait_until_ready();
    let script = format!("cd /im && {SUMS}");
    for (namespace, _, expected) in &tenants {
        let reader = format!("{namespace}/again");
        cluster.apply(&pod(&reader, 1, &script));
        assert_eq!(sums(&platform.output(&reader)), *expected, "{namespace}");
    }
    wait_until_all_is_met(&platform, one, "im");
    platform.delete_readers();
}

/// A Dataset of the platform's server for two nodes, and a pod on the first that reads it.
fn of_quota(platform: &Platform, name: &str, expected: &BTreeMap<String, String>) -> [String; 2] {
    let origin = json!({"source": platform.source(name), "endpoint": platform.endpoint(),
        "secretRef": {"name": "origin"}});
    let dataset = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": name, "namespace": platform.namespace()},
        "spec": {"origin": origin, "nodes": {"count": 2}}});
    let reader = platform.pod(&format!("reader-{name}"), 1, &[name], &reader_script(name, expected));
    [format!("---\n{dataset}\n"), reader]
}

// SEMANTICS: K20, K22
#[test]
fn a_quota_that_is_reached_raised_and_lowered_stops_what_is_new_and_nothing_that_runs() {
    let platform = Platform::start_datasets("quota");
    let (cluster, own) = (&platform.cluster, platform.namespace());
    let quota = |promised: &str, mounts: u32| {
        let spec = json!({"namespaces": [own], "promisedBytes": promised, "mountsPerNode": mounts});
        let object = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "CacheQuota",
            "metadata": {"name": "research", "labels": {"larder-test": own}}, "spec": spec});
        cluster.apply(&object.to_string());
    };
    let exceeded = |name: &str| {
        let mut message = None;
        cluster.wait_for(&format!("{name} waits for the quota"), TIMEOUT, || {
            let unmet = unmet_of(&conditions(&platform, own, name));
            message = unmet.into_iter().find_map(|(reason, text)| (reason == "QuotaExceeded").then_some(text));
            message.is_some()
        });
        message.unwrap()
    };
    let sets = ["a", "b", "c"].map(|name| {
        let expected = platform.put_dataset(name, 10, |i| [name.as_bytes()[0], i as u8].repeat(20_000 + i));
        (name, of_quota(&platform, name, &expected))
    });
    let [(_, a), (_, b), (_, c)] = &sets;
    // Each Dataset has 400 kB on each of two nodes. The pods that warm them count as well.
    quota("1MiB", 2);
    cluster.apply(&(platform.secret(own) + &a[0]));
    wait_until_ready(&platform, own, "a");
    cluster.apply(&(b[0].clone() + &a[1]));
    // Reached: the second Dataset waits, and its message has the numbers.
    let message = exceeded("b");
    assert!(message.contains("1.0 MiB of promised room"), "{message}");
    assert!(message.contains("CacheQuota research allows the namespace quota"), "{message}");
    cluster.wait_for("a reader reads", TIMEOUT, || platform.logs("reader-a").contains("round"));
    // Another quota for the namespace is refused.
    let other = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "CacheQuota", "metadata": {"name": "other"},
        "spec": {"namespaces": ["elsewhere", own], "datasets": 1}});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), other.to_string()).unwrap();
    let refused = cluster.kubectl(&["apply", "-f", file.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("research"), "{said}");
    // Raised: it resumes automatically. The limit of mounts holds back its pod.
    quota("4MiB", 2);
    wait_until_ready(&platform, own, "b");
    quota("4MiB", 1);
    cluster.wait_for("the nodes know the limit", TIMEOUT, || {
        let cache = cluster.get_json(&["nodecache", "n1"]);
        cache["spec"]["quotas"][0]["mounts"] == 1
            && cache["status"]["observedGeneration"] == cache["metadata"]["generation"]
    });
    cluster.apply(&b[1]);
    let event = platform.event(own, "reader-b", "mounts on this node");
    assert!(event.contains("1 of 1 mounts") && event.contains("CacheQuota research"), "{event}");
    // A restarted larderd knows the limit.
    kill_and_wait(&platform, 1, "larderd", 1);
    assert_eq!(platform.phase(own, "reader-b"), "Pending");
    quota("4MiB", 2);
    cluster.wait_for("the second reader reads", TIMEOUT, || platform.logs("reader-b").contains("round"));
    // Lowered below what is used: all stays, and nothing new starts.
    quota("64KiB", 1);
    cluster.wait_for("the quota says so", TIMEOUT, || {
        let quota = cluster.get_json(&["cachequota", "research"]);
        let conditions = quota["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "WithinLimits" && condition["status"] == "False")
    });
    cluster.apply(&c[0]);
    exceeded("c");
    kill_and_wait(&platform, 1, "larderd", 2);
    kill_and_wait(&platform, 1, "larder-csi", 2);
    let rounds = || ["reader-a", "reader-b"].map(|reader| platform.logs(reader).matches("round").count());
    let so_far = rounds();
    cluster.wait_for("both read on", TIMEOUT, || rounds().iter().zip(so_far).all(|(now, before)| *now > before + 1));
    for name in ["a", "b"] {
        wait_until_all_is_met(&platform, own, name);
        platform.stop_reader(&format!("reader-{name}"));
    }
    platform.delete_readers();
    cluster.kubectl_ok(&["delete", "cachequota", "research"]);
    wait_until_ready(&platform, own, "c");
}

/// The restarts of the containers of Larder's pods, by pod and container.
fn restarts(platform: &Platform) -> BTreeMap<String, u64> {
    let pods = platform.cluster.get_json(&["pods", "-n", "larder-system"]);
    let mut restarts = BTreeMap::new();
    for pod in pods["items"].as_array().unwrap() {
        for container in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let name = format!("{} {}", pod["metadata"]["name"], container["name"]);
            restarts.insert(name, container["restartCount"].as_u64().unwrap());
        }
    }
    restarts
}

/// The ports of Larder's pods, with the admin port of the same pod.
fn ports(platform: &Platform) -> Vec<(SocketAddr, SocketAddr)> {
    let pods = platform.cluster.get_json(&["pods", "-n", "larder-system"]);
    let mut found = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        let Some(ip) = pod["status"]["podIP"].as_str() else { continue };
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let ports: Vec<&Value> = containers.iter().filter_map(|it| it["ports"].as_array()).flatten().collect();
        let address = |port: &Value| format!("{ip}:{}", port["containerPort"]).parse().unwrap();
        if let Some(admin) = ports.iter().find(|port| port["name"] == "admin") {
            found.extend(ports.iter().map(|port| (address(port), address(admin))));
        }
    }
    found
}

// SEMANTICS: P6, K1
#[test]
fn a_flood_of_all_ports_fails_no_read_of_a_pod_and_restarts_nothing() {
    let platform = Platform::start_datasets("flooded");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 20, |i| vec![i as u8; 60_000 + i]);
    cluster.apply(&(platform.secret(platform.namespace()) + &platform.volume("set", "set", "ReadOnlyMany", "")));
    let readers = [1, 2].map(|node| format!("reader{node}"));
    for (node, reader) in (1..).zip(&readers) {
        cluster.apply(&platform.pod(reader, node, &["set"], &reader_script("set", &expected)));
    }
    for reader in &readers {
        cluster.wait_for("a reader reads", TIMEOUT, || platform.logs(reader).contains("round"));
    }
    let (before, ports) = (restarts(&platform), ports(&platform));
    // larderd and larder-csi of two nodes, and the controller.
    assert!(ports.len() >= 5, "{ports:?}");
    let rounds = || readers.each_ref().map(|reader| platform.logs(reader).matches("round").count());
    let (all_open, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| {
            cluster.in_network(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut open = Vec::new();
                    for (port, admin) in &ports {
                        open.extend(flood(*port, *admin).await);
                    }
                    // They stay open, as far as the programs keep them, until pods have read beside them.
                    all_open.store(true, Ordering::Relaxed);
                    while !done.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                });
            });
        });
        let is_open = || all_open.load(Ordering::Relaxed) || flooding.is_finished();
        cluster.wait_for("all connections are open", TIMEOUT, is_open);
        let so_far = rounds();
        let all_read = || (0..readers.len()).all(|at| rounds()[at] > so_far[at] + 2);
        cluster.wait_for("both read on", TIMEOUT, || flooding.is_finished() || all_read());
        done.store(true, Ordering::Relaxed);
        flooding.join().unwrap();
    });
    for reader in &readers {
        platform.stop_reader(reader);
    }
    assert_eq!(restarts(&platform), before);
    platform.delete_readers();
}
