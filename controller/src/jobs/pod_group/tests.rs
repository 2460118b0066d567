use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use larder_api::training_job::GangBackend;
use serde_json::{Value, json};

use super::choice::{Planner, choose, obstacle};
use super::groups::{changes, of_attempt};
use super::known::{KnownGroup, known};
use super::messages::waits_for;
use crate::jobs::machine::{Phase, Slot, Stage, State};
use crate::jobs::sample::{Sample, golden, role};
use crate::write::{Change, Write};
use larder_kube::key::{Key, Meta};

/// Eight workers, of which four are enough, and two servers.
fn sample() -> Sample {
    Sample::of("parameter-server", json!({"roles": [role("server", 2, 2), role("worker", 8, 4)]}))
}

/// A starting job, with the attempts of its servers and workers.
fn starting(servers: &[u32], workers: &[u32]) -> State {
    let slot = |attempt: &u32| Slot { attempt: *attempt, node: None, stage: Stage::Placed };
    let slots = |attempts: &[u32]| attempts.iter().map(slot).collect();
    State { phase: Phase::Starting, roles: vec![slots(servers), slots(workers)], ..State::default() }
}

fn changes_of(state: &State, there: &[KnownGroup]) -> Vec<(String, Change)> {
    let sample = sample();
    let there: Vec<&KnownGroup> = there.iter().collect();
    let changes = changes(&sample.rendered(), state, &sample.terms(), Some("high"), &there);
    changes.into_iter().map(|Write { name, change, .. }| (name, change)).collect()
}

fn group(name: &str, min_count: i32) -> KnownGroup {
    let meta = Meta { key: Key::new("team-a", name), uid: "g".into(), ..Meta::default() };
    KnownGroup { meta, owner: "11ce-d00d".into(), min_count, ..KnownGroup::default() }
}

