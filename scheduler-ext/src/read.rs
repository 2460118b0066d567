//! From objects as the API serves them to what is kept of them. Whatever of an object cannot be read counts as absent: no object
//! that a tenant writes may stop the answers about others.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_api::names::{
    CORDON_ANNOTATION, CSI_DRIVER, DATASET_ANNOTATION, DATASETS_ANNOTATION, DatasetKey, JOB_INDEX_LABEL, JOB_LABEL,
    JOB_ROLE_LABEL, LARDERD_ACCOUNT, PINNED_ANNOTATION, SYSTEM_NAMESPACE, UID_LABEL,
};
use larder_api::{DatasetSpec, DatasetStatus, NodeCacheSpec, NodeCacheStatus, Phase};
use larder_dataset::{Placement, SnapshotId};
use larder_kube::api::DynamicObject;
use larder_kube::pod::requests::{PodResources, amounts};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Settings;
use crate::constraints::Constraints;
use crate::index::facts::{
    CacheFacts, DatasetFacts, Held, JobFacts, Name, NodeFacts, Nomination, PodFacts, Read, Seat, VolumeFacts,
};
use crate::index::{Facts, Kind, Object};

/// A name with its namespace, if it has one.
pub fn name_of(namespace: &str, name: &str) -> Name {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() }
}

