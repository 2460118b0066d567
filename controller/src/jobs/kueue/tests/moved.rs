//! Jobs that MultiKueue runs in other clusters.

use super::*;
use crate::jobs::kueue::moved::{self, Outcome};
use crate::jobs::objects::JobObject;
use crate::jobs::read::training_job;
use crate::jobs::refusal::Refusal;
use larder_api::training_job::conditions::JobReason;
use larder_kube::kinds::Kind;

/// The sample job with these fields of its spec and this status, in a queue of Kueue and managed by MultiKueue.
fn job(spec: Value, status: Value) -> JobObject {
    let mut fields = json!({"type": "parameter-server", "managedBy": "kueue.x-k8s.io/multikueue",
        "roles": [role("server", 1, 1), role("worker", 8, 4)]});
    fields.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"name": "train", "namespace": "team-a", "uid": "11ce-d00d", "generation": 2,
        "resourceVersion": "7", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}});
    let object = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata,
        "spec": fields, "status": status});
    training_job(serde_json::from_value(object).unwrap()).unwrap().unwrap()
}

fn decided_at(now: Seconds, object: &JobObject, workload: Option<&JobWorkload>) -> Outcome {
    assert!(object.is_moved());
    decided_as(now, object, workload, &|| Ok(wanted(&sample())))
}

fn decided_as(
    now: Seconds,
    object: &JobObject,
    workload: Option<&JobWorkload>,
    wanted: &dyn Fn() -> Result<Wanted, Refusal>,
) -> Outcome {
    moved::decide(&moved::Situation {
        now,
        version: KueueVersion::V1beta2,
        object,
        job: object.job.as_ref().expect("valid"),
        queue: "gpus",
        workload,
        wanted,
        keep_ended_jobs: None,
    })
}

fn decided(object: &JobObject, workload: Option<&JobWorkload>) -> Vec<Write> {
    let Outcome { writes, again_at } = decided_at(NOW, object, workload);
    assert_eq!(again_at, None);
    writes
}

/// The status that a write gives to the job.
fn status(write: &Write) -> Value {
    let Write { kind: Kind::TrainingJob, change: Change::MergeStatus(fields), .. } = write else { panic!("{write:?}") };
    assert_eq!(fields["metadata"], json!({"uid": "11ce-d00d", "resourceVersion": "7"}));
    fields["status"].clone()
}

// SEMANTICS: J22
#[test]
fn a_moved_job_gets_a_workload_and_says_that_it_waits() {
    let writes = decided(&job(json!({}), json!({})), None);
    assert_eq!(writes[1], wanted(&sample()).create());
    let written = status(&writes[0]);
    assert_eq!(written["phase"], "Queued");
    assert_eq!(written["waitingFor"], "asks Kueue's queue gpus for quota");
    // At rest, nothing is written.
    let written = job(json!({}), written);
    assert_eq!(decided(&written, None), [wanted(&sample()).create()]);
    assert_eq!(decided(&written, Some(&there(&sample(), json!({})))), []);
    assert_eq!(decided(&written, Some(&there(&sample(), admission(8)))), [], "MultiKueue does the rest");
}

// SEMANTICS: J22
#[test]
fn a_moved_job_that_can_have_no_workload_says_why() {
    let why = || Err(Refusal::new(JobReason::TypeMissing, "there is no JobType parameter-server"));
    let outcome = decided_as(NOW, &job(json!({}), json!({})), None, &why);
    let [write] = &outcome.writes[..] else { panic!("{outcome:?}") };
    let written = status(write);
    let valid = &written["conditions"][0];
    assert_eq!((&valid["type"], &valid["reason"]), (&json!("Valid"), &json!("TypeMissing")));
    assert_eq!(written["waitingFor"], "there is no JobType parameter-server");
    assert_eq!(decided_as(NOW + 60, &job(json!({}), written), None, &why), Outcome::default());
    let mut other = there(&sample(), json!({}));
    other.owner = None;
    let writes = decided(&job(json!({}), json!({})), Some(&other));
    assert_eq!(status(&writes[0])["waitingFor"], format!("the Workload {NAME} belongs to something else: delete it"));
    assert_eq!(writes.len(), 1);
}

// SEMANTICS: J22
#[test]
fn a_suspended_job_loses_its_workload_and_with_it_the_copy() {
    let copied = json!({"phase": "Running", "started": "2026-01-01T10:00:00Z", "waitingFor": "as it is over there"});
    let suspended = job(json!({"suspend": true}), copied);
    let mut workload = there(&sample(), admission(8));
    assert_eq!(decided(&suspended, Some(&workload))[0].change, Change::Delete("w-1".to_owned()));
    workload.meta.deleting = true;
    let writes = decided(&suspended, Some(&workload));
    let Change::Merge(patch) = &writes[0].change else { panic!("{writes:?}") };
    assert_eq!(patch["metadata"]["finalizers"], json!([]));
    let written = status(&decided(&suspended, None)[0]);
    assert_eq!(written["phase"], "Suspended");
    // The fields of the last copy go.
    for field in ["started", "waitingFor"] {
        assert!(written.as_object().unwrap().contains_key(field) && written[field].is_null(), "{field}: {written}");
    }
}

