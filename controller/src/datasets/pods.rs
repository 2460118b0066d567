//! The Jobs that import, copy to mirrors and warm. Their pods pass PodSecurity `restricted`, have no API token, and use
//! Secrets only by reference: the kubelet passes them to the pod, and the controller never reads them.

use larder_api::names::{NODE_LABEL, ROLE_IMPORT, ROLE_LABEL, ROLE_SYNC, ROLE_WARM, SYSTEM_NAMESPACE, UID_LABEL};
use larder_dataset::mirrors::MirrorSpec;
use serde_json::{Value, json};

use super::status_draft::Draft;
use super::task::Task;
use super::{names, origin};
use crate::objects::{DatasetObject, PURPOSE_ANNOTATION};
use larder_kube::kinds::Kind;

/// Kubernetes restarts failed pods with delays that grow to five minutes. The count must not end that.
const RESTARTS: u32 = 1_000_000;

/// How long a finished Job is kept, in seconds, so that its log can be read.
const KEPT_SECONDS: u32 = 600;

/// Where a pod writes its report.
const REPORT: &str = "/dev/termination-log";

/// Where an import finds the keys of its origin.
const KEYS: &str = "/etc/larder/origin";

/// The same user as larderd's.
const USER: u32 = 65_532;

/// The owner reference to the dataset: Kubernetes deletes the dataset's objects with it.
pub(super) fn owner(dataset: &DatasetObject) -> Value {
    json!([{
        "apiVersion": Kind::Dataset.api_version(),
        "kind": Kind::Dataset.name(),
        "name": dataset.meta.key.name,
        "uid": dataset.meta.uid,
        "controller": true,
    }])
}

/// The arguments of `larder` that list the origin, or copy an existing manifest with `from`.
pub(super) fn import_arguments(draft: &Draft<'_>, task: &Task) -> Vec<String> {
    let spec = &draft.spec;
    let mut arguments = vec!["import".to_owned()];
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    match task {
        Task::First => add(&[
            &spec.dataset.source,
            "--to",
            &origin::kept_manifest(spec, "{snapshot}"),
            "--to",
            &spec.manifest,
            "--unless-published",
            &spec.manifest,
        ]),
        Task::Again { found: true } => {
            add(&[&spec.manifest, "--to", &origin::kept_manifest(spec, "{snapshot}")]);
        }
        Task::Again { found: false } => {
            add(&[&spec.dataset.source, "--to", &origin::kept_manifest(spec, "{snapshot}")]);
        }
        Task::Publish(snapshot) => add(&[&origin::kept_manifest(spec, snapshot), "--to", &spec.manifest]),
    }
    add(&["--report", REPORT]);
    for (flag, value) in [("--endpoint", &spec.dataset.endpoint), ("--region", &spec.dataset.region)] {
        if let Some(value) = value {
            add(&[flag, value]);
        }
    }
    if spec.dataset.anonymous {
        add(&["--anonymous"]);
    }
    arguments
}

/// The arguments of `larder` that copy a snapshot to a mirror.
pub(super) fn sync_arguments(draft: &Draft<'_>, mirror: &MirrorSpec, snapshot: &str) -> Vec<String> {
    let spec = &draft.spec;
    let mut arguments = vec!["sync".to_owned(), origin::kept_manifest(spec, snapshot), mirror.source.clone()];
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["--report", REPORT]);
    let flags = [
        ("--endpoint", &spec.dataset.endpoint),
        ("--region", &spec.dataset.region),
        ("--to-endpoint", &mirror.endpoint),
        ("--to-region", &mirror.region),
    ];
    for (flag, value) in flags {
        if let Some(value) = value {
            add(&[flag, value]);
        }
    }
    if spec.dataset.anonymous {
        add(&["--anonymous"]);
    }
    if secret(draft).is_some() {
        add(&["--to-credentials-dir", KEYS, "--to-credentials-prefix", &format!("{}.", mirror.name)]);
    }
    arguments
}

/// The Secret with the keys of the origin and of the mirrors.
fn secret<'a>(draft: &'a Draft<'_>) -> Option<&'a str> {
    match &draft.spec.secret {
        Some(name) => Some(name),
        // In the namespace where larderd's own identity may be used, the pod has that identity.
        None if draft.key().namespace == SYSTEM_NAMESPACE && !draft.spec.dataset.anonymous => Some("larder-origin"),
        None => None,
    }
}

