use std::collections::BTreeSet;

use larder_api::names::{CLEAN_ANNOTATION, ROLE_IMPORT, ROLE_SYNC};
use larder_api::{CleanedSnapshot, Dataset, NodeCache, PromisedDataset};
use serde_json::{Value, json};

use super::*;
use crate::datasets::input::{NodeFacts, Refusals, Settings};
use crate::objects::{CacheObject, Job, JobEnd, Key, Meta, Node, Pod, Role, Terminated, Waiting};
use crate::time::Seconds;

fn dataset(spec: Value) -> DatasetObject {
    let object = json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"namespace": "team-a", "name": "pets", "generation": 1, "finalizers": [FINALIZER]},
        "spec": spec,
    });
    let dataset: Dataset = serde_json::from_value(object).unwrap();
    let meta = Meta { key: Key::new("team-a", "pets"), uid: "u".into(), ..Meta::default() };
    DatasetObject { meta, dataset }
}

fn with_secret() -> Value {
    json!({"origin": {"source": "s3://bucket/pets", "secretRef": {"name": "keys"}}})
}

fn decide_about(dataset: &DatasetObject, jobs: &[Job], pods: &[Pod]) -> Decision {
    decide_on(Vec::new(), dataset, jobs, pods)
}

fn decide_on(nodes: Vec<NodeFacts<'_>>, dataset: &DatasetObject, jobs: &[Job], pods: &[Pod]) -> Decision {
    let (settings, emitted) = (Settings { image: "larder:1".into(), ..Settings::default() }, BTreeSet::new());
    let key = dataset.meta.key.clone();
    decide(&DatasetView {
        now: Seconds(1_000_000),
        settings: &settings,
        key: &key,
        dataset: Some(dataset),
        nodes,
        jobs: jobs.iter().collect(),
        job_pods: pods.iter().collect(),
        users: Vec::new(),
        claims: Vec::new(),
        volumes: Vec::new(),
        deployments: Vec::new(),
        warm_requests: Vec::new(),
        warming_slots: 1,
        quota: None,
        status_age: i64::MAX,
        emitted: &emitted,
        refused: &Refusals::new(),
        warm_requests_unknown: false,
        is_left_out: false,
    })
}

/// The status that a decision writes.
fn status(decision: &Decision) -> Value {
    let status = decision.writes.iter().find_map(|write| match &write.change {
        Change::ApplyStatus(fields) => Some(fields["status"].clone()),
        _ => None,
    });
    status.unwrap()
}

/// The condition `Imported` that a decision writes: status, reason and message.
fn imported(decision: &Decision) -> (String, String, String) {
    condition(decision, "Imported")
}