/// The name of an object with its namespace, if it has one.
pub fn key(object: &DynamicObject) -> Name {
    let meta = &object.metadata;
    name_of(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Reads an object; `None` if it is of no interest.
pub fn object(kind: Kind, settings: &Settings, mut object: DynamicObject) -> Option<Object> {
    let version = object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default();
    let key = key(&object);
    let data = std::mem::take(&mut object.data);
    let facts = match kind {
        Kind::Node => Facts::Node(node(settings, &object, data)),
        Kind::Pod => pod(settings, &object, data)?,
        Kind::Volume => Facts::Volume(volume(&object, data)?),
        Kind::Cache => Facts::Cache(cache(&object, data)),
        Kind::Dataset => Facts::Dataset(dataset(&object, data)),
        Kind::Job => Facts::Job(job(&object, data)),
    };
    Some(Object { key, version, facts })
}

/// A part of an object; as if it were empty if it cannot be read.
fn part<T: DeserializeOwned + Default>(data: &mut Value, name: &str) -> T {
    data.get_mut(name).map(Value::take).and_then(|part| serde_json::from_value(part).ok()).unwrap_or_default()
}

fn label<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn uid(object: &DynamicObject) -> Name {
    object.metadata.uid.as_deref().unwrap_or_default().into()
}

fn node(settings: &Settings, object: &DynamicObject, mut data: Value) -> NodeFacts {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        allocatable: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    }
    let place = |key: &str| label(object, key).unwrap_or_default().into();
    let status: Status = part(&mut data, "status");
    let all = amounts(&status.allocatable);
    let devices = settings.devices.iter().map(|device| u32::try_from(all.get(&device.resource)).unwrap_or(u32::MAX));
    NodeFacts { zone: place(&settings.topology.zone), rack: place(&settings.topology.rack), devices: devices.collect() }
}

fn cache(object: &DynamicObject, mut data: Value) -> CacheFacts {
    let spec: NodeCacheSpec = part(&mut data, "spec");
    let status: NodeCacheStatus = part(&mut data, "status");
    let mut held: BTreeMap<[u8; 32], Held> = BTreeMap::new();
    for here in status.snapshots {
        let Ok(snapshot) = here.snapshot.parse::<SnapshotId>() else { continue };
        let (bytes, wanted, comes) = (here.bytes, here.wanted_bytes, here.mounts > 0);
        held.insert(snapshot.0, Held { snapshot, bytes, wanted, comes });
    }
    for promise in spec.datasets {
        let Ok(snapshot) = promise.snapshot.parse::<SnapshotId>() else { continue };
        let none = Held { snapshot, bytes: 0, wanted: 0, comes: true };
        held.entry(snapshot.0).or_insert(none).comes = true;
    }
    CacheFacts { held: held.into_values().collect(), cordon: annotation(object, CORDON_ANNOTATION).map(Name::from) }
}

fn dataset(object: &DynamicObject, mut data: Value) -> DatasetFacts {
    let spec: DatasetSpec = part(&mut data, "spec");
    let status: DatasetStatus = part(&mut data, "status");
    let placement = spec.cache.placement.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default();
    DatasetFacts {
        uid: uid(object),
        snapshot: status.snapshot.and_then(|text| text.parse().ok()),
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

fn volume(object: &DynamicObject, mut data: Value) -> Option<VolumeFacts> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        claim_ref: Reference,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Reference {
        namespace: String,
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        phase: String,
    }
    let uid = label(object, UID_LABEL)?.into();
    let dataset: DatasetKey = annotation(object, DATASET_ANNOTATION)?.parse().ok()?;
    let Spec { claim_ref: Reference { namespace, name } } = part(&mut data, "spec");
    let Status { phase } = part(&mut data, "status");
    // One that its claim has let go of, or that is being deleted, leads nowhere: another one may be the claim's.
    if object.metadata.deletion_timestamp.is_some() || ["Released", "Failed"].contains(&phase.as_str()) {
        return None;
    }
    Some(VolumeFacts { claim: format!("{namespace}/{name}").into(), dataset: dataset.to_string().into(), uid })
}

fn job(object: &DynamicObject, mut data: Value) -> JobFacts {
    // No more of it is needed than a few numbers; the templates are large.
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
    let (spec, status): (Spec, Status) = (part(&mut data, "spec"), part(&mut data, "status"));
    let waits = [Phase::Queued, Phase::DataWarming, Phase::Starting];
    JobFacts {
        uid: uid(object),
        floors: spec.roles.iter().map(|role| (role.name.as_str().into(), role.min.unwrap_or(role.replicas))).collect(),
        waits: status.phase.is_some_and(|phase| waits.contains(&phase)),
        leaving: object.metadata.deletion_timestamp.is_some(),
    }
}

/// The volumes of a pod, as far as they lead to datasets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolume {
    persistent_volume_claim: Option<ClaimFields>,
    csi: Option<CsiFields>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimFields {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CsiFields {
    driver: String,
    volume_attributes: BTreeMap<String, String>,
}

/// The most volumes and names of datasets that a pod may have. All that is kept of a pod is bounded: its author may write 256 KiB of
/// annotations.
pub const MOST_READS: usize = 256;

/// What a pod of `namespace` reads: by its claims, by its inline volumes, and by the value of `larder.dev/datasets`. Of a name that
/// no dataset can have, the text.
pub fn reads(namespace: &str, volumes: &[PodVolume], named: Option<&str>) -> Result<Vec<Read>, String> {
    let names = || named.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    if volumes.len().saturating_add(names().take(MOST_READS + 1).count()) > MOST_READS {
        return Err(format!("the pod has more than {MOST_READS} volumes and names of datasets"));
    }
    let mut reads = Vec::new();
    for volume in volumes {
        if let Some(claim) = &volume.persistent_volume_claim {
            reads.push(Read::Claim(format!("{namespace}/{}", claim.claim_name).into()));
        }
        let csi = volume.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER);
        if let Some(name) = csi.and_then(|csi| csi.volume_attributes.get("dataset")) {
            // An inline volume names a dataset of the administrator's, or one with its namespace.
            let key = DatasetKey::within(SYSTEM_NAMESPACE, name).map_err(|error| error.to_string())?;
            reads.push(Read::Dataset(key.to_string().into()));
        }
    }
    for name in names() {
        let key = DatasetKey::within(namespace, name).map_err(|error| error.to_string())?;
        reads.push(Read::Dataset(key.to_string().into()));
    }
    reads.sort();
    reads.dedup();
    Ok(reads)
}

/// The group of a pod: those of its namespace with the same value of the first label that it has.
pub fn group<'a>(settings: &Settings, namespace: &str, label: impl Fn(&str) -> Option<&'a str>) -> Option<Name> {
    let find = |key: &String| Some(format!("{namespace}/{key}={}", label(key)?).into());
    settings.group_labels.iter().find_map(find)
}

fn pod(settings: &Settings, object: &DynamicObject, mut data: Value) -> Option<Facts> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_name: String,
        priority: i32,
        service_account_name: String,
        volumes: Vec<PodVolume>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Status {
        phase: String,
        conditions: Vec<Condition>,
        nominated_node_name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Condition {
        r#type: String,
        status: String,
    }
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let whole = data.get("spec").unwrap_or(&Value::Null);
    let resources = PodResources::deserialize(whole).unwrap_or_default();
    let constraints = Constraints::deserialize(whole).unwrap_or_default();
    let (spec, status): (Spec, Status) = (part(&mut data, "spec"), part(&mut data, "status"));
    if ["Succeeded", "Failed"].contains(&status.phase.as_str()) {
        return None;
    }
    if spec.node_name.is_empty() {
        let node = Name::from(status.nominated_node_name);
        return (!node.is_empty()).then(|| Facts::Nominated(Nomination { uid: uid(object), node }));
    }
    let has = |kind: &str| status.conditions.iter().any(|there| there.r#type == kind && there.status == "True");
    let is_larderd = namespace == SYSTEM_NAMESPACE && spec.service_account_name == LARDERD_ACCOUNT;
    let reads = reads(namespace, &spec.volumes, annotation(object, DATASETS_ANNOTATION)).unwrap_or_default();
    Some(Facts::Pod(PodFacts {
        key: key(object),
        uid: uid(object),
        node: spec.node_name.into(),
        priority: spec.priority,
        // The scheduler sets the condition before it deletes its victims.
        leaving: object.metadata.deletion_timestamp.is_some() || has("DisruptionTarget"),
        pinned: annotation(object, PINNED_ANNOTATION) == Some("true"),
        entangled: constraints.any(),
        larderd: is_larderd.then(|| has("Ready")),
        group: group(settings, namespace, |key| label(object, key)),
        seat: seat(object),
        requests: Arc::new(resources.requests()),
        reads: reads.into(),
    }))
}

/// The place of a pod in a TrainingJob. The labels alone are anybody's; the job that owns it is looked up.
fn seat(object: &DynamicObject) -> Option<Seat> {
    let job = label(object, JOB_LABEL)?;
    let owner = object.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    if !owner.api_version.starts_with("larder.dev/") || owner.kind != "TrainingJob" || owner.name != job {
        return None;
    }
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    Some(Seat {
        job: format!("{namespace}/{job}").into(),
        uid: owner.uid.as_str().into(),
        role: label(object, JOB_ROLE_LABEL)?.into(),
        index: label(object, JOB_INDEX_LABEL)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
