//! Nodes of a real Kubernetes read from each other's caches: Larder is deployed with the component `sharing`, members
//! come from real EndpointSlices, certificates and tokens from Secrets.

use std::collections::BTreeMap;

use larder_e2e::platform::{Platform, SUMS, TIMEOUT, kill_process, reader_script, sums};
use larder_testkit::larder_binary;
use serde_json::Value;

/// The token by which nodes get the dataset from each other.
const TOKEN: &str = "battery-staple-of-the-volume";

const FILES: usize = 60;

const READERS: [&str; 2] = ["reader1", "reader2"];

/// Bytes that no other test has: nodes keep what earlier tests have read.
fn bytes(i: usize) -> Vec<u8> {
    (0..5_000 + (i * 7919) % 90_000).map(|n| ((n * (2 * i + 1)) >> 3) as u8).collect()
}

/// Node names, and their addresses in the service's EndpointSlices.
fn endpoints(platform: &Platform) -> BTreeMap<String, String> {
    let service = "kubernetes.io/service-name=larderd";
    let slices = platform.cluster.get_json(&["endpointslices", "-n", "larder-system", "-l", service]);
    let slices = slices["items"].as_array().unwrap().iter();
    slices
        .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
        .map(|endpoint| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&endpoint["nodeName"]), format!("{}:9466", text(&endpoint["addresses"][0])))
        })
        .collect()
}

/// Node `n`'s view of the nodes that share: `larder stats --cluster` on that node, for the mount that its pods share.
/// `None` as long as one of the nodes does not answer it.
fn nodes_seen_by(platform: &Platform, n: u32) -> Option<Vec<Value>> {
    let mounts = platform.mounts(n);
    let own = mounts.iter().filter_map(|line| line.split(' ').nth(4)).find(|path| path.contains("/plugins/"))?;
    let larder = larder_binary();
    let asked = platform.cluster.exec_on_node(n, &[larder.to_str()?, "stats", own, "--cluster", "--json"]);
    let told: Value = serde_json::from_slice(&asked.stdout).ok()?;
    let nodes = told["nodes"].as_array()?.clone();
    nodes.iter().all(|node| node["error"].is_null()).then_some(nodes)
}

/// Waits until every node knows the present endpoints, and each answers each.
fn wait_until_they_know_each_other(platform: &Platform) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    platform.cluster.wait_for("the nodes know each other", TIMEOUT, || {
        let endpoints = endpoints(platform);
        [1, 2].into_iter().all(|n| {
            let seen = nodes_seen_by(platform, n).unwrap_or_default();
            let seen: BTreeMap<_, _> = seen.iter().map(|node| (text(&node["name"]), text(&node["address"]))).collect();
            seen == endpoints && seen.len() == 2
        })
    });
}

fn rounds(platform: &Platform) -> [usize; 2] {
    READERS.map(|reader| platform.logs(reader).matches("round\n").count())
}

/// Waits until each reader has read all files once more, from the first to the last.
fn wait_for_a_round(platform: &Platform) {
    let before = rounds(platform);
    platform.cluster.wait_for("each reader reads all files once more", TIMEOUT, || {
        rounds(platform).iter().zip(before).all(|(now, before)| *now >= before + 2)
    });
}

