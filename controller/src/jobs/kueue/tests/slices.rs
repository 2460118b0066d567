//! Elastic jobs, whose Workloads replace each other.

use proptest::prelude::*;

use super::*;
use crate::jobs::kueue::slices::{Slices, slices};

/// The name of the Workload that replaces the first one.
const SECOND: &str = "trainingjob-train-95c868-";

/// A Workload of the elastic job, created at this second of the hour.
fn slice(sample: &Sample, replaces: Option<&JobWorkload>, created: u32, status: Value) -> JobWorkload {
    let mut object = made(elastic(sample, replaces).expect("a Workload").create(), status);
    object["metadata"]["creationTimestamp"] = format!("2026-01-01T10:{:02}:{:02}Z", created / 60, created % 60).into();
    object["metadata"]["uid"] = format!("w-{created}").into();
    read(object)
}

/// The elastic job with this many workers running, and its Workloads.
fn case(workloads: Vec<JobWorkload>, workers: u32) -> Case {
    let mut case = Case::running(None, workers);
    (case.workloads, case.elastic, case.version) = (workloads, true, KueueVersion::V1beta2);
    case
}

/// A status with quota that waits for checks.
fn reserved(workers: u32) -> Value {
    let mut status = admission(workers);
    status["conditions"].as_array_mut().expect("a list").truncate(1);
    status["admissionChecks"] = json!([{"name": "data", "state": "Pending"}]);
    status
}

fn runs_with(decision: &Decision) -> (Vec<u32>, Vec<u32>) {
    let Verdict::Run(running) = &decision.verdict else { panic!("{decision:?}") };
    (running.granted.clone(), running.may_grow_to.clone())
}

/// The writes but those about the pods' readiness.
fn changes(decision: &Decision) -> Vec<&Write> {
    decision.writes.iter().filter(|write| !matches!(write.change, Change::MergeStatus(_))).collect()
}

fn counts(fields: &Value) -> [Value; 2] {
    [0, 1].map(|role| fields["spec"]["podSets"][role]["count"].clone())
}

#[test]
fn an_elastic_job_asks_for_its_minimum_and_is_never_admitted_in_part() {
    let write = elastic(&sample(), None).expect("a Workload").create();
    assert_eq!(write.name, NAME);
    let Change::Create(fields) = &write.change else { panic!() };
    assert_eq!(counts(fields), [1, 4]);
    assert!(!fields.to_string().contains("minCount"), "{fields:#}");
    let annotations = &fields["metadata"]["annotations"];
    assert_eq!(annotations["kueue.x-k8s.io/elastic-job"], "true");
    assert_eq!(annotations["kueue.x-k8s.io/workload-slice-name"], NAME);
    assert_eq!(annotations.get("kueue.x-k8s.io/workload-slice-replacement-for"), None);
}

#[test]
fn a_job_that_runs_whole_asks_for_the_rest_by_another_workload() {
    let sample = sample();
    let first = slice(&sample, None, 0, admission(4));
    let decision = case(vec![first.clone()], 4).decide();
    assert_eq!(runs_with(&decision), (vec![1, 4], vec![1, 4]));
    let [write] = changes(&decision)[..] else { panic!("{decision:?}") };
    let Change::Create(fields) = &write.change else { panic!("{write:?}") };
    assert!(write.name.starts_with(SECOND), "{}", write.name);
    assert_eq!(counts(fields), [1, 8]);
    let annotations = &fields["metadata"]["annotations"];
    let replaced = format!("team-a/{NAME}");
    assert_eq!(annotations["kueue.x-k8s.io/workload-slice-replacement-for"], replaced.as_str());
    assert_eq!(annotations["kueue.x-k8s.io/workload-slice-name"], NAME);
    // Not while a pod is missing, for want of a node or after a loss, and not before it runs.
    assert!(changes(&case(vec![first.clone()], 3).decide()).is_empty());
    let mut starts = case(vec![first.clone()], 4);
    starts.state.phase = Phase::Starting;
    assert!(changes(&starts.decide()).is_empty());
    // Nor if it is not elastic, or has all.
    let mut rigid = case(vec![first.clone()], 4);
    rigid.elastic = false;
    assert!(changes(&rigid.decide()).is_empty());
    let mut small = case(vec![first], 4);
    small.sample.job.roles[1].replicas = 4;
    assert!(changes(&small.decide()).is_empty());
}

#[test]
fn the_request_for_more_follows_the_job_and_costs_it_nothing() {
    let sample = sample();
    let first = slice(&sample, None, 0, admission(4));
    let second = slice(&sample, Some(&first), 60, json!({}));
    let mut case = case(vec![first, second.clone()], 4);
    let decision = case.decide();
    assert_eq!(runs_with(&decision), (vec![1, 4], vec![1, 4]));
    assert!(changes(&decision).is_empty(), "{decision:?}");
    case.sample = Sample::of("parameter-server", json!({"roles": [role("server", 1, 1), role("worker", 6, 4)]}));
    let decision = case.decide();
    let [write] = changes(&decision)[..] else { panic!("{decision:?}") };
    let Change::Merge(fields) = &write.change else { panic!("{write:?}") };
    assert_eq!((write.name.as_str(), counts(fields)), (second.meta.key.name.as_str(), [json!(1), json!(6)]));
    case.sample.job.roles[1].replicas = 4;
    let decision = case.decide();
    let [write] = changes(&decision)[..] else { panic!("{decision:?}") };
    assert_eq!(
        (write.name.as_str(), &write.change),
        (second.meta.key.name.as_str(), &Change::Delete("w-60".to_owned()))
    );
}

