//! Even if RBAC grants more, larder-csi may remove the startup taint of its own node, and change nothing else of a
//! node.

use larder_api::names::SYSTEM_NAMESPACE;
use larder_testkit::{Cluster, repository};
use serde_json::json;

use crate::{Server, TIMEOUT, said};

const ACCOUNT: &str = "larder-csi";

// SEMANTICS: K26
#[test]
fn larder_csi_removes_one_taint_of_its_own_node_and_changes_nothing_else() {
    let server = Server::start("startup-taint");
    server.cluster.kubectl(&["create", "serviceaccount", ACCOUNT, "-n", SYSTEM_NAMESPACE]);
    let policies = repository().join("deploy/components/startup-taint/base/policies.yaml").display().to_string();
    server.cluster.kubectl_ok(&["apply", "-f", &policies]);
    let _nodes = server.grant(ACCOUNT, "", "nodes");
    server.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "csi-of-n1", "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "nodeName": "n1", "serviceAccountName": ACCOUNT, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": Cluster::BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "3600"]
            }]
        }
    }));
    let token = server.token(ACCOUNT, Some("csi-of-n1"));
    let metadata = "larder-csi changes a Node's taint and nothing of its metadata";
    server.cluster.wait_for("the policy counts", TIMEOUT, || {
        let output = server.cluster.kubectl(&["--token", &token, "annotate", "node", "n1", "x=y", "--dry-run=server"]);
        said(&output).contains(metadata)
    });
    let own = "larder-csi writes to its own Node only";
    let taints = "of a Node's taints, larder-csi removes csi.larder.dev/agent-not-ready and leaves the others";
    let spec = "of a Node's spec, larder-csi changes a taint and nothing else";
    let status = ["patch", "node", "n1", "--subresource=status", "-p", r#"{"status":{"phase":"Pending"}}"#];
    for (args, refused) in [
        (&["label", "node", "n1", "a=b"][..], metadata),
        (&["annotate", "node", "n1", "x=y"], metadata),
        (&["patch", "node", "n1", "-p", r#"{"spec":{"unschedulable":true}}"#], spec),
        (&["taint", "node", "n1", "mine=:PreferNoSchedule"], taints),
        (&status, "larder-csi changes nothing of a Node's status"),
        (&["delete", "node", "n1"], "larder-csi changes a Node that is there"),
    ] {
        server.expect(&token, args, Some(refused));
    }
    let (startup, removed) = ("csi.larder.dev/agent-not-ready=:PreferNoSchedule", "csi.larder.dev/agent-not-ready-");
    server.cluster.kubectl_ok(&["taint", "node", "n1", startup, "gpu=:PreferNoSchedule"]);
    server.cluster.kubectl_ok(&["taint", "node", "n2", startup]);
    for (args, refused) in [
        (&["taint", "node", "n1", "gpu-"][..], Some(taints)),
        (&["patch", "node", "n1", "--type=merge", "-p", r#"{"spec":{"taints":[]}}"#], Some(taints)),
        (&["taint", "node", "n2", removed], Some(own)),
        (&["taint", "node", "n1", removed], None),
        (&["taint", "node", "n1", "gpu-"], Some(taints)),
    ] {
        server.expect(&token, args, refused);
    }
    // Other users are not restricted.
    server.cluster.kubectl_ok(&["taint", "node", "n1", "gpu-"]);
    server.cluster.kubectl_ok(&["taint", "node", "n2", removed]);
    server.cluster.kubectl_ok(&["delete", "-f", &policies]);
    let pod = ["delete", "pod", "csi-of-n1", "-n", SYSTEM_NAMESPACE, "--force", "--grace-period=0"];
    server.cluster.kubectl_ok(&pod);
}
