//! The claims and volumes through which pods read the dataset.
//!
//! A claim with the dataset's name is created in its namespace. A claim of another namespace is bound if that namespace
//! was granted the dataset. Each volume is created for exactly one claim. Other claims are rejected with a message that
//! does not reveal whether the dataset exists.

use std::collections::BTreeMap;

use larder_api::names::{
    CSI_DRIVER, DATASET_ANNOTATION, ROLE_LABEL, ROLE_VOLUME, ROLE_WARM, STORAGE_CLASS, SYSTEM_NAMESPACE, UID_LABEL,
};
use larder_api::{ConditionKind, Reason};
use serde_json::{Value, json};

use super::status_draft::Draft;
use super::{names, origin, pods};
use crate::datasets::input::{DatasetView, Decision};
use crate::events::write_event;
use crate::objects::{Claim, DESCRIPTION_ANNOTATION, DatasetObject, Job, Key, Volume};
use crate::time::Seconds;
use crate::write::Change;
use larder_kube::events::Severity;
use larder_kube::kinds::Kind;
use larder_kube::short_hash::short_hash;

/// How long the first pod waits for its nodes to be warm.
const FIRST_WAIT_SECONDS: i64 = 600;

/// The capacity of volumes. A claim binds only to a volume at least as large as its request.
const CAPACITY: &str = "1Pi";

/// The storage request of the controller's own claims. It is small so that it does not use up a quota.
const REQUEST: &str = "1Mi";

pub(super) fn step(draft: &mut Draft<'_>) {
    let view = draft.view;
    let own = draft.key().clone();
    refuse_ungranted(view, draft.dataset, &mut draft.decision);
    if !origin::has_moved(&draft.spec, &draft.status) && is_open(draft) {
        let source = origin::current_source(&draft.spec);
        if !replace_if_stale(draft, &own, &source) {
            make(draft, &own, &source, ROLE_VOLUME);
        }
    }
    for claim in &view.claims {
        let key = &claim.meta.key;
        if claim.role.is_some() || claim.meta.deleting || *key == own && claim.volume.is_empty() {
            continue;
        }
        let is_granted = draft.spec.is_granted(&own.namespace, &key.namespace);
        if is_granted && is_imported(draft) {
            let source = origin::current_source(&draft.spec);
            if claim.volume.is_empty() {
                make_volume(draft, key, &source, ROLE_VOLUME);
            } else {
                warn_if_stale(draft, claim, &source);
            }
        }
    }
    drop_volumes(draft);
}

fn is_imported(draft: &Draft<'_>) -> bool {
    if origin::has_moved(&draft.spec, &draft.status) {
        return false;
    }
    // The controller does not know the snapshot of a directory.
    draft.status.snapshot.is_some() || origin::is_folder(&draft.spec) && draft.found(ConditionKind::Imported).is_some()
}

/// True once pods may have the claim: its nodes are warm, cannot become warm for now, or took too long.
fn is_open(draft: &mut Draft<'_>) -> bool {
    let own = draft.key();
    let claim = draft.view.claims.iter().find(|claim| claim.meta.key == *own);
    if claim.is_some_and(|claim| claim.role.is_some()) {
        return true;
    }
    if !is_imported(draft) {
        return false;
    }
    // A user created the claim before: its pods wait only for the import.
    if claim.is_some() {
        return true;
    }
    let is_true = |kind| draft.found(kind).is_some_and(|verdict| verdict.status);
    // Nodes that do not report yet may do so soon. A lack of room may last for days, so it is not waited for.
    let no_room = |reason| {
        let lacks = [Reason::NotEnoughRoom, Reason::LargerThanAnyCache, Reason::CachesLackRoom, Reason::QuotaExceeded];
        lacks.contains(&reason)
    };
    let stuck = draft.found(ConditionKind::Placed).is_some_and(|placed| !placed.status && no_room(placed.reason));
    if is_true(ConditionKind::Warm) || stuck {
        return true;
    }
    let imported = ConditionKind::Imported.find(&draft.status.conditions);
    let since = imported.map_or(draft.view.now, |condition| Seconds::of(&condition.last_transition_time));
    let due = since + FIRST_WAIT_SECONDS;
    if draft.view.now < due {
        draft.decision.again(due);
    }
    draft.view.now >= due
}

