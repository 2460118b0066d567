//! The component `scheduler`: the scheduler of pods, and the resource by which it asks the extender about them.

use larder_api::names::READS_DATA_RESOURCE;
use larder_testkit::repository;
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, said};

const LABELLED: &str = "scheduling";
const PLAIN: &str = "scheduling-plain";

/// A pod with two containers and these changes.
fn pod(namespace: &str, change: impl FnOnce(&mut Value)) -> Value {
    let limits = json!({"limits": {"cpu": "1"}});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace, "annotations": {}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": limits}, {"name": "other", "image": "none"}],
            "serviceAccountName": "default", "automountServiceAccountToken": false,
        }
    });
    change(&mut pod);
    pod
}

fn reads(pod: &mut Value) {
    pod["metadata"]["annotations"]["larder.dev/datasets"] = "pets".into();
}

impl Server {
    /// The spec of a pod after admission.
    fn admitted(&self, pod: &Value) -> Value {
        let output =
            self.with_file(pod, |file| self.cluster.kubectl(&["create", "--dry-run=server", "-o", "json", "-f", file]));
        assert!(output.status.success(), "{}", said(&output));
        let created: Value = serde_json::from_slice(&output.stdout).expect("kubectl prints JSON");
        created["spec"].clone()
    }
}

/// True if the scheduler asks the extender about the pod. The pod is otherwise unchanged.
fn is_asked_about(spec: &Value) -> bool {
    let (first, other) = (&spec["containers"][0], &spec["containers"][1]);
    assert_eq!([&first["name"], &other["name"]], ["main", "other"], "{spec}");
    let limits = &first["resources"]["limits"];
    assert_eq!(limits["cpu"], "1", "{spec}");
    assert!(other["resources"].as_object().is_none_or(serde_json::Map::is_empty), "{spec}");
    match limits[READS_DATA_RESOURCE].as_str() {
        None => false,
        Some(quantity) => {
            assert_eq!(quantity, "0");
            true
        }
    }
}

// SEMANTICS: X7
#[test]
fn the_scheduler_asks_the_extender_about_pods_that_may_read_datasets_and_about_no_others() {
    let server = Server::start(LABELLED);
    server.cluster.kubectl(&["create", "namespace", PLAIN]);
    server.cluster.kubectl_ok(&["label", "namespace", LABELLED, "larder.dev/scheduler=larder", "--overwrite"]);
    for namespace in [LABELLED, PLAIN] {
        server.cluster.kubectl(&["create", "serviceaccount", "default", "-n", namespace]);
    }
    let policies = repository().join("deploy/components/scheduler/base/policies.yaml");
    server.cluster.kubectl_ok(&["apply", "-f", policies.to_str().expect("a path of letters")]);
    server.cluster.wait_for("the policies count", TIMEOUT, || {
        let spec = server.admitted(&pod(LABELLED, reads));
        spec["schedulerName"] == "larder" && is_asked_about(&spec)
    });

    let asked = |namespace: &str, change: fn(&mut Value)| is_asked_about(&server.admitted(&pod(namespace, change)));
    assert!(asked(LABELLED, |pod| {
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "pets"}}]);
    }));
    assert!(asked(LABELLED, |pod| {
        let csi = json!({"driver": "csi.larder.dev", "volumeAttributes": {"dataset": "pets"}});
        pod["spec"]["volumes"] = json!([{"name": "v", "csi": csi}]);
    }));
    // Wherever a pod is, if it names the scheduler.
    assert!(asked(PLAIN, |pod| {
        reads(pod);
        pod["spec"]["schedulerName"] = "larder".into();
    }));

    assert!(!asked(LABELLED, |_| {}), "it reads nothing");
    assert!(!asked(LABELLED, |pod| {
        let csi = json!({"driver": "another.example.org"});
        pod["spec"]["volumes"] = json!([{"name": "v", "csi": csi}, {"name": "w", "emptyDir": {}}]);
    }));
    assert!(!asked(PLAIN, reads), "another scheduler places it");
}
