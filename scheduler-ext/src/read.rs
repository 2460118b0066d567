//! Reduces API objects to the fields that are kept. A spec or a status that cannot be parsed counts as absent, and of
//! a pod only the fields that cannot be parsed, so no object of a tenant can prevent answers about other objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeSpec, PersistentVolumeStatus, Pod, PodSpec};
use larder_api::names::{
    CORDON_ANNOTATION, DATASET_ANNOTATION, DATASETS_ANNOTATION, DatasetKey, JOB_INDEX_LABEL, JOB_LABEL, JOB_ROLE_LABEL,
    LARDERD_ACCOUNT, PINNED_ANNOTATION, SYSTEM_NAMESPACE, UID_LABEL,
};
use larder_api::{DatasetSpec, DatasetStatus, NodeCacheSpec, NodeCacheStatus, Phase, TrainingJob};
use larder_dataset::{CacheId, CacheKey, Placement};
use larder_kube::api::DynamicObject;
use larder_kube::fields::{Parts, annotation, controller, label, uid, version};
use larder_kube::key::Key;
use larder_kube::node::Node;
use larder_kube::pod::requests::requests;
use larder_kube::pod::{self, DataVolume, data_volumes};
use serde::Deserialize;
use tracing::warn;

use crate::config::Settings;
use crate::constraints::has_constraints;
use crate::index::facts::{
    CacheFacts, DatasetFacts, Held, JobFacts, Name, NodeFacts, Nomination, PodFacts, Read, Seat, VolumeFacts,
};
use crate::index::{Facts, Kind, Object};

/// Parses an object; `None` if it does not matter.
pub fn object(kind: Kind, settings: &Settings, mut object: DynamicObject) -> Option<Object> {
    object.metadata.managed_fields = None;
    let (version, key) = (version(&object), Key::of(&object).to_string().into());
    let facts = match kind {
        Kind::Node => Facts::Node(node(settings, object)),
        Kind::Pod => pod(settings, object)?,
        Kind::Volume => Facts::Volume(volume(object)?),
        Kind::NodeCache => Facts::Cache(cache(object)),
        Kind::Dataset => Facts::Dataset(dataset(object)),
        Kind::TrainingJob => Facts::Job(job(object)),
        _ => return None,
    };
    Some(Object { key, version, facts })
}

fn node(settings: &Settings, object: DynamicObject) -> NodeFacts {
    let node = Node::read_leniently(object);
    let place = |key: &String| node.labels.get(key).map(String::as_str).unwrap_or_default().into();
    let count = |resource: &str| u32::try_from(node.allocatable.get(resource)).unwrap_or(u32::MAX);
    NodeFacts {
        zone: place(&settings.topology.zone),
        rack: place(&settings.topology.rack),
        devices: settings.devices.iter().map(|device| count(&device.resource)).collect(),
    }
}

fn cache(object: DynamicObject) -> CacheFacts {
    let cordon = annotation(&object, CORDON_ANNOTATION).map(Name::from);
    let Parts { spec, status } = Parts::<NodeCacheSpec, NodeCacheStatus>::read_leniently(object.data);
    let mut held: BTreeMap<CacheId, Held> = BTreeMap::new();
    for here in status.unwrap_or_default().snapshots {
        let Some(cache) = cache_of(&here.snapshot, &here.owner) else { continue };
        let (bytes, wanted, comes) = (here.bytes, here.wanted_bytes, here.mounts > 0);
        held.insert(cache, Held { cache, bytes, wanted, comes });
    }
    for promise in spec.unwrap_or_default().datasets {
        let Some(cache) = cache_of(&promise.snapshot, &promise.owner) else { continue };
        held.entry(cache).or_insert(Held { cache, bytes: 0, wanted: 0, comes: true }).comes = true;
    }
    CacheFacts { held: held.into_values().collect(), cordon }
}

/// An id for the bytes of a snapshot that are cached for an owner, wherever they are read from.
fn cache_of(snapshot: &str, owner: &str) -> Option<CacheId> {
    Some(CacheKey::new(snapshot.parse().ok()?, "", owner).id())
}

fn dataset(object: DynamicObject) -> DatasetFacts {
    let (namespace, uid) = (Key::of(&object).namespace, uid(&object).to_owned());
    let Parts { spec, status } = Parts::<DatasetSpec, DatasetStatus>::read_leniently(object.data);
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let placement = spec.cache.placement.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default();
    DatasetFacts {
        cache: status.snapshot.and_then(|text| cache_of(&text, spec.origin.cache_owner(&namespace, &uid))),
        uid: uid.into(),
        bytes: status.bytes.unwrap_or_default(),
        copies: match placement {
            Placement::Local => None,
            Placement::Partitioned => Some(1),
            Placement::Replicated(copies) => Some(copies.get()),
        },
        is_folder: spec.origin.source.starts_with("file://"),
        namespaces: spec.namespaces.iter().map(|name| name.as_str().into()).collect(),
    }
}

fn volume(object: DynamicObject) -> Option<VolumeFacts> {
    let uid = label(&object, UID_LABEL)?.into();
    let dataset: DatasetKey = annotation(&object, DATASET_ANNOTATION)?.parse().ok()?;
    let leaving = object.metadata.deletion_timestamp.is_some();
    let Parts { spec, status } = Parts::<PersistentVolumeSpec, PersistentVolumeStatus>::read_leniently(object.data);
    let phase = status.and_then(|status| status.phase).unwrap_or_default();
    // This volume was released or is being deleted, so the claim may have another volume by now.
    if leaving || ["Released", "Failed"].contains(&phase.as_str()) {
        return None;
    }
    let claim = spec.and_then(|spec| spec.claim_ref).unwrap_or_default();
    let claim = Key::new(&claim.namespace.unwrap_or_default(), &claim.name.unwrap_or_default());
    Some(VolumeFacts { claim: claim.to_string().into(), dataset: dataset.to_string().into(), uid })
}