/// The Job that lists the origin or publishes a manifest.
pub(super) fn import_job(draft: &Draft<'_>, purpose: &str, arguments: &[String]) -> Value {
    origin_job(draft, ROLE_IMPORT, purpose, arguments.to_vec())
}

/// The Job that copies a snapshot to a mirror.
pub(super) fn sync_job(draft: &Draft<'_>, purpose: &str, arguments: Vec<String>) -> Value {
    origin_job(draft, ROLE_SYNC, purpose, arguments)
}

/// A Job that works with the origin.
fn origin_job(draft: &Draft<'_>, role: &str, purpose: &str, mut arguments: Vec<String>) -> Value {
    let mut mounts = vec![json!({"name": "tmp", "mountPath": "/tmp"})];
    let mut volumes = vec![json!({"name": "tmp", "emptyDir": {}})];
    // As files in memory: a variable of the container would be in its runtime's records on the node's disk.
    if let Some(secret) = secret(draft) {
        arguments.push(format!("--origin-credentials-dir={KEYS}"));
        if role == ROLE_IMPORT && draft.spec.secret.is_some() {
            arguments.push("--require-credentials".to_owned());
        }
        mounts.push(json!({"name": "origin", "mountPath": KEYS, "readOnly": true}));
        // The pod starts without the Secret, because nothing but its events would name a missing one; its import does.
        let secret = json!({"secretName": secret, "optional": true, "defaultMode": 0o440});
        volumes.push(json!({"name": "origin", "secret": secret}));
    }
    let mut container = container(draft, &arguments);
    container["env"] = json!([{"name": "HOME", "value": "/tmp"}]);
    container["volumeMounts"] = mounts.into();
    // A copy keeps the versions of all objects in memory, about 300 bytes for each.
    let most = if role == ROLE_SYNC { "4Gi" } else { "1Gi" };
    container["resources"] = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": most}});
    job(draft, role, None, purpose, container, volumes.into())
}

/// The Job that warms a node through a claim.
pub(super) fn warm_job(draft: &Draft<'_>, node: &str, claim: &str, purpose: &str) -> Value {
    let arguments = ["warm", "/data", "--wait"].map(str::to_owned);
    let mut container = container(draft, &arguments);
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data", "readOnly": true}]);
    container["resources"] = json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}});
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}]);
    job(draft, ROLE_WARM, Some(node), purpose, container, volumes)
}

fn container(draft: &Draft<'_>, arguments: &[String]) -> Value {
    json!({
        "name": "larder",
        "image": draft.view.settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["larder"],
        "args": arguments,
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

fn job(draft: &Draft<'_>, role: &str, node: Option<&str>, purpose: &str, container: Value, volumes: Value) -> Value {
    let mut labels = json!({
        "app.kubernetes.io/managed-by": "larder-controller",
        "app.kubernetes.io/part-of": "larder",
        UID_LABEL: draft.uid(),
        ROLE_LABEL: role,
    });
    let mut pod = json!({
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    });
    if let Some(node) = node {
        // A label value holds 63 characters, and a node name may be longer. The purpose contains the complete name.
        labels[NODE_LABEL] = node.chars().take(63).collect::<String>().trim_end_matches(['.', '-']).into();
        pod["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]},
            ]}],
        }}});
        // The pod must reach the node that should hold the data. Other pods still need tolerations of their own.
        pod["tolerations"] = json!([{"operator": "Exists", "effect": "NoSchedule"}]);
    }
    json!({
        "metadata": {
            "labels": labels,
            "annotations": {PURPOSE_ANNOTATION: purpose},
            "ownerReferences": owner(draft.dataset),
        },
        "spec": {
            "backoffLimit": RESTARTS,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// The name of the Job that imports for a purpose.
pub(super) fn import_job_name(draft: &Draft<'_>, purpose: &str) -> String {
    names::import_job(draft.key(), draft.uid(), purpose)
}

/// The name of the Job that copies for a purpose.
pub(super) fn sync_job_name(draft: &Draft<'_>, purpose: &str) -> String {
    names::sync_job(draft.key(), draft.uid(), purpose)
}
