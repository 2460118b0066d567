//! The charts of `deploy/charts`: they render the objects of `kubectl apply -k`, and refuse wrong values.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use larder_testkit::{kustomize, repository};
use serde::Deserialize;
use serde_json::{Value, json};

/// The components, with their names in the values of the chart.
const COMPONENTS: [(&str, &str); 9] = [
    ("datasets", "datasets"),
    ("jobs", "jobs"),
    ("clusters", "clusters"),
    ("scheduler", "scheduler"),
    ("sharing", "sharing"),
    ("devices", "devices"),
    ("devices-dra", "devicesDra"),
    ("startup-taint", "startupTaint"),
    ("monitoring", "monitoring"),
];

/// The kinds of objects that have a namespace. kustomize gives one to others, too, which the API server ignores.
const NAMESPACED: [&str; 10] = [
    "ConfigMap",
    "DaemonSet",
    "Deployment",
    "NetworkPolicy",
    "PodMonitor",
    "PrometheusRule",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
];

/// Lists whose order says nothing.
const UNORDERED: [&str; 4] = ["env", "ports", "volumeMounts", "volumes"];

fn helm(chart: &str, namespace: &str, settings: &[&str]) -> Output {
    let mut command = Command::new(repository().join("tests/cluster/helm.sh"));
    command.args(["template", chart]).arg(repository().join("deploy/charts").join(chart));
    command.args(["--namespace", namespace, "--kube-version", "1.36.3"]);
    command.args(settings.iter().flat_map(|&setting| ["--set", setting])).output().unwrap()
}

/// The objects of a chart with these settings.
fn rendered(chart: &str, settings: &[&str]) -> BTreeMap<String, Value> {
    let output = helm(chart, "larder-system", settings);
    assert!(output.status.success(), "{settings:?}: {}", String::from_utf8_lossy(&output.stderr));
    objects(&output.stdout)
}

/// The error of a chart with settings that it must refuse.
fn refused(namespace: &str, settings: &[&str]) -> String {
    let output = helm("larder", namespace, settings);
    assert!(!output.status.success(), "{settings:?} is accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects of a stream, by kind and name, without what may differ.
fn objects(yaml: &[u8]) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for object in serde_yaml_ng::Deserializer::from_slice(yaml) {
        let mut object = Value::deserialize(object).unwrap();
        if object.is_null() {
            continue;
        }
        normalize("", &mut object);
        let kind = object["kind"].as_str().unwrap().to_owned();
        let metadata = object["metadata"].as_object_mut().unwrap();
        if !NAMESPACED.contains(&kind.as_str()) {
            metadata.remove("namespace");
        }
        metadata.retain(|key, value| key != "annotations" || value.as_object().is_some_and(|it| !it.is_empty()));
        let name = format!("{kind} {}", metadata["name"].as_str().unwrap());
        assert!(all.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    all
}

fn normalize(key: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !key.starts_with("helm.sh/"));
            fields.iter_mut().for_each(|(key, value)| normalize(key, value));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize("", item));
            if UNORDERED.contains(&key) {
                items.sort_by_key(Value::to_string);
            }
        }
        // kustomize keeps the octal notation of YAML 1.1, and doubles line breaks in some folded texts.
        Value::String(text) if key == "defaultMode" => *value = json!(u32::from_str_radix(text, 8).unwrap()),
        Value::String(text) if key == "expression" => *text = text.split_whitespace().collect::<Vec<_>>().join(" "),
        Value::String(text) => {
            // Each makes the suffix of its own way from the content.
            if let Some(suffix) = text.strip_prefix("larder-scheduler-config-") {
                assert_eq!(suffix.len(), 10, "{text}");
                *text = "larder-scheduler-config".to_owned();
            }
        }
        _ => {}
    }
}

/// The objects of an overlay of these components.
fn overlay(folder: &Path, components: &[&str]) -> BTreeMap<String, Value> {
    let components: Vec<String> = components.iter().map(|name| format!("../deploy/components/{name}")).collect();
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../deploy"], "components": components,
    });
    std::fs::write(folder.join("kustomization.yaml"), overlay.to_string()).unwrap();
    let rendered = kustomize(folder);
    assert!(rendered.status.success(), "{components:?}: {}", String::from_utf8_lossy(&rendered.stderr));
    objects(&rendered.stdout)
}

/// The components that need not be in every set: few of the others change an object that they change, too.
const ADDED: [&str; 3] = ["clusters", "startup-taint", "monitoring"];

