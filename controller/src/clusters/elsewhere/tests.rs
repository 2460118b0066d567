use std::collections::BTreeMap;

use larder_api::ClusterReason;
use larder_api::cluster::ClusterStatus;
use larder_kube::key::Meta;
use serde_json::Value;

use super::*;
use crate::clusters::fence::Home;
use crate::clusters::known::Report;
use crate::clusters::objects::ClusterObject;
use crate::jobs::read::training_job;
use crate::time::Millis;

const NOW: Seconds = Seconds(1_000_000);

/// A job that may run in two clusters.
fn job(spec: Value, status: Value) -> JobObject {
    let mut fields = json!({"type": "single", "clusters": ["west", "cloud"], "roles": [
        {"name": "worker", "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}]});
    for (field, value) in spec.as_object().unwrap() {
        fields[field] = value.clone();
    }
    let metadata = json!({"name": "train", "namespace": "team-a", "uid": "u", "generation": 2, "resourceVersion": "7",
        "finalizers": ["other/one", "larder.dev/elsewhere"]});
    let object = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": fields,
        "status": status});
    training_job(serde_json::from_value(object).unwrap()).unwrap().unwrap()
}

fn in_west(phase: &str) -> Value {
    json!({"phase": phase, "placement": {"cluster": "west"}})
}

/// The clusters `west` and `cloud`, of which `west` was read at 100 s and has these copies.
fn clusters(copies: Vec<RemoteJob>) -> Clusters {
    let mut clusters = Clusters { now: Millis(100_000), ..Clusters::default() };
    for name in ["west", "cloud"] {
        let meta = Meta { key: Key::cluster(name), uid: name.to_owned(), ..Meta::default() };
        clusters.objects.put(ClusterObject { meta, ..ClusterObject::default() });
        let mut link = Link::new(1, Millis(100_000));
        link.apply(Report::Home("home".to_owned()), Millis(100_000));
        let status = ClusterStatus { heartbeat: Some(time(NOW)), ..ClusterStatus::default() };
        link.apply(Report::Beat(Box::new(status), BTreeMap::new(), 3), Millis(100_000));
        link.apply(Report::All(if name == "west" { copies.clone() } else { Vec::new() }), Millis(100_000));
        clusters.links.insert(name.to_owned(), link);
    }
    clusters
}

fn copy(uid: &str, status: Value) -> RemoteJob {
    RemoteJob {
        meta: Meta { key: Key::new("team-a", "train"), uid: "there".to_owned(), ..Meta::default() },
        home: Home { id: "home".to_owned(), job: uid.to_owned(), generation: 2, ..Home::default() },
        generation: 5,
        status: serde_json::from_value(status).unwrap(),
    }
}

/// The status that is written; `None` if nothing is.
fn written(outcome: &Outcome) -> Option<TrainingJobStatus> {
    let status = outcome.writes.iter().find_map(|write| match &write.change {
        Change::ApplyStatus(fields) => Some(fields["status"].clone()),
        _ => None,
    });
    status.map(|status| serde_json::from_value(status).unwrap())
}

fn decided(job: &JobObject, clusters: &Clusters) -> Outcome {
    decide(job, clusters, None, None, NOW)
}

// SEMANTICS: J18
#[test]
fn a_sweep_stays_here_and_a_cluster_is_chosen_for_each_of_its_trials() {
    let mut sweep = job(json!({"sweep": {"list": [{"LR": "0.1"}]}}), json!({}));
    sweep.finalizers.clear();
    assert!(sweep.is_ours() && !sweep.is_spread());
    assert_eq!(sweep.trial_spec.unwrap()["clusters"], json!(["west", "cloud"]));
}

#[test]
fn the_finalizer_and_the_cluster_of_a_job_are_written_before_anything_else() {
    let mut new = job(json!({}), json!({}));
    new.finalizers = vec!["other/one".to_owned()];
    let choice = Choice::Place { cluster: "west".to_owned(), terms: Vec::new() };
    let outcome = decide(&new, &clusters(Vec::new()), Some(&choice), None, NOW);
    let Change::Merge(first) = &outcome.writes[0].change else { panic!("{outcome:?}") };
    assert_eq!(first["metadata"]["finalizers"], json!(["other/one", "larder.dev/elsewhere"]));
    assert_eq!(first["metadata"]["resourceVersion"], "7", "a list that others change meanwhile is not replaced");
    assert_eq!(outcome.writes.len(), 1);
    let outcome = decide(&job(json!({}), json!({})), &clusters(Vec::new()), Some(&choice), None, NOW);
    let placement = written(&outcome).unwrap().placement.unwrap();
    assert_eq!((placement.cluster.as_str(), placement.since), ("west", Some(time(NOW))));
    let Change::ApplyStatus(moves) = &outcome.writes[0].change else { panic!("{outcome:?}") };
    assert_eq!(moves["metadata"]["resourceVersion"], "7", "a write that arrives late moves no job");
    // A job that is to run here needs no finalizer.
    let choice = Choice::Place { cluster: HERE.to_owned(), terms: Vec::new() };
    assert_eq!(decide(&new, &clusters(Vec::new()), Some(&choice), None, NOW).writes.len(), 1);
}

#[test]
fn the_status_over_there_is_the_status_here_and_is_of_the_spec_here_once_it_was_acted_on() {
    let own = job(json!({}), in_west("Queued"));
    let running = json!({"phase": "Running", "observedGeneration": 5, "shown": {"ready": "1/1"}});
    let outcome = decided(&own, &clusters(vec![copy("u", running.clone())]));
    let Change::ApplyStatus(fields) = &outcome.writes[0].change else { panic!("{outcome:?}") };
    assert_eq!(fields["metadata"]["resourceVersion"], "7", "a status that arrives late moves no job back");
    let status = written(&outcome).unwrap();
    assert_eq!((status.phase, status.observed_generation), (Some(Phase::Running), Some(2)));
    assert_eq!(status.placement.map(|placement| placement.cluster).as_deref(), Some("west"));
    let mut behind = copy("u", running);
    behind.home.generation = 1;
    assert_eq!(written(&decided(&own, &clusters(vec![behind]))).unwrap().observed_generation, None);
}

// SEMANTICS: J20
#[test]
fn a_copy_of_another_job_and_one_that_begins_again_say_nothing_about_the_job() {
    let own = job(json!({}), in_west("Running"));
    let status = written(&decided(&own, &clusters(vec![copy("other", json!({"phase": "Succeeded"}))]))).unwrap();
    assert_eq!(status.phase, Some(Phase::Queued), "it is to be created");
    assert_eq!(written(&decided(&job(json!({}), in_west("Queued")), &clusters(Vec::new()))), None, "in a moment");
    let ended = job(json!({}), in_west("Succeeded"));
    let lie = clusters(vec![copy("u", json!({"phase": "Running"}))]);
    assert_eq!(written(&decided(&ended, &lie)), None);
    assert_eq!(written(&decided(&ended, &clusters(Vec::new()))), None);
}

#[test]
fn the_pods_of_a_job_that_has_ended_are_counted_until_the_last_of_them_has_ended() {
    let role = |active: u32| json!([{"name": "worker", "desired": 3, "active": active, "ready": 0, "done": 0}]);
    let mut failed = in_west("Failed");
    failed["roles"] = role(2);
    let own = job(json!({}), failed);
    let there = |phase: &str| clusters(vec![copy("u", json!({"phase": phase, "roles": role(0)}))]);
    let status = written(&decided(&own, &there("Failed"))).unwrap();
    assert_eq!((status.phase, status.roles[0].active), (Some(Phase::Failed), 0));
    assert_eq!(written(&decided(&own, &there("Running"))), None);
}

// SEMANTICS: J19
#[test]
fn a_job_in_a_cluster_that_does_not_answer_is_unknown_since_then_and_leaves_only_with_failover() {
    let running = copy("u", json!({"phase": "Running"}));
    let mut lost = clusters(vec![running]);
    lost.now = Millis(400_000);
    let own = job(json!({}), in_west("Running"));
    let outcome = decided(&own, &lost);
    let status = written(&outcome).unwrap();
    let placement = status.placement.unwrap();
    assert_eq!((status.phase, placement.cluster.as_str()), (Some(Phase::Running), "west"));
    assert_eq!(placement.unknown_since, Some(time(NOW - 300)));
    assert_eq!((status.shown.unwrap().why.as_str(), outcome.leaves, outcome.again_at), ("Unknown", None, None));

    let own = job(json!({"failover": "300s"}), in_west("Running"));
    let outcome = decided(&own, &lost);
    assert_eq!((outcome.leaves, outcome.again_at), (None, Some(NOW + 1)), "not before it has passed");
    lost.now = Millis(401_000);
    let outcome = decided(&own, &lost);
    assert_eq!(outcome.leaves.as_deref(), Some("west"));
    let placement = written(&outcome).unwrap().placement.unwrap();
    assert_eq!((placement.cluster.as_str(), placement.left), ("", vec!["west".to_owned()]));

    // Another home runs it, and it is not started a second time beside it.
    let theirs = RemoteJob { home: Home { id: "other".to_owned(), ..Home::default() }, ..copy("u", json!({})) };
    let taken = Clusters { now: Millis(500_000), ..clusters(vec![theirs]) };
    assert_eq!(decided(&own, &taken).leaves, None);

    // Once that is decided, the job leaves even if the cluster answers before it is written.
    let mut back = clusters(Vec::new());
    back.leaving = BTreeMap::from([("west".to_owned(), ["u".to_owned()].into())]);
    assert_eq!(decided(&own, &back).leaves.as_deref(), Some("west"));
    // The administrator has removed the cluster.
    let mut forgotten = clusters(Vec::new());
    forgotten.objects.take(&Key::cluster("west"));
    forgotten.links.remove("west");
    let said = written(&decided(&own, &forgotten)).unwrap().waiting_for.unwrap();
    assert!(said.starts_with("there is no Cluster west any more"), "{said}");
    // A job that has ended stays.
    let ended = job(json!({"failover": "300s"}), in_west("Succeeded"));
    assert!(decided(&ended, &lost).writes.is_empty());
}

#[test]
fn a_process_that_knows_nothing_of_a_link_gives_no_job_up() {
    let own = job(json!({"failover": "2m"}), in_west("Running"));
    let mut fresh = clusters(Vec::new());
    fresh.links.clear();
    assert_eq!(decided(&own, &fresh).leaves, None);
}

#[test]
fn a_cluster_that_a_job_has_left_is_remembered_until_it_says_that_it_has_no_copy() {
    let left = json!({"phase": "Queued", "placement": {"cluster": "cloud", "left": ["west"]}});
    let own = job(json!({}), left);
    let left = |clusters: &Clusters| written(&decided(&own, clusters)).map(|status| status.placement.unwrap().left);
    assert_eq!(left(&clusters(vec![copy("u", json!({}))])), None, "it stays as it is");
    assert_eq!(left(&clusters(Vec::new())), Some(Vec::new()));
    let mut lost = clusters(Vec::new());
    let west = lost.links.get_mut("west").unwrap();
    west.apply(Report::Lost(ClusterReason::NoAnswer, "reset".to_owned()), Millis(100_000));
    assert_eq!(left(&lost), None);
    // An administrator has removed the cluster.
    lost.objects.take(&Key::cluster("west"));
    assert_eq!(left(&lost), Some(Vec::new()));
}

#[test]
fn a_deleted_job_stays_until_no_cluster_has_a_copy() {
    let mut own = job(json!({}), in_west("Running"));
    own.meta.deleting = true;
    assert!(decided(&own, &clusters(vec![copy("u", json!({}))])).writes.is_empty());
    let mut lost = clusters(Vec::new());
    let west = lost.links.get_mut("west").unwrap();
    west.apply(Report::Lost(ClusterReason::NoAnswer, "reset".to_owned()), Millis(100_000));
    assert!(decided(&own, &lost).writes.is_empty(), "nothing is known of it");
    let outcome = decided(&own, &clusters(Vec::new()));
    let Change::Merge(last) = &outcome.writes[0].change else { panic!("{outcome:?}") };
    assert_eq!(last["metadata"]["finalizers"], json!(["other/one"]));
    // It has moved from a cluster that does not answer: its pods here must not wait for that one.
    let mut moved = job(json!({}), json!({"phase": "Running", "placement": {"cluster": "here", "left": ["west"]}}));
    moved.meta.deleting = true;
    assert_eq!(decided(&moved, &lost).writes.len(), 1);
}

#[test]
fn the_terms_of_a_waiting_job_are_written_when_the_outcome_changes() {
    let term = |missing_bytes: u64, why: &str| {
        vec![ClusterTerm { cluster: "west".into(), missing_bytes, why: why.into(), ..ClusterTerm::default() }]
    };
    let wait = |terms| Choice::Wait { terms, reason: JobReason::NoCluster, why: "fits nowhere".to_owned() };
    let new = job(json!({}), json!({}));
    let outcome = decide(&new, &clusters(Vec::new()), Some(&wait(term(7, "full"))), None, NOW);
    let status = written(&outcome).unwrap();
    assert_eq!(
        (status.waiting_for.as_deref(), status.conditions[0].reason.as_str()),
        (Some("fits nowhere"), "NoCluster")
    );
    let waiting = JobObject { status, ..new };
    let next = |terms| written(&decide(&waiting, &clusters(Vec::new()), Some(&wait(terms)), None, NOW));
    assert_eq!(next(term(6, "full")), None);
    assert!(next(term(6, "does not answer")).is_some());
}

#[test]
fn a_job_that_waits_for_room_is_not_written_whenever_another_begins_or_ends() {
    let none = clusters(Vec::new());
    let wait = |reason, why: &str| Choice::Wait { terms: Vec::new(), reason, why: why.to_owned() };
    let used = |left: &str| wait(JobReason::QuotaUsed, &format!("queue vision has {left} left, needs 3 GPUs"));
    let new = job(json!({}), json!({}));
    let status = written(&decide(&new, &none, Some(&used("2 GPUs")), None, NOW)).unwrap();
    let waiting = JobObject { status, ..new };
    let next = |choice: &Choice, now: Seconds| decide(&waiting, &none, Some(choice), None, now);
    assert_eq!(written(&next(&used("1 GPU"), NOW + 1000)), None, "the numbers alone have changed");
    let full = wait(JobReason::NoCluster, "fits in none of its clusters now");
    let outcome = next(&full, NOW + ROOM_NEWS_SECONDS - 1);
    assert_eq!((written(&outcome), outcome.again_at), (None, Some(NOW + ROOM_NEWS_SECONDS)));
    let status = written(&next(&full, NOW + ROOM_NEWS_SECONDS)).unwrap();
    assert_eq!(status.conditions[0].reason, "NoCluster");
    // Anything else is written at once.
    let refused = wait(JobReason::QueueNotGranted, "the namespace team-a may not use the queue vision");
    assert!(written(&next(&refused, NOW + 1)).is_some());
    assert!(
        written(&next(&wait(JobReason::QuotaUsed, "queue speech has 2 GPUs left, needs 3 GPUs"), NOW + 1)).is_some()
    );
}

#[test]
fn a_job_that_has_ended_elsewhere_is_deleted_after_its_time() {
    let at = |seconds: i64| time(NOW - seconds);
    let ended = |seconds: i64| {
        let status = json!({"phase": "Succeeded", "finished": at(seconds), "placement": {"cluster": "west"}});
        job(json!({"ttlAfterFinished": "1h"}), status)
    };
    let outcome = decided(&ended(3599), &clusters(Vec::new()));
    assert_eq!((outcome.writes.len(), outcome.again_at), (0, Some(NOW + 1)));
    assert!(matches!(decided(&ended(3600), &clusters(Vec::new())).writes[0].change, Change::Delete(_)));
}