fn condition(decision: &Decision, kind: &str) -> (String, String, String) {
    let conditions = status(decision)["conditions"].as_array().unwrap().clone();
    let condition = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap();
    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

/// The import job of a new dataset, as the decision creates it.
fn import_job(dataset: &DatasetObject) -> (Job, Value) {
    let decision = decide_about(dataset, &[], &[]);
    let created = decision.writes.iter().find_map(|write| match &write.change {
        Change::Create(job) if write.kind == Kind::Job => Some((write.name.clone(), job.clone())),
        _ => None,
    });
    let (name, job) = created.unwrap();
    let meta = Meta { key: Key::new("team-a", &name), uid: "j".into(), ..Meta::default() };
    let role = Role { uid: "u".into(), role: ROLE_IMPORT.into(), node: String::new() };
    (Job { meta, role, ..Job::default() }, job)
}

fn pod_of(job: &Job) -> Pod {
    let meta = Meta { key: Key::new(&job.meta.key.namespace, "pod"), ..Meta::default() };
    Pod { meta, role: Some(job.role.clone()), job: job.meta.uid.clone(), ..Pod::default() }
}

#[test]
fn a_job_names_the_secret_and_passes_the_restricted_standard() {
    let (_, job) = import_job(&dataset(with_secret()));
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // The keys are files: variables would be in the specification of the container.
    assert_eq!((&container["envFrom"], &container["env"]), (&Value::Null, &json!([{"name": "HOME", "value": "/tmp"}])));
    let keys = json!({"name": "origin", "secret": {"secretName": "keys", "optional": true, "defaultMode": 0o440}});
    assert_eq!(pod["volumes"][1], keys);
    let mounted = json!({"name": "origin", "mountPath": "/etc/larder/origin", "readOnly": true});
    assert_eq!(container["volumeMounts"][1], mounted);
    let arguments: Vec<_> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(arguments.ends_with(&["--origin-credentials-dir=/etc/larder/origin", "--require-credentials"]));
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(container["args"][1], "s3://bucket/pets");
}

#[test]
fn the_reason_of_an_unfinished_import_is_the_obstacle() {
    let dataset = dataset(with_secret());
    let (job, _) = import_job(&dataset);
    let failed = |kind: &str| {
        let message = json!({"error": {"kind": kind, "message": "the origin's words"}}).to_string();
        let terminated = Some(Terminated { exit_code: 1, reason: "Error".into(), message });
        Pod { terminated, ..pod_of(&job) }
    };
    let waiting = |reason: &str, message: &str| {
        let waiting = Some(Waiting { reason: reason.into(), message: message.into() });
        Pod { waiting, ..pod_of(&job) }
    };
    for (pod, reason, said) in [
        (failed("no-credentials"), "SecretMissing", "the origin's words"),
        (failed("not-found"), "BucketMissing", "the origin's words"),
        (failed("denied"), "AccessDenied", "retrying"),
        (failed("unavailable"), "OriginUnreachable", "the origin's words"),
        (failed("other"), "ImportFailed", "the origin's words"),
        (waiting("ImagePullBackOff", "no such image"), "Importing", "no such image"),
        (pod_of(&job), "Importing", "kubectl logs"),
    ] {
        let (status, found, message) = imported(&decide_about(&dataset, std::slice::from_ref(&job), &[pod]));
        assert_eq!((status.as_str(), found.as_str()), ("False", reason), "{message}");
        assert!(message.contains(said), "{reason}: {message}");
    }
}

#[test]
fn an_import_whose_end_is_seen_before_its_report_has_not_failed() {
    let dataset = dataset(with_secret());
    let (job, _) = import_job(&dataset);
    let ended = |ago: i64, failed: bool| {
        let end = Some(JobEnd { failed, at: Seconds(1_000_000 - ago), why: "as it is".into() });
        imported(&decide_about(&dataset, &[Job { end, ..job.clone() }], &[pod_of(&job)]))
    };
    let (status, reason, message) = ended(9, false);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Importing"), "{message}");
    for (ago, failed) in [(10, false), (0, true)] {
        let (_, reason, message) = ended(ago, failed);
        assert_eq!(reason, "ImportFailed", "{message}");
    }
}

#[test]
fn a_snapshot_that_is_not_found_is_unknown_and_one_that_may_not_be_kept_is_served() {
    let pinned = "c".repeat(64);
    let mut spec = with_secret();
    spec["snapshot"] = pinned.clone().into();
    let found = "a".repeat(64);
    let ended = |job: &Job, published: bool| {
        let message = json!({"snapshot": found, "files": 3, "bytes": 5, "published": published}).to_string();
        let terminated = Some(Terminated { exit_code: 0, reason: "Completed".into(), message });
        let end = Some(JobEnd { failed: false, at: Seconds(900_000), why: String::new() });
        (Job { end, ..job.clone() }, Pod { terminated, ..pod_of(job) })
    };
    let wanted = dataset(spec);
    let (job, pod) = ended(&import_job(&wanted).0, true);
    // The found snapshot is not the listed one: another manifest of that name may have existed.
    let decision = decide_about(&wanted, std::slice::from_ref(&job), std::slice::from_ref(&pod));
    let next = decision.writes.iter().find(|write| write.kind == Kind::Job).unwrap().clone();
    let Change::Create(create) = &next.change else { panic!("{next:?}") };
    assert!(create.to_string().contains(&format!("{pinned}.manifest")), "{create}");
    let meta = Meta { key: Key::new("team-a", &next.name), uid: "k".into(), ..Meta::default() };
    let second = Job { meta, ..job.clone() };
    let message = json!({"error": {"kind": "not-found", "message": "not there"}}).to_string();
    let terminated = Some(Terminated { exit_code: 1, reason: "Error".into(), message });
    let failing = Pod { terminated, ..pod_of(&second) };
    let (status, reason, message) = imported(&decide_about(&wanted, &[job, second], &[pod, failing]));
    assert_eq!((status.as_str(), reason.as_str()), ("False", "SnapshotUnknown"), "{message}");

    let plain = dataset(with_secret());
    let (job, pod) = ended(&import_job(&plain).0, false);
    let (status, reason, message) = imported(&decide_about(&plain, &[job], &[pod]));
    assert_eq!((status.as_str(), reason.as_str()), ("True", "ListedByNodes"), "{message}");
    assert!(message.contains("may not write"), "{message}");
}

#[test]
fn an_origin_that_only_the_administrator_may_use_is_refused() {
    for (spec, said) in [
        (json!({"origin": {"source": "s3://bucket/pets"}}), "secretRef"),
        (json!({"origin": {"source": "file:///data", "anonymous": true}}), "folder"),
        (json!({"origin": {"source": "s3://b", "anonymous": true, "endpoint": "http://elsewhere"}}), "endpoint"),
    ] {
        let decision = decide_about(&dataset(spec), &[], &[]);
        let (status, reason, message) = imported(&decision);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "NotAllowed"));
        assert!(message.contains(said), "{message}");
        assert!(!decision.writes.iter().any(|write| write.kind == Kind::Job), "no job is made");
    }
}

