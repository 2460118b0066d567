//! What Larder reports to Kueue.

use super::*;
use crate::jobs::kueue::decide::abandon;

/// A running job whose Workload has these additional status fields.
fn runs(fields: Value) -> Case {
    let mut status = admission(8);
    status.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Case::running(Some(there(&sample(), status)), 8)
}

/// The status fields of a Workload whose pods are reported as ready.
fn ready() -> Value {
    let mut conditions = admission(8)["conditions"].clone();
    conditions.as_array_mut().unwrap().push(condition("PodsReady", "True", "Started", "All pods reached readiness"));
    json!({"conditions": conditions})
}

#[test]
fn quota_is_given_back_after_an_eviction_once_nothing_runs() {
    let (v1beta1, v1beta2) = (
        (KueueVersion::V1beta1, "accumulatedPastExexcutionTimeSeconds"),
        (KueueVersion::V1beta2, "accumulatedPastExecutionTimeSeconds"),
    );
    for (reason, requeued, (version, past)) in [
        ("Preempted", "True", v1beta1),
        ("Preempted", "True", v1beta2),
        ("NodeFailures", "True", v1beta2),
        ("PodsReadyTimeout", "False", v1beta2),
        ("Deactivated", "False", v1beta1),
    ] {
        let mut status = eviction(reason, "why");
        status["conditions"].as_array_mut().unwrap().push(condition("PodsReady", "True", "Started", ""));
        status[past] = 20.into();
        status["reclaimablePods"] = json!([{"name": "worker", "count": 2}]);
        let mut case = Case::running(Some(there(&sample(), status)), 8);
        (case.state, case.version) = (State::default(), version);
        assert_eq!(case.held_up().2, [], "its pods are still ending");
        case.observed.pods.clear();
        let (conditions, status) = status_of(&case.held_up().2);
        let expected = [
            ("QuotaReserved".to_owned(), pair("False", "Pending")),
            ("Admitted".to_owned(), pair("False", "NoReservation")),
            ("Evicted".to_owned(), pair("True", reason)),
            ("Requeued".to_owned(), pair(requeued, reason)),
            ("PodsReady".to_owned(), pair("False", "WaitForStart")),
        ];
        assert_eq!(conditions, expected.into());
        assert_eq!((&status["admission"], &status["reclaimablePods"]), (&Value::Null, &Value::Null));
        assert_eq!(status[past], 500, "8 minutes more");
    }
}

#[test]
fn after_that_kueue_decides_anew() {
    let conditions = [
        condition("Evicted", "True", "Preempted", "for another"),
        condition("QuotaReserved", "False", "Pending", "Preempted to accommodate a workload"),
        condition("Requeued", "True", "Preempted", "for another"),
    ];
    let case = Case::queued(Some(there(&sample(), json!({"conditions": conditions}))));
    let expected = "Kueue's queue gpus: Preempted to accommodate a workload".to_owned();
    assert_eq!(case.held_up(), (false, expected, Vec::new()));
    // It then requests what it wants by now.
    let mut case = case;
    let more = Sample::of("parameter-server", json!({"roles": [role("server", 1, 1), role("worker", 9, 4)]}));
    case.wanted = Ok(wanted(&more));
    assert_eq!(case.held_up().2[0].verb(), "patch");
}

#[test]
fn pods_are_ready_when_all_that_are_needed_are() {
    let mut case = runs(json!({}));
    let (conditions, _) = status_of(&case.decide().writes);
    assert_eq!(conditions["PodsReady"], pair("True", "Started"));
    assert_eq!(conditions.len(), 3, "Kueue's own are as they were");
    // Four of eight workers are enough.
    for pod in &mut case.observed.pods[5..] {
        pod.stage = PodStage::Bound;
    }
    assert_eq!(status_of(&case.decide().writes).0["PodsReady"], pair("True", "Started"));
    case.observed.pods[4].stage = PodStage::Bound;
    assert_eq!(case.decide().writes, [], "that it has not started yet is nothing new");
}

