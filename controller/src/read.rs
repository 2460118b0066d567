//! From an object as the API serves it to the few fields that are kept.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::names::{
    CSI_DRIVER, DATASET_ANNOTATION, DEVICE_FAULT_CONDITION, ENDPOINTS_CONFIG_MAP, ENDPOINTS_KEY, FOLLOW_ANNOTATION,
    JOB_TYPES_CONFIG_MAP, JOB_TYPES_KEY, NODE_LABEL, REGISTRY_CONFIG_MAP, REGISTRY_KEY, ROLE_LABEL,
    SNAPSHOT_ANNOTATION, STORAGE_CLASS, UID_LABEL,
};
use larder_api::{Dataset, NodeCache};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use crate::jobs::objects::ObjectOfJobs;
use crate::jobs::read as job_read;
use crate::kueue::objects::KueueObject;
use crate::kueue::read;
use crate::objects::{
    CacheObject, Claim, ConfigMap, DESCRIPTION_ANNOTATION, DatasetObject, Deployment, Job, JobEnd, Key, Meta, Node,
    Pod, Role, Taint, Terminated, Volume, Waiting,
};
use larder_kube::fields::{ConditionFields, annotation, fields, has_condition, label, meta, seconds, whole};
use larder_kube::kinds::Kind;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::requests::{PodResources, amounts};

/// An object of any kind.
#[derive(Debug)]
pub enum Object {
    /// A Dataset.
    Dataset(Box<DatasetObject>),
    /// A NodeCache.
    NodeCache(Box<CacheObject>),
    /// A node.
    Node(Node),
    /// A pod.
    Pod(Box<Pod>),
    /// A job of ours.
    Job(Job),
    /// A volume of ours.
    Volume(Volume),
    /// A claim of our class.
    Claim(Claim),
    /// A Deployment that follows a dataset.
    Deployment(Deployment),
    /// One of the two ConfigMaps that the controller reads.
    ConfigMap(ConfigMap),
    /// An object of Kueue.
    Kueue(KueueObject),
    /// An object that training jobs depend on.
    OfJobs(ObjectOfJobs),
}

/// An object that cannot be read. It is counted; of a Dataset, what belongs to it stays.
#[derive(Debug)]
pub struct Unreadable {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub key: Key,
    /// Its uid.
    pub uid: String,
    /// The error.
    pub why: String,
}

impl Object {
    /// Reads an object; `None` if it is of no interest.
    pub fn read(kind: Kind, mut object: DynamicObject) -> Result<Option<Self>, Unreadable> {
        let key = Key::of(&object);
        object.metadata.managed_fields = None;
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let unreadable = |error: serde_json::Error| {
            let (key, uid) = (key.clone(), uid.clone());
            Unreadable { kind, key, uid, why: error.to_string() }
        };
        Ok(match kind {
            Kind::Dataset => {
                let meta = meta(&object);
                let dataset: Dataset = whole(object).map_err(unreadable)?;
                Some(Self::Dataset(Box::new(DatasetObject { meta, dataset })))
            }
            Kind::NodeCache => {
                let meta = meta(&object);
                let cache: NodeCache = whole(object).map_err(unreadable)?;
                let generation = cache.metadata.generation.unwrap_or_default();
                Some(Self::NodeCache(Box::new(CacheObject {
                    meta,
                    generation,
                    spec: cache.spec,
                    status: cache.status,
                })))
            }
            Kind::Node => Some(Self::Node(node(object).map_err(unreadable)?)),
            Kind::Pod => pod(object).map_err(unreadable)?.map(Box::new).map(Self::Pod),
            Kind::Job => job(object).map_err(unreadable)?.map(Self::Job),
            Kind::Volume => volume(object).map_err(unreadable)?.map(Self::Volume),
            Kind::Claim => claim(object).map_err(unreadable)?.map(Self::Claim),
            Kind::Deployment => deployment(object),
            Kind::ConfigMap => config_map(object),
            Kind::Event | Kind::Service | Kind::Secret => None,
            Kind::TrainingJob | Kind::JobType | Kind::JobQueue | Kind::PriorityClass | Kind::PodGroup => {
                job_read::object(kind, object).map_err(unreadable)?.map(Self::OfJobs)
            }
            Kind::Kueue(kind, _) => read::object(kind, object).map_err(unreadable)?.map(Self::Kueue),
        })
    }
}