#[test]
fn a_dataset_in_a_folder_is_ready_without_an_import_and_placed_nowhere() {
    let mut folder = dataset(json!({"origin": {"source": "file:///data", "anonymous": true}, "nodes": {"count": 2}}));
    folder.meta.key.namespace = "larder-system".into();
    folder.dataset.metadata.namespace = Some("larder-system".into());
    let decision = decide_about(&folder, &[], &[]);
    for (kind, status, reason) in [
        ("Imported", "True", "ListedByNodes"),
        ("Placed", "True", "NotWanted"),
        ("Warm", "True", "NotWanted"),
        ("Ready", "True", "Available"),
    ] {
        let (found, why, message) = condition(&decision, kind);
        assert_eq!((found.as_str(), why.as_str()), (status, reason), "{kind}: {message}");
    }
    assert!(!decision.writes.iter().any(|write| write.kind == Kind::Job), "no job is made");
}

/// A dataset with a request to drop its bytes.
fn with_clean(value: &str, snapshots: &[&str]) -> DatasetObject {
    let mut dataset = dataset(with_secret());
    let annotations = dataset.dataset.metadata.annotations.get_or_insert_default();
    annotations.insert(CLEAN_ANNOTATION.to_owned(), value.to_owned());
    let known: Vec<Value> = snapshots
        .iter()
        .map(|id| json!({"id": id, "files": 1, "bytes": 1000, "listed": "1970-01-01T00:00:00Z"}))
        .collect();
    let status = json!({"snapshot": snapshots.first(), "snapshots": known});
    dataset.dataset.status = Some(serde_json::from_value(status).unwrap());
    dataset
}

