use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use larder_controller_api::Phase;
use serde_json::{Value, json};

use super::*;
use crate::kinds::Part;
use crate::read::Object;
use crate::watch::News;
use crate::write::Change;

const SINGLE: &str = include_str!("../../../../deploy/components/jobs/types/single.yaml");

const NOW: i64 = 2_000_000_000;

fn read(kind: Kind, mut value: Value) -> Object {
    value["metadata"]["resourceVersion"] = "1".into();
    let object: DynamicObject = serde_json::from_value(value).expect("an object");
    Object::read(kind, object).expect("can be read").expect("is of interest")
}

fn job(name: &str) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"namespace": "team-a", "name": name, "uid": format!("uid-{name}"), "generation": 1},
        "spec": {"type": "single", "roles": [{"name": "worker", "template": {"spec": {"containers": [
            {"name": "main", "image": "image", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}]}}}]},
    })
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"},
        },
    })
}

/// A cluster that has everything but Kueue.
fn state(nodes: usize, jobs: usize) -> State {
    let mut state = State::default();
    let named = |prefix: &str, count: usize| (0..count).map(|at| format!("{prefix}{at:05}")).collect::<Vec<_>>();
    state.apply(News::Absent(Part::Kueue));
    for kind in Kind::WATCHED.into_iter().chain(Kind::OF_JOBS) {
        let objects = match kind {
            Kind::Node => named("n", nodes).iter().map(|name| read(kind, node(name))).collect(),
            Kind::TrainingJob => named("j", jobs).iter().map(|name| read(kind, job(name))).collect(),
            Kind::JobType => vec![read(kind, serde_yaml_ng::from_str(SINGLE).expect("a type"))],
            _ => Vec::new(),
        };
        state.apply(News::All(kind, objects, Vec::new()));
    }
    state
}

fn phases(state: &State, phase: Phase) -> usize {
    state.jobs.memories.values().filter(|memory| memory.record.state.phase == phase).count()
}

/// A round at `now`, and the writes that it made.
fn look(state: &mut State, now: i64) -> (Vec<Write>, Duration) {
    let started = Instant::now();
    state.round(now, &String::new, &mut Vec::new());
    let took = started.elapsed();
    (std::mem::take(&mut state.jobs.ready).into_values().flatten().collect(), took)
}

fn accept(state: &mut State) {
    for key in state.jobs.memories.keys().cloned().collect::<Vec<_>>() {
        state.tried(&key, None);
    }
}

#[test]
fn jobs_alike_are_tried_once_and_admitted_together_with_their_status_before_their_pods() {
    let mut state = state(2, 20);
    let mut work = Vec::new();
    state.round(NOW, &String::new, &mut work);
    let trials = work.iter().filter(|work| matches!(work, Work::Trial(_))).count();
    assert_eq!((trials, state.jobs.ready.len()), (1, 0));
    accept(&mut state);
    state.round(NOW, &String::new, &mut Vec::new());
    assert_eq!((phases(&state, Phase::Starting), phases(&state, Phase::Queued)), (16, 4));
    for writes in state.jobs.ready.values() {
        let is_status = |write: &Write| matches!(write.change, Change::ApplyStatus(_));
        assert!(is_status(&writes[0]), "{writes:#?}");
        let needs = Some((Kind::TrainingJob, writes[0].name.clone()));
        assert!(writes[1..].iter().all(|write| write.needs == needs), "{writes:#?}");
    }
    // Their writes are under way: no job is decided about again, and their room is nobody else's.
    let before = state.jobs.ready.clone();
    state.round(NOW + 1, &String::new, &mut Vec::new());
    assert_eq!(state.jobs.ready, before);
    assert_eq!(phases(&state, Phase::Starting), 16);
}

#[test]
fn a_job_that_is_deleted_while_its_pods_are_being_made_uses_quota_until_that_ends() {
    let mut state = state(2, 0);
    let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "red", "uid": "uid-red"},
        "spec": {"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": 1}}}});
    state.apply(News::Changed(Kind::JobQueue, Box::new(read(Kind::JobQueue, queue))));
    let submit = |state: &mut State, name: &str| {
        let mut job = job(name);
        job["spec"]["queue"] = "red".into();
        state.apply(News::Changed(Kind::TrainingJob, Box::new(read(Kind::TrainingJob, job))));
        look(state, NOW);
        accept(state);
        look(state, NOW).0
    };
    let is_in = |state: &State, name: &str| {
        state.jobs.memories.get(&Key::new("team-a", name)).map(|memory| memory.record.state.phase)
    };
    assert!(!submit(&mut state, "first").is_empty(), "its writes are under way");
    state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", "first"), 2));
    submit(&mut state, "second");
    assert_eq!(is_in(&state, "second"), Some(Phase::Queued));
    let end = |state: &mut State| state.jobs.memories.values_mut().for_each(|memory| memory.end(true, true, None, NOW));
    end(&mut state);
    look(&mut state, NOW);
    assert_eq!(is_in(&state, "second"), Some(Phase::Queued), "they have not begun: others ended");
    state.jobs.memories.values_mut().for_each(|memory| _ = memory.begin());
    end(&mut state);
    look(&mut state, NOW);
    assert_eq!((is_in(&state, "first"), is_in(&state, "second")), (None, Some(Phase::Starting)));
}

#[test]
fn answers_about_pods_of_jobs_that_are_gone_are_forgotten() {
    let mut state = state(2, 0);
    for at in 0..20 {
        let mut job = job("train");
        job["metadata"]["uid"] = format!("uid-{at}").into();
        job["spec"]["roles"][0]["replicas"] = (at + 1).into();
        state.apply(News::Changed(Kind::TrainingJob, Box::new(read(Kind::TrainingJob, job))));
        look(&mut state, NOW);
        accept(&mut state);
        look(&mut state, NOW);
        assert!(state.jobs.trials.len() <= 2, "{:?}", state.jobs.trials);
        for memory in state.jobs.memories.values_mut() {
            memory.begin();
            memory.end(true, true, None, NOW);
        }
        state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", "train"), 1));
    }
    look(&mut state, NOW);
    assert!(state.jobs.trials.is_empty());
}

/// 1,000 jobs of one pod on 1,000 nodes.
#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn a_round_of_a_thousand_jobs() {
    let mut state = state(1_000, 1_000);
    println!("new: {:?}", look(&mut state, NOW).1);
    accept(&mut state);
    let (writes, took) = look(&mut state, NOW);
    println!("admitted, {} writes: {took:?}", writes.len());
    for memory in state.jobs.memories.values_mut() {
        memory.end(true, true, None, NOW);
    }
    for at in 1..4 {
        println!("nothing new: {:?}", look(&mut state, NOW + at).1);
    }
}