/// Creates the claim and the volume through which a snapshot is warmed. Returns false while outdated ones are being
/// deleted: until they are gone, no pod may start to warm.
pub(super) fn make_for_warming(draft: &mut Draft<'_>, claim: &str, snapshot: &str) -> bool {
    if origin::has_moved(&draft.spec, &draft.status) {
        return false;
    }
    let key = Key::new(&draft.key().namespace, claim);
    let by_nodes = draft.status.imported.as_ref().is_some_and(|imported| imported.by_nodes);
    let source =
        if by_nodes { draft.spec.dataset.source.clone() } else { origin::kept_manifest(&draft.spec, snapshot) };
    let name = names::volume(draft.uid(), &key);
    let wanted = description(draft, &source);
    let volume = draft.view.volumes.iter().find(|volume| volume.meta.key.name == name);
    if let Some(volume) = volume.filter(|volume| volume.description != wanted) {
        if !is_used_for_warming(draft, snapshot) {
            take_away(draft, &key, volume);
        }
        return false;
    }
    make(draft, &key, &source, ROLE_WARM);
    true
}

/// True while a pod warms the snapshot. Jobs whose pods do not run are ended, because they may be waiting for a deleted
/// Secret.
fn is_used_for_warming(draft: &mut Draft<'_>, snapshot: &str) -> bool {
    let view = draft.view;
    let job_of = |node: &str| names::warm_job(draft.key(), draft.uid(), snapshot, node);
    let names: Vec<String> = view.nodes.iter().map(|facts| job_of(&facts.node.meta.key.name)).collect();
    let jobs = view.jobs.iter().filter(|job| job.end.is_none() && names.contains(&job.meta.key.name));
    let runs = |job: &&&Job| view.job_pods.iter().any(|pod| pod.runs && pod.is_of(job));
    let (running, stuck): (Vec<&&Job>, Vec<&&Job>) = jobs.partition(runs);
    for job in stuck.into_iter().filter(|job| !job.meta.deleting) {
        let key = &job.meta.key;
        draft.write(Kind::Job, &key.namespace, &key.name, Change::Delete(job.meta.uid.clone()));
    }
    !running.is_empty()
}

/// Deletes a claim of the controller and its volume. Kubernetes may keep either for a while. They are recreated after
/// both are gone.
fn take_away(draft: &mut Draft<'_>, key: &Key, volume: &Volume) {
    let claim = draft.view.claims.iter().find(|claim| claim.meta.key == *key && claim.role.is_some());
    if let Some(claim) = claim.filter(|claim| !claim.meta.deleting) {
        draft.write(Kind::Claim, &key.namespace, &key.name, Change::Delete(claim.meta.uid.clone()));
    }
    if !volume.meta.deleting {
        draft.write(Kind::Volume, "", &volume.meta.key.name, Change::Delete(volume.meta.uid.clone()));
    }
}

fn make(draft: &mut Draft<'_>, key: &Key, source: &str, role: &str) {
    make_volume(draft, key, source, role);
    if draft.view.claims.iter().any(|claim| claim.meta.key == *key) {
        return;
    }
    let labels = labels(draft, role);
    let claim = json!({
        "metadata": {"labels": labels, "ownerReferences": pods::owner(draft.dataset)},
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "volumeName": names::volume(draft.uid(), key),
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": REQUEST}},
        },
    });
    let volume = names::volume(draft.uid(), key);
    draft.write_with((Kind::Volume, &volume), Kind::Claim, key, Change::Create(claim));
}

fn labels(draft: &Draft<'_>, role: &str) -> Value {
    json!({
        "app.kubernetes.io/managed-by": "larder-controller",
        "app.kubernetes.io/part-of": "larder",
        UID_LABEL: draft.uid(),
        ROLE_LABEL: role,
    })
}