#[test]
fn a_request_to_clean_that_is_no_time_is_refused_and_one_to_come_waits() {
    for value in ["", "now", "yesterday", "1h", "2026-11-22", "2026-11-22T10:00:00", "1700000000"] {
        let decision = decide_about(&with_clean(value, &["a"]), &[], &[]);
        let (found, reason, message) = condition(&decision, "Degraded");
        assert_eq!((found.as_str(), reason.as_str()), ("True", "InvalidClean"), "{value}: {message}");
        assert!(message.contains("larder.dev/clean is") && message.contains(&format!("{value:?}")), "{message}");
        assert_eq!(status(&decision)["cleaned"], Value::Null);
    }
    let mut folder = with_clean("1970-01-01T00:00:00Z", &["a"]);
    folder.dataset.spec.origin.source = "file:///data".into();
    folder.meta.key.namespace = "larder-system".into();
    folder.dataset.spec.origin.secret_ref = None;
    let (found, reason, message) = condition(&decide_about(&folder, &[], &[]), "Degraded");
    assert_eq!((found.as_str(), reason.as_str()), ("True", "InvalidClean"), "{message}");
    // The current time is 1,000,000 s after 1970, so this time is in the future.
    let to_come = decide_about(&with_clean("1970-01-12T13:46:41Z", &["a"]), &[], &[]);
    assert_eq!((to_come.again_at, &status(&to_come)["cleaned"]), (Some(Seconds(1_000_001)), &Value::Null));
    let now = decide_about(&with_clean("1970-01-12T14:46:40+01:00", &["a"]), &[], &[]);
    assert_eq!(status(&now)["cleaned"], "1970-01-12T14:46:40+01:00");
}

#[test]
fn each_node_that_has_bytes_is_asked_to_drop_them_and_waited_for_unless_it_is_not_ready() {
    let (current, earlier) = ("a".repeat(64), "b".repeat(64));
    let dataset = with_clean("1970-01-12T00:00:00Z", &[&current, &earlier]);
    let entry = |snapshot: &str| CleanedSnapshot {
        snapshot: snapshot.to_owned(),
        owner: "u".to_owned(),
        before: status_draft::time(Seconds(950_400)),
    };
    let node = |name: &str, ready: bool| {
        let meta = Meta { key: Key::cluster(name), ..Meta::default() };
        Node { meta, ready, ..Node::default() }
    };
    let cache = |asked: &[CleanedSnapshot], observed: i64, has: &[(&str, u64)]| {
        let snapshots: Vec<Value> =
            has.iter().map(|(id, bytes)| json!({"snapshot": id, "owner": "u", "bytes": bytes})).collect();
        let cache: NodeCache = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1",
            "kind": "NodeCache",
            "metadata": {},
            "spec": {"clean": asked},
            "status": {"observedGeneration": observed, "snapshots": snapshots},
        }))
        .unwrap();
        CacheObject { meta: Meta::default(), generation: 2, spec: cache.spec, status: cache.status }
    };
    let anothers = |owner: &str| PromisedDataset {
        uid: "another".into(),
        owner: owner.into(),
        snapshot: earlier.clone(),
        bytes: 1,
        ..PromisedDataset::default()
    };
    let (others, strangers) = ([anothers("u")], [anothers("another")]);
    let (has_both, asked) = ([(current.as_str(), 9), (earlier.as_str(), 9)], [entry(&current)]);
    let (fresh, waiting) = (cache(&[], 2, &has_both), cache(&asked, 1, &has_both[..1]));
    let (acted, empty) = (cache(&asked, 2, &[]), cache(&[], 2, &[(&current, 0), ("c", 9)]));
    let (is_ready, is_not) = (node("n", true), node("n", false));
    let asked = |node, cache, promised| {
        let decision =
            decide_on(vec![NodeFacts { node, cache: Some(cache), promised, owner: "u" }], &dataset, &[], &[]);
        let entries = decision.clean.get("n").cloned().unwrap_or_default();
        let is_done = status(&decision)["cleaned"] == "1970-01-12T00:00:00Z";
        assert_eq!(is_done, !decision.is_cleaning);
        (entries, is_done)
    };
    assert_eq!(asked(&is_ready, &fresh, &[]), (vec![entry(&current), entry(&earlier)], false));
    assert_eq!(asked(&is_ready, &fresh, &others), (vec![entry(&current)], false));
    // A stranger's bytes of the snapshot are others.
    assert_eq!(asked(&is_ready, &fresh, &strangers), (vec![entry(&current), entry(&earlier)], false));
    assert_eq!(asked(&is_ready, &waiting, &[]), (vec![entry(&current)], false));
    // The entry stays until the status records it: otherwise bytes that return would be dropped again.
    assert_eq!(asked(&is_ready, &acted, &[]), (vec![entry(&current)], true));
    assert_eq!(asked(&is_ready, &empty, &[]), (vec![], true));
    assert_eq!(asked(&is_not, &waiting, &[]), (vec![], true));
}

