//! Pods get node affinity terms for the datasets that they name, and keep their own terms.

use serde_json::{Value, json};

use crate::{Server, TIMEOUT, said};

const NAMESPACE: &str = "affinity";

/// A pod with these annotations and this affinity, and an inline volume of each dataset.
fn pod(annotations: Value, affinity: Value, inline: &[&str]) -> Value {
    let volumes = inline.iter().enumerate().map(|(nth, dataset)| {
        let csi = json!({"driver": "csi.larder.dev", "volumeAttributes": {"dataset": dataset}});
        json!({"name": format!("v{nth}"), "csi": csi})
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": NAMESPACE, "annotations": annotations},
        "spec": {
            "affinity": affinity, "volumes": volumes.collect::<Vec<_>>(),
            "containers": [{"name": "main", "image": "none"}],
            "serviceAccountName": "default", "automountServiceAccountToken": false,
        }
    })
}

impl Server {
    /// The affinity of a pod after admission.
    fn affinity(&self, pod: &Value) -> Value {
        let output =
            self.with_file(pod, |file| self.cluster.kubectl(&["create", "--dry-run=server", "-o", "json", "-f", file]));
        assert!(output.status.success(), "{}", said(&output));
        let created: Value = serde_json::from_slice(&output.stdout).expect("kubectl prints JSON");
        created["spec"]["affinity"].clone()
    }
}

fn expression(key: &str, above: u32) -> Value {
    json!({"key": format!("dataset.larder.dev/{key}"), "operator": "Gt", "values": [above.to_string()]})
}

/// The preferred terms of these datasets.
fn preferred(keys: &[&str]) -> Vec<Value> {
    let terms = [(30, 9), (30, 49), (40, 89)].into_iter().flat_map(|(weight, above)| {
        keys.iter()
            .map(move |key| json!({"weight": weight, "preference": {"matchExpressions": [expression(key, above)]}}))
    });
    terms.collect()
}

/// A server on which the policy for pods is in effect.
fn start() -> Server {
    let server = Server::start(NAMESPACE);
    server.cluster.kubectl(&["create", "serviceaccount", "default", "-n", NAMESPACE]);
    let probe = pod(json!({}), Value::Null, &["probe"]);
    server.cluster.wait_for("pods get terms", TIMEOUT, || !server.affinity(&probe).is_null());
    server
}

#[test]
fn a_pod_prefers_nodes_that_have_its_datasets() {
    let server = start();
    let named = json!({"larder.dev/datasets": "a, team-b/x.y,Not A Name,a,"});
    let got = server.affinity(&pod(named.clone(), Value::Null, &["pets", "team-a/cars", "pets"]));
    let keys = ["larder-system.pets", "team-a.cars", "affinity.a", "team-b.x.y"];
    assert_eq!(got, json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred(&keys)}}));

    // A pod's own terms are kept, and come first.
    let own =
        json!({"weight": 5, "preference": {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}});
    let with_own = json!({
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]
        },
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own]}
    });
    let got = server.affinity(&pod(named, with_own.clone(), &[]));
    let wanted = [vec![own], preferred(&["affinity.a", "team-b.x.y"])].concat();
    assert_eq!(got["nodeAffinity"], json!({"preferredDuringSchedulingIgnoredDuringExecution": wanted}));
    assert_eq!(got["podAntiAffinity"], with_own["podAntiAffinity"]);
}

// SEMANTICS: X2
#[test]
fn a_pod_that_requires_its_data_keeps_its_own_requirements() {
    let server = start();
    let required = json!({"larder.dev/datasets": "a", "larder.dev/data": "required"});
    let terms = |affinity: &Value| {
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let got = server.affinity(&pod(required.clone(), Value::Null, &[]));
    assert_eq!(terms(&got), json!([{"matchExpressions": [expression("affinity.a", 89)]}]));
    assert_eq!(
        got["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"],
        json!(preferred(&["affinity.a"]))
    );

    // Other percentages. An invalid percentage counts as absent.
    for (asked, above) in [("50", 49), ("100", 99), ("1", 0), ("0", 89), ("101", 89), ("half", 89), ("", 89)] {
        let mut annotations = required.clone();
        annotations["larder.dev/min-warm"] = asked.into();
        let got = server.affinity(&pod(annotations, Value::Null, &[]));
        assert_eq!(terms(&got), json!([{"matchExpressions": [expression("affinity.a", above)]}]), "{asked:?}");
    }

    // Terms are alternatives, so each gets the requirement, except for the empty term, which matches nothing.
    let gpu = json!({"key": "gpu", "operator": "Exists"});
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    let own = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [gpu]}, {"matchFields": [field]}, {}]
    }}});
    let got = server.affinity(&pod(required, own.clone(), &[]));
    let data = expression("affinity.a", 89);
    assert_eq!(
        terms(&got),
        json!([{"matchExpressions": [gpu, data]}, {"matchExpressions": [data], "matchFields": [field]}, {}])
    );

    // Without the annotation nothing is required.
    let got = server.affinity(&pod(json!({"larder.dev/datasets": "a"}), own.clone(), &[]));
    assert_eq!(terms(&got), terms(&own));
}

#[test]
fn running_the_policy_again_changes_nothing() {
    let server = start();
    let annotations = json!({"larder.dev/datasets": "a,b/c", "larder.dev/data": "required"});
    let own = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
    }}});
    let once = server.affinity(&pod(annotations.clone(), own, &["pets"]));
    assert_eq!(
        once["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].as_array().map(Vec::len),
        Some(9)
    );
    let twice = server.affinity(&pod(annotations, once.clone(), &["pets"]));
    assert_eq!(once, twice);
}

#[test]
fn other_pods_stay_as_they_are() {
    let server = start();
    let other = pod(json!({"larder.dev/data": "required"}), Value::Null, &[]);
    assert_eq!(server.affinity(&other), Value::Null);
    // Names that no dataset can have: the pod is admitted without terms.
    let odd = pod(json!({"larder.dev/datasets": "A,/,a//b,$x, "}), Value::Null, &[&"n".repeat(70)]);
    assert_eq!(server.affinity(&odd), Value::Null);
    // A pod with a node is not scheduled.
    let mut placed = pod(json!({"larder.dev/datasets": "a"}), Value::Null, &[]);
    placed["spec"]["nodeName"] = json!("n1");
    assert_eq!(server.affinity(&placed), Value::Null);
}
