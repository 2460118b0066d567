//! Overlays of `deploy`, rendered as `kubectl apply -k` would.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use larder_testkit::{kustomize, repository};
use serde::Deserialize;
use serde_json::{Value, json};

const COMPONENTS: [&str; 7] = ["datasets", "jobs", "scheduler", "sharing", "devices", "devices-dra", "startup-taint"];

/// What a team might keep in the overlay: objects of its own namespace, some with the names that Larder's own objects
/// have, and a pod of Larder's image.
fn foreign() -> Vec<Value> {
    let meta = |name: &str| json!({"name": name, "namespace": "team-a"});
    let pod = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "larderd", "image": "larder.invalid/larder:0.0.1", "args": ["--mine"]}]},
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

/// The YAML block of a document that begins with these words.
fn documented(page: &str, begin: &str) -> String {
    let text = std::fs::read_to_string(repository().join(page)).unwrap();
    let block = text.split("\n```yaml\n").skip(1).find(|block| block.starts_with(begin));
    block.unwrap_or_else(|| panic!("{page} has no such block: {begin}")).split("\n```").next().unwrap().to_owned()
}

/// `larder-devices` of an overlay with these lines of a document.
fn devices_with(lines: &str) -> Value {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(root.path()).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let folder = root.path().join("my-larder");
    std::fs::create_dir(&folder).unwrap();
    let overlay = format!("resources: [../deploy]\ncomponents: [../deploy/components/devices]\n{lines}\n");
    std::fs::write(folder.join("kustomization.yaml"), overlay).unwrap();
    let rendered = kustomize(&folder);
    assert!(rendered.status.success(), "{lines}\n{}", String::from_utf8_lossy(&rendered.stderr));
    let mut objects = serde_yaml_ng::Deserializer::from_slice(&rendered.stdout)
        .map(|object| Value::deserialize(object).unwrap())
        .filter(|object| object["kind"] == "DaemonSet" && object["metadata"]["name"] == "larder-devices");
    objects.next().expect("a DaemonSet")["spec"]["template"]["spec"].clone()
}

/// The host's path of a volume, and where the container has it.
fn mounted(pod: &Value, volume: &str) -> (String, Vec<String>) {
    let named =
        |list: &Value| list.as_array().unwrap().iter().filter(|it| it["name"] == volume).cloned().collect::<Vec<_>>();
    let mounts = named(&pod["containers"][0]["volumeMounts"]);
    let volumes = named(&pod["volumes"]);
    assert_eq!(volumes.len(), 1, "{volume}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&volumes[0]["hostPath"]["path"]), mounts.iter().map(|mount| text(&mount["mountPath"])).collect())
}

fn env(pod: &Value, name: &str) -> Value {
    let env = pod["containers"][0]["env"].as_array().unwrap();
    env.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("no {name}"))["value"].clone()
}

#[test]
fn larder_devices_has_other_folders_on_hosts_with_read_only_ones() {
    let plain = devices_with("");
    let own = |path: &str| (path.to_owned(), vec![path.to_owned()]);
    assert_eq!(mounted(&plain, "hook"), own("/opt/larder/bin"));
    assert_eq!(env(&plain, "HOOK_DIR"), "/opt/larder/bin");
    assert_eq!(mounted(&plain, "faults"), own("/run/larder-devices"));

    let pod = devices_with(&documented("docs/DEVICES.md", "# Hosts with read-only /opt and /etc"));
    assert_eq!(mounted(&pod, "hook"), own("/var/lib/larder-devices/bin"));
    assert_eq!(env(&pod, "HOOK_DIR"), "/var/lib/larder-devices/bin");
    assert_eq!(mounted(&pod, "vendor-cdi"), ("/var/run/cdi".to_owned(), vec!["/etc/cdi".to_owned()]));
    for volume in pod["volumes"].as_array().unwrap().iter().filter_map(|volume| volume["hostPath"]["path"].as_str()) {
        assert!(!volume.starts_with("/etc") && !volume.starts_with("/opt"), "{volume}");
    }
    assert_eq!(pod["containers"][0]["args"], plain["containers"][0]["args"]);
}

#[test]
fn larder_devices_gets_its_gpus_by_a_mount_and_gives_them_by_cdi_alone() {
    let pod = devices_with(&documented("docs/DEVICES.md", "# GPUs by CDI alone"));
    let at = "/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all";
    assert_eq!(mounted(&pod, "gpus"), ("/dev/null".to_owned(), vec![at.to_owned()]));
    assert_eq!(env(&pod, "LARDER_GPUS_BY_CDI_ONLY"), "true");
    assert_eq!(pod["runtimeClassName"], "nvidia");
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], false);
}