/// A dataset that is imported and has these mirrors.
fn with_mirrors(mirrors: &Value) -> DatasetObject {
    let mut spec = with_secret();
    spec["mirrors"] = mirrors.clone();
    let mut dataset = dataset(spec);
    let from = origin::digest(&dataset.dataset.spec.check().unwrap());
    let known = json!({"id": "a".repeat(64), "files": 1, "bytes": 1000, "listed": "1970-01-01T00:00:00Z"});
    let status = json!({"snapshot": "a".repeat(64), "snapshots": [known], "imported": {"from": from}});
    dataset.dataset.status = Some(serde_json::from_value(status).unwrap());
    dataset
}

fn kept_mirrors() -> Value {
    json!([
        {"name": "eu", "origin": {"source": "gs://copy/pets", "region": "eu-1"}, "kept": true},
        {"name": "own", "origin": {"source": "s3://kept/by/others"}},
    ])
}

/// The sync job that a decision creates, and its arguments.
fn sync_job(decision: &Decision) -> Option<(Job, Vec<String>)> {
    let (name, job) = decision.writes.iter().find_map(|write| match &write.change {
        Change::Create(job) if write.kind == Kind::Job => Some((write.name.clone(), job.clone())),
        _ => None,
    })?;
    let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let meta = Meta { key: Key::new("team-a", &name), uid: "s".into(), ..Meta::default() };
    let role = Role { uid: "u".into(), role: ROLE_SYNC.into(), node: String::new() };
    assert_eq!(job["metadata"]["labels"]["larder.dev/role"], ROLE_SYNC);
    Some((Job { meta, role, ..Job::default() }, serde_json::from_value(arguments).unwrap()))
}