fn job(object: DynamicObject) -> JobFacts {
    // Only a few numbers of a TrainingJob are needed, and its templates are large.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        roles: Vec<Role>,
    }
    #[derive(Deserialize)]
    struct Role {
        name: String,
        #[serde(default = "one")]
        replicas: u32,
        #[serde(default)]
        min: Option<u32>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        phase: Option<Phase>,
    }
    fn one() -> u32 {
        1
    }
    let (uid, leaving) = (uid(&object).into(), object.metadata.deletion_timestamp.is_some());
    let Parts { spec, status } = Parts::<Spec, Status>::read_leniently(object.data);
    let waits = [Phase::Queued, Phase::DataWarming, Phase::Starting];
    let floors = spec.unwrap_or_default().roles.into_iter();
    JobFacts {
        uid,
        floors: floors.map(|role| (role.name.as_str().into(), role.min.unwrap_or(role.replicas))).collect(),
        waits: status.and_then(|status| status.phase).is_some_and(|phase| waits.contains(&phase)),
        leaving,
    }
}

/// The most volumes and dataset names of a pod. The limit bounds the memory per pod, because its author may write 256
/// KiB of annotations.
pub const MOST_READS: usize = 256;

/// The datasets that a pod of `namespace` reads: through its claims, its inline volumes, and the value of
/// `larder.dev/datasets`.
///
/// # Errors
/// A text is not a valid dataset name, or there are too many.
pub fn reads(namespace: &str, spec: &PodSpec, named: Option<&str>) -> Result<Vec<Read>, String> {
    let names = || named.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let volumes = spec.volumes.as_ref().map_or(0, Vec::len);
    if volumes.saturating_add(names().take(MOST_READS + 1).count()) > MOST_READS {
        return Err(format!("the pod has more than {MOST_READS} volumes and names of datasets"));
    }
    let dataset = |namespace: &str, name: &str| {
        let key = DatasetKey::within(namespace, name).map_err(|error| error.to_string())?;
        Ok::<_, String>(Read::Dataset(key.to_string().into()))
    };
    let mut reads = Vec::new();
    for volume in data_volumes(spec) {
        reads.push(match volume {
            DataVolume::Claim(claim) => Read::Claim(format!("{namespace}/{claim}").into()),
            // An inline volume names an administrator's dataset, or another dataset with its namespace.
            DataVolume::Inline(name) => dataset(SYSTEM_NAMESPACE, name)?,
        });
    }
    for name in names() {
        reads.push(dataset(namespace, name)?);
    }
    reads.sort();
    reads.dedup();
    Ok(reads)
}

/// The group of a pod: the pods of its namespace with the same value of the first group label that the pod has.
pub fn group<'a>(settings: &Settings, namespace: &str, label: impl Fn(&str) -> Option<&'a str>) -> Option<Name> {
    let find = |key: &String| Some(format!("{namespace}/{key}={}", label(key)?).into());
    settings.group_labels.iter().find_map(find)
}

/// Reads a pod.
fn pod(settings: &Settings, object: DynamicObject) -> Option<Facts> {
    let (pod, unread) = pod::read(object);
    let pod = &pod;
    if pod::has_ended(pod) {
        return None;
    }
    let (uid, node) = (uid(pod).into(), pod::node(pod));
    if node.is_empty() {
        let node = Name::from(pod::nominated_node(pod));
        return (!node.is_empty()).then_some(Facts::Nominated(Nomination { uid, node }));
    }
    // A pod that has a node has a spec.
    let spec = pod.spec.as_ref()?;
    let is_true = |kind: &str| pod::condition(pod, kind, "True").is_some();
    let key = Key::of(pod);
    let namespace = key.namespace.as_str();
    if let Some(error) = &unread {
        warn!(pod = %key, %error, "a field of the pod cannot be read and is left out");
    }
    let is_larderd = namespace == SYSTEM_NAMESPACE && spec.service_account_name.as_deref() == Some(LARDERD_ACCOUNT);
    Some(Facts::Pod(PodFacts {
        uid,
        node: node.into(),
        priority: spec.priority.unwrap_or_default(),
        // The scheduler sets the condition before it deletes its victims.
        leaving: pod.metadata.deletion_timestamp.is_some() || is_true("DisruptionTarget"),
        pinned: annotation(pod, PINNED_ANNOTATION) == Some("true"),
        // What could not be read may be a constraint.
        entangled: unread.is_some() || has_constraints(spec),
        larderd: is_larderd.then(|| is_true("Ready")),
        group: group(settings, namespace, |key| label(pod, key)),
        seat: seat(pod, namespace),
        requests: Arc::new(requests(spec)),
        reads: reads(namespace, spec, annotation(pod, DATASETS_ANNOTATION)).unwrap_or_default().into(),
        key: key.to_string().into(),
    }))
}

/// The position of a pod in a TrainingJob. Any user can write the labels, so the job must own the pod, too. Whether
/// this job exists is checked when the position is used.
fn seat(pod: &Pod, namespace: &str) -> Option<Seat> {
    let job = label(pod, JOB_LABEL)?;
    let owner = controller::<TrainingJob>(pod).filter(|owner| owner.name == job)?;
    Some(Seat {
        job: format!("{namespace}/{job}").into(),
        uid: owner.uid.as_str().into(),
        role: label(pod, JOB_ROLE_LABEL)?.into(),
        index: label(pod, JOB_INDEX_LABEL)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