fn attributes(draft: &Draft<'_>, source: &str) -> BTreeMap<&'static str, String> {
    let mut attributes = origin::attributes(&draft.spec, source);
    if draft.spec.secret.is_some() {
        // Without this, larderd would read the dataset with its own identity if the Secret contained no keys.
        attributes.insert("identity", "secret".to_owned());
    }
    if draft.key().namespace != SYSTEM_NAMESPACE {
        // Without this, tenants that describe the same data would read it with each other's keys.
        attributes.insert("owner", draft.uid().to_owned());
    }
    if !draft.spec.mirrors.is_empty() {
        // Texts and numbers can always be written as JSON.
        attributes.insert("mirrors", serde_json::to_string(&draft.spec.mirrors).unwrap_or_default());
    }
    attributes
}

fn description(draft: &Draft<'_>, source: &str) -> String {
    let mut parts: Vec<String> =
        attributes(draft, source).iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.extend(draft.spec.secret.iter().map(|secret| format!("secret={secret}")));
    short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn make_volume(draft: &mut Draft<'_>, claim: &Key, source: &str, role: &str) {
    let name = names::volume(draft.uid(), claim);
    if draft.view.volumes.iter().any(|volume| volume.meta.key.name == name) {
        return;
    }
    let mut attributes = attributes(draft, source);
    if claim.namespace != draft.key().namespace {
        // The quota that counts the room is the one of the dataset's namespace, which is the default only for pods in
        // it. It is no part of the description: claims of other namespaces would have to be recreated for it.
        attributes.insert("datasetNamespace", draft.key().namespace.clone());
    }
    let mut csi = json!({
        "driver": CSI_DRIVER,
        "volumeHandle": name,
        "readOnly": true,
        "volumeAttributes": attributes,
    });
    if let Some(secret) = &draft.spec.secret {
        csi["nodePublishSecretRef"] = json!({"namespace": draft.key().namespace, "name": secret});
    }
    let volume = json!({
        "metadata": {
            "labels": labels(draft, role),
            "annotations": {
                DATASET_ANNOTATION: draft.key().to_string(),
                DESCRIPTION_ANNOTATION: description(draft, source),
            },
        },
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "accessModes": ["ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany"],
            "capacity": {"storage": CAPACITY},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace,
                "name": claim.name,
            },
            "csi": csi,
        },
    });
    draft.write(Kind::Volume, "", &name, Change::Create(volume));
}

/// Volumes are immutable. If the spec has changed, the claim and the volume are recreated as soon as no pod uses them.
fn replace_if_stale(draft: &mut Draft<'_>, own: &Key, source: &str) -> bool {
    let name = names::volume(draft.uid(), own);
    let wanted = description(draft, source);
    let view = draft.view;
    let Some(volume) = view.volumes.iter().find(|volume| volume.meta.key.name == name) else { return false };
    // For a user's claim an Event is written instead: Kubernetes keeps its volume while the claim is bound.
    let is_users = view.claims.iter().any(|claim| claim.meta.key == *own && claim.role.is_none());
    if volume.description == wanted || !view.users.is_empty() || is_users && !volume.claim_uid.is_empty() {
        return false;
    }
    take_away(draft, own, volume);
    true
}

/// Deletes volumes whose claim was deleted, and warming claims of snapshots that are no longer wanted.
fn drop_volumes(draft: &mut Draft<'_>) {
    let view = draft.view;
    let snapshots = draft.status.snapshot.iter().chain(&draft.status.next);
    let warming: Vec<String> =
        snapshots.map(|snapshot| names::warm_claim(draft.key(), draft.uid(), snapshot)).collect();
    for claim in &view.claims {
        let role = claim.role.as_ref().filter(|role| role.role == ROLE_WARM);
        if role.is_some() && !claim.meta.deleting && !warming.contains(&claim.meta.key.name) {
            let key = &claim.meta.key;
            draft.write(Kind::Claim, &key.namespace, &key.name, Change::Delete(claim.meta.uid.clone()));
        }
    }
    for volume in &view.volumes {
        let goes = is_abandoned(volume, &view.claims) || is_for_nobody(draft, volume, &warming);
        if goes && !volume.meta.deleting {
            draft.write(Kind::Volume, "", &volume.meta.key.name, Change::Delete(volume.meta.uid.clone()));
        }
    }
}