// SEMANTICS: M8
#[test]
fn a_mirror_that_is_kept_gets_each_snapshot_by_a_job_with_its_keys() {
    let dataset = with_mirrors(&kept_mirrors());
    let (job, arguments) = sync_job(&decide_about(&dataset, &[], &[])).unwrap();
    let manifest = format!("s3://bucket/pets/.larder/{}.manifest", "a".repeat(64));
    let expected = [
        "sync",
        manifest.as_str(),
        "gs://copy/pets",
        "--report",
        "/dev/termination-log",
        "--to-region",
        "eu-1",
        "--to-credentials-dir",
        "/etc/larder/origin",
        "--to-credentials-prefix",
        "eu.",
        "--origin-credentials-dir=/etc/larder/origin",
    ];
    assert_eq!(arguments, expected);
    let named = job.meta.key.name.clone();
    assert!(named.starts_with("larder-sync-pets-"), "{named}");
    // One that runs is left alone.
    let running = decide_about(&dataset, std::slice::from_ref(&job), &[pod_of(&job)]);
    assert!(!running.writes.iter().any(|write| write.kind == Kind::Job), "{:?}", running.writes);
    let mirrors = status(&running)["mirrors"].clone();
    assert_eq!((mirrors.as_array().unwrap().len(), &mirrors[0]["name"]), (1, &json!("eu")));

    let message = json!({"bytes": 1000, "bytes_there": 1000, "complete": true}).to_string();
    let terminated = Some(Terminated { exit_code: 0, reason: "Completed".into(), message });
    let ended = Job { end: Some(JobEnd { failed: false, at: Seconds(900_000), why: String::new() }), ..job.clone() };
    let decision = decide_about(&dataset, std::slice::from_ref(&ended), &[Pod { terminated, ..pod_of(&job) }]);
    let mirror = status(&decision)["mirrors"][0].clone();
    assert_eq!((&mirror["snapshot"], &mirror["percent"]), (&json!("a".repeat(64)), &json!(100)));
    assert_eq!((&mirror["copied"], &mirror["behindBytes"]), (&json!("1970-01-11T10:00:00Z"), &json!(0)));
    let mut later = dataset.clone();
    later.dataset.status = Some(serde_json::from_value(status(&decision)).unwrap());
    assert!(sync_job(&decide_about(&later, &[], &[])).is_none(), "it has the snapshot");
    // The next snapshot, and another place of the mirror, are other copies.
    let status = later.dataset.status.as_mut().unwrap();
    status.snapshot = Some("b".repeat(64));
    status.snapshots[0].id = "b".repeat(64);
    let (next, _) = sync_job(&decide_about(&later, &[], &[])).unwrap();
    assert_ne!(next.meta.key.name, named);
    let mut moved = dataset;
    moved.dataset.status = later.dataset.status.clone();
    moved.dataset.spec.mirrors[0].origin.source = "gs://elsewhere".into();
    moved.dataset.status.as_mut().unwrap().mirrors[0].snapshot = Some("b".repeat(64));
    assert!(sync_job(&decide_about(&moved, &[], &[])).is_some(), "nothing is there yet");
}

#[test]
fn a_copy_that_fails_is_in_the_status_and_one_that_nobody_wants_ends() {
    let dataset = with_mirrors(&kept_mirrors());
    let (job, _) = sync_job(&decide_about(&dataset, &[], &[])).unwrap();
    let error = json!({"kind": "denied", "message": "the mirror's words"});
    let message = json!({"bytes": 1000, "bytes_there": 250, "error": error}).to_string();
    let terminated = Some(Terminated { exit_code: 1, reason: "Error".into(), message });
    let failing = Pod { terminated, ..pod_of(&job) };
    let decision = decide_about(&dataset, std::slice::from_ref(&job), std::slice::from_ref(&failing));
    let mirror = status(&decision)["mirrors"][0].clone();
    assert_eq!((&mirror["percent"], &mirror["behindBytes"]), (&json!(25), &json!(750)));
    let (found, reason, message) = condition(&decision, "Degraded");
    assert_eq!((found.as_str(), reason.as_str()), ("True", "MirrorBehind"));
    assert!(message.contains("mirror eu") && message.contains("the mirror's words; retrying"), "{message}");
    assert_eq!(condition(&decision, "Ready").0, "True", "pods read the origin");

    let mut unwanted = with_mirrors(&json!([]));
    unwanted.dataset.status.as_mut().unwrap().mirrors.push(serde_json::from_value(mirror).unwrap());
    let decision = decide_about(&unwanted, std::slice::from_ref(&job), &[failing]);
    assert_eq!(status(&decision)["mirrors"], Value::Null);
    let deletes = |write: &Write| write.kind == Kind::Job && write.change == Change::Delete("s".into());
    assert!(decision.writes.iter().any(deletes), "{:?}", decision.writes);
}

#[test]
fn pods_read_a_dataset_with_its_mirrors() {
    use larder_dataset::mirrors::MirrorSpec;
    let mut mirrors = kept_mirrors();
    mirrors[1]["near"] = json!({"site": "b"});
    let dataset = with_mirrors(&mirrors);
    let spec = dataset.dataset.spec.check().unwrap();
    let text = serde_json::to_string(&spec.mirrors).unwrap();
    let read: Vec<MirrorSpec> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, spec.mirrors, "larderd reads what the controller writes");
    assert_eq!(read[1].near.get("site").map(String::as_str), Some("b"));
}
