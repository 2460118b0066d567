use super::*;
use crate::kueue::workload::PodSet;
use crate::time::Seconds;
use larder_kube::key::Meta;

/// 10:32, when the quota was reserved.
const RESERVED: Seconds = Seconds(1_767_263_520);

fn check(name: &str) -> Check {
    let meta = Meta { key: Key::cluster(name), uid: "c".into(), ..Meta::default() };
    Check { meta, generation: 1, active: true, patience: Patience::default(), config: None }
}

fn workload(states: &[(&str, &str)]) -> Workload {
    let state = |(name, state): &(&str, &str)| CheckState {
        name: (*name).into(),
        state: (*state).into(),
        since: "2026-01-01T00:00:00Z".into(),
        message: "as it was".into(),
        ..CheckState::default()
    };
    let meta = Meta { key: Key::new("team-a", "job-train"), uid: "w".into(), version: 7, ..Meta::default() };
    let checks = states.iter().map(state).collect();
    Workload { meta, reserved: Some(RESERVED), checks, pod_sets: vec![PodSet::default()], ..Workload::default() }
}

fn imagenet(cached: u64, holding: u64) -> (Key, Option<Progress>) {
    let warmth = Warmth { wanted: 8, holding, cached_bytes: cached, wanted_bytes: 1000, ..Warmth::default() };
    (Key::new("team-a", "imagenet"), Some(Progress::Warms(warmth)))
}

/// The decision this many seconds after the reservation, by a controller that has not written yet.
fn decide_at(
    after: i64,
    workload: &Workload,
    checks: &[Check],
    datasets: Vec<(Key, Option<Progress>)>,
    status_age: i64,
) -> Outcome {
    decide(&Situation {
        now: RESERVED + after,
        version: KueueVersion::V1beta1,
        workload,
        checks: checks.iter().collect(),
        datasets,
        status_age,
    })
}

/// The first check's new state and its message.
fn written(outcome: &Outcome) -> (String, String) {
    let Some(Write { change: Change::ApplyStatus(fields), .. }) = &outcome.write else { panic!("{outcome:?}") };
    let first = &fields["status"]["admissionChecks"][0];
    (first["state"].as_str().unwrap().to_owned(), first["message"].as_str().unwrap().to_owned())
}

fn pending(datasets: Vec<(Key, Option<Progress>)>) -> (String, String) {
    written(&decide_at(60, &workload(&[("data", PENDING)]), &[check("data")], datasets, i64::MAX))
}

#[test]
fn the_message_has_each_dataset_and_until_when_the_job_waits() {
    let (state, message) = pending(vec![imagenet(625, 4)]);
    assert_eq!(state, PENDING);
    assert_eq!(message, "team-a/imagenet 62 % on 4 of 8 nodes, ready at 90 % or 10:42 UTC");
    let why = Warmth { wanted: 1, why: "n3: wants 2".into(), ..Warmth::default() };
    let other = (Key::new("team-b", "coco"), Some(Progress::Warms(Warmth { wanted_bytes: 5, ..why })));
    let (_, message) = pending(vec![imagenet(1000, 8), other]);
    assert_eq!(
        message,
        "team-a/imagenet 100 % on 8 of 8 nodes; team-b/coco 0 % on 0 of 1 nodes (n3: wants 2), \
         ready at 90 % or 10:42 UTC"
    );
}

#[test]
fn a_job_is_ready_when_all_of_its_datasets_are_warm() {
    assert_eq!(pending(vec![imagenet(899, 8)]).0, PENDING);
    assert_eq!(pending(vec![imagenet(900, 8)]), (READY.into(), "team-a/imagenet 90 % on 8 of 8 nodes".into()));
    let coco = (Key::new("team-a", "coco"), Some(Progress::Warms(Warmth { wanted: 1, ..Warmth::default() })));
    let cold = Some(Progress::Warms(Warmth { wanted: 1, wanted_bytes: 10, ..Warmth::default() }));
    assert_eq!(pending(vec![imagenet(900, 8), coco.clone()]).0, READY, "an empty dataset is warm");
    assert_eq!(pending(vec![imagenet(900, 8), (coco.0, cold)]).0, PENDING);
    assert_eq!(pending(Vec::new()), (READY.into(), "its pods use no dataset".into()));
}

#[test]
fn the_deadline_counts_from_the_reservation_whenever_a_controller_starts() {
    let (workload, checks) = (workload(&[("data", PENDING)]), [check("data")]);
    let at = |after| decide_at(after, &workload, &checks, vec![imagenet(620, 4)], i64::MAX);
    let before = at(599);
    assert_eq!((written(&before).0.as_str(), before.again_at), (PENDING, Some(RESERVED + 600)));
    for late in [600, 3600] {
        let (state, message) = written(&at(late));
        assert_eq!(state, READY);
        assert_eq!(message, "team-a/imagenet 62 % on 4 of 8 nodes; it starts at its deadline, 10:42 UTC");
    }
    // A dataset that is not known yet does not extend the deadline either.
    let unknown = || vec![(Key::new("team-a", "imagenet"), None)];
    let before = decide_at(599, &workload, &checks, unknown(), i64::MAX);
    assert_eq!(before, Outcome { write: None, again_at: Some(RESERVED + 600) });
    assert_eq!(written(&decide_at(600, &workload, &checks, unknown(), i64::MAX)).0, READY);
}

