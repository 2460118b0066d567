//! Pods read datasets: a real Kubernetes with Larder deployed by `kubectl apply -k deploy`, real kubelets, real mounts.
//!
//! All tests share one cluster and take turns: [`Platform`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_e2e::platform::{Platform, SUMS, TIMEOUT, kill_process, reader_script, sums};
use larder_e2e::{SECRET, connections_of};
use larder_testkit::{larder_binary, scaled};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// The bytes of file `i`. They differ from test to test, because nodes keep what earlier tests have read.
fn bytes(test: u64) -> impl Fn(usize) -> Vec<u8> {
    move |i| {
        let mut rng = StdRng::seed_from_u64(test << 32 | i as u64);
        let mut bytes = vec![0; 5_000 + (i * 7919) % 90_000];
        rng.fill(&mut bytes[..]);
        bytes
    }
}

// SEMANTICS: K3, K5
#[test]
fn pods_read_by_claim_share_a_cache_and_leave_nothing() {
    let platform = Platform::start("claims");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 40, bytes(1));
    cluster.apply(
        &(platform.secret(platform.namespace()) + &platform.volume("rox", "set", "ReadOnlyMany", "cacheSize: 100MiB")),
    );

    // Two pods on one node: every file is fetched once.
    let script = format!("cd /rox && {SUMS}");
    cluster.apply(&(platform.pod("one", 1, &["rox"], &script) + &platform.pod("two", 1, &["rox"], &script)));
    assert_eq!(sums(&platform.output("one")), expected);
    assert_eq!(sums(&platform.output("two")), expected);
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 1, "{path} after two pods on a node");
    }
    // A pod on the second node: once more.
    cluster.apply(&platform.pod("three", 2, &["rox"], &script));
    assert_eq!(sums(&platform.output("three")), expected);
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 2, "{path} after a pod on another node");
    }
    platform.delete_readers();
    platform.assert_clean(1);
    platform.assert_clean(2);

    // Again, from the cache: nothing is fetched. And a claim that may write is mounted read-only.
    let writing = "touch /rwo/new 2>&1; cd /rwo && ".to_owned() + SUMS;
    cluster.apply(
        &(platform.volume("rwo", "set", "ReadWriteOnce", "") + &platform.pod("four", 1, &["rwo", "rox"], &writing)),
    );
    let said = platform.output("four");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(sums(&said), expected);
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 2, "{path} was cached");
    }
    platform.delete_readers();
    platform.assert_clean(1);

    // No file of Kubernetes or Larder holds the secret.
    for n in ["1", "2"] {
        let node = cluster.node_folder(n.parse().unwrap());
        let found = cluster.exec(&["grep", "-rl", SECRET, node.to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the secret is on node {n}");
    }
    for set in ["larderd", "larder-csi"] {
        let logs = cluster.kubectl_ok(&[
            "logs",
            "-n",
            "larder-system",
            "-l",
            &format!("app.kubernetes.io/name={set}"),
            "--tail=-1",
        ]);
        assert!(logs.contains("INFO") && !logs.contains(SECRET), "{logs}");
    }
}

// SEMANTICS: K6, K7, P4
#[test]
fn a_wrong_volume_says_in_the_pods_events_what_is_wrong_and_tenants_stay_apart() {
    let platform = Platform::start("tenants");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 5, bytes(2));
    let own = platform.namespace();
    let (team_a, team_b) = (&*format!("{own}-team-a"), &*format!("{own}-team-b"));
    let datasets = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: larder-datasets, namespace: larder-system}}\ndata:\n  \
         datasets.yaml: |\n    datasets:\n      set: {{source: \"{}\", endpoint: \"{}\", namespaces: [{team_a}]}}\n",
        platform.source("set"),
        platform.endpoint()
    );
    // An inline volume is read with larderd's own keys.
    let own_keys = platform.secret("larder-system").replace("name: origin", "name: larder-origin");
    let mut manifests = datasets + &own_keys + &platform.secret(own);
    for team in [team_a, team_b] {
        // Each team knows the secret: what it may mount must not depend on that.
        manifests += &(platform.namespace_manifest(team) + &platform.secret(team));
    }
    cluster.apply(&manifests);
    // The kubelet updates a ConfigMap in running pods within a minute or two; a new pod has it at once.
    cluster.kubectl_ok(&["rollout", "restart", "-n", "larder-system", "daemonset/larder-csi", "daemonset/larderd"]);
    platform.wait_until_ready();
    let inline = |attributes: &str| {
        format!(
            "{{name: set, csi: {{driver: csi.larder.dev, readOnly: true, nodePublishSecretRef: {{name: origin}}, \
             volumeAttributes: {{{attributes}}}}}}}"
        )
    };
    let mounts = "{name: set, mountPath: /set}";
    let script = format!("cd /set && {SUMS}; exec tail -f /dev/null");
    let pod =
        |name: &str, namespace: &str, volume: &str| platform.pod_with(name, namespace, 1, mounts, volume, &script);

    cluster.apply(&pod("good", team_a, &inline("dataset: set")));
    cluster.apply(&pod("stranger", team_b, &inline("dataset: set")));
    cluster.apply(&pod("nameless", team_a, &inline("dataset: other")));
    cluster.apply(&pod("by-url", team_b, &inline(&format!("source: \"{}\"", platform.source("set")))));
    let mut broken = String::new();
    for (name, attribute) in [
        ("unknown", "colour: red"),
        ("size", "cacheSize: lots"),
        ("dots", "region: ../../etc"),
        ("policy", "policy: best"),
        ("placement", "placement: everywhere"),
        ("alone", "placement: partitioned"),
    ] {
        broken += &platform.volume(name, "set", "ReadOnlyMany", attribute);
        broken += &platform.pod(name, 1, &[name], "true");
    }
    broken += &platform.volume("missing", "set", "ReadOnlyMany", "").replace("name: origin}", "name: nosuch}");
    broken += &platform.pod("missing", 1, &["missing"], "true");
    broken += &platform.volume("nowhere", "nosuchset", "ReadOnlyMany", "snapshot: \"12\"");
    broken += &platform.pod("nowhere", 1, &["nowhere"], "true");
    cluster.apply(&broken);

    cluster.wait_for("the pod that may read does", TIMEOUT, || platform.phase(team_a, "good") == "Running");
    cluster.wait_for("it has read", TIMEOUT, || {
        sums(&String::from_utf8_lossy(&cluster.kubectl(&["logs", "-n", team_a, "good"]).stdout)) == expected
    });
    platform.assert_secret_is_in_memory_only();
    // A dataset that is not the team's and one that does not exist are refused in the same words.
    let words = |event: String| {
        event.split_once("may not use the dataset ").map(|(_, rest)| rest[rest.find(',').unwrap()..].to_owned())
    };
    let refused = words(platform.event(team_b, "stranger", "PermissionDenied"));
    assert!(refused.is_some());
    assert_eq!(refused, words(platform.event(team_a, "nameless", "PermissionDenied")));
    assert!(platform.event(team_b, "by-url", "InvalidArgument").contains("attribute `source`"));
    for (pod, word) in [
        ("unknown", "colour"),
        ("size", "cacheSize"),
        ("dots", "region"),
        ("policy", "policy"),
        ("placement", "placement"),
        ("nowhere", "snapshot"),
    ] {
        // Not the word alone: the kubelet's own events name the volume.
        let event = platform.event(own, pod, "InvalidArgument");
        assert!(event.contains(&format!("attribute `{word}`")), "{pod}: {event}");
    }
    platform.event(own, "alone", "placement: partitioned needs other nodes");
    platform.event(own, "missing", "secret nosuch");
    for (namespace, pod) in [(team_b, "stranger"), (team_b, "by-url"), (own, "unknown")] {
        assert_eq!(platform.phase(namespace, pod), "Pending");
    }
    platform.delete_readers();
    platform.assert_clean(1);
    cluster.kubectl_ok(&["delete", "configmap/larder-datasets", "secret/larder-origin", "-n", "larder-system"]);
}

