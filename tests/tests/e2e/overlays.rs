//! Overlays of `deploy`, rendered as `kubectl apply -k` would.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use larder_testkit::{kustomize, repository};
use serde::Deserialize;
use serde_json::{Value, json};

const COMPONENTS: [&str; 6] = ["datasets", "jobs", "scheduler", "sharing", "devices", "devices-dra"];

/// What a team might keep in the overlay: objects of its own namespace, some with the names that Larder's own objects
/// have, and a pod of Larder's image.
fn foreign() -> Vec<Value> {
    let meta = |name: &str| json!({"name": name, "namespace": "team-a"});
    let pod = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "larderd", "image": "larder.dev/larder:0.0.1", "args": ["--mine"]}]},
    });
    let daemon = |name: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta(name),
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": pod},
        })
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("keys"), "stringData": {"k": "v"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("larder-devices"), "data": {"config.yaml": "mine"}}),
        json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset", "metadata": meta("imagenet"),
            "spec": {"origin": {"url": "s3://bucket/imagenet"}},
        }),
        daemon("larderd"),
        daemon("larder-csi"),
        daemon("larder-devices"),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta("mine"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "mine"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "team-a"}],
        }),
    ]
}

/// All objects of an overlay of these components and this file, by kind, namespace and name.
fn render(folder: &Path, components: &[&str], file: Option<&str>) -> BTreeMap<String, Value> {
    let components: Vec<String> = components.iter().map(|name| format!("../deploy/components/{name}")).collect();
    let resources: Vec<&str> = std::iter::once("../deploy").chain(file).collect();
    let overlay = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": resources, "components": components,
    });
    std::fs::write(folder.join("kustomization.yaml"), overlay.to_string()).unwrap();
    let rendered = kustomize(folder);
    let errors = String::from_utf8_lossy(&rendered.stderr);
    assert!(rendered.status.success(), "{components:?}: {errors}");
    serde_yaml_ng::Deserializer::from_slice(&rendered.stdout)
        .map(|object| named(Value::deserialize(object).unwrap()))
        .collect()
}

/// An object with its kind, namespace and name.
fn named(object: Value) -> (String, Value) {
    let field = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or("-");
    (format!("{} {} {}", field("/kind"), field("/metadata/namespace"), field("/metadata/name")), object)
}

#[test]
fn components_change_none_of_the_objects_that_an_overlay_brings() {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(root.path()).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let folder = root.path().join("ours");
    std::fs::create_dir(&folder).unwrap();
    let team: Vec<String> = foreign().iter().map(Value::to_string).collect();
    std::fs::write(folder.join("team.yaml"), team.join("\n---\n")).unwrap();
    let theirs: BTreeMap<_, _> = foreign().into_iter().map(named).collect();
    for set in 1_u32..1 << COMPONENTS.len() {
        let used: Vec<&str> =
            (0..).zip(COMPONENTS).filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, name)| name).collect();
        // It configures the program of the other.
        if used.contains(&"devices-dra") && !used.contains(&"devices") {
            continue;
        }
        let ours = render(&folder, &used, None);
        let mut all = render(&folder, &used, Some("team.yaml"));
        for (name, object) in &theirs {
            assert_eq!(all.remove(name).as_ref(), Some(object), "{used:?} changed {name}");
        }
        assert_eq!(all, ours, "{used:?}");
    }
}
