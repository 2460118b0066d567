//! Claims and volumes: how pods get at the dataset.
//!
//! A claim of the dataset's name is made in its namespace; a claim of another namespace is bound if that namespace was
//! granted the dataset. A volume is made for exactly one claim. Others are refused in words that do not tell whether
//! there is such a dataset.

use std::collections::BTreeMap;

use larder_controller_api::names::{
    CSI_DRIVER, DATASET_ANNOTATION, ROLE_LABEL, ROLE_VOLUME, ROLE_WARM, STORAGE_CLASS, SYSTEM_NAMESPACE, UID_LABEL,
};
use larder_controller_api::{ConditionKind, Reason};
use serde_json::{Value, json};

use super::draft::Draft;
use super::{names, origin, pods};
use crate::kinds::Kind;
use crate::objects::{Claim, DESCRIPTION_ANNOTATION, Key, Volume};
use crate::world::{Decision, World};
use crate::write::{Change, Write};

/// The longest that a first pod waits for its nodes to be warm.
const FIRST_WAIT_SECONDS: i64 = 600;

/// A claim binds only to a volume that is at least as large as it asks for. A dataset takes no room of the claim's.
const CAPACITY: &str = "1Pi";

/// The storage request of the controller's own claims: they must not use up a quota.
const REQUEST: &str = "1Mi";

pub(super) fn step(draft: &mut Draft<'_>) {
    let world = draft.world;
    let own = draft.key().clone();
    if is_open(draft) {
        let source = origin::current_source(&draft.spec);
        if replace_if_stale(draft, &own, &source) {
            return;
        }
        make(draft, &own, &source, ROLE_VOLUME);
    }
    for claim in &world.claims {
        let key = &claim.meta.key;
        if claim.role.is_some() || *key == own || claim.meta.deleting {
            continue;
        }
        if !draft.spec.is_granted(&own.namespace, &key.namespace) {
            refuse(world, claim, &mut draft.decision);
        } else if is_imported(draft) && claim.volume.is_empty() {
            let source = origin::current_source(&draft.spec);
            make_volume(draft, key, &source, ROLE_VOLUME);
        }
    }
    drop_volumes(draft);
}

fn is_imported(draft: &Draft<'_>) -> bool {
    // A folder has no snapshot that the controller knows.
    draft.status.snapshot.is_some() || origin::is_folder(&draft.spec) && draft.found(ConditionKind::Imported).is_some()
}

/// True once pods may have the claim: when their nodes are warm, or cannot be for now, or took too long.
fn is_open(draft: &mut Draft<'_>) -> bool {
    let own = draft.key();
    if draft.world.claims.iter().any(|claim| claim.meta.key == *own) {
        return true;
    }
    if !is_imported(draft) {
        return false;
    }
    let is_true = |kind| draft.found(kind).is_some_and(|verdict| verdict.status);
    // Nodes that do not report yet may do so soon; room may take days.
    let no_room = |reason| [Reason::NotEnoughRoom, Reason::LargerThanAnyCache].contains(&reason);
    let stuck = draft.found(ConditionKind::Placed).is_some_and(|placed| !placed.status && no_room(placed.reason));
    if is_true(ConditionKind::Warm) || stuck {
        return true;
    }
    let imported = ConditionKind::Imported.find(&draft.status.conditions);
    let since = imported.map_or(draft.world.now, |condition| condition.last_transition_time.0.as_second());
    let due = since + FIRST_WAIT_SECONDS;
    if draft.world.now < due {
        draft.decision.again(due);
    }
    draft.world.now >= due
}

/// Makes the claim and the volume through which a snapshot is warmed.
pub(super) fn make_for_warming(draft: &mut Draft<'_>, claim: &str, snapshot: &str) {
    let key = Key::new(&draft.key().namespace, claim);
    let listed_by_nodes = ConditionKind::Imported
        .find(&draft.status.conditions)
        .is_some_and(|condition| condition.reason == Reason::ListedByNodes.as_str());
    let source =
        if listed_by_nodes { draft.spec.dataset.source.clone() } else { origin::kept_manifest(&draft.spec, snapshot) };
    make(draft, &key, &source, ROLE_WARM);
}

fn make(draft: &mut Draft<'_>, key: &Key, source: &str, role: &str) {
    make_volume(draft, key, source, role);
    if draft.world.claims.iter().any(|claim| claim.meta.key == *key) {
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
    draft.write(Kind::Claim, &key.namespace, &key.name, Change::Create(claim));
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
        // Otherwise a Secret without keys would have the dataset read with larderd's own identity.
        attributes.insert("identity", "secret".to_owned());
    }
    if draft.key().namespace != SYSTEM_NAMESPACE {
        // Otherwise tenants that describe the same data would read with each other's keys.
        attributes.insert("owner", draft.uid().to_owned());
    }
    attributes
}