#[test]
fn the_pods_annotations_count_before_those_of_the_check() {
    let with = |min_warm: Option<&str>, deadline: Option<&str>| Patience {
        min_warm: min_warm.map(str::to_owned),
        deadline: deadline.map(str::to_owned),
    };
    let mut waits = workload(&[("data", PENDING)]);
    let mut queue = check("data");
    queue.patience = with(Some("95"), Some("2h"));
    let said = |workload: &Workload, check: &Check| {
        written(&decide_at(60, workload, std::slice::from_ref(check), vec![imagenet(620, 4)], i64::MAX))
    };
    assert!(said(&waits, &queue).1.ends_with("ready at 95 % or 12:32 UTC"));
    waits.pod_sets[0].patience = with(Some("70 %"), None);
    assert!(said(&waits, &queue).1.ends_with("ready at 70 % or 12:32 UTC"));
    waits.pod_sets[0].patience = with(Some("62"), Some("1m"));
    assert_eq!(said(&waits, &queue).0, READY);
    for (bad, named) in [(with(Some("most"), None), "min-warm"), (with(Some("0"), None), "min-warm")] {
        waits.pod_sets[0].patience = bad;
        let (_, message) = said(&waits, &check("data"));
        assert!(message.contains(named) && message.ends_with("ready at 90 % or 10:42 UTC"), "{message}");
    }
    waits.pod_sets[0].patience = with(None, Some("soon"));
    waits.pod_sets[0].wrong = vec!["A B".into()];
    let (_, message) = said(&waits, &check("data"));
    assert!(message.contains("warm-deadline") && message.contains("\"soon\"") && message.contains("\"A B\""));
}

#[test]
fn a_dataset_that_is_not_granted_reads_as_one_that_does_not_exist_and_holds_nothing_for_ever() {
    let refused = || vec![(Key::new("team-b", "none"), Some(Progress::Refused))];
    let (state, message) = pending(refused());
    assert_eq!(state, PENDING);
    assert!(message.starts_with("the namespace team-a may not use the dataset team-b/none, or it does not exist"));
    let due = decide_at(600, &workload(&[("data", PENDING)]), &[check("data")], refused(), i64::MAX);
    assert_eq!(written(&due).0, READY);
}

#[test]
fn small_news_wait_and_a_new_state_does_not() {
    let (workload, checks) = (workload(&[("data", PENDING)]), [check("data")]);
    let small = decide_at(60, &workload, &checks, vec![imagenet(620, 4)], 5);
    assert_eq!(small, Outcome { write: None, again_at: Some(RESERVED + 70) });
    assert_eq!(written(&decide_at(60, &workload, &checks, vec![imagenet(620, 4)], 15)).0, PENDING);
    assert_eq!(written(&decide_at(60, &workload, &checks, vec![imagenet(950, 8)], 5)).0, READY);
}

#[test]
fn only_larders_own_states_are_written_and_all_of_them() {
    let states = [("capacity", PENDING), ("first", READY), ("second", PENDING)];
    let (workload, checks) = (workload(&states), [check("first"), check("second")]);
    let outcome = decide_at(60, &workload, &checks, vec![imagenet(950, 8)], 0);
    let Some(Write { change: Change::ApplyStatus(fields), .. }) = outcome.write else { panic!("{outcome:?}") };
    let written = fields["status"]["admissionChecks"].as_array().unwrap();
    let names: Vec<_> = written.iter().map(|state| (state["name"].as_str(), state["state"].as_str())).collect();
    assert_eq!(names, [(Some("first"), Some(READY)), (Some("second"), Some(READY))]);
    assert_eq!(
        (&written[0]["message"], &written[0]["lastTransitionTime"]),
        (&"as it was".into(), &"2026-01-01T00:00:00Z".into())
    );
    assert_eq!(written[1]["lastTransitionTime"], "2026-01-01T10:33:00Z");
    assert_eq!(fields["metadata"], json!({"uid": "w", "resourceVersion": "7"}));
}

#[test]
fn without_a_reservation_or_when_all_are_ready_nothing_is_written() {
    let mut evicted = workload(&[("data", PENDING)]);
    evicted.reserved = None;
    let (checks, cold) = ([check("data")], || vec![imagenet(0, 8)]);
    assert_eq!(decide_at(60, &evicted, &checks, cold(), i64::MAX), Outcome::default());
    // A ready check stays ready, even if a node loses its data.
    assert_eq!(decide_at(60, &workload(&[("data", READY)]), &checks, cold(), i64::MAX), Outcome::default());
    assert_eq!(decide_at(60, &workload(&[("data", "Retry")]), &checks, cold(), i64::MAX), Outcome::default());
}

#[test]
fn a_check_is_made_active_once() {
    let mut check = check("data");
    assert_eq!(activate(&check, KueueVersion::V1beta1, RESERVED), None);
    check.active = false;
    let Some(Write { change: Change::ApplyStatus(fields), .. }) = activate(&check, KueueVersion::V1beta1, RESERVED)
    else {
        panic!("it is not active")
    };
    assert_eq!(fields["status"]["conditions"][0]["type"], "Active");
}

#[test]
fn a_pod_set_that_cannot_be_read_waits_until_the_deadline_and_the_message_says_why() {
    let object = serde_json::json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"namespace": "team-a", "name": "job-train", "uid": "w", "resourceVersion": "7"},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": "of a newer release"}}}]},
        "status": {
            "conditions": [
                {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T10:32:00Z"}],
            "admissionChecks": [{"name": "data", "state": "Pending", "lastTransitionTime": "", "message": ""}],
        },
    });
    let workload = crate::kueue::workload::workload(serde_json::from_value(object).unwrap()).unwrap().unwrap();
    let at = |after| written(&decide_at(after, &workload, &[check("data")], Vec::new(), i64::MAX));
    let (state, message) = at(60);
    assert_eq!(state, PENDING);
    assert!(message.starts_with("the template of the pod set \"main\": invalid type: string"), "{message}");
    assert_eq!(at(600).0, READY);
}