// SEMANTICS: A5, K5
#[test]
fn a_pod_in_a_user_namespace_reads_and_owns_what_its_volume_says() {
    let platform = Platform::start("userns");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 5, bytes(50));
    let volumes = platform.volume("plain", "set", "ReadOnlyMany", "")
        + &platform.volume("owned", "set", "ReadOnlyMany", "uid: \"1000\"\n      fileMode: \"0440\"");
    // The only runtime of the nodes that maps mounts.
    let class = "---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: mapping}\nhandler: mapping\n";
    cluster.apply(&(platform.secret(platform.namespace()) + &volumes + class));
    let script =
        format!("stat -c '%u %g %a' /plain/d0/f0 /owned/d0/f0; echo $(cat /proc/self/uid_map); cd /plain && {SUMS}");
    let pod = platform
        .pod("apart", 1, &["plain", "owned"], &script)
        .replace("spec:\n", "spec:\n  hostUsers: false\n  runtimeClassName: mapping\n")
        // A runtime cannot bind a read-only mount into a user namespace as a writable one.
        .replace("mountPath: /plain}", "mountPath: /plain, readOnly: true}")
        .replace("mountPath: /owned}", "mountPath: /owned, readOnly: true}");
    cluster.apply(&pod);
    let said = platform.output("apart");
    assert!(said.starts_with("0 0 444\n1000 0 440\n"), "{said}");
    let map = said.lines().nth(2).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert!(map[0] == "0" && map[1] != "0", "the pod has a user namespace: {map:?}");
    assert_eq!(sums(&said), expected);
    platform.delete_readers();
    platform.assert_clean(1);
}