#[test]
fn a_loss_and_its_recovery_are_told_once() {
    assert_eq!(runs(ready()).decide().writes, []);
    let mut case = runs(ready());
    case.observed.pods.truncate(4);
    assert_eq!(status_of(&case.decide().writes).0["PodsReady"], pair("False", "WaitForRecovery"));
    let mut waits = ready();
    waits["conditions"][2] = condition("PodsReady", "False", "WaitForRecovery", "");
    let mut case = runs(waits.clone());
    assert_eq!(status_of(&case.decide().writes).0["PodsReady"], pair("True", "Recovered"));
    case.observed.pods.truncate(4);
    assert_eq!(case.decide().writes, []);
}

#[test]
fn pods_that_have_ended_for_good_give_their_quota_back() {
    let mut case = runs(ready());
    for (slot, pod) in case.state.roles[1].iter_mut().zip(&mut case.observed.pods[1..]).take(3) {
        (slot.stage, pod.stage) = (Stage::Done, PodStage::Succeeded);
    }
    let (_, status) = status_of(&case.decide().writes);
    assert_eq!(status["reclaimablePods"], json!([{"name": "worker", "count": 3}]));
    // The report is sent once, and the job keeps its eight indexes.
    let mut reported = ready();
    reported["reclaimablePods"] = status["reclaimablePods"].clone();
    case.workloads = runs(reported).workloads;
    let decision = case.decide();
    assert_eq!(decision.writes, []);
    let Verdict::Run(running) = decision.verdict else { panic!() };
    assert_eq!(running.granted, [1, 8]);
    // If a loss restarts the whole gang, the finished pods may be needed again.
    case.observed.terms.scope = Scope::Job;
    case.workloads = runs(ready()).workloads;
    assert_eq!(case.decide().writes, []);
}

#[test]
fn fewer_replicas_give_quota_back_when_their_pods_are_gone() {
    let mut case = runs(ready());
    case.sample.job.roles[1].replicas = 6;
    let decision = case.decide();
    let Verdict::Run(running) = decision.verdict else { panic!() };
    assert_eq!((running.granted, running.why.is_empty()), (vec![1, 6], false));
    assert_eq!(decision.writes, []);
    case.state.roles[1].truncate(6);
    assert_eq!(case.decide().writes, [], "two are still ending");
    case.observed.pods.truncate(7);
    let (_, status) = status_of(&case.decide().writes);
    assert_eq!(status["reclaimablePods"], json!([{"name": "worker", "count": 2}]));
    // They do not return before the next admission.
    let mut reported = ready();
    reported["reclaimablePods"] = status["reclaimablePods"].clone();
    case.workloads = runs(reported).workloads;
    case.sample.job.roles[1].replicas = 8;
    let Verdict::Run(running) = case.decide().verdict else { panic!() };
    assert_eq!(running.granted, [1, 6]);
}

#[test]
fn more_replicas_wait_for_the_next_admission() {
    let mut case = runs(ready());
    case.sample.job.roles[1].replicas = 12;
    let Verdict::Run(running) = case.decide().verdict else { panic!() };
    assert_eq!((running.granted, running.may_grow_to), (vec![1, 8], vec![1, 8]));
}

#[test]
fn a_job_admitted_in_part_gives_back_what_it_was_given_and_no_more() {
    let mut status = admission(6);
    status["conditions"] = ready()["conditions"].clone();
    let mut case = Case::running(Some(there(&sample(), status)), 6);
    assert_eq!(case.decide().writes, []);
    case.state.roles[1].truncate(5);
    case.observed.pods.truncate(6);
    assert_eq!(case.decide().writes, [], "there was no node for the sixth, and there may be one later");
    case.sample.job.roles[1].replicas = 5;
    // Kueue counts from the requested eight.
    let (_, status) = status_of(&case.decide().writes);
    assert_eq!(status["reclaimablePods"], json!([{"name": "worker", "count": 3}]));
}