fn role(object: &DynamicObject) -> Option<Role> {
    let uid = label(object, UID_LABEL)?;
    Some(Role {
        uid,
        role: label(object, ROLE_LABEL).unwrap_or_default(),
        node: label(object, NODE_LABEL).unwrap_or_default(),
    })
}

fn node(object: DynamicObject) -> Result<Node, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        unschedulable: bool,
        taints: Vec<Taint>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        conditions: Vec<ConditionFields>,
        allocatable: BTreeMap<String, Quantity>,
    }
    let meta = meta(&object);
    let labels: BTreeMap<String, String> = object.metadata.labels.unwrap_or_default().into_iter().collect();
    let Fields { spec, status } = fields(object.data)?;
    let ready = has_condition(&status.conditions, "Ready");
    let told = status.conditions.iter().find(|condition| condition.kind == "Ready");
    let unready_since = told.map_or(meta.created, |told| seconds(&told.last_transition_time));
    let device_fault = status.conditions.iter().find(|condition| condition.kind == DEVICE_FAULT_CONDITION);
    Ok(Node {
        meta,
        labels,
        ready,
        unschedulable: spec.unschedulable,
        taints: spec.taints,
        allocatable: amounts(&status.allocatable),
        unready_since: (!ready).then_some(unready_since),
        device_fault: device_fault.map(|condition| condition.status == "True"),
    })
}