/// The programs that are killed.
pub(crate) const VICTIMS: [&str; 2] = ["larderd", "larder-csi"];

/// The tenants, and the datasets of each: one is both's.
const TENANTS: [(&str, [&str; 3]); 2] = [("kills", ["a", "b", "c"]), ("kills-other", ["c", "d", "e"])];

/// The datasets of all tenants.
const DATASETS: [&str; 5] = ["a", "b", "c", "d", "e"];

// SEMANTICS: K1
#[test]
fn readers_outlive_200_kills_of_daemon_plugin_and_their_shims() {
    let kills = scaled(40);
    let platform = Platform::start("kills");
    let cluster = &platform.cluster;
    let mut expected = BTreeMap::new();
    for (i, set) in DATASETS.into_iter().enumerate() {
        expected.insert(set, platform.put_dataset(set, 12, bytes(30 + i as u64)));
    }
    let mut manifests = platform.namespace_manifest(TENANTS[1].0);
    for (namespace, sets) in TENANTS {
        manifests += &platform.secret(namespace);
        for set in sets {
            manifests += &platform.volume(&format!("{namespace}/{set}"), set, "ReadOnlyMany", "");
        }
    }
    cluster.apply(&manifests);
    // Four readers a tenant and node, 16 in all.
    let mut readers = Vec::new();
    for (namespace, sets) in TENANTS {
        for i in 0..8 {
            let (reader, set) = (format!("{namespace}/reader{i}"), sets[i / 2 % sets.len()]);
            let script = reader_script(set, &expected[set]);
            cluster.apply(&platform.pod(&reader, 1 + i as u32 % 2, &[set], &script));
            readers.push(reader);
        }
    }
    for reader in &readers {
        cluster.wait_for("a reader reads", TIMEOUT, || platform.logs(reader).contains("round"));
    }
    // Both nodes at the same time. On each, one victim at a time, and the next one once both are together again.
    let kill_on = |node: u32| {
        let mut rng = StdRng::seed_from_u64(node.into());
        let mut shims = 0;
        for nth in 0..kills / 2 {
            let victim = *VICTIMS.choose(&mut rng).unwrap();
            let pids = cluster.pids_on_node(node, victim);
            let [pid] = pids[..] else { panic!("kill {nth}: {victim} on node {node} runs as {pids:?}") };
            let shim = nth % 20 == 19;
            let doomed = if shim { parent(pid) } else { pid };
            shims += u32::from(shim);
            kill_process(doomed);
            cluster.wait_for(&format!("{victim} is back on node {node}"), TIMEOUT, || {
                let now = cluster.pids_on_node(node, victim);
                now.len() == 1 && now != [pid] && together(&platform, node, DATASETS.len())
            });
        }
        shims
    };
    let shims = std::thread::scope(|scope| {
        let other = scope.spawn(|| kill_on(2));
        kill_on(1) + other.join().unwrap()
    });
    assert_eq!(shims, kills / 20);
    for reader in &readers {
        platform.ask_to_stop(reader);
    }
    let mut rounds = 0;
    for reader in &readers {
        rounds += platform.stop_reader(reader).matches("round").count();
    }
    println!("{kills} kills, {shims} of them of shims; {} files read and checked", rounds * 12);
    // Whoever died, no node lost a block of a dataset that its pods had mounted.
    for (set, expected) in &expected {
        for path in expected.keys() {
            assert_eq!(platform.gets_of(set, path), 2, "{set}/{path} was fetched once by each node");
        }
    }
    platform.delete_readers();
    platform.assert_clean(1);
    platform.assert_clean(2);
}

fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap().parse().unwrap()
}

/// True once daemon and plugin both hold all connections again: only then may the next of them die.
pub(crate) fn together(platform: &Platform, node: u32, connections: usize) -> bool {
    let holds = |victim| match platform.cluster.pids_on_node(node, victim)[..] {
        [pid] => connections_of(pid) >= connections,
        _ => false,
    };
    VICTIMS.into_iter().all(holds)
}

// SEMANTICS: K2
#[test]
fn both_dying_at_once_fails_clearly_and_new_pods_work() {
    let platform = Platform::start("together");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 10, bytes(4));
    cluster.apply(&(platform.secret(platform.namespace()) + &platform.volume("set", "set", "ReadOnlyMany", "")));
    cluster.apply(&platform.pod("old", 1, &["set"], "exec tail -f /dev/null"));
    cluster.wait_for("the pod runs", TIMEOUT, || platform.phase(platform.namespace(), "old") == "Running");
    let doomed: Vec<u32> = VICTIMS.iter().flat_map(|victim| cluster.pids_on_node(1, victim)).collect();
    assert_eq!(doomed.len(), 2);
    doomed.iter().copied().for_each(kill_process);
    cluster.wait_for("the old pod gets the error", TIMEOUT, || {
        let read = platform.exec("old", &["sh", "-c", "cat /set/d0/f0 2>&1 | md5sum; cat /set/d0/f0"]);
        String::from_utf8_lossy(&read.stderr).contains("not connected")
    });
    cluster.wait_for("both are back", TIMEOUT, || {
        VICTIMS.iter().all(|victim| cluster.pids_on_node(1, victim).iter().any(|pid| !doomed.contains(pid)))
    });
    cluster.apply(&platform.pod("new", 1, &["set"], &format!("cd /set && {SUMS}")));
    assert_eq!(sums(&platform.output("new")), expected);
    platform.delete_readers();
    platform.assert_clean(1);
}

// SEMANTICS: K1
#[test]
fn an_upgrade_and_a_kubelet_restart_under_readers_lose_nothing() {
    let platform = Platform::start("upgrade");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 30, bytes(5));
    cluster.apply(&(platform.secret(platform.namespace()) + &platform.volume("set", "set", "ReadOnlyMany", "")));
    cluster.apply(&platform.pod("reader", 1, &["set"], &reader_script("set", &expected)));
    cluster.wait_for("the reader reads", TIMEOUT, || platform.logs("reader").contains("round"));
    for set in VICTIMS {
        cluster.kubectl_ok(&["rollout", "restart", "-n", "larder-system", &format!("daemonset/{set}")]);
        platform.wait_until_ready();
    }
    let versions = cluster.exec(&[larder_binary().to_str().unwrap(), "version", "--all"]);
    let said = String::from_utf8_lossy(&versions.stdout);
    assert!(versions.status.success(), "{said}{}", String::from_utf8_lossy(&versions.stderr));
    for program in VICTIMS {
        let runs = [program, env!("CARGO_PKG_VERSION")];
        assert!(said.lines().any(|line| line.split_whitespace().take(2).eq(runs)), "{said}");
    }
    let before = platform.mounts(1);
    cluster.restart_kubelet(1);
    // A new pod proves that the kubelet is back; it shares the mount.
    cluster.apply(&platform.pod("second", 1, &["set"], &format!("cd /set && {SUMS}")));
    assert_eq!(sums(&platform.output("second")), expected);
    platform.kubectl(&["delete", "pod", "second"]);
    cluster.wait_for("its mount is gone", TIMEOUT, || platform.mounts(1).len() == before.len());
    assert_eq!(platform.mounts(1), before, "the kubelet's restart made no second mount");
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 1, "{path}: the cache was kept");
    }
    platform.stop_reader("reader");
    platform.delete_readers();
    platform.assert_clean(1);
}