#[test]
fn an_ended_job_finishes_its_workload_and_lets_it_go() {
    for (phase, why, reason) in [(Phase::Succeeded, "", "Succeeded"), (Phase::Failed, "it crashed", "Failed")] {
        let mut case = runs(ready());
        (case.state.phase, case.state.why) = (phase, why.to_owned());
        case.observed.pods.iter_mut().for_each(|pod| pod.stage = PodStage::Failed);
        let (conditions, _) = status_of(&case.held_up().2);
        assert_eq!(conditions["Finished"], pair("True", reason));
        let mut finished = ready();
        finished["conditions"].as_array_mut().unwrap().push(condition("Finished", "True", reason, why));
        case.workloads = runs(finished).workloads;
        let metadata = json!({"resourceVersion": "71", "finalizers": []});
        assert_eq!(case.held_up().2[0].change, Change::Merge(json!({"metadata": metadata})));
        case.workloads[0].finalizers.clear();
        assert_eq!(case.held_up().2, []);
        case.workloads.clear();
        assert_eq!(case.held_up().2, [], "there is no other one");
    }
}

#[test]
fn the_pods_that_an_ended_job_leaves_keep_their_quota_until_they_have_ended() {
    let mut case = runs(ready());
    case.state.phase = Phase::Failed;
    assert_eq!(case.held_up().2, [], "they run on");
    case.observed.pods.truncate(1);
    // A pod that is stuck in termination still runs, no matter for how long.
    case.observed.pods[0].leaving = Some(NOW - 3_600);
    assert_eq!(case.held_up().2, []);
    let mut deleted = case.workloads[0].clone();
    deleted.meta.deleting = true;
    let there = std::mem::replace(&mut case.workloads[0], deleted);
    assert_eq!(case.held_up().2, [], "its Workload stays, too, if somebody deletes it");
    case.workloads[0] = there;
    for gone in [
        Pod { stage: PodStage::Failed, ..case.observed.pods[0].clone() },
        Pod {
            node: Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() }),
            ..case.observed.pods[0].clone()
        },
    ] {
        case.observed.pods = vec![gone];
        assert_eq!(status_of(&case.held_up().2).0["Finished"], pair("True", "Failed"));
    }
}

// SEMANTICS: J9
#[test]
fn a_pod_that_hangs_in_its_end_keeps_the_quota_of_an_evicted_job() {
    let mut case = Case::running(Some(there(&sample(), eviction("Preempted", "why"))), 8);
    case.state = State::default();
    case.observed.pods.truncate(1);
    case.observed.pods[0].leaving = Some(NOW - 3_600);
    assert_eq!(case.held_up().2, []);
}

#[test]
fn a_finished_workload_of_a_job_that_has_not_ended_says_what_to_do() {
    let finished = json!({"conditions": [condition("Finished", "True", "OutOfSync", "out of sync")]});
    let (stops, why, writes) = Case::running(Some(there(&sample(), finished)), 8).held_up();
    let expected =
        format!("its Workload {NAME} is finished (OutOfSync): out of sync; delete it to queue the job again");
    assert_eq!((stops, why, writes.len()), (true, expected, 0));
}

#[test]
fn a_suspended_job_has_no_workload_once_nothing_runs() {
    let mut case = runs(ready());
    case.observed.terms.suspend = true;
    assert_eq!(case.held_up().2, []);
    (case.state, case.observed.pods) = (State { phase: Phase::Suspended, ..State::default() }, Vec::new());
    assert_eq!(case.held_up().2[0].change, Change::Delete("w-1".to_owned()));
    case.workloads.clear();
    assert_eq!(case.held_up().2, []);
}

#[test]
fn the_workload_of_a_job_that_is_gone_goes() {
    let mut workload = there(&sample(), admission(8));
    workload.finalizers.push("example.org/keep".to_owned());
    assert_eq!(abandon(&workload, KueueVersion::V1beta1).unwrap().change, Change::Delete("w-1".to_owned()));
    workload.meta.deleting = true;
    let metadata = json!({"resourceVersion": "71", "finalizers": ["example.org/keep"]});
    let write = abandon(&workload, KueueVersion::V1beta1).unwrap();
    assert_eq!(write.change, Change::Merge(json!({"metadata": metadata})));
    workload.finalizers.remove(0);
    assert_eq!(abandon(&workload, KueueVersion::V1beta1), None);
}
