//! The jobs that import and warm. Their pods pass PodSecurity `restricted`, have no token of the API, and get a Secret
//! by reference only: the kubelet hands it to the pod, and the controller never reads it.

use larder_api::names::{NODE_LABEL, ROLE_IMPORT, ROLE_LABEL, ROLE_WARM, SYSTEM_NAMESPACE, UID_LABEL};
use serde_json::{Value, json};

use super::status_draft::Draft;
use super::task::Task;
use super::{names, origin};
use crate::objects::{DatasetObject, PURPOSE_ANNOTATION};
use larder_kube::kinds::Kind;

/// Kubernetes restarts what failed, after pauses that grow to five minutes, and remembers for how long.
const RESTARTS: u32 = 1_000_000;

/// A finished job is kept this long for its log to be read.
const KEPT_SECONDS: u32 = 600;

/// Where a pod leaves its report.
const REPORT: &str = "/dev/termination-log";

/// larderd's user, too.
const USER: u32 = 65_532;

/// The object of which a dataset's objects are part: they go with it.
pub(super) fn owner(dataset: &DatasetObject) -> Value {
    json!([{
        "apiVersion": Kind::Dataset.api_version(),
        "kind": Kind::Dataset.name(),
        "name": dataset.meta.key.name,
        "uid": dataset.meta.uid,
        "controller": true,
    }])
}

/// The arguments of `larder` that list the origin, or with `from` copy that manifest.
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

/// The job that lists the origin or publishes a manifest.
pub(super) fn import_job(draft: &Draft<'_>, purpose: &str, arguments: &[String]) -> Value {
    let secret = match &draft.spec.secret {
        Some(name) => json!([{"secretRef": {"name": name}}]),
        // Where larderd's own identity may be used, it is this one.
        None if draft.key().namespace == SYSTEM_NAMESPACE && !draft.spec.dataset.anonymous => {
            json!([{"secretRef": {"name": "larder-origin", "optional": true}}])
        }
        None => json!([]),
    };
    let mut container = container(draft, arguments);
    container["envFrom"] = secret;
    container["env"] = json!([{"name": "HOME", "value": "/tmp"}]);
    container["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    container["resources"] = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}});
    let volumes = json!([{"name": "tmp", "emptyDir": {}}]);
    job(draft, ROLE_IMPORT, None, purpose, container, volumes)
}

/// The job that warms a node through a claim.
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
        // A label holds 63 characters; the name of a node may have more. The whole one is in the purpose.
        labels[NODE_LABEL] = node.chars().take(63).collect::<String>().trim_end_matches(['.', '-']).into();
        pod["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]},
            ]}],
        }}});
        // It goes where the data is to be; whether other pods may go there, their own tolerations say.
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

/// The name of the job for a purpose.
pub(super) fn import_job_name(draft: &Draft<'_>, purpose: &str) -> String {
    names::import_job(draft.key(), draft.uid(), purpose)
}