fn description(draft: &Draft<'_>, source: &str) -> String {
    let mut parts: Vec<String> =
        attributes(draft, source).iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.extend(draft.spec.secret.iter().map(|secret| format!("secret={secret}")));
    names::short_hash(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn make_volume(draft: &mut Draft<'_>, claim: &Key, source: &str, role: &str) {
    let name = names::volume(draft.uid(), claim);
    if draft.world.volumes.iter().any(|volume| volume.meta.key.name == name) {
        return;
    }
    let mut csi = json!({
        "driver": CSI_DRIVER,
        "volumeHandle": name,
        "readOnly": true,
        "volumeAttributes": attributes(draft, source),
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

/// Volumes cannot be changed: if the spec was, claim and volume are made anew, as soon as no pod uses them.
fn replace_if_stale(draft: &mut Draft<'_>, own: &Key, source: &str) -> bool {
    let name = names::volume(draft.uid(), own);
    let wanted = description(draft, source);
    let world = draft.world;
    let Some(volume) = world.volumes.iter().find(|volume| volume.meta.key.name == name) else { return false };
    if volume.description == wanted || !world.users.is_empty() {
        return false;
    }
    let claim = world.claims.iter().find(|claim| claim.meta.key == *own && claim.role.is_some());
    if let Some(claim) = claim {
        draft.write(Kind::Claim, &own.namespace, &own.name, Change::Delete(claim.meta.uid.clone()));
    }
    draft.write(Kind::Volume, "", &name, Change::Delete(volume.meta.uid.clone()));
    true
}

/// Drops volumes whose claim is gone, and the claims through which snapshots were warmed that are not wanted any more.
fn drop_volumes(draft: &mut Draft<'_>) {
    let world = draft.world;
    let snapshots = draft.status.snapshot.iter().chain(&draft.status.next);
    let warming: Vec<String> =
        snapshots.map(|snapshot| names::warm_claim(draft.key(), draft.uid(), snapshot)).collect();
    for claim in &world.claims {
        let role = claim.role.as_ref().filter(|role| role.role == ROLE_WARM);
        if role.is_some() && !claim.meta.deleting && !warming.contains(&claim.meta.key.name) {
            let key = &claim.meta.key;
            draft.write(Kind::Claim, &key.namespace, &key.name, Change::Delete(claim.meta.uid.clone()));
        }
    }
    for volume in &world.volumes {
        if is_abandoned(volume, &world.claims) && !volume.meta.deleting {
            draft.write(Kind::Volume, "", &volume.meta.key.name, Change::Delete(volume.meta.uid.clone()));
        }
    }
}

/// True if the claim that a volume was bound to is gone.
pub(super) fn is_abandoned(volume: &Volume, claims: &[&Claim]) -> bool {
    let claim = claims.iter().find(|claim| claim.meta.key == volume.claim);
    !volume.claim_uid.is_empty() && claim.is_none_or(|claim| claim.meta.uid != volume.claim_uid)
}

/// Refuses every claim to a dataset that does not exist.
pub(super) fn refuse_all(world: &World<'_>, decision: &mut Decision) {
    for claim in &world.claims {
        if claim.role.is_none() && !claim.meta.deleting {
            refuse(world, claim, decision);
        }
    }
}

/// Tells the claim's namespace, in words that are the same whether the dataset exists or not.
fn refuse(world: &World<'_>, claim: &Claim, decision: &mut Decision) {
    let (key, wanted) = (&claim.meta.key, world.key);
    let name = format!("{}.{}", key.name, names::short_hash(&[&claim.meta.uid, &wanted.to_string()]));
    if world.told.contains(&name) {
        return;
    }
    let message = format!(
        "the namespace {} may not use the dataset {wanted}, or it does not exist; ask its owner to list the namespace \
         in spec.namespaces",
        key.namespace
    );
    let regarding = json!({
        "apiVersion": "v1",
        "kind": Kind::Claim.name(),
        "namespace": key.namespace,
        "name": key.name,
        "uid": claim.meta.uid,
    });
    let event = super::report::event(world.now, regarding, "Warning", "DatasetRefused", &message);
    decision.writes.push(Write::new(Kind::Event, &key.namespace, &name, Change::Create(event)));
}