/// The names of the pods of Larder that a selector finds.
fn selected(platform: &Platform, selector: &Value) -> Vec<String> {
    let labels = selector["matchLabels"].as_object().unwrap().iter();
    let labels: Vec<_> = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
    assert!(!labels.is_empty(), "an empty selector is every pod");
    let pods = platform.cluster.get_json(&["pods", "-n", "larder-system", "-l", &labels.join(",")]);
    let pods = pods["items"].as_array().unwrap().iter();
    pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

// SEMANTICS: K9
#[test]
fn network_policies_let_nodes_alone_reach_the_port_of_nodes_and_labelled_namespaces_the_metrics() {
    let platform = Platform::start_sharing("policy");
    // Other policies would add to these two: what one of them allows is allowed.
    let policies = platform.cluster.get_json(&["networkpolicies", "-n", "larder-system"]);
    let is_of_larderd =
        |policy: &&Value| policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "larderd";
    let policies = policies["items"].as_array().unwrap().iter().filter(is_of_larderd);
    let policies: BTreeMap<_, _> =
        policies.map(|policy| (policy["metadata"]["name"].as_str().unwrap(), &policy["spec"])).collect();
    assert_eq!(policies.keys().collect::<Vec<_>>(), [&"larderd", &"larderd-peers"]);
    let pods = selected(&platform, &policies["larderd"]["podSelector"]);
    assert_eq!(pods.len(), 2, "one on each node: {pods:?}");
    assert!(pods.iter().all(|pod| pod.starts_with("larderd-")), "{pods:?}");

    // Each has one rule: one port, and those who may reach it.
    let rule = |name: &str, port: &str| {
        let spec = policies[name];
        assert_eq!(spec["policyTypes"], serde_json::json!(["Ingress"]));
        let [rule] = &spec["ingress"].as_array().unwrap()[..] else { panic!("{spec}") };
        assert_eq!(rule["ports"], serde_json::json!([{"protocol": "TCP", "port": port}]));
        let [from] = &rule["from"].as_array().unwrap()[..] else { panic!("{rule}") };
        from
    };
    let from = rule("larderd-peers", "peers");
    assert_eq!(selected(&platform, &from["podSelector"]), pods);
    assert!(from["namespaceSelector"].is_null() && from["ipBlock"].is_null(), "{from}");
    let monitoring = serde_json::json!({"namespaceSelector": {"matchLabels": {"larder.dev/monitoring": "true"}}});
    assert_eq!(*rule("larderd", "admin"), monitoring);

    // The names are those of ports at which the pods listen.
    for pod in &pods {
        let pod = platform.cluster.get_json(&["pod", pod, "-n", "larder-system"]);
        let container = &pod["spec"]["containers"][0];
        let named: BTreeMap<_, _> = container["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| (port["name"].as_str().unwrap(), port["containerPort"].as_u64().unwrap()))
            .collect();
        assert_eq!((named["peers"], named["admin"]), (9466, 9464));
        let args = container["args"].as_array().unwrap();
        assert!(
            args.contains(&"--peer-listen=0.0.0.0:9466".into())
                && args.contains(&"--admin-address=0.0.0.0:9464".into())
        );
    }
}

// SEMANTICS: K9
#[test]
fn nodes_share_a_volume_and_a_lost_one_fails_no_read() {
    let platform = Platform::start_sharing("sharing");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", FILES, bytes);
    let gets = || -> u64 { expected.keys().map(|path| platform.gets_of("set", path)).sum() };
    let secret = platform
        .secret(platform.namespace())
        .replace("stringData: {", &format!("stringData: {{LARDER_PEER_TOKEN: {TOKEN}, "));
    cluster.apply(&(secret + &platform.volume("set", "set", "ReadOnlyMany", "placement: partitioned")));
    let script = format!(
        "while [ ! -e /tmp/go ]; do sleep 0.1; done; (cd /set && {SUMS}) && echo whole; {}",
        reader_script("set", &expected)
    );
    for (reader, node) in READERS.into_iter().zip(1..) {
        cluster.apply(&platform.pod(reader, node, &["set"], &script));
    }
    for reader in READERS {
        cluster
            .wait_for("a reader has its mount", TIMEOUT, || platform.phase(platform.namespace(), reader) == "Running");
    }
    wait_until_they_know_each_other(&platform);

    // Both read everything for the first time, at the same time.
    let touch = |reader, file| platform.exec(reader, &["touch", file]);
    std::thread::scope(|scope| {
        for reader in READERS {
            scope.spawn(move || assert!(touch(reader, "/tmp/go").status.success()));
        }
    });
    for reader in READERS {
        cluster.wait_for("a reader has read all", TIMEOUT, || platform.logs(reader).contains("whole\n"));
        let said = platform.logs(reader);
        assert_eq!(sums(said.split("whole\n").next().unwrap()), expected, "{reader}");
    }
    for path in expected.keys() {
        assert_eq!(platform.gets_of("set", path), 1, "{path} is fetched once by all nodes together");
    }
    let kept: Vec<u64> =
        nodes_seen_by(&platform, 1).unwrap().iter().map(|node| node["blocks"].as_u64().unwrap()).collect();
    assert_eq!(kept.iter().sum::<u64>(), FILES as u64, "each block is kept once: {kept:?}");
    assert!(kept.iter().all(|blocks| *blocks > 0), "{kept:?}");

    // The daemon of one node dies, then its whole pod, which comes back at another address.
    let pids = cluster.pids_on_node(2, "larderd");
    kill_process(pids[0]);
    cluster.wait_for("larderd is back", TIMEOUT, || {
        let now = cluster.pids_on_node(2, "larderd");
        now.len() == 1 && now != pids
    });
    wait_until_they_know_each_other(&platform);
    let before = endpoints(&platform);
    let on_node_2 =
        ["-n", "larder-system", "-l", "app.kubernetes.io/name=larderd", "--field-selector", "spec.nodeName=n2"];
    cluster.kubectl_ok(&[&["delete", "pod"], &on_node_2[..]].concat());
    cluster.wait_for("its pod has another address", TIMEOUT, || {
        let now = endpoints(&platform);
        now.len() == 2 && now["n1"] == before["n1"] && now["n2"] != before["n2"]
    });
    wait_until_they_know_each_other(&platform);

    // They read from each other again: in the end nothing is fetched.
    cluster.wait_for("nothing is fetched any more", TIMEOUT, || {
        let before = gets();
        wait_for_a_round(&platform);
        gets() == before
    });
    for reader in READERS {
        platform.stop_reader(reader);
    }
    println!("{} files, {} GETs in all, {:?} rounds", expected.len(), gets(), rounds(&platform));

    // No file of Kubernetes or Larder holds the token.
    for n in [1, 2] {
        let found = cluster.exec(&["grep", "-rl", TOKEN, cluster.node_folder(n).to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the token is on node {n}");
    }
    for set in ["larderd", "larder-csi"] {
        let name = format!("app.kubernetes.io/name={set}");
        let logs = cluster.kubectl_ok(&["logs", "-n", "larder-system", "-l", &name, "--tail=-1"]);
        assert!(logs.contains("INFO") && !logs.contains(TOKEN), "{logs}");
    }
    platform.delete_readers();
    platform.assert_clean(1);
    platform.assert_clean(2);
}