#[test]
fn larderd_is_in_a_later_wave_than_all_that_it_may_not_restart_with() {
    let rendered = kustomize(&repository().join("deploy"));
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let wave = |object: &Value| {
        let wave = object["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"].as_str();
        wave.map_or(0, |wave| wave.parse::<i32>().unwrap())
    };
    for object in serde_yaml_ng::Deserializer::from_slice(&rendered.stdout) {
        let object = Value::deserialize(object).unwrap();
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        assert_eq!(wave(&object), i32::from(name == r#""DaemonSet" "larderd""#), "{name}");
    }
}

/// A request is larderd's weight beside busy pods, and a limit of CPUs makes readers wait. `larder doctor --node` asks
/// for as much.
#[test]
fn larderd_requests_the_cpus_and_the_memory_of_the_documents_and_has_no_limit_of_cpus() {
    let rendered = kustomize(&repository().join("deploy"));
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let objects: BTreeMap<String, Value> = serde_yaml_ng::Deserializer::from_slice(&rendered.stdout)
        .map(|object| named(Value::deserialize(object).unwrap()))
        .collect();
    let resources = &pods(&objects)["larderd"]["spec"]["containers"][0]["resources"];
    let expected = json!({"requests": {"cpu": "2", "memory": "512Mi"}, "limits": {"memory": "4Gi"}});
    assert_eq!(*resources, expected);
    let page = std::fs::read_to_string(repository().join("docs/kubernetes/operations.md")).unwrap();
    for said in ["| `larderd`: request, limit | 512 MiB, 4 GiB |", "`larderd` requests 2 CPUs and has no limit."] {
        assert!(page.contains(said), "{said}");
    }
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
        // It meets no other component in any object that a team may have.
        if used.contains(&"startup-taint") && used.len() > 1 {
            continue;
        }
        // Each alone, each pair and all together: whatever one does to another shows in their pair.
        if used.len() > 2 && used.len() < COMPONENTS.len() - 1 {
            continue;
        }
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

/// The pods of Larder, by the names of their workloads.
fn pods(rendered: &BTreeMap<String, Value>) -> BTreeMap<&str, &Value> {
    let workloads =
        rendered.values().filter(|object| matches!(object["kind"].as_str(), Some("DaemonSet" | "Deployment")));
    workloads.map(|object| (object["metadata"]["name"].as_str().unwrap(), &object["spec"]["template"])).collect()
}

// SEMANTICS: K9
#[test]
fn every_port_is_closed_to_all_but_nodes_and_the_namespaces_that_monitor() {
    let root = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(repository().join("deploy")).arg(root.path()).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let folder = root.path().join("ours");
    std::fs::create_dir(&folder).unwrap();
    let rendered = render(&folder, &COMPONENTS, None);
    let policies: Vec<&Value> = rendered.values().filter(|object| object["kind"] == "NetworkPolicy").collect();
    let monitoring = json!([{"namespaceSelector": {"matchLabels": {"larder.dev/monitoring": "true"}}}]);
    let nodes = json!([{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "larderd"}}}]);
    let mut open = BTreeMap::new();
    for (name, pod) in pods(&rendered) {
        let labels = &pod["metadata"]["labels"];
        let selects = |policy: &&&Value| {
            let wanted = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
            wanted.iter().all(|(key, value)| labels[key] == *value)
        };
        let selecting: Vec<_> = policies.iter().filter(selects).collect();
        assert!(!selecting.is_empty(), "{name}: without a policy every port is open");
        let rules: Vec<&Value> =
            selecting.iter().flat_map(|policy| policy["spec"]["ingress"].as_array().unwrap()).collect();
        let containers = pod["spec"]["containers"].as_array().unwrap();
        for port in containers.iter().flat_map(|container| container["ports"].as_array().cloned().unwrap_or_default()) {
            let reach = |rule: &&&Value| rule["ports"].as_array().unwrap().iter().any(|it| it["port"] == port["name"]);
            let from: Vec<&Value> = rules.iter().filter(reach).map(|rule| &rule["from"]).collect();
            let expected = if port["name"] == "peers" { &nodes } else { &monitoring };
            assert_eq!(from, [expected], "{name}: {port}");
            open.insert(port["containerPort"].as_u64().unwrap(), name);
        }
        // A rule without ports would open all.
        assert!(rules.iter().all(|rule| rule["ports"].is_array() && rule["from"].is_array()), "{name}: {rules:?}");
        assert_ne!(pod["spec"]["hostNetwork"], true, "{name}: a policy does not hold for the network of the host");
    }
    let expected = [
        (9464, "larderd"),
        (9465, "larder-csi"),
        (9466, "larderd"),
        (9467, "larder-controller"),
        (9469, "larder-scheduler"),
        (9470, "larder-devices"),
        (10259, "larder-scheduler"),
    ];
    assert_eq!(open, expected.into());
}
