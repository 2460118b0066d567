//! The verdicts that follow from Kueue's decisions.

use super::*;
use crate::jobs::queue::Running;

#[test]
fn a_job_without_a_workload_gets_one_and_waits() {
    let mut case = Case::queued(None);
    let (_, why, writes) = case.held_up();
    assert_eq!(why, "asks Kueue's queue gpus for quota");
    assert_eq!(writes, [wanted(&case.sample).create()]);
    // Pods of an earlier start would use the quota that the next start gets.
    case.observed.pods = running(1, 1).1;
    let (_, why, writes) = case.held_up();
    assert_eq!((why.as_str(), writes.len()), ("its earlier pods are still terminating", 0));
    // Pods on a lost node do not delay it.
    for pod in &mut case.observed.pods {
        pod.node = Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() });
    }
    assert_eq!(case.held_up().2.len(), 1);
}

#[test]
fn a_job_that_kueue_cannot_take_says_why() {
    let mut case = Case::queued(None);
    case.wanted = Err(NoWorkload::NoClass(NoClass::Pod("high".to_owned())));
    let (_, why, writes) = case.held_up();
    assert_eq!((why.as_str(), writes.len()), ("there is no PriorityClass high", 0));
}

#[test]
fn a_job_without_quota_waits_in_kueues_words() {
    let said = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed";
    for (status, why) in [
        (json!({}), "Kueue's queue gpus has not decided yet".to_owned()),
        (
            json!({"conditions": [condition("QuotaReserved", "False", "Pending", said)]}),
            format!("Kueue's queue gpus: {said}"),
        ),
        (
            json!({
                "conditions": [condition("QuotaReserved", "False", "Pending", "At least one admission check is false")],
                "requeueState": {"count": 1, "requeueAt": "2026-01-01T10:41:00Z"},
            }),
            "Kueue's queue gpus: At least one admission check is false; queued again at 10:41 UTC".to_owned(),
        ),
    ] {
        assert_eq!(Case::queued(Some(there(&sample(), status))).held_up(), (false, why, Vec::new()));
    }
}

#[test]
fn a_job_with_quota_waits_for_checks_and_its_data_is_fetched() {
    let mut status = admission(8);
    status["conditions"].as_array_mut().unwrap().pop();
    status["admissionChecks"] = json!([
        {"name": "data", "state": "Ready", "message": "warm"},
        {"name": "nodes", "state": "Pending", "message": "2 of 8 nodes are there"},
        {"name": "odd"},
    ]);
    let decision = Case::queued(Some(there(&sample(), status.clone()))).decide();
    let Verdict::Wait(waiting) = decision.verdict else { panic!("{decision:?}") };
    let expected = "has quota in the ClusterQueue research, waits for checks: nodes is Pending (2 of 8 nodes are there); odd is Pending";
    assert_eq!((waiting.why.as_str(), waiting.warm), (expected, true));
    // A running job without admission stops.
    assert!(Case::running(Some(there(&sample(), status)), 8).held_up().0);
}

#[test]
fn an_admitted_job_starts_with_the_pods_that_were_admitted() {
    for (admitted, granted) in [(8, 8), (5, 5), (4, 4)] {
        let decision = Case::queued(Some(there(&sample(), admission(admitted)))).decide();
        assert_eq!(
            decision.verdict,
            Verdict::Start { granted: vec![1, granted], nodes: Vec::new(), flavors: Vec::new() }
        );
        assert_eq!(decision.places.map(|places| places.len()), Some(2));
        assert_eq!(decision.writes, []);
    }
    // A missing count means the count of the spec.
    let mut status = admission(8);
    status["admission"]["podSetAssignments"][1].as_object_mut().unwrap().remove("count");
    let decision = Case::queued(Some(there(&sample(), status))).decide();
    assert_eq!(decision.verdict, Verdict::Start { granted: vec![1, 8], nodes: Vec::new(), flavors: Vec::new() });
}

#[test]
fn an_admission_that_lacks_a_role_or_has_too_few_of_it_starts_nothing() {
    let mut status = admission(8);
    status["admission"]["podSetAssignments"].as_array_mut().unwrap().pop();
    let (_, why, writes) = Case::queued(Some(there(&sample(), status))).held_up();
    assert_eq!((why.as_str(), writes[0].verb()), ("Kueue has admitted none of worker; the job asks again", "delete"));
    let mut status = admission(8);
    status.as_object_mut().unwrap().remove("admission");
    assert!(matches!(Case::queued(Some(there(&sample(), status))).decide().verdict, Verdict::Wait(_)));
    // `min` was raised while the job runs: it stops, and requests quota again once none of its pods runs.
    let mut case = Case::running(Some(there(&sample(), admission(5))), 5);
    case.sample.job.roles[1].min = 6;
    let (stops, why, writes) = case.held_up();
    assert_eq!(
        (stops, why.as_str()),
        (true, "Kueue has admitted 5 of worker, but the job needs 6 now; the job asks again")
    );
    assert_eq!(writes, []);
    case.state = State::default();
    assert_eq!(case.held_up().2, [], "its pods are still ending");
    case.observed.pods.clear();
    assert_eq!(case.held_up().2[0].change, Change::Delete("w-1".to_owned()));
}

