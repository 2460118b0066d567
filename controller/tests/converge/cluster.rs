//! A simulator of the rest of the cluster: what Kubernetes, larderd and the pods of jobs do, one reaction at a time.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::api::Api;
use super::kubelet;

pub(crate) const SNAPSHOT: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(crate) const NEWER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
pub(crate) const BYTES: u64 = 1000;
/// The disk space that the dataset takes on a node: most_on_disk of 10 files.
pub(crate) const ROOM: u64 = 42_630;

/// Simulates the rest of the cluster until the task is dropped.
pub(crate) async fn play(api: Api) {
    let mut changes = api.changes();
    loop {
        react(&api);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(std::time::Duration::from_secs(3600)) => {}
        }
    }
}

fn react(api: &Api) {
    for job in api.list("jobs") {
        run(api, &job);
    }
    for cache in api.list("nodecaches") {
        report(api, &cache);
    }
    for claim in api.list("persistentvolumeclaims") {
        bind(api, &claim);
    }
    kubelet::react(api);
    collect(api);
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Most buckets contain the same objects. A bucket whose name has a single character has its own.
fn snapshot_of(source: &str) -> String {
    let name = source.trim_start_matches("s3://bucket/");
    if name.len() == 1 { name.repeat(64) } else { SNAPSHOT.to_owned() }
}

/// A job's pod executes its command and ends.
fn run(api: &Api, job: &Value) {
    let (namespace, name) = (text(job, "/metadata/namespace"), text(job, "/metadata/name"));
    if job.pointer("/status/conditions").is_some() || text(job, "/metadata/annotations/test~1hold") == "true" {
        return;
    }
    let pod = format!("{name}-abcde");
    let arguments: Vec<&str> = job
        .pointer("/spec/template/spec/containers/0/args")
        .unwrap()
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let message = match arguments[0] {
        "import" if is_held_by_name(api, name) => return,
        "import" => {
            let source = arguments[1];
            if source.contains(NEWER) && warm_nodes(api, NEWER) < 2 {
                let note = json!({"metadata": {"namespace": "test", "name": "published-cold"}});
                api.put("configmaps", note);
            }
            // A manifest's name contains its snapshot; the test sets the content of an origin.
            let snapshot = if source.contains(NEWER) {
                NEWER.to_owned()
            } else if source.contains(SNAPSHOT) {
                SNAPSHOT.to_owned()
            } else {
                api.get("configmaps", "test", "origin")
                    .map_or_else(|| snapshot_of(source), |map| text(&map, "/data/snapshot").to_owned())
            };
            let found = api.get("configmaps", "test", "found").is_some();
            json!({"snapshot": snapshot, "files": 10, "bytes": BYTES, "published": !found, "found": found}).to_string()
        }
        "sync" => {
            assert!(arguments[1].contains(SNAPSHOT) || arguments[1].contains(NEWER), "{arguments:?}");
            json!({"bytes": BYTES, "bytes_there": BYTES, "complete": true}).to_string()
        }
        "warm" => {
            let purpose = text(job, "/metadata/annotations/larder.dev~1purpose").to_owned();
            let (node, snapshot) = purpose.split_once(' ').unwrap();
            let claim = text(job, "/spec/template/spec/volumes/0/persistentVolumeClaim/claimName");
            let bound = api
                .get("persistentvolumeclaims", namespace, claim)
                .is_some_and(|claim| text(&claim, "/status/phase") == "Bound");
            if !bound || is_held(api, name) {
                return;
            }
            let bytes = if is_too_large(api, snapshot) { BYTES / 2 } else { BYTES };
            let uid = text(job, "/metadata/labels/larder.dev~1dataset-uid");
            let owner = owner_of(api, |dataset| dataset["metadata"]["uid"] == uid);
            api.change("nodecaches", "", node, |cache| {
                let snapshots = cache["status"]["snapshots"].as_array_mut().unwrap();
                snapshots.retain(|cached| cached["snapshot"] != snapshot || text(cached, "/owner") != owner);
                snapshots.push(json!({
                    "snapshot": snapshot,
                    "owner": owner,
                    "bytes": bytes,
                    "wantedBytes": BYTES,
                    "reservedBytes": ROOM,
                    "mounts": 0,
                    "lastUsed": api.now(),
                }));
            });
            String::new()
        }
        other => panic!("{other}"),
    };
    let labels = job.pointer("/spec/template/metadata/labels").cloned().unwrap();
    let mut labels = labels;
    labels["batch.kubernetes.io/job-name"] = name.into();
    api.put(
        "pods",
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": pod, "labels": labels, "ownerReferences": [
                {"kind": "Job", "name": name, "uid": text(job, "/metadata/uid"), "apiVersion": "batch/v1",
                 "controller": true}]},
            "spec": job.pointer("/spec/template/spec").unwrap(),
            "status": {"phase": "Succeeded", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": message}}}]},
        }),
    );
    api.change("jobs", namespace, name, |job| {
        job["status"] =
            json!({"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": api.now()}]});
    });
}