fn pod(object: DynamicObject) -> Result<Option<Pod>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_name: String,
        volumes: Vec<VolumeFields>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct VolumeFields {
        persistent_volume_claim: Option<ClaimFields>,
        csi: Option<CsiFields>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ClaimFields {
        claim_name: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct CsiFields {
        driver: String,
        #[serde(default)]
        volume_attributes: BTreeMap<String, String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Status {
        phase: String,
        conditions: Vec<ConditionFields>,
        container_statuses: Vec<ContainerFields>,
        nominated_node_name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct ContainerFields {
        state: StateFields,
        last_state: StateFields,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct StateFields {
        waiting: Option<WaitingFields>,
        running: Option<Value>,
        terminated: Option<TerminatedFields>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct WaitingFields {
        reason: String,
        message: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct TerminatedFields {
        exit_code: i32,
        reason: String,
        message: String,
    }
    let (meta, role) = (meta(&object), role(&object));
    let job = label(&object, "batch.kubernetes.io/job-name").unwrap_or_default();
    let resources = PodResources::deserialize(object.data.get("spec").unwrap_or(&Value::Null)).unwrap_or_default();
    let of_job = job_read::pod(&object, &resources)?;
    let Fields { spec, status } = fields(object.data)?;
    let mut claims = Vec::new();
    let mut inline = Vec::new();
    for volume in spec.volumes {
        claims.extend(volume.persistent_volume_claim.map(|claim| claim.claim_name));
        let csi = volume.csi.filter(|csi| csi.driver == CSI_DRIVER);
        inline.extend(csi.and_then(|mut csi| csi.volume_attributes.remove("dataset")));
    }
    let ended = ["Succeeded", "Failed"].contains(&status.phase.as_str());
    let nominated = if spec.node_name.is_empty() { status.nominated_node_name } else { String::new() };
    let has_node = !spec.node_name.is_empty() || !nominated.is_empty();
    let has_room = has_node && !ended;
    if role.is_none() && claims.is_empty() && inline.is_empty() && of_job.is_none() && !has_room {
        return Ok(None);
    }
    let ours = role.is_some();
    let ContainerFields { state, last_state } = status.container_statuses.into_iter().next().unwrap_or_default();
    let unscheduled = status
        .conditions
        .into_iter()
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False")
        .map(|condition| Waiting { reason: condition.reason, message: condition.message });
    // Only of our own pods is it known what their words mean.
    let runs = ours && state.running.is_some();
    let waiting = state.waiting.map(|waiting| Waiting { reason: waiting.reason, message: waiting.message });
    let terminated = state.terminated.or(last_state.terminated).map(|end| Terminated {
        exit_code: end.exit_code,
        reason: end.reason,
        message: end.message,
    });
    Ok(Some(Pod {
        meta,
        role,
        job,
        node: spec.node_name,
        nominated,
        ended,
        claims,
        inline,
        runs,
        waiting: waiting.or(unscheduled).filter(|_| ours),
        terminated: terminated.filter(|_| ours),
        requests: if has_room { resources.requests() } else { Amounts::default() },
        of_job,
    }))
}

fn job(object: DynamicObject) -> Result<Option<Job>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        conditions: Vec<ConditionFields>,
    }
    let Some(role) = role(&object) else { return Ok(None) };
    let meta = meta(&object);
    let Fields { status } = fields(object.data)?;
    let end = status
        .conditions
        .into_iter()
        .find(|condition| ["Complete", "Failed"].contains(&condition.kind.as_str()) && condition.status == "True");
    let end = end.map(|condition| JobEnd {
        failed: condition.kind == "Failed",
        at: seconds(&condition.last_transition_time),
        why: condition.message,
    });
    Ok(Some(Job { meta, role, end }))
}

fn volume(object: DynamicObject) -> Result<Option<Volume>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        claim_ref: Option<Reference>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Reference {
        namespace: String,
        name: String,
        uid: String,
    }
    let Some(role) = role(&object) else { return Ok(None) };
    let meta = meta(&object);
    let description = annotation(&object, DESCRIPTION_ANNOTATION).unwrap_or_default();
    let Fields { spec } = fields(object.data)?;
    let reference = spec.claim_ref.unwrap_or_default();
    let claim = Key::new(&reference.namespace, &reference.name);
    Ok(Some(Volume { meta, role, claim, claim_uid: reference.uid, description }))
}

fn claim(object: DynamicObject) -> Result<Option<Claim>, serde_json::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        storage_class_name: Option<String>,
        volume_name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        phase: String,
    }
    let (meta, role) = (meta(&object), role(&object));
    let wants = annotation(&object, DATASET_ANNOTATION);
    let Fields { spec, status } = fields(object.data)?;
    if spec.storage_class_name.as_deref() != Some(STORAGE_CLASS) {
        return Ok(None);
    }
    let bound = status.phase == "Bound";
    Ok(Some(Claim { meta, role, wants, volume: spec.volume_name, bound }))
}

fn deployment(object: DynamicObject) -> Option<Object> {
    let follows = annotation(&object, FOLLOW_ANNOTATION)?;
    let template = object.data.pointer("/spec/template/metadata/annotations");
    let snapshot = template.and_then(|annotations| annotations.get(SNAPSHOT_ANNOTATION)).and_then(Value::as_str);
    let snapshot = snapshot.unwrap_or_default().to_owned();
    Some(Object::Deployment(Deployment { meta: meta(&object), follows, snapshot }))
}

fn config_map(object: DynamicObject) -> Option<Object> {
    let meta = meta(&object);
    let key = match meta.key.name.as_str() {
        ENDPOINTS_CONFIG_MAP => ENDPOINTS_KEY,
        REGISTRY_CONFIG_MAP => REGISTRY_KEY,
        JOB_TYPES_CONFIG_MAP => JOB_TYPES_KEY,
        _ => return None,
    };
    let text = object.data.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
    Some(Object::ConfigMap(ConfigMap { meta, text: text.unwrap_or_default().to_owned() }))
}

impl Object {
    /// Its name.
    pub fn key(&self) -> Key {
        self.meta().key.clone()
    }

    /// Its name and version.
    pub fn meta(&self) -> &Meta {
        match self {
            Self::Dataset(object) => &object.meta,
            Self::NodeCache(object) => &object.meta,
            Self::Node(object) => &object.meta,
            Self::Pod(object) => &object.meta,
            Self::Job(object) => &object.meta,
            Self::Volume(object) => &object.meta,
            Self::Claim(object) => &object.meta,
            Self::Deployment(object) => &object.meta,
            Self::ConfigMap(object) => &object.meta,
            Self::Kueue(object) => object.meta(),
            Self::OfJobs(object) => object.meta(),
        }
    }
}