/// True if an unbound volume must not be bound: its claim was deleted or may not have it, so the next claim of that
/// name would get it; or it describes an outdated spec.
fn is_for_nobody(draft: &Draft<'_>, volume: &Volume, warming: &[String]) -> bool {
    let own = draft.key();
    if !volume.claim_uid.is_empty() {
        return false;
    }
    if volume.role.role == ROLE_WARM {
        return volume.claim.namespace == own.namespace && !warming.contains(&volume.claim.name);
    }
    let is_there = draft.view.claims.iter().any(|claim| claim.meta.key == volume.claim);
    let is_granted = draft.spec.is_granted(&own.namespace, &volume.claim.namespace);
    let is_stale = || volume.description != description(draft, &origin::current_source(&draft.spec));
    // The controller creates its own claim after the volume, so a missing claim is expected.
    volume.claim != *own && (!is_there || !is_granted || is_stale())
}

/// Warns about a bound claim of another namespace whose volume describes an outdated spec. Only the claim's owner can
/// delete it, and a volume is immutable.
fn warn_if_stale(draft: &mut Draft<'_>, claim: &Claim, source: &str) {
    let view = draft.view;
    let wanted = description(draft, source);
    let volume =
        view.volumes.iter().find(|volume| volume.claim == claim.meta.key && volume.claim_uid == claim.meta.uid);
    if volume.is_none_or(|volume| volume.description == wanted) {
        return;
    }
    let message = format!(
        "the dataset {} has another origin, manifest or Secret since this claim was bound; pods that use it may fail to \
         start: to get the new description, delete the claim and create it again",
        view.key
    );
    event(view, claim, &[&claim.meta.uid, &wanted], "DatasetChanged", &message, &mut draft.decision);
}

/// True if the claim to which a volume was bound no longer exists.
pub(super) fn is_abandoned(volume: &Volume, claims: &[&Claim]) -> bool {
    let claim = claims.iter().find(|claim| claim.meta.key == volume.claim);
    !volume.claim_uid.is_empty() && claim.is_none_or(|claim| claim.meta.uid != volume.claim_uid)
}

/// Rejects the claims of namespaces that may not use the dataset, regardless of the dataset's state. A claim that
/// merely waited would reveal that the dataset exists.
pub(super) fn refuse_ungranted(view: &DatasetView<'_>, dataset: &DatasetObject, decision: &mut Decision) {
    let (own, spec) = (&dataset.meta.key, &dataset.dataset.spec);
    for claim in &view.claims {
        let is_granted = spec.is_granted(&own.namespace, &claim.meta.key.namespace);
        if claim.role.is_none() && !claim.meta.deleting && !is_granted {
            refuse(view, claim, decision);
        }
    }
}

/// Rejects every claim to a dataset that does not exist. Bound claims are exempt: they were granted the dataset before
/// it became unreadable.
pub(super) fn refuse_all(view: &DatasetView<'_>, decision: &mut Decision) {
    for claim in &view.claims {
        if claim.role.is_none() && !claim.meta.deleting && !claim.bound {
            refuse(view, claim, decision);
        }
    }
}

/// Rejects a claim with an Event whose message is the same whether or not the dataset exists.
fn refuse(view: &DatasetView<'_>, claim: &Claim, decision: &mut Decision) {
    let (key, wanted) = (&claim.meta.key, view.key);
    let message = format!(
        "the namespace {} may not use the dataset {wanted}, or it does not exist; ask its owner to list the namespace \
         in spec.namespaces",
        key.namespace
    );
    event(view, claim, &[&claim.meta.uid, &wanted.to_string()], "DatasetRefused", &message, decision);
}

/// Writes an Event about a user's claim, once.
fn event(view: &DatasetView<'_>, claim: &Claim, about: &[&str], reason: &str, message: &str, decision: &mut Decision) {
    let write = write_event(view.now, Kind::Claim, &claim.meta, about, (Severity::Warning, reason, message));
    if !view.emitted.contains(&write.name) {
        decision.writes.push(write);
    }
}
