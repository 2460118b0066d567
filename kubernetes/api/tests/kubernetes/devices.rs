//! Even if RBAC grants more, larder-devices may write only its labels, its condition and the slices of its own node,
//! and events in its own name.

use larder_api::names::SYSTEM_NAMESPACE;
use larder_testkit::{Cluster, repository};
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, said};

const ACCOUNT: &str = "larder-devices";

fn event(about: &str, name: &str, reporter: &str, instance: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("e.{}.{name}", about.to_lowercase()), "namespace": "default"},
        "regarding": {"apiVersion": "v1", "kind": about, "name": name},
        "type": "Warning", "reason": "LimitsMissing", "note": "n", "action": "Watching",
        "eventTime": "2026-01-31T09:00:00.000000Z", "reportingController": reporter, "reportingInstance": instance
    })
}

fn slice(name: &str, driver: &str, node: &str, pool: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": driver, "nodeName": node, "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}]
        }
    })
}

fn writes_slices_of_its_own_node_and_driver_alone(server: &Server, token: &str) {
    const DRIVER: &str = "devices.larder.dev";
    let node = "larder-devices writes ResourceSlices of its own Node only";
    let driver = "larder-devices writes ResourceSlices of devices.larder.dev only";
    let (own, other) = (slice("own", DRIVER, "n1", "n1"), slice("other", DRIVER, "n2", "n2"));
    let foreign = slice("foreign", "gpu.nvidia.com", "n1", "n1");
    server.cluster.wait_for("the policy of slices counts", TIMEOUT, || {
        let create = |file: &str| server.cluster.kubectl(&["--token", token, "create", "--dry-run=server", "-f", file]);
        said(&server.with_file(&foreign, create)).contains(driver)
    });
    for (slice, refused) in
        [(&own, None), (&other, Some(node)), (&slice("pool", DRIVER, "n1", "n2"), Some(node)), (&foreign, Some(driver))]
    {
        server.with_file(slice, |file| server.expect(token, &["create", "--dry-run=server", "-f", file], refused));
    }
    // Slices of other drivers and nodes, which the administrator creates here.
    for slice in [&own, &other, &foreign] {
        server.apply(slice);
    }
    let more = r#"{"spec": {"pool": {"generation": 2}}}"#;
    for (name, refused) in [("own", None), ("other", Some(node)), ("foreign", Some(driver))] {
        server.expect(token, &["patch", "resourceslice", name, "--type=merge", "-p", more], refused);
        server.expect(token, &["delete", "resourceslice", name], refused);
    }
    server.cluster.kubectl_ok(&["delete", "resourceslice", "other", "foreign"]);
}

// SEMANTICS: D22
#[test]
fn larder_devices_changes_its_labels_and_its_condition_of_its_own_node_alone() {
    let server = Server::start("devices-rights");
    server.cluster.kubectl(&["create", "serviceaccount", ACCOUNT, "-n", SYSTEM_NAMESPACE]);
    for component in ["devices", "devices-dra"] {
        let policies = repository().join("deploy/components").join(component).join("base/policies.yaml");
        server.cluster.kubectl_ok(&["apply", "-f", &policies.display().to_string()]);
    }
    let _nodes = server.grant(ACCOUNT, "", "nodes");
    let _events = server.grant(ACCOUNT, "events.k8s.io", "events");
    let _slices = server.grant(ACCOUNT, "resource.k8s.io", "resourceslices");
    server.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "devices-of-n1", "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "nodeName": "n1", "serviceAccountName": ACCOUNT, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"]
            }]
        }
    }));
    let token = server.token(ACCOUNT, Some("devices-of-n1"));
    server.cluster.wait_for("the policies count", TIMEOUT, || {
        let output = server.cluster.kubectl(&["--token", &token, "annotate", "node", "n1", "x=y", "--dry-run=server"]);
        said(&output).contains("changes labels and a condition of a Node and nothing else")
    });
    let own = "larder-devices writes to its own Node only";
    let labels = "larder-devices changes those that begin with device.larder.dev/ and no others";
    let conditions = "of a Node's conditions, larder-devices changes larder.dev/DeviceFault and no other";
    let status = "of a Node's status, larder-devices changes one condition and nothing else";
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "False"}]}}).to_string();
    let (fault, ready) = (condition("larder.dev/DeviceFault"), condition("Ready"));
    let gpus = json!({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}).to_string();
    let label = json!({"metadata": {"labels": {"evil": "1"}}}).to_string();
    for (node, patch, refused) in [
        ("n1", &fault, None),
        ("n2", &fault, Some(own)),
        ("n1", &ready, Some(conditions)),
        ("n1", &gpus, Some(status)),
        ("n1", &label, Some(labels)),
    ] {
        let args = ["patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch];
        server.expect(&token, &args, refused);
    }
    for (args, refused) in [
        (&["label", "node", "n1", "device.larder.dev/gpu-count=8"][..], None),
        (&["label", "node", "n1", "device.larder.dev/gpu-count-"], None),
        (&["label", "node", "n2", "device.larder.dev/gpu-count=8"], Some(own)),
        (&["label", "node", "n1", "gpu=a100"], Some(labels)),
        (&["label", "node", "n1", "kubernetes.io/hostname-"], Some(labels)),
        (&["patch", "node", "n1", "-p", r#"{"spec":{"unschedulable":true}}"#], Some("and nothing else")),
        (&["delete", "node", "n1"], Some("larder-devices changes a Node that is there")),
    ] {
        server.expect(&token, args, refused);
    }
    let name = "larder-devices reports in its own name and of its own node";
    let about = "larder-devices tells of pods and of its own Node";
    for (event, refused) in [
        (event("Node", "n1", ACCOUNT, "n1"), None),
        (event("Node", "n2", ACCOUNT, "n1"), Some(about)),
        (event("Deployment", "x", ACCOUNT, "n1"), Some(about)),
        (event("Node", "n1", "kubelet", "n1"), Some(name)),
        (event("Node", "n1", ACCOUNT, "n2"), Some(name)),
    ] {
        server.with_file(&event, |file| server.expect(&token, &["create", "--dry-run=server", "-f", file], refused));
    }
    writes_slices_of_its_own_node_and_driver_alone(&server, &token);
    // Undo the change, since other tests use this node later.
    let undo = json!({"status": {"conditions": [{"type": "larder.dev/DeviceFault", "$patch": "delete"}]}}).to_string();
    let patch = ["patch", "node", "n1", "--subresource=status", "--type=strategic", "-p"];
    server.cluster.kubectl_ok(&[&patch[..], &[&undo]].concat());
    server.cluster.kubectl_ok(&[
        "delete",
        "pod",
        "devices-of-n1",
        "-n",
        SYSTEM_NAMESPACE,
        "--force",
        "--grace-period=0",
    ]);
}
