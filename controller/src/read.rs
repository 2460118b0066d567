//! Reduces API objects to the fields that are kept. Kubernetes' own kinds are read with its types. An object in which a
//! field has another type is [`Unreadable`], and does not affect other objects. Of a pod, only that field is left out.

mod job_pod;
mod queued_pod;

use k8s_openapi::api::batch::v1::{Job as KubeJob, JobStatus};
use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
    PersistentVolumeSpec, Pod as KubePod,
};
use larder_api::names::{
    DATASET_ANNOTATION, FOLLOW_ANNOTATION, NODE_LABEL, REGISTRY_CONFIG_MAP, REGISTRY_KEY, ROLE_LABEL, SETTINGS,
    SNAPSHOT_ANNOTATION, STORAGE_CLASS, UID_LABEL,
};
use larder_api::settings::check_flavors;
use larder_api::{CacheQuota, LarderSettings, LarderSettingsStatus, NodeCache};
use larder_kube::Resource;
use larder_kube::api::DynamicObject;
use serde::de::IgnoredAny;
use serde_json::{Error, Value};
use tracing::warn;

use self::job_pod::job_pod;
use self::queued_pod::queued_pod;
use crate::objects::{
    CacheObject, Claim, ConfigMap, DESCRIPTION_ANNOTATION, DatasetObject, Deployment, Job, JobEnd, Key, Node, Pod,
    QuotaObject, Role, SettingsObject, Terminated, Volume, Waiting,
};
use crate::time::Seconds;
use larder_kube::fields::{Parts, annotation, controller, label, meta, second_of, whole};
use larder_kube::kinds::Kind;
use larder_kube::pod;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::requests::requests;

/// An object that cannot be parsed. It is counted in the metrics. Objects that belong to an unreadable Dataset are
/// kept.
#[derive(Debug)]
pub struct Unreadable {
    pub kind: Kind,
    pub key: Key,
    pub uid: String,
    /// The parse error.
    pub why: String,
}

pub(crate) fn dataset(object: DynamicObject) -> Result<Option<DatasetObject>, Error> {
    let meta = meta(&object);
    Ok(Some(DatasetObject { meta, dataset: whole(object)? }))
}

pub(crate) fn cache(object: DynamicObject) -> Result<Option<CacheObject>, Error> {
    let meta = meta(&object);
    let NodeCache { metadata, spec, status } = whole(object)?;
    Ok(Some(CacheObject { meta, generation: metadata.generation.unwrap_or_default(), spec, status }))
}

pub(crate) fn node(object: DynamicObject) -> Result<Option<Node>, Error> {
    Node::read(object).map(Some)
}

/// The labels of an object that the controller created; `None` for any other object.
fn role(object: &impl Resource) -> Option<Role> {
    let text = |key| label(object, key).unwrap_or_default().to_owned();
    label(object, UID_LABEL).map(|uid| Role { uid: uid.to_owned(), role: text(ROLE_LABEL), node: text(NODE_LABEL) })
}

/// Reads a pod. Skips pods that use no volume, take no room on a node, and were not created by the controller.
pub(crate) fn pod(object: DynamicObject) -> Result<Option<Pod>, Error> {
    let (pod, unread) = pod::read(object);
    if let Some(error) = unread {
        warn!(pod = %Key::of(&pod), %error, "a field of the pod cannot be read and is left out");
    }
    let (role, of_job) = (role(&pod), job_pod(&pod));
    let queued = queued_pod(&pod).filter(|_| of_job.is_none());
    let (mut claims, mut inline) = (Vec::new(), Vec::new());
    for volume in pod.spec.iter().flat_map(pod::data_volumes) {
        match volume {
            pod::DataVolume::Claim(claim) => claims.push(claim.to_owned()),
            pod::DataVolume::Inline(dataset) => inline.push(dataset.to_owned()),
        }
    }
    let (node, nominated) = (pod::node(&pod).to_owned(), pod::nominated_node(&pod).to_owned());
    let ended = pod::has_ended(&pod);
    let has_node = !node.is_empty() || !nominated.is_empty();
    let takes_room = has_node && !ended;
    // A pod that its job has left behind uses quota before it is bound, too.
    let counts = takes_room || of_job.is_some() && !ended;
    if role.is_none() && claims.is_empty() && inline.is_empty() && of_job.is_none() && queued.is_none() && !takes_room {
        return Ok(None);
    }
    // Only pods that the controller created have messages in a known format.
    let progress = if role.is_some() { progress(&pod) } else { Progress::default() };
    Ok(Some(Pod {
        meta: meta(&pod),
        role,
        job: controller::<KubeJob>(&pod).map(|owner| owner.uid.clone()).unwrap_or_default(),
        node,
        nominated,
        ended,
        claims,
        inline,
        runs: progress.runs,
        waiting: progress.waiting,
        terminated: progress.terminated,
        requests: pod.spec.as_ref().filter(|_| counts).map_or_else(Amounts::default, requests),
        of_job,
        queued,
    }))
}