/// The nodes that hold a snapshot completely.
fn warm_nodes(api: &Api, snapshot: &str) -> usize {
    let is_warm = |cached: &Value| cached["snapshot"] == snapshot && cached["bytes"] == BYTES;
    let has = |cache: &&Value| cache["status"]["snapshots"].as_array().is_some_and(|all| all.iter().any(is_warm));
    api.list("nodecaches").iter().filter(has).count()
}

/// True if the pods of warming jobs do not start: all of them, or those whose job's name contains the text in the
/// ConfigMap.
fn is_held(api: &Api, job: &str) -> bool {
    api.get("configmaps", "test", "hold").is_some_and(|map| job.contains(text(&map, "/data/jobs")))
}

/// Like [`is_held`], for jobs of any kind.
fn is_held_by_name(api: &Api, job: &str) -> bool {
    let names = |map: Value| !text(&map, "/data/jobs").is_empty();
    is_held(api, job) && api.get("configmaps", "test", "hold").is_some_and(names)
}

/// True if nodes turn out to have room for only half of the snapshot.
fn is_too_large(api: &Api, snapshot: &str) -> bool {
    snapshot == NEWER && api.get("configmaps", "test", "newer-is-too-large").is_some()
}

/// The owner of the cached bytes of the first dataset for which this is true.
pub(crate) fn owner_of(api: &Api, is_this: impl Fn(&Value) -> bool) -> String {
    let dataset = api.list("datasets").into_iter().find(is_this).unwrap();
    let origin = &dataset["spec"]["origin"];
    if origin["anonymous"] == true {
        "anonymous".to_owned()
    } else if !origin["secretRef"].is_null() && text(&dataset, "/metadata/namespace") != "larder-system" {
        text(&dataset, "/metadata/uid").to_owned()
    } else {
        String::new()
    }
}

/// True if two entries of a NodeCache are about the same bytes.
fn is_same(one: &Value, other: &Value) -> bool {
    // An owner that is left out is the empty one.
    one["snapshot"] == other["snapshot"] && text(one, "/owner") == text(other, "/owner")
}