fn lowered(name: &str, min_count: i32) -> (String, Change) {
    (name.to_owned(), Change::Merge(json!({"spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}})))
}

fn deleted(name: &str) -> (String, Change) {
    (name.to_owned(), Change::Delete("g".to_owned()))
}

fn read(group: &PodGroup) -> Option<KnownGroup> {
    known(Meta { key: Key::new("team-a", "train-1"), ..Meta::default() }, group)
}

/// A PodGroup as the API server returns it.
fn served(condition: &Value) -> PodGroup {
    let changes = changes_of(&starting(&[1; 2], &[1; 8]), &[]);
    let [(_, Change::Make(made))] = changes.as_slice() else { panic!("{changes:?}") };
    let mut object: Value = serde_json::from_str(made).unwrap();
    object["metadata"]["uid"] = "g".into();
    object["status"] = json!({"conditions": [condition]});
    serde_json::from_value(object).unwrap()
}

/// The condition that Kubernetes 1.37.0 writes for a gang without room.
fn unscheduled(reason: &str, message: &str) -> Value {
    json!({
        "type": "PodGroupInitiallyScheduled", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T10:32:00Z",
    })
}

fn pods(sample: &Sample, change: impl Fn(usize, &mut Pod)) -> Vec<Pod> {
    let mut pods = sample.pods.clone();
    pods.iter_mut().enumerate().for_each(|(at, pod)| change(at, pod));
    pods
}

#[test]
fn a_gang_has_a_group_of_all_that_it_needs() {
    let made = changes_of(&starting(&[1; 2], &[1; 8]), &[]);
    let [(_, Change::Make(made))] = made.as_slice() else { panic!("{made:?}") };
    golden("native-podgroup.yaml", &serde_json::from_str::<Value>(made).unwrap());
    let (sample, state) = (sample(), starting(&[1; 2], &[1; 8]));
    assert_eq!(of_attempt("train", 1, &state, &sample.terms(), &[]).as_deref(), Some("train-1"));
    // A restarted gang has a new group, and the previous group is deleted.
    let again = changes_of(&starting(&[2; 2], &[2; 8]), &[group("train-1", 6)]);
    let [(name, Change::Make(_)), gone] = again.as_slice() else { panic!("{again:?}") };
    assert_eq!((name.as_str(), gone), ("train-2", &deleted("train-1")));
}

#[test]
fn pods_that_need_no_other_have_no_group() {
    let sample = sample();
    let there = [group("train-1", 6)];
    for (state, rest) in [
        // A worker and a server that are replaced.
        (starting(&[1; 2], &[1, 1, 3, 1, 1, 1, 1, 1]), 5),
        (starting(&[2, 1], &[1; 8]), 5),
        // Workers by which the job grows.
        (starting(&[1; 2], &[1, 1, 1, 1, 1, 2, 2, 2]), 3),
    ] {
        // The remaining pods do not wait for those workers either.
        assert_eq!(changes_of(&state, &there), [lowered("train-1", rest)]);
        for attempt in [2, 3] {
            assert_eq!(of_attempt("train", attempt, &state, &sample.terms(), &[&there[0]]), None);
        }
    }
    let single = Sample::of("single", json!({"roles": [role("worker", 1, 1)]}));
    let state = State { roles: vec![vec![Slot { attempt: 1, ..Slot::default() }]], ..starting(&[], &[]) };
    assert_eq!(changes(&single.rendered(), &state, &single.terms(), None, &[]), []);
}

#[test]
fn pods_that_are_needed_again_together_start_together() {
    // The job does not run without both servers and six of its eight workers.
    let made = changes_of(&starting(&[2; 2], &[1, 1, 2, 2, 2, 2, 2, 2]), &[group("train-1", 1)]);
    let [(_, Change::Make(made))] = made.as_slice() else { panic!("{made:?}") };
    let made: Value = serde_json::from_str(made).unwrap();
    assert_eq!(made["spec"]["schedulingPolicy"]["gang"]["minCount"], 4);
}

#[test]
fn pods_that_come_late_do_not_wait_for_those_that_have_ended() {
    let mut state = starting(&[1; 2], &[1; 8]);
    for slot in &mut state.roles[1][..3] {
        slot.stage = Stage::Done;
    }
    assert_eq!(changes_of(&state, &[group("train-1", 6)]), [lowered("train-1", 3)]);
    assert_eq!(changes_of(&state, &[group("train-1", 3)]), []);
    // `minCount` is never raised, and never lower than one.
    assert_eq!(changes_of(&state, &[group("train-1", 2)]), []);
    state.roles.iter_mut().flatten().for_each(|slot| slot.stage = Stage::Done);
    assert_eq!(changes_of(&state, &[group("train-1", 6)]), [lowered("train-1", 1)]);
    // Late pods still join their group.
    let name = of_attempt("train", 1, &state, &sample().terms(), &[&group("train-1", 1)]);
    assert_eq!(name.as_deref(), Some("train-1"));
}

#[test]
fn a_job_without_pods_has_no_groups() {
    let mut leaving = group("train-2", 6);
    leaving.meta.deleting = true;
    let there = [group("train-1", 6), leaving];
    for phase in [Phase::Queued, Phase::DataWarming, Phase::Suspended, Phase::Succeeded, Phase::Failed] {
        let state = State { phase, ..starting(&[1; 2], &[1; 8]) };
        assert_eq!(changes_of(&state, &there), [deleted("train-1")]);
    }
}

#[test]
fn a_group_that_is_somebody_elses_is_left_alone() {
    for owner in ["", "another"] {
        let foreign = KnownGroup { owner: owner.into(), ..group("train-1", 6) };
        // The API server rejects the second group of the same name, and the job reports it.
        let changes = changes_of(&starting(&[1; 2], &[1; 8]), std::slice::from_ref(&foreign));
        assert!(matches!(changes.as_slice(), [(name, Change::Make(_))] if name == "train-1"), "{changes:?}");
        assert_eq!(changes_of(&State::default(), &[foreign]), []);
    }
}

#[test]
fn the_sentence_has_what_the_scheduler_says() {
    let message = "minCount (6) cannot be satisfied: 2 scheduled, 0 remaining";
    let said = |groups: &[Option<KnownGroup>], attempts: &[u32]| {
        let groups: Vec<&KnownGroup> = groups.iter().flatten().collect();
        waits_for("train", attempts, &groups)
    };
    let waits = read(&served(&unscheduled("Unschedulable", message)));
    let group_of = |group: &Option<KnownGroup>| group.as_ref().map(|group| (group.owner.clone(), group.min_count));
    assert_eq!(group_of(&waits), Some(("11ce-d00d".to_owned(), 6)));
    let expected = format!("6 pods start together or not at all: {message}");
    assert_eq!(said(std::slice::from_ref(&waits), &[1]), Some(expected));
    // An attempt whose pods have nodes is not waited for.
    assert_eq!(said(&[waits], &[2]), None);
    let failed = read(&served(&unscheduled("SchedulerError", "profile not found")));
    let expected = "6 pods start together or not at all; the scheduler has failed (SchedulerError): profile not found";
    assert_eq!(said(&[failed], &[1]).as_deref(), Some(expected));
    let mut scheduled = unscheduled("Scheduled", "");
    scheduled["status"] = "True".into();
    assert_eq!(said(&[read(&served(&scheduled))], &[1]), None);
    assert_eq!(said(&[Some(group("other-1", 2)), Some(group("train-x", 2))], &[1]), None);
    assert_eq!(read(&PodGroup::default()), None, "it is no job's");
}

#[test]
fn auto_is_native_where_nothing_is_lost_by_it() {
    let fields = |more: Value| {
        let mut fields = json!({"roles": [role("server", 2, 2), role("worker", 8, 4)]});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Sample::of("parameter-server", fields)
    };
    let chosen = |sample: &Sample, served: bool| {
        choose(&sample.job, obstacle(&sample.job, &sample.pods), served).map_err(|refused| refused.to_string())
    };
    let plain = fields(json!({}));
    assert_eq!(chosen(&plain, true), Ok(Planner::Native));
    assert_eq!(chosen(&plain, false), Ok(Planner::Builtin));
    let data = fields(json!({"datasets": [{"name": "pets", "mountPath": "/data"}]}));
    assert_eq!(chosen(&data, true), Ok(Planner::Builtin), "the scheduler does not know where data is");
    let mut ordered = role("worker", 8, 4);
    ordered["startsAfter"] = json!([{"role": "server"}]);
    let ordered = fields(json!({"roles": [role("server", 2, 2), ordered]}));
    assert_eq!(chosen(&ordered, true), Ok(Planner::Builtin), "the scheduler would wait for workers that do not exist");
    let near = fields(json!({"gang": {"topologyKey": "topology.kubernetes.io/zone"}}));
    assert_eq!(chosen(&near, true), Ok(Planner::Builtin));
    let builtin = fields(json!({"gang": {"backend": "builtin"}}));
    assert_eq!(chosen(&builtin, true), Ok(Planner::Builtin));
    let native = fields(json!({"gang": {"backend": "native"}, "datasets": [{"name": "pets", "mountPath": "/data"}]}));
    assert_eq!(chosen(&native, true), Ok(Planner::Native), "who asks for it gets it");
    let refused = "spec.gang.backend is native, but this cluster serves no PodGroups (scheduling.k8s.io/v1beta1, off by default); use builtin or auto";
    assert_eq!(chosen(&native, false), Err(refused.to_owned()));
}

#[test]
fn a_gang_is_native_if_the_scheduler_takes_its_pods_as_one() {
    let mut sample = sample();
    let differ =
        |what: &str| Err(format!("spec.gang.backend is native, but its roles differ in {what}; use builtin or auto"));
    let class = pods(&sample, |at, pod| {
        pod.spec.as_mut().unwrap().priority_class_name = (at == 1).then(|| "high".to_owned());
    });
    let schedulers = |names: [Option<&str>; 2]| {
        pods(&sample, |at, pod| pod.spec.as_mut().unwrap().scheduler_name = names[at].map(str::to_owned))
    };
    let (others, same) = (schedulers([None, Some("bin-packer")]), schedulers([None, Some("default-scheduler")]));
    let chosen = |sample: &Sample, pods: &[Pod]| {
        choose(&sample.job, obstacle(&sample.job, pods), true).map_err(|refused| refused.to_string())
    };
    assert_eq!(chosen(&sample, &class), Ok(Planner::Builtin));
    sample.job.backend = GangBackend::Native;
    assert_eq!(chosen(&sample, &class), differ("priorityClassName"));
    assert_eq!(chosen(&sample, &others), differ("schedulerName"));
    assert_eq!(chosen(&sample, &same), Ok(Planner::Native));
}