#[test]
fn flavors_that_are_not_known_hold_up_a_start_and_stop_nothing() {
    let mut case = Case::queued(Some(there(&sample(), admission(8))));
    case.flavors.take(&Key::cluster("h100"));
    assert_eq!(case.held_up().1, "there is no ResourceFlavor h100");
    let mut case = Case::running(Some(there(&sample(), admission(8))), 8);
    case.flavors = Store::default();
    let decision = case.decide();
    assert_eq!(decision.places, None, "no pods are made meanwhile");
    let granted = vec![1, 8];
    let running = Running { may_grow_to: granted.clone(), granted, ..Running::default() };
    assert_eq!(decision.verdict, Verdict::Run(running));
}

#[test]
fn a_job_that_was_evicted_while_it_starts_stops() {
    for phase in [Phase::DataWarming, Phase::Starting, Phase::Recovering, Phase::Running] {
        let status = eviction("Preempted", "Preempted to accommodate a workload (UID: u) due to prioritization");
        let mut case = Case::running(Some(there(&sample(), status)), 8);
        case.state.phase = phase;
        let expected =
            "Kueue has evicted it (Preempted): Preempted to accommodate a workload (UID: u) due to prioritization";
        assert_eq!(case.held_up(), (true, expected.to_owned(), Vec::new()));
    }
}

#[test]
fn a_job_whose_workload_is_not_active_waits_for_whoever_did_that() {
    let mut object = served(&sample(), eviction("Deactivated", "The workload is deactivated"));
    object["spec"]["active"] = false.into();
    let how = format!("its Workload {NAME} is not active: set spec.active to true to queue it again");
    let expected = format!("Kueue has evicted it (Deactivated): The workload is deactivated; {how}");
    assert_eq!(Case::running(Some(read(object)), 8).held_up(), (true, expected, Vec::new()));
    // A deactivated Workload that Kueue has not evicted yet still has its quota: Kueue frees it.
    let mut object = served(&sample(), admission(8));
    object["spec"]["active"] = false.into();
    assert_eq!(Case::running(Some(read(object)), 8).held_up(), (true, how, Vec::new()));
}

#[test]
fn a_workload_that_is_somebody_elses_starts_nothing() {
    let mut object = served(&sample(), admission(8));
    object["metadata"].as_object_mut().unwrap().retain(|field, _| field != "ownerReferences" && field != "labels");
    let expected = format!("the Workload {NAME} belongs to something else: delete it");
    assert_eq!(Case::queued(Some(read(object.clone()))).held_up(), (false, expected.clone(), Vec::new()));
    assert_eq!(Case::running(Some(read(object)), 8).held_up(), (true, expected.clone(), Vec::new()));
    // The Workload of an earlier job of the same name starts nothing either.
    let mut object = served(&sample(), admission(8));
    object["metadata"]["ownerReferences"][0]["uid"] = "another".into();
    assert_eq!(Case::queued(Some(read(object))).held_up(), (false, expected, Vec::new()));
}

#[test]
fn a_second_workload_of_a_job_goes() {
    let mut second = served(&sample(), admission(8));
    second["metadata"]["name"] = "by-hand".into();
    second["metadata"]["uid"] = "w-2".into();
    let mut case = Case::running(Some(there(&sample(), admission(8))), 8);
    case.workloads.push(read(second));
    let decision = case.decide();
    assert!(matches!(decision.verdict, Verdict::Run(_)));
    let gone = &decision.writes[0];
    assert_eq!((gone.name.as_str(), &gone.change), ("by-hand", &Change::Delete("w-2".to_owned())));
}

#[test]
fn a_job_whose_workload_was_deleted_stops_and_asks_again() {
    let (stops, why, writes) = Case::running(None, 8).held_up();
    assert_eq!((stops, why.as_str(), writes.len()), (true, "its Workload was deleted", 0));
    let mut object = served(&sample(), admission(8));
    object["metadata"]["deletionTimestamp"] = "2026-01-01T10:39:00Z".into();
    let mut case = Case::running(Some(read(object)), 8);
    let (stops, why, writes) = case.held_up();
    assert_eq!((stops, why.as_str(), writes.len()), (true, "its Workload is being deleted", 0));
    case.state = State::default();
    case.observed.pods.clear();
    let (_, _, writes) = case.held_up();
    let metadata = json!({"resourceVersion": "71", "finalizers": []});
    assert_eq!(writes[0].change, Change::Merge(json!({"metadata": metadata})));
}