/// larderd accepts promises, drops requested bytes, and reports.
fn report(api: &Api, cache: &Value) {
    let name = text(cache, "/metadata/name").to_owned();
    let is_too_large = is_too_large(api, NEWER);
    let is_full = api.get("configmaps", "test", "disks-are-full").is_some();
    api.change("nodecaches", "", &name, |cache| {
        let promises = cache.pointer("/spec/datasets").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut largest = BTreeMap::<(&str, &str), u64>::new();
        for promise in &promises {
            let there = largest.entry((text(promise, "/snapshot"), text(promise, "/owner"))).or_default();
            *there = promise["bytes"].as_u64().unwrap().max(*there);
        }
        let promised: u64 = largest.into_values().sum();
        let clean = cache.pointer("/spec/clean").and_then(Value::as_array).cloned().unwrap_or_default();
        // All times have the same text format, so they can be compared as text.
        let goes = |cached: &Value| {
            let asked = clean.iter().find(|entry| is_same(entry, cached));
            cached["mounts"] == 0 && asked.is_some_and(|entry| text(cached, "/lastUsed") < text(entry, "/before"))
        };
        // A snapshot without a promise is dropped as well, unless a pod brought it.
        let is_kept = |cached: &Value| promises.iter().any(|promise| is_same(promise, cached));
        let snapshots: Vec<Value> = cache
            .pointer("/status/snapshots")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|cached| cached["reservedBytes"] == 0 || is_kept(cached))
            .filter(|cached| !goes(cached))
            .cloned()
            .collect();
        let unkept = promises.iter().filter(|promise| is_too_large && text(promise, "/snapshot") == NEWER);
        let unkept = unkept
            .map(|promise| json!({"uid": promise["uid"], "snapshot": promise["snapshot"], "missingBytes": ROOM / 2}));
        let unkept: Vec<Value> = unkept.collect();
        let capacity = if is_full { 0 } else { 10 * ROOM };
        let conditions = match is_full {
            true => json!([{
                "type": "Ready",
                "status": "False",
                "reason": "NoRoom",
                "message": "the cache has no room: the disk is full",
                "lastTransitionTime": "2026-01-31T08:00:00Z",
            }]),
            false => json!([]),
        };
        cache["status"] = json!({
            "observedGeneration": cache["metadata"]["generation"],
            "capacityBytes": capacity,
            "promisedBytes": promised,
            "freeBytes": u64::saturating_sub(capacity, promised),
            "snapshots": snapshots,
            "unkept": unkept,
            "conditions": conditions,
        });
    });
}

/// Kubernetes binds a claim to the volume that is reserved for it.
fn bind(api: &Api, claim: &Value) {
    let (namespace, name) = (text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
    let uid = text(claim, "/metadata/uid");
    if text(claim, "/spec/storageClassName") != "larder" || text(claim, "/spec/accessModes/0") == "ReadWriteOncePod" {
        return;
    }
    let volumes = api.list("persistentvolumes");
    let volume = volumes.iter().find(|volume| {
        text(volume, "/spec/claimRef/namespace") == namespace && text(volume, "/spec/claimRef/name") == name
    });
    let Some(volume) = volume else { return };
    let bound_to = text(volume, "/spec/claimRef/uid");
    if !bound_to.is_empty() && bound_to != uid {
        return;
    }
    let volume = text(volume, "/metadata/name");
    api.change("persistentvolumes", "", volume, |volume| volume["spec"]["claimRef"]["uid"] = uid.into());
    api.change("persistentvolumeclaims", namespace, name, |claim| {
        claim["spec"]["volumeName"] = volume.into();
        claim["status"] = json!({"phase": "Bound"});
    });
}

/// Kubernetes' garbage collection deletes objects whose owner was deleted.
fn collect(api: &Api) {
    let all = api.all();
    let uids: BTreeSet<&str> = all.values().map(|object| text(object, "/metadata/uid")).collect();
    for ((plural, namespace, name), object) in &all {
        if object["metadata"]["deletionTimestamp"].is_string() {
            continue;
        }
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        if owners.is_some_and(|owners| owners.iter().all(|owner| !uids.contains(owner["uid"].as_str().unwrap()))) {
            api.delete(plural, namespace, name);
        }
    }
}

pub(crate) fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"},
        },
    })
}

pub(crate) fn dataset(namespace: &str, name: &str, count: u32) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "origin": {"source": format!("s3://bucket/{name}"), "secretRef": {"name": "keys"}},
            "nodes": {"count": count},
            "namespaces": ["team-b"],
        },
    })
}

/// The entry of the bytes of `pets` that pods brought to a node.
pub(crate) fn brought(api: &Api, mounts: u32) -> Value {
    let owner = owner_of(api, |dataset| dataset["metadata"]["name"] == "pets");
    json!({"snapshot": SNAPSHOT, "owner": owner, "bytes": BYTES / 2, "wantedBytes": BYTES, "reservedBytes": 0,
        "mounts": mounts})
}

pub(crate) fn claim(namespace: &str, name: &str, dataset: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": namespace, "name": name, "annotations": {"larder.dev/dataset": dataset}},
        "spec": {"storageClassName": "larder", "accessModes": ["ReadOnlyMany"]},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn pod(namespace: &str, name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"nodeName": "n1", "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": "Running"},
    })
}
