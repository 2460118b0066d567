//! Larder by its chart: installed, upgraded and removed, and a node that joins while pods wait for it.

use larder_e2e::platform::{Platform, SUMS, TIMEOUT, reader_script, sums};
use serde_json::json;

/// The startup taint.
const TAINT: &str = "csi.larder.dev/agent-not-ready";

fn bytes(i: usize) -> Vec<u8> {
    format!("{i} ").repeat(2_000 + i * 97).into_bytes()
}

/// The labels of nodes that are about Datasets of the test.
fn labels(platform: &Platform) -> Vec<String> {
    let nodes = platform.cluster.get_json(&["nodes"]);
    let own = format!("dataset.larder.dev/{}.", platform.namespace());
    let labels = nodes["items"].as_array().unwrap().iter().flat_map(|node| node["metadata"]["labels"].as_object());
    labels.flat_map(|labels| labels.keys().filter(|label| label.starts_with(&own)).cloned()).collect()
}

fn has_taint(platform: &Platform, node: &str) -> bool {
    let node = platform.cluster.get_json(&["node", node]);
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == TAINT))
}

// SEMANTICS: K1, K26
#[test]
fn a_chart_is_upgraded_under_readers_a_node_joins_and_nothing_is_left() {
    let platform = Platform::start_chart("charts");
    let cluster = &platform.cluster;
    let expected = platform.put_dataset("set", 30, bytes);
    cluster.apply(&(platform.secret(platform.namespace()) + &platform.volume("set", "set", "ReadOnlyMany", "")));
    cluster.apply(&platform.pod("reader", 1, &["set"], &reader_script("set", &expected)));
    cluster.wait_for("the reader reads", TIMEOUT, || platform.logs("reader").contains("round"));

    // Both programs of a node are replaced at the same time.
    let changed = ["larderd.extraArgs[0]=--warm-rate=1GiB/s", "csi.extraArgs[0]=--read-ahead=512"];
    platform.upgrade_chart(&changed);
    platform.stop_reader("reader");
    platform.delete_readers();

    // The second node leaves, and joins again with the taint; a pod waits for it.
    cluster.kubectl_ok(&["label", "node", "n1", "larder-test-charts=yes"]);
    platform.upgrade_chart(&[&changed[..], &["nodeSelector.larder-test-charts=yes"]].concat());
    let is_listed = || {
        let node = cluster.get_json(&["csinode", "n2"]);
        node["spec"]["drivers"].to_string().contains("csi.larder.dev")
    };
    cluster.wait_for("the driver has left the node", TIMEOUT, || !is_listed());
    cluster.kubectl_ok(&["taint", "node", "n2", &format!("{TAINT}=:NoSchedule")]);
    let pod = platform.pod("early", 2, &["set"], &format!("cd /set && {SUMS}"));
    // By the scheduler, which sees taints.
    cluster.apply(&pod.replace("nodeName: n2", "nodeSelector: {kubernetes.io/hostname: n2}"));
    platform.event(platform.namespace(), "early", "untolerated taint");
    assert!(has_taint(&platform, "n2") && !is_listed());
    cluster.kubectl_ok(&["label", "node", "n2", "larder-test-charts=yes"]);
    assert_eq!(sums(&platform.output("early")), expected);
    assert!(is_listed() && !has_taint(&platform, "n2"));
    let events = platform.kubectl(&["get", "events", "--field-selector", "involvedObject.name=early"]);
    assert!(!events.contains("FailedMount"), "the pod came too early: {events}");

    platform.delete_readers();

    // A Dataset has a finalizer and labels nodes. It is deleted while the controller runs.
    let files = platform.put_dataset("own", 10, |i| bytes(i + 100));
    let origin = json!({
        "source": platform.source("own"), "endpoint": platform.endpoint(), "secretRef": {"name": "origin"},
    });
    let dataset = json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "own", "namespace": platform.namespace()},
        "spec": {"origin": origin, "nodes": {"count": 2}},
    });
    cluster.apply(&format!("---\n{dataset}\n"));
    let own = ["dset/own", "--namespace", platform.namespace(), "--timeout=300s"];
    cluster.kubectl_ok(&[&["wait", "--for=condition=Ready"], &own[..]].concat());
    cluster.apply(&platform.pod("claimed", 1, &["own"], &format!("cd /own && {SUMS}")));
    assert_eq!(sums(&platform.output("claimed")), files);
    cluster.wait_for("a node has the label of the Dataset", TIMEOUT, || !labels(&platform).is_empty());
    platform.delete_readers();
    cluster.kubectl_ok(&[&["delete"], &own[..]].concat());
    cluster.wait_for("no node has it", TIMEOUT, || labels(&platform).is_empty());

    platform.assert_clean(1);
    platform.assert_clean(2);
    let kinds =
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,csidrivers";
    // Those of an earlier test are not helm's.
    let installed = || cluster.kubectl_ok(&["get", kinds, "-l", "app.kubernetes.io/managed-by=Helm", "-o", "name"]);
    assert!(installed().contains("csi.larder.dev"));
    platform.uninstall_chart();
    assert_eq!(labels(&platform), [] as [String; 0]);
    for node in ["n1", "n2"] {
        cluster.kubectl_ok(&["label", "node", node, "larder-test-charts-"]);
    }
    assert_eq!(installed(), "");
}