#[test]
fn a_replacement_with_quota_runs_what_runs_and_grows_once_it_is_admitted() {
    let sample = sample();
    let first = slice(&sample, None, 0, admission(4));
    let waits = slice(&sample, Some(&first), 60, reserved(8));
    let mut case = case(vec![first.clone(), waits], 4);
    let decision = case.decide();
    assert_eq!(runs_with(&decision), (vec![1, 4], vec![1, 4]), "its checks hold back only the new pods");
    assert!(decision.places.is_some(), "a pod that is lost meanwhile is made again");
    let removed = Change::Delete("w-0".to_owned());
    assert_eq!(changes(&decision).iter().map(|write| &write.change).collect::<Vec<_>>(), [&removed]);
    case.workloads[1] = slice(&sample, Some(&first), 60, admission(8));
    let decision = case.decide();
    assert_eq!(runs_with(&decision), (vec![1, 8], vec![1, 8]));
    assert_eq!(changes(&decision).len(), 1, "the first one is in the way whether or not Kueue finishes it");
    // As Kueue leaves it.
    let mut replaced = admission(4);
    replaced["conditions"].as_array_mut().unwrap().push(condition("Finished", "True", "WorkloadSliceReplaced", ""));
    case.workloads[0] = slice(&sample, None, 0, replaced);
    let decision = case.decide();
    assert_eq!(changes(&decision)[0].change, removed);
    // A job that does not run yet waits for all of its checks.
    case.workloads[1] = slice(&sample, Some(&first), 60, reserved(8));
    (case.state, case.observed.pods) = (State::default(), Vec::new());
    let Verdict::Wait(waiting) = case.decide().verdict else { panic!() };
    assert!(waiting.warm && waiting.why.contains("data is Pending"), "{waiting:?}");
}

#[test]
fn an_evicted_job_asks_for_its_minimum_again() {
    let sample = sample();
    let mut status = admission(4);
    status["conditions"].as_array_mut().unwrap().push(condition("Evicted", "True", "Preempted", "for another"));
    let first = slice(&sample, None, 0, status);
    let second = slice(&sample, Some(&first), 60, json!({}));
    let (stops, why, writes) = case(vec![first.clone(), second], 4).held_up();
    assert!(stops && why.contains("for another"), "{why}");
    assert_eq!(writes.iter().map(|write| &write.change).collect::<Vec<_>>(), [&Change::Delete("w-60".to_owned())]);
    // It was evicted after its growth.
    let grown =
        slice(&sample, Some(&first), 60, json!({"conditions": [condition("Requeued", "True", "Preempted", "")]}));
    let mut case = case(vec![grown], 4);
    (case.state, case.observed.pods) = (State::default(), Vec::new());
    let (_, _, writes) = case.held_up();
    let [Write { change: Change::Merge(fields), .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(counts(fields), [1, 4]);
    let annotations = fields["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["kueue.x-k8s.io/workload-slice-replacement-for"], Value::Null);
}

proptest! {
    /// Each Workload of the job decides, asks or is removed. The one that decides has quota if any has.
    #[test]
    fn of_any_workloads_one_decides_and_none_is_forgotten(
        chain in prop::collection::vec((any::<bool>(), any::<bool>(), 0_u32..300), 0..6),
    ) {
        let sample = sample();
        let mut all: Vec<JobWorkload> = Vec::new();
        for (has_quota, is_replaced, created) in chain {
            let mut status = if has_quota { admission(4) } else { json!({}) };
            if is_replaced {
                status["conditions"] = json!([condition("Finished", "True", "WorkloadSliceReplaced", "")]);
            }
            let mut next = slice(&sample, all.last(), created, status);
            // A Workload's own name follows from the replaced one's uid.
            next.meta.uid = format!("w-{}", all.len());
            all.push(next);
        }
        let all: Vec<&JobWorkload> = all.iter().collect();
        let Slices { current, next, others } = slices(NAME, &sample.uid, &all);
        let kept = usize::from(current.is_some()) + usize::from(next.is_some());
        prop_assert_eq!(kept + others.len(), all.len());
        let is_live = |workload: &&&JobWorkload| workload.holding("Finished").is_none();
        let live: Vec<_> = all.iter().filter(is_live).collect();
        prop_assert_eq!(current.is_some(), !live.is_empty());
        let with_quota = |workload: &JobWorkload| workload.holding("QuotaReserved").is_some();
        let any_has = live.iter().any(|workload| with_quota(workload));
        prop_assert_eq!(current.is_some_and(with_quota), any_has);
        prop_assert!(next.is_none_or(|next| !with_quota(next)));
        prop_assert!(others.iter().all(|other| !with_quota(other) || any_has || other.holding("Finished").is_some()));
    }
}