/// The progress of the container in a pod that the controller created.
#[derive(Default)]
struct Progress {
    runs: bool,
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

fn progress(pod: &KubePod) -> Progress {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let container = containers.and_then(|containers| containers.first()).cloned();
    let ContainerStatus { state, last_state, .. } = container.unwrap_or_default();
    let (state, last_state) = (state.unwrap_or_default(), last_state.unwrap_or_default());
    let waiting = |reason: Option<String>, message: Option<String>| Waiting {
        reason: reason.unwrap_or_default(),
        message: message.unwrap_or_default(),
    };
    let unscheduled = || {
        let condition = pod::condition(pod, "PodScheduled", "False")?;
        Some(waiting(condition.reason.clone(), condition.message.clone()))
    };
    let end = |end: ContainerStateTerminated| Terminated {
        exit_code: end.exit_code,
        reason: end.reason.unwrap_or_default(),
        message: end.message.unwrap_or_default(),
    };
    Progress {
        runs: state.running.is_some(),
        waiting: state.waiting.map(|state| waiting(state.reason, state.message)).or_else(unscheduled),
        // A restarted container still reports how its previous run ended.
        terminated: state.terminated.or(last_state.terminated).map(end),
    }
}

pub(crate) fn job(object: DynamicObject) -> Result<Option<Job>, Error> {
    let Some(role) = role(&object) else { return Ok(None) };
    let meta = meta(&object);
    let Parts { status, .. } = Parts::<IgnoredAny, JobStatus>::read(object.data)?;
    let mut conditions = status.unwrap_or_default().conditions.into_iter().flatten();
    let end = conditions.find(|there| ["Complete", "Failed"].contains(&there.type_.as_str()) && there.status == "True");
    let end = end.map(|condition| JobEnd {
        failed: condition.type_ == "Failed",
        at: Seconds(second_of(condition.last_transition_time.as_ref())),
        why: condition.message.unwrap_or_default(),
    });
    Ok(Some(Job { meta, role, end }))
}

pub(crate) fn volume(object: DynamicObject) -> Result<Option<Volume>, Error> {
    let Some(role) = role(&object) else { return Ok(None) };
    let meta = meta(&object);
    let description = annotation(&object, DESCRIPTION_ANNOTATION).unwrap_or_default().to_owned();
    let Parts { spec, .. } = Parts::<PersistentVolumeSpec, IgnoredAny>::read(object.data)?;
    let reference = spec.and_then(|spec| spec.claim_ref).unwrap_or_default();
    let claim = Key::new(&reference.namespace.unwrap_or_default(), &reference.name.unwrap_or_default());
    Ok(Some(Volume { meta, role, claim, claim_uid: reference.uid.unwrap_or_default(), description }))
}

pub(crate) fn claim(object: DynamicObject) -> Result<Option<Claim>, Error> {
    let (meta, role) = (meta(&object), role(&object));
    let wants = annotation(&object, DATASET_ANNOTATION).map(str::to_owned);
    let Parts { spec, status } = Parts::<PersistentVolumeClaimSpec, PersistentVolumeClaimStatus>::read(object.data)?;
    let spec = spec.unwrap_or_default();
    if spec.storage_class_name.as_deref() != Some(STORAGE_CLASS) {
        return Ok(None);
    }
    let bound = status.and_then(|status| status.phase).as_deref() == Some("Bound");
    Ok(Some(Claim { meta, role, wants, volume: spec.volume_name.unwrap_or_default(), bound }))
}

/// Reads a Deployment. Only one field of its large spec matters, so the spec is not parsed as a whole.
pub(crate) fn deployment(object: DynamicObject) -> Result<Option<Deployment>, Error> {
    let Some(follows) = annotation(&object, FOLLOW_ANNOTATION) else { return Ok(None) };
    let template = object.data.pointer("/spec/template/metadata/annotations");
    let snapshot = template.and_then(|annotations| annotations.get(SNAPSHOT_ANNOTATION)).and_then(Value::as_str);
    let snapshot = snapshot.unwrap_or_default().to_owned();
    Ok(Some(Deployment { meta: meta(&object), follows: follows.to_owned(), snapshot }))
}

/// Reads the one ConfigMap, and the one key of it, that the controller uses.
pub(crate) fn config_map(object: DynamicObject) -> Result<Option<ConfigMap>, Error> {
    let meta = meta(&object);
    if meta.key.name != REGISTRY_CONFIG_MAP {
        return Ok(None);
    }
    let text = object.data.get("data").and_then(|data| data.get(REGISTRY_KEY)).and_then(Value::as_str);
    Ok(Some(ConfigMap { meta, text: text.unwrap_or_default().to_owned() }))
}

pub(crate) fn settings(object: DynamicObject) -> Result<Option<SettingsObject>, Error> {
    let meta = meta(&object);
    if meta.key.name != SETTINGS {
        return Ok(None);
    }
    let LarderSettings { spec, status, .. } = whole(object)?;
    let LarderSettingsStatus { job_types, clusters } = status.unwrap_or_default();
    // The schema refuses such a list.
    let mistake = check_flavors(&spec.flavors);
    if let Some(mistake) = &mistake {
        warn!(%mistake, "ignore all flavors of the LarderSettings");
    }
    let flavors = if mistake.is_none() { spec.flavors } else { Vec::new() };
    Ok(Some(SettingsObject { meta, endpoints: spec.endpoints, job_types, flavors, clusters }))
}

pub(crate) fn quota(object: DynamicObject) -> Result<Option<QuotaObject>, Error> {
    let meta = meta(&object);
    let quota: CacheQuota = whole(object)?;
    let generation = quota.metadata.generation.unwrap_or_default();
    let (checked, status) = (quota.spec.check(), quota.status.unwrap_or_default());
    Ok(Some(QuotaObject { meta, generation, quota: checked, status }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Pod {
        pod(serde_json::from_value(value).unwrap()).unwrap().expect("of interest")
    }

    fn bound() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": "team-a", "name": "train-worker-0-1", "labels": {"larder.dev/job": "train"},
                "ownerReferences": [{"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "u",
                    "controller": true}],
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]},
        })
    }

    #[test]
    fn a_bound_pod_uses_its_room_even_if_a_field_cannot_be_read() {
        let whole = read(bound());
        assert_eq!((whole.node.as_str(), whole.requests.get("cpu")), ("n1", 2_000));
        let mut odd = bound();
        odd["spec"]["containers"][0]["livenessProbe"] = "of a newer release".into();
        odd["status"] = json!({"startTime": 7});
        assert_eq!(read(odd), whole);
    }

    #[test]
    fn how_the_programs_of_a_jobs_pod_ended_is_read_of_its_first_container_first() {
        let of = |phase: &str, statuses: Value| {
            let mut pod = bound();
            pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "aside"}));
            pod["status"] = json!({"phase": phase, "containerStatuses": statuses});
            read(pod).of_job.expect("of a job")
        };
        let ended = |code: i32, message: &str| json!({"terminated": {"exitCode": code, "message": message}});
        let both =
            |aside: Value, main: Value| json!([{"name": "aside", "state": aside}, {"name": "main", "state": main}]);
        assert_eq!(of("Failed", both(ended(2, ""), ended(137, ""))).exit_code, Some(137));
        assert_eq!(of("Failed", both(ended(2, ""), ended(0, ""))).exit_code, Some(2));
        assert_eq!(of("Failed", both(ended(0, ""), ended(-1, ""))).exit_code, Some(255), "of Windows");
        assert_eq!(of("Running", json!([])).exit_code, None);
        let again = json!([{"name": "main", "restartCount": 2, "state": {"running": {}}, "lastState": ended(3, "")}]);
        let again = of("Running", again);
        assert_eq!((again.exit_code, again.restarts), (Some(3), 2));
        let mut sidecar = bound();
        sidecar["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}, {"name": "prepare"}]);
        let restarted = ["proxy", "prepare"].map(|name| json!({"name": name, "restartCount": 3}));
        sidecar["status"] = json!({"phase": "Running", "initContainerStatuses": restarted});
        assert_eq!(read(sidecar).of_job.expect("of a job").restarts, 3, "sidecars restart anyway");
        let result = |phase, message| of(phase, both(ended(0, "1"), ended(0, message))).result;
        assert_eq!(result("Succeeded", " -0.25e-3\n").as_deref(), Some("-0.25e-3"));
        assert_eq!(result("Failed", "1").as_deref(), None);
        for message in ["", "good", "inf", "nan", "1 2", &"1".repeat(33)] {
            assert_eq!(result("Succeeded", message), None, "{message}");
        }
    }

    #[test]
    fn of_a_pod_in_a_queue_it_is_read_when_it_got_its_node_and_whether_it_has_claims() {
        let times = |conditions: Value, claims: Value| {
            let metadata = json!({"namespace": "team-a", "name": "p", "labels": {"larder.dev/queue": "red"},
                "creationTimestamp": "1970-01-01T00:00:10Z"});
            let spec = json!({"containers": [], "resourceClaims": claims});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
                "status": {"conditions": conditions}});
            let queued = read(pod).queued.expect("in a queue");
            (queued.bound_at, queued.has_claims)
        };
        let scheduled =
            json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}]);
        assert_eq!(times(json!([]), json!([])), (Seconds(10), false));
        assert_eq!(times(scheduled, json!([{"name": "gpu", "resourceClaimName": "gpu"}])), (Seconds(60), true));
    }

    #[test]
    fn the_job_of_a_pod_is_its_controller_and_not_the_one_that_its_labels_name() {
        let job_of = |owner: Value| {
            let labels = json!({"larder.dev/dataset-uid": "u", "batch.kubernetes.io/job-name": "larder-import-pets"});
            let metadata = json!({"namespace": "team-a", "name": "p", "labels": labels, "ownerReferences": [owner]});
            read(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}})).job
        };
        let owner = |api_version: &str, controller: bool| {
            json!({"apiVersion": api_version, "kind": "Job", "name": "larder-import-pets", "uid": "j",
                "controller": controller})
        };
        assert_eq!(job_of(owner("batch/v1", true)), "j");
        assert_eq!(job_of(owner("batch/v1", false)), "");
        assert_eq!(job_of(owner("batch.volcano.sh/v1alpha1", true)), "");
    }

    #[test]
    fn a_pod_of_a_stranger_with_the_kind_and_name_of_a_job_does_not_belong_to_the_job() {
        assert!(read(bound()).of_job.is_some());
        for (field, value) in [("apiVersion", json!("kubeflow.org/v1")), ("controller", Value::Null)] {
            let mut strange = bound();
            strange["metadata"]["ownerReferences"][0][field] = value;
            assert_eq!(read(strange).of_job, None, "{field}");
        }
    }

    #[test]
    fn a_pod_belongs_to_the_job_in_its_labels_whoever_owns_it() {
        let job_of = |uid: Option<&str>, owner: Option<&str>| {
            let mut pod = bound();
            if let Some(uid) = uid {
                pod["metadata"]["labels"]["larder.dev/job-uid"] = uid.into();
            }
            match owner {
                Some(owner) => pod["metadata"]["ownerReferences"][0]["uid"] = owner.into(),
                None => pod["metadata"]["ownerReferences"] = json!([]),
            }
            read(pod).of_job.map(|of_job| (of_job.uid, of_job.is_orphan))
        };
        assert_eq!(job_of(Some("u"), Some("u")), Some(("u".to_owned(), false)));
        assert_eq!(job_of(Some("u"), None), Some(("u".to_owned(), true)));
        assert_eq!(job_of(Some("u"), Some("other")), Some(("u".to_owned(), true)));
        // A pod of an earlier version has its job as owner alone.
        assert_eq!(job_of(None, Some("u")), Some(("u".to_owned(), false)));
        assert_eq!(job_of(None, None), None);
    }
}