// SEMANTICS: J22
#[test]
fn the_quota_of_an_evicted_job_is_given_back_once_its_copy_has_no_pods_or_does_not_say_so_in_time() {
    let workload = there(&sample(), eviction("Preempted", "for another job"));
    let evicted_at = NOW - 480;
    for name in ["Queued", "Suspended"] {
        let writes = decided(&job(json!({}), json!({"phase": name})), Some(&workload));
        let (conditions, fields) = status_of(&writes);
        assert_eq!((&conditions["QuotaReserved"].0, &fields["admission"]), (&"False".to_owned(), &Value::Null));
    }
    let runs = job(json!({}), json!({"phase": "Running"}));
    let waits = decided_at(evicted_at + 299, &runs, Some(&workload));
    assert_eq!((waits.writes.len(), waits.again_at), (0, Some(evicted_at + 300)));
    assert_eq!(decided_at(evicted_at + 300, &runs, Some(&workload)).writes.len(), 1);
}

// SEMANTICS: J22
#[test]
fn a_job_that_has_ended_does_not_begin_again() {
    for (name, reason) in [("Succeeded", "Succeeded"), ("Failed", "Failed")] {
        let ended = job(json!({}), json!({"phase": name}));
        // MultiKueue finishes the Workload while it knows of the one over there.
        assert_eq!(decided(&ended, Some(&there(&sample(), admission(8)))), []);
        for lost in [eviction("AdmissionCheck", "Admitting remote no longer exists"), json!({})] {
            let (conditions, _) = status_of(&decided(&ended, Some(&there(&sample(), lost))));
            assert_eq!(conditions["Finished"], pair("True", reason));
        }
        assert_eq!(decided(&ended, None), []);
    }
}

/// The status of a job that a newer version runs, in this phase. The form of its roles is unknown here.
fn of_newer(phase: &str) -> Value {
    json!({"phase": phase, "record": json!({"version": 99}).to_string(), "roles": "of another form",
        "finished": "2026-01-01T10:39:00Z", "conditions": [condition("Placed", "True", "Bound", "")]})
}

// SEMANTICS: J22
#[test]
fn of_a_status_that_a_newer_version_has_written_everything_counts_that_can_be_read() {
    let running = job(json!({}), of_newer("Running"));
    assert_eq!((running.status.conditions.len(), running.status.roles.len()), (1, 0));
    // It keeps its quota while it has pods, and is suspended as any other.
    let evicted = there(&sample(), eviction("Preempted", "for another job"));
    assert_eq!(decided_at(NOW - 200, &running, Some(&evicted)).writes, []);
    let written = status(&decided(&job(json!({"suspend": true}), of_newer("Running")), None)[0]);
    assert_eq!((&written["phase"], written.get("record")), (&json!("Suspended"), Some(&Value::Null)));
    // It does not begin again once it has ended, and is deleted in its time.
    let ended = job(json!({"ttlAfterFinished": "1m"}), of_newer("Succeeded"));
    let (conditions, _) = status_of(&decided(&ended, Some(&evicted)));
    assert_eq!(conditions["Finished"], pair("True", "Succeeded"));
    assert_eq!(decided(&ended, None)[0].change, Change::Delete("11ce-d00d".to_owned()));
}

// SEMANTICS: J22
#[test]
fn a_job_in_a_phase_that_only_a_newer_version_knows_may_have_pods_and_may_have_ended() {
    let unknown = job(json!({}), of_newer("Dreaming"));
    assert_eq!((unknown.status.phase, unknown.status.conditions.len()), (None, 1));
    assert_eq!(decided(&unknown, None), [], "it does not begin again");
    let evicted = there(&sample(), eviction("Preempted", "for another job"));
    let waits = decided_at(NOW - 200, &unknown, Some(&evicted));
    assert_eq!((waits.writes.len(), waits.again_at), (0, Some(NOW - 180)));
    assert_eq!(decided_at(NOW - 180, &unknown, Some(&evicted)).writes.len(), 1);
}

// SEMANTICS: J22
#[test]
fn an_ended_job_lets_its_workload_go_and_is_deleted_in_its_time() {
    let mut finished = admission(8);
    finished["conditions"].as_array_mut().unwrap().push(condition("Finished", "True", "Succeeded", "done"));
    let mut workload = there(&sample(), finished);
    let copied = json!({"phase": "Succeeded", "finished": "2026-01-01T10:39:00Z"});
    let ended = job(json!({"ttlAfterFinished": "2m"}), copied);
    let writes = decided(&ended, Some(&workload));
    assert!(matches!(&writes[..], [Write { change: Change::Merge(_), .. }]), "{writes:?}");
    workload.finalizers.clear();
    let waits = decided_at(NOW, &ended, Some(&workload));
    assert_eq!((waits.writes.len(), waits.again_at), (0, Some(NOW + 60)));
    let writes = decided_at(NOW + 60, &ended, Some(&workload)).writes;
    assert_eq!(writes[0].change, Change::Delete("11ce-d00d".to_owned()));
}

#[test]
fn the_request_follows_the_job_while_there_is_no_quota() {
    let mut workload = there(&sample(), json!({}));
    workload.digest = "of an earlier spec".to_owned();
    assert_eq!(decided(&job(json!({}), json!({"phase": "Queued"})), Some(&workload)).len(), 1);
    let mut workload = there(&sample(), admission(8));
    workload.digest = "of an earlier spec".to_owned();
    assert_eq!(decided(&job(json!({}), json!({"phase": "Running"})), Some(&workload)), []);
}

#[test]
fn only_jobs_in_queues_of_kueue_that_are_no_sweeps_are_moved() {
    assert!(job(json!({}), json!({})).is_moved() && !job(json!({}), json!({})).is_ours());
    assert!(!job(json!({"managedBy": "example.org/other"}), json!({})).is_moved());
    assert!(!job(json!({"sweep": {"list": [{"LR": "1"}]}}), json!({})).is_moved());
}