/// The sets of components that can be installed: all without [`ADDED`], the smallest and the largest with them, and those
/// in which they meet another component's change of the same object.
fn sets() -> Vec<Vec<(&'static str, &'static str)>> {
    let of = |set: u32| -> Vec<(&str, &str)> {
        (0..).zip(COMPONENTS).filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, it)| it).collect()
    };
    let has = |set: &[(&str, &str)], name: &str| set.iter().any(|(it, _)| *it == name);
    let is_valid = |set: &Vec<(&str, &str)>| {
        (has(set, "datasets") || !has(set, "jobs") && !has(set, "scheduler"))
            && (has(set, "jobs") || !has(set, "clusters"))
            && (has(set, "devices") || !has(set, "devices-dra"))
            && (set.len() == COMPONENTS.len()
                || !ADDED.iter().any(|name| has(set, name))
                || has(set, "clusters") && set.len() == 3
                || has(set, "startup-taint") && (set.len() == 1 || set.len() == 2 && has(set, "datasets"))
                || has(set, "monitoring") && (set.len() == 1 || set.len() == 2 && has(set, "sharing")))
    };
    (0..1 << COMPONENTS.len()).map(of).filter(is_valid).collect()
}

#[test]
fn a_chart_renders_what_kustomize_renders() {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(root.path()).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let folder = root.path().join("ours");
    std::fs::create_dir(&folder).unwrap();
    let sets = sets();
    assert!(sets.iter().filter(|set| set.iter().all(|(name, _)| !ADDED.contains(name))).count() == 30, "{sets:?}");
    let definitions = rendered("larder-crds", &[]);
    for set in sets {
        let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
        let settings: Vec<String> = set.iter().map(|(_, value)| format!("{value}.enabled=true")).collect();
        let settings: Vec<&str> =
            std::iter::once("namespace.create=true").chain(settings.iter().map(String::as_str)).collect();
        let mut charts = rendered("larder", &settings);
        if names.contains(&"datasets") {
            charts.extend(definitions.clone());
        }
        let expected = overlay(&folder, &names);
        for (name, object) in &expected {
            assert_eq!(charts.remove(name).as_ref(), Some(object), "{names:?}: {name}");
        }
        assert_eq!(charts.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "{names:?}");
    }
}

#[test]
fn a_wrong_value_of_a_chart_is_named() {
    for (setting, named) in [
        ("cache.sise=1TiB", "'sise'"),
        ("cach.size=1TiB", "'cach'"),
        ("cache.size=lots", "/cache/size"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("datasets.enabled=perhaps", "/datasets/enabled"),
        ("larderd.extraArgs[0]=warm", "/larderd/extraArgs/0"),
        ("jobs.enabled=true", "need datasets.enabled=true"),
        ("scheduler.enabled=true", "need datasets.enabled=true"),
        ("clusters.enabled=true", "needs jobs.enabled=true"),
        ("devicesDra.enabled=true", "needs devices.enabled=true"),
    ] {
        let error = refused("larder-system", &[setting]);
        assert!(error.contains(named), "{setting}: {error}");
    }
    let error = refused("default", &[]);
    assert!(error.contains("--namespace larder-system --create-namespace"), "{error}");
}

#[test]
fn the_values_of_a_chart_reach_the_programs() {
    let settings = [
        "image.repository=registry.example/larder",
        "image.tag=1.2.3",
        "image.pullSecrets[0]=registry",
        "cache.size=2Ti",
        "cache.keepFree=10%",
        "cache.hostPath=/nvme/larder",
        "kubeletDir=/var/snap/kubelet",
        "nodeSelector.disk=nvme",
        "larderd.extraArgs[0]=--warm-rate=1GiB/s",
        "larderd.resources.requests.cpu=500m",
        "datasets.enabled=true",
    ];
    let all = rendered("larder", &settings);
    let pod = |name: &str| &all[name]["spec"]["template"]["spec"];
    let (larderd, csi) = (pod("DaemonSet larderd"), pod("DaemonSet larder-csi"));
    let text = larderd["containers"][0]["args"].to_string();
    for flag in ["--cache-size=2Ti", "--keep-free=10%", "--warm-rate=1GiB/s"] {
        assert!(text.contains(flag), "{text}");
    }
    assert_eq!(larderd["containers"][0]["resources"], json!({"requests": {"cpu": "500m"}}));
    for program in [larderd, csi, pod("Deployment larder-controller")] {
        assert_eq!(program["containers"][0]["image"], "registry.example/larder:1.2.3");
        assert_eq!(program["imagePullSecrets"], json!([{"name": "registry"}]));
    }
    assert_eq!(all["LarderSettings larder"]["spec"]["containers"][0]["image"], "registry.example/larder:1.2.3");
    for program in [larderd, csi] {
        assert_eq!(program["nodeSelector"], json!({"disk": "nvme", "kubernetes.io/os": "linux"}));
        let folder = program["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "larder").unwrap();
        assert_eq!(folder["hostPath"]["path"], "/nvme/larder");
    }
    let text = csi.to_string();
    assert!(text.contains("--kubelet-dir=/var/snap/kubelet") && !text.contains("/var/lib/kubelet"), "{text}");
}
