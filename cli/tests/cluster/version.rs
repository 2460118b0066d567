//! `larder version`

use serde_json::{Value, json};

use crate::jobs::list;
use crate::server::{NOBODY, Server, kubeconfig, out, run, said, status};

const PODS: &str = "GET /api/v1/namespaces/larder-system/pods";
const OWN: &str = env!("CARGO_PKG_VERSION");

fn pod(program: &str, tag: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "larder-system", "name": format!("{program}-{node}")},
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": program, "command": [program], "image": format!("registry.example:5000/larder:{tag}")},
                {"name": "other", "command": ["kube-scheduler"], "image": "registry.k8s.io/kube-scheduler:v1.36.3"},
            ],
        },
    })
}

fn definition(name: &str) -> String {
    format!("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
}

/// A cluster with the definition of Datasets alone.
fn cluster(pods: &[Value]) -> Server {
    let datasets = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "datasets.larder.dev"},
        "spec": {"names": {"kind": "Dataset"}, "versions": [
            {"name": "v1alpha1", "served": true, "storage": true}, {"name": "v0", "served": false, "storage": false},
        ]},
        "status": {"storedVersions": ["v1alpha1"]},
    });
    let server = Server::start().answers(PODS, 200, &list("Pod", pods)).answers(
        &definition("datasets.larder.dev"),
        200,
        &datasets.to_string(),
    );
    ["cachequotas", "clusters", "jobtypes", "lardersettings", "nodecaches", "queues", "trainingjobs"].iter().fold(
        server,
        |server, name| {
            let missing = status(404, "NotFound", "not found");
            server.answers(&definition(&format!("{name}.larder.dev")), 404, &missing)
        },
    )
}

#[test]
fn without_flags_it_is_the_commands_own_version() {
    let output = run(&["version"], "");
    assert_eq!(out(&output), format!("larder {OWN}\n"));
    let json: Value = serde_json::from_slice(&run(&["version", "--json"], "").stdout).unwrap();
    assert_eq!(json["version"], OWN);
}

#[test]
fn the_programs_and_definitions_of_a_cluster_are_listed_by_version() {
    let nodes: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
    let mut pods: Vec<Value> = nodes.iter().map(|node| pod("larderd", OWN, node)).collect();
    pods.push(pod("larder-csi", OWN, "n1"));
    let output = cluster(&pods).larder(&["version", "--all"]);
    assert!(output.status.success(), "{}", said(&output));
    let lines: Vec<String> =
        out(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "PROGRAM VERSION WHERE".to_owned(),
        format!("larder {OWN} this command"),
        format!("larderd {OWN} 5 pods"),
        format!("larder-csi {OWN} n1"),
        "Dataset v1alpha1 stored as v1alpha1".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line}: {lines:?}");
    }
    assert!(!out(&output).contains("kube-scheduler") && !out(&output).contains("1.36.3"), "{}", out(&output));
    let json: Value = serde_json::from_slice(&cluster(&pods).larder(&["version", "--all", "--json"]).stdout).unwrap();
    assert_eq!(json["programs"][1], json!({"program": "larderd", "version": OWN, "nodes": nodes}));
    assert_eq!(json["definitions"], json!([{"kind": "Dataset", "served": ["v1alpha1"], "stored": ["v1alpha1"]}]));
}

#[test]
fn versions_too_far_apart_are_a_failure_that_says_what_to_do() {
    let output = cluster(&[pod("larderd", "99.0.0", "n1")]).larder(&["version", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("larderd  99.0.0") && said.contains("upgrade one minor version after the other"), "{said}");
}

#[test]
fn without_rights_or_a_cluster_the_rest_is_shown() {
    let denied = status(403, "Forbidden", "no");
    let first = definition("datasets.larder.dev");
    let output =
        Server::start().answers(PODS, 403, &denied).answers(&first, 403, &denied).larder(&["version", "--all"]);
    for words in ["you may not list the pods", "you may not get CustomResourceDefinitions", "this command"] {
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
    let output = run(&["version", "--all"], "");
    assert!(output.status.success() && said(&output).contains("no cluster is shown: "), "{}", said(&output));
    let file = kubeconfig(NOBODY);
    let named = ["version", "--all", "--kubeconfig", file.path().to_str().unwrap(), "--context", "here"];
    assert_eq!(run(&named, "").status.code(), Some(1));
}