// SEMANTICS: K4
#[test]
fn fifty_pods_that_come_and_go_leave_nothing() {
    const PODS: usize = 50;
    let platform = Platform::start("churn");
    let cluster = &platform.cluster;
    let mut manifests = platform.secret(platform.namespace());
    for set in ["a", "b", "c"] {
        platform.put_dataset(set, 8, bytes(6));
        manifests += &platform.volume(set, set, "ReadOnlyMany", "");
    }
    cluster.apply(&manifests);
    let mut rng = StdRng::seed_from_u64(50);
    let mut there = [false; PODS];
    let started = Instant::now();
    let (mut made, mut deleted) = (0, 0);
    while started.elapsed() < Duration::from_secs(scaled(20).into()) || made < PODS {
        let mut batch = String::new();
        let mut gone = Vec::new();
        for _ in 0..6 {
            let i = rng.random_range(0..PODS);
            let name = format!("pod{i}");
            let was = there[i];
            there[i] = !was;
            if was {
                gone.push(name);
            } else if !gone.contains(&name) {
                let sets: Vec<&str> = ["a", "b", "c"].into_iter().filter(|_| rng.random_bool(0.5)).collect();
                let script = "cat /*/d*/f* > /dev/null 2>/tmp/err; sleep 100000";
                batch += &platform.pod(&name, rng.random_range(1..=2), &sets, script);
                made += 1;
            } else {
                there[i] = false;
            }
        }
        deleted += gone.len();
        for name in gone {
            platform.kubectl(&["delete", "pod", &name, "--wait=false"]);
        }
        if !batch.is_empty() {
            // Where a pod of that name is still being deleted, this fails, and the pod is made another time.
            let path = std::env::temp_dir().join(format!("larder-churn-{}.yaml", std::process::id()));
            std::fs::write(&path, batch).unwrap();
            cluster.kubectl(&["apply", "-f", path.to_str().unwrap()]);
            std::fs::remove_file(path).unwrap();
        }
    }
    println!("{made} pods made, {deleted} of them deleted while others were made");
    platform.delete_readers();
    platform.assert_clean(1);
    platform.assert_clean(2);
}

/// Measures the read path in a pod and that of `larder mount`, in turns on one machine.
/// `cargo nextest run --release -p larder-e2e --run-ignored only --no-capture in_a_pod`
#[test]
#[ignore = "measures, and asserts nothing about speed"]
fn the_read_path_in_a_pod_beside_larder_mount() {
    const ROUNDS: usize = 4;
    let platform = Platform::start("bench");
    let cluster = &platform.cluster;
    platform.put_dataset("set", 2000, |i| vec![i as u8; 16_000 + (i * 7919) % 190_000]);
    cluster.apply(&(platform.secret(platform.namespace()) + &platform.volume("set", "set", "ReadOnlyMany", "")));
    let pod = platform.pod("bench", 1, &["set"], "true").replace(
        &format!(
            "image: {}\n    imagePullPolicy: Never\n    command: [sh, -c, \"true\"]",
            larder_testkit::Cluster::BUSYBOX
        ),
        "image: larder.invalid/larder:0.3.0-dev\n    imagePullPolicy: Never\n    \
         command: [larder, stats, /set, --watch]",
    );
    cluster.apply(&pod);
    cluster.wait_for("the pod runs", TIMEOUT, || platform.phase(platform.namespace(), "bench") == "Running");
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    let larder = larder_testkit::larder_binary();
    let variables = [
        format!("HOME={}", home.path().display()),
        format!("AWS_ACCESS_KEY_ID={}", platform.server.access_key()),
        format!("AWS_SECRET_ACCESS_KEY={SECRET}"),
        format!("AWS_ENDPOINT_URL={}", platform.endpoint()),
    ];
    let host = |args: &[&str]| {
        let mut all = vec!["env"];
        all.extend(variables.iter().map(String::as_str));
        all.push(larder.to_str().unwrap());
        all.extend(args);
        let output = cluster.exec(&all);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{args:?}: {out}{err}");
        out.into_owned()
    };
    host(&["mount", &platform.source("set"), dir.to_str().unwrap()]);
    let in_pod = |args: &[&str]| {
        let output = platform.exec("bench", &[&["larder"], args].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let flags = ["--epochs", "3", "--readers", "16"];
    for (what, drop) in [("warm, pages dropped", "pages"), ("hot", "none")] {
        for round in 1..=ROUNDS {
            let args = |dir| [&["bench", "epochs", dir, "--drop", drop][..], &flags].concat();
            println!("{what}, round {round}, larder mount:\n{}", host(&args(dir.to_str().unwrap())));
            println!("{what}, round {round}, pod:\n{}", in_pod(&args("/set")));
        }
    }
    host(&["umount", dir.to_str().unwrap()]);
    platform.delete_readers();
}
