mod many;
mod resting;
mod turns;

use std::time::{Duration, Instant};

use larder_api::Phase;
use larder_kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::state::watched::Object;
use crate::time::Seconds;
use crate::watch::News;
use larder_kube::kinds::Part;

const SINGLE: &str = include_str!("../../../../deploy/components/jobs/types/single.yaml");

const NOW: Seconds = Seconds(2_000_000_000);

fn read(kind: Kind, mut value: Value) -> Object {
    value["metadata"]["resourceVersion"] = "1".into();
    parse(kind, value)
}

fn parse(kind: Kind, value: Value) -> Object {
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

/// A cluster with training jobs, and without the other optional parts.
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
    state.jobs.job_states.values().filter(|job_state| job_state.record.state.phase == phase).count()
}

/// Runs a round at `now`. Returns its writes.
fn look(state: &mut State, now: Seconds) -> (Vec<Write>, Duration) {
    let started = Instant::now();
    state.round(now, &String::new, &mut Vec::new());
    let took = started.elapsed();
    (std::mem::take(&mut state.jobs.ready).into_values().flatten().collect(), took)
}

fn accept(state: &mut State) {
    for spec_hash in state.jobs.dry_runs.keys().cloned().collect::<Vec<_>>() {
        state.dry_run_answered(&spec_hash, None);
    }
}

/// The pod that a write creates.
fn made_pod(write: &Write) -> Option<Value> {
    match &write.change {
        Change::Make(text) if write.kind == Kind::Pod => Some(serde_json::from_str(text).expect("a pod")),
        _ => None,
    }
}

/// The node that a pod is to be bound to; `None` if the scheduler chooses it.
fn planned_node(pod: &Value) -> Option<String> {
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].as_str().map(str::to_owned)
}

/// A pod is bound to its planned node, and runs.
fn run_pod(pod: &mut Value) {
    let node = planned_node(pod).expect("a planned node");
    run_on(pod, node);
}

/// A pod is bound to this node, and runs.
fn run_on(pod: &mut Value, node: String) {
    pod["spec"]["nodeName"] = node.into();
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
}

/// All writes of jobs are done.
fn end_writes(state: &mut State) {
    for job_state in state.jobs.job_states.values_mut() {
        job_state.begin();
        job_state.end(true, true, None, NOW);
    }
}

#[test]
fn jobs_alike_are_tried_once_and_admitted_together_with_their_status_before_their_pods() {
    let mut state = state(2, 20);
    let mut work = Vec::new();
    state.round(NOW, &String::new, &mut work);
    let dry_runs = work.iter().filter(|work| matches!(work, Work::DryRun(_))).count();
    assert_eq!((dry_runs, state.jobs.ready.len()), (1, 0));
    accept(&mut state);
    state.round(NOW, &String::new, &mut Vec::new());
    assert_eq!((phases(&state, Phase::Starting), phases(&state, Phase::Queued)), (16, 4));
    for writes in state.jobs.ready.values() {
        let is_status = |write: &Write| matches!(write.change, Change::ApplyStatus(_));
        assert!(is_status(&writes[0]), "{writes:#?}");
        let needs = Some((Kind::TrainingJob, writes[0].name.clone()));
        assert!(writes[1..].iter().all(|write| write.needs == needs), "{writes:#?}");
    }
    // Their writes are in flight: nothing is decided about these jobs, and their room stays reserved.
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
    state.apply(News::Changed(Kind::JobQueue, read(Kind::JobQueue, queue)));
    let submit = |state: &mut State, name: &str| {
        let mut job = job(name);
        job["spec"]["queue"] = "red".into();
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, job)));
        look(state, NOW);
        accept(state);
        look(state, NOW).0
    };
    let is_in = |state: &State, name: &str| {
        state.jobs.job_states.get(&Key::new("team-a", name)).map(|job_state| job_state.record.state.phase)
    };
    assert!(!submit(&mut state, "first").is_empty(), "its writes are under way");
    state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", "first"), 2));
    submit(&mut state, "second");
    assert_eq!(is_in(&state, "second"), Some(Phase::Queued));
    let end = |state: &mut State| {
        state.jobs.job_states.values_mut().for_each(|job_state| job_state.end(true, true, None, NOW))
    };
    end(&mut state);
    look(&mut state, NOW);
    assert_eq!(is_in(&state, "second"), Some(Phase::Queued), "they have not begun: others ended");
    end_writes(&mut state);
    look(&mut state, NOW);
    assert_eq!((is_in(&state, "first"), is_in(&state, "second")), (None, Some(Phase::Starting)));
}

// SEMANTICS: J3
#[test]
fn pods_of_a_job_that_is_deleted_while_they_are_being_ended_use_quota_until_they_are_gone() {
    let mut state = state(2, 0);
    let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "red", "uid": "uid-red"},
        "spec": {"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": 1}}}});
    state.apply(News::Changed(Kind::JobQueue, read(Kind::JobQueue, queue)));
    let put = |state: &mut State, name: &str, suspend: bool| {
        let mut job = job(name);
        (job["spec"]["queue"], job["spec"]["suspend"]) = ("red".into(), suspend.into());
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, job)));
        look(state, NOW).0
    };
    let submit = |state: &mut State, name: &str| {
        put(state, name, false);
        accept(state);
        look(state, NOW).0
    };
    let writes = submit(&mut state, "first");
    let mut pod = writes.iter().find_map(made_pod).expect("its pod");
    (pod["metadata"]["uid"], pod["status"]) = ("uid-pod".into(), json!({"phase": "Running"}));
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
    end_writes(&mut state);
    // The pod is being deleted, and then the job is, too.
    let is_deletion = |write: &Write| write.kind == Kind::Pod && matches!(write.change, Change::Delete(_));
    assert!(put(&mut state, "first", true).iter().any(is_deletion));
    state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", "first"), 2));
    submit(&mut state, "second");
    assert_eq!(phases(&state, Phase::Starting), 0, "the pod of the first job runs");
    state.apply(News::Gone(Kind::Pod, Key::new("team-a", "first-worker-0-1"), 3));
    end_writes(&mut state);
    look(&mut state, NOW);
    assert_eq!(phases(&state, Phase::Starting), 1);
}

// SEMANTICS: J3, J26
#[test]
fn a_pod_that_is_to_end_before_its_release_is_visible_uses_quota_until_it_is_gone() {
    let mut state = state(2, 0);
    let settings = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "LarderSettings",
        "metadata": {"name": "larder", "uid": "uid-larder"},
        "spec": {"flavors": [{"name": "h100", "nodeLabels": {"gpu": "h100"}}]}});
    state.apply(News::Changed(Kind::LarderSettings, read(Kind::LarderSettings, settings)));
    let mut h100 = node("n00000");
    h100["metadata"]["labels"] = json!({"gpu": "h100"});
    state.apply(News::Changed(Kind::Node, read(Kind::Node, h100)));
    let set_queue = |state: &mut State, stop: Option<&str>| {
        let flavor = json!({"name": "h100", "quota": {"nvidia.com/gpu": {"nominal": 1}}});
        let spec = json!({"namespaces": ["team-a"], "flavors": [flavor], "stop": stop});
        let metadata = json!({"name": "red", "uid": "uid-red"});
        let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec});
        state.apply(News::Changed(Kind::JobQueue, read(Kind::JobQueue, queue)));
        look(state, NOW);
    };
    set_queue(&mut state, None);
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "team-a", "name": "server", "uid": "uid-server", "labels": {"larder.dev/queue": "red"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            "schedulingGates": [{"name": "larder.dev/queue"}]}});
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
    let key = Key::new("team-a", "server");
    for is_new in [true, false] {
        let mut work = Vec::new();
        state.round(NOW, &String::new, &mut work);
        // A write that fails is retried later each time, whatever happens meanwhile.
        assert_eq!(work.contains(&Work::QueuedPod(key.clone())), is_new);
    }
    let decision = |state: &State| state.jobs.pod_decisions.get(&key).map(|decided| decided.decision.clone());
    assert_eq!(decision(&state), Some(Decision::Released("h100".to_owned())));
    // The write is under way, and the queue changes its mind.
    set_queue(&mut state, Some("drain"));
    assert_eq!(decision(&state), Some(Decision::Ended("h100".to_owned())));
    set_queue(&mut state, None);
    let mut train = job("train");
    train["spec"]["queue"] = "red".into();
    state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, train)));
    look(&mut state, NOW);
    accept(&mut state);
    look(&mut state, NOW);
    assert_eq!(phases(&state, Phase::Queued), 1);
    state.jobs.job_states.values_mut().for_each(|job_state| job_state.pending = None);
    state.apply(News::Gone(Kind::Pod, key, 2));
    look(&mut state, NOW);
    assert_eq!(phases(&state, Phase::Starting), 1);
}

/// A cluster with these nodes, and the queue `red`, whose quota is larger than that.
fn state_with_queue(nodes: usize) -> State {
    let mut state = state(nodes, 0);
    let spec = json!({"namespaces": ["team-a"], "quota": {"nvidia.com/gpu": {"nominal": 1000}}});
    let metadata = json!({"name": "red", "uid": "uid-red"});
    let queue = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec});
    state.apply(News::Changed(Kind::JobQueue, read(Kind::JobQueue, queue)));
    state
}

/// Adds a pod with this change, which otherwise the queue `red` holds.
fn add_pod(state: &mut State, name: &str, gpus: u32, change: impl FnOnce(&mut Value)) {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "team-a", "name": name, "uid": format!("uid-{name}"), "labels": {"larder.dev/queue": "red"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}],
            "schedulingGates": [{"name": "larder.dev/queue"}]}});
    change(&mut pod);
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
}

fn bound(node: &'static str) -> impl FnOnce(&mut Value) {
    move |pod| (pod["spec"]["nodeName"], pod["spec"]["schedulingGates"]) = (node.into(), json!([]))
}

/// As [`bound`], and in no queue.
fn foreign(node: &'static str) -> impl FnOnce(&mut Value) {
    move |pod| {
        bound(node)(pod);
        pod["metadata"]["labels"] = json!({});
    }
}

/// The pods about which something was decided that is not visible yet.
fn decided(state: &State) -> Vec<&str> {
    state.jobs.pod_decisions.keys().map(|key| key.name.as_str()).collect()
}

// SEMANTICS: J26
#[test]
fn a_pod_that_waits_for_room_is_decided_about_when_other_pods_end_and_nodes_come() {
    let mut state = state_with_queue(1);
    add_pod(&mut state, "foreign", 8, foreign("n00000"));
    add_pod(&mut state, "waits", 8, |_| ());
    look(&mut state, NOW);
    assert!(decided(&state).is_empty());
    let gone = state.apply(News::Gone(Kind::Pod, Key::new("team-a", "foreign"), 2));
    let come = state.apply(News::Changed(Kind::Node, read(Kind::Node, node("n00001"))));
    assert!(gone.contains(&Work::Jobs) && come.contains(&Work::Jobs), "{gone:?} {come:?}");
}

// SEMANTICS: J26
#[test]
fn room_that_was_found_for_a_pod_is_given_to_no_other_before_it_is_bound() {
    let mut state = state_with_queue(1);
    add_pod(&mut state, "first", 8, |_| ());
    add_pod(&mut state, "second", 8, |_| ());
    look(&mut state, NOW);
    assert_eq!(decided(&state), ["first"]);
    look(&mut state, NOW + 1);
    assert_eq!(decided(&state), ["first"]);
    add_pod(&mut state, "first", 8, |pod| pod["spec"]["schedulingGates"] = json!([]));
    look(&mut state, NOW + 2);
    assert!(decided(&state).is_empty(), "{:?}", decided(&state));
    // The scheduler finds no room there.
    add_pod(&mut state, "first", 8, |pod| {
        pod["spec"]["schedulingGates"] = json!([]);
        pod["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
    });
    look(&mut state, NOW + 3);
    assert_eq!(decided(&state), ["second"]);
}

// SEMANTICS: J26
#[test]
fn smaller_pods_overtake_a_large_one_for_half_an_hour_only() {
    let mut state = state_with_queue(1);
    add_pod(&mut state, "foreign", 4, foreign("n00000"));
    add_pod(&mut state, "large", 8, |_| ());
    look(&mut state, NOW);
    add_pod(&mut state, "small-1", 1, |_| ());
    look(&mut state, NOW + 60);
    assert_eq!(decided(&state), ["small-1"]);
    add_pod(&mut state, "small-2", 1, |_| ());
    look(&mut state, NOW + 30 * 60);
    assert_eq!(decided(&state), ["small-1"]);
}

// SEMANTICS: J15, J26
#[test]
fn room_that_was_freed_for_a_pod_in_vain_is_not_freed_again_at_once() {
    let mut state = state_with_queue(2);
    add_pod(&mut state, "low-1", 8, bound("n00000"));
    add_pod(&mut state, "low-2", 8, bound("n00001"));
    add_pod(&mut state, "high", 8, |pod| pod["spec"]["priority"] = 5.into());
    look(&mut state, NOW);
    assert_eq!(decided(&state), ["low-2"]);
    state.apply(News::Gone(Kind::Pod, Key::new("team-a", "low-2"), 2));
    add_pod(&mut state, "foreign", 8, foreign("n00001"));
    assert_eq!(state.round(NOW + 1, &String::new, &mut Vec::new()), Some(NOW + 61));
    assert!(decided(&state).is_empty(), "{:?}", decided(&state));
    look(&mut state, NOW + 60);
    assert!(decided(&state).is_empty(), "{:?}", decided(&state));
    look(&mut state, NOW + 61);
    assert_eq!(decided(&state), ["low-1"]);
}

// SEMANTICS: J16, J26
#[test]
fn many_pods_that_find_no_room_have_their_turns() {
    let mut state = state_with_queue(1);
    for at in 0..100 {
        let kind = format!("kind-{at}");
        add_pod(&mut state, &format!("odd-{at:03}"), 1, |pod| pod["spec"]["nodeSelector"] = json!({"kind": kind}));
    }
    add_pod(&mut state, "last", 1, |pod| pod["spec"]["priority"] = (-1).into());
    for round in 0..4 {
        assert!(decided(&state).is_empty());
        assert_eq!(state.round(NOW + round, &String::new, &mut Vec::new()).is_some(), round < 3, "round {round}");
    }
    assert_eq!(decided(&state), ["last"]);
}

#[test]
fn a_pod_that_its_job_left_behind_is_not_deleted_again_at_every_round() {
    let mut state = state(2, 0);
    let labels = json!({"larder.dev/job": "gone", "larder.dev/job-uid": "uid-gone"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "status": {"phase": "Running"},
        "metadata": {"namespace": "team-a", "name": "gone-worker-0-1", "uid": "uid-pod", "labels": labels}});
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
    for is_new in [true, false] {
        let mut work = Vec::new();
        state.round(NOW, &String::new, &mut work);
        assert_eq!(work.contains(&Work::OrphanedPod(Key::new("team-a", "gone-worker-0-1"))), is_new);
    }
}

// SEMANTICS: J19
#[test]
fn a_copy_that_makes_no_steps_has_no_pods_after_its_lease() {
    const CREATED: &str = "2033-05-18T03:33:20Z";
    let labels = json!({"larder.dev/job": "train", "larder.dev/job-uid": "uid-train"});
    let owner = json!([{"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "uid-train",
        "controller": true}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}, "status": {"phase": "Running"},
        "metadata": {"namespace": "team-a", "name": "train-worker-0-1", "uid": "uid-pod", "labels": labels,
            "ownerReferences": owner}});
    assert_eq!(CREATED.parse::<k8s_openapi::jiff::Timestamp>().unwrap().as_second(), NOW.0);
    let invalid = |copy: &mut Value| copy["spec"]["priority"] = "high".into();
    let deleting = |copy: &mut Value| {
        copy["metadata"]["deletionTimestamp"] = CREATED.into();
        copy["metadata"]["finalizers"] = json!(["a.tenant/keeps-it"]);
    };
    for change in [invalid as fn(&mut Value), deleting] {
        let mut state = state(2, 0);
        state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod.clone())));
        let mut copy = job("train");
        copy["metadata"]["creationTimestamp"] = CREATED.into();
        copy["metadata"]["labels"] = json!({"larder.dev/home": "hq_u", "larder.dev/home-job": "uid-home"});
        copy["metadata"]["annotations"] =
            json!({"larder.dev/home-read": NOW.0.to_string(), "larder.dev/fence-after": "60"});
        change(&mut copy);
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, copy)));
        let mut ended = |at: Seconds| {
            let mut work = Vec::new();
            let again_at = state.round(at, &String::new, &mut work);
            (work.contains(&Work::OrphanedPod(Key::new("team-a", "train-worker-0-1"))), again_at)
        };
        let (is_ended, again_at) = ended(NOW);
        assert!(!is_ended && again_at.is_some_and(|at| at <= NOW + 60), "{again_at:?}");
        assert!(ended(NOW + 60).0);
    }
}

#[test]
fn answers_about_pods_of_jobs_that_are_gone_are_forgotten() {
    let mut state = state(2, 0);
    for at in 0..20 {
        let mut job = job("train");
        job["metadata"]["uid"] = format!("uid-{at}").into();
        job["spec"]["roles"][0]["replicas"] = (at + 1).into();
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, job)));
        look(&mut state, NOW);
        accept(&mut state);
        look(&mut state, NOW);
        assert!(state.jobs.dry_runs.len() <= 2, "{:?}", state.jobs.dry_runs);
        for job_state in state.jobs.job_states.values_mut() {
            job_state.begin();
            job_state.end(true, true, None, NOW);
        }
        state.apply(News::Gone(Kind::TrainingJob, Key::new("team-a", "train"), 1));
    }
    look(&mut state, NOW);
    assert!(state.jobs.dry_runs.is_empty());
}

// SEMANTICS: J7
#[test]
fn a_job_that_cannot_be_rendered_is_rendered_once_for_each_change() {
    let mut state = state(2, 0);
    let mut odd: Value = serde_yaml_ng::from_str(SINGLE).expect("a type");
    (odd["metadata"]["name"], odd["metadata"]["uid"]) = ("odd".into(), "uid-odd".into());
    odd["spec"]["environment"][0]["value"] = "{{ nothing if size == 5 }}".into();
    state.apply(News::Changed(Kind::JobType, read(Kind::JobType, odd)));
    let mut train = job("train");
    train["spec"]["type"] = "odd".into();
    let mut submit = |state: &mut State, generation: u32, replicas: u32| {
        train["metadata"]["generation"] = generation.into();
        train["spec"]["roles"][0]["replicas"] = replicas.into();
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, train.clone())));
        look(state, NOW).0
    };
    let is_said = |writes: &[Write], why: &str| format!("{writes:?}").contains(why);
    assert!(is_said(&submit(&mut state, 1, 5), "does not fit the JobType odd"));
    let job_state = state.jobs.job_states.values_mut().next().expect("a job");
    job_state.pending = None;
    job_state.unprofiled.as_mut().expect("remembered").1.why = "as was found before".to_owned();
    assert!(is_said(&look(&mut state, NOW + 100).0, "as was found before"));
    let job_state = state.jobs.job_states.values_mut().next().expect("a job");
    job_state.pending = None;
    submit(&mut state, 2, 4);
    let job_state = state.jobs.job_states.values_mut().next().expect("a job");
    assert!(job_state.profile.is_some() && job_state.unprofiled.is_none());
}

#[test]
fn an_answer_is_about_the_pods_that_were_asked_about() {
    let mut state = state(2, 0);
    let submit = |state: &mut State, name: &str, generation: u32, image: &str| {
        let mut job = job(name);
        job["metadata"]["generation"] = generation.into();
        job["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = image.into();
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, job)));
        let mut work = Vec::new();
        state.round(NOW, &String::new, &mut work);
        work.into_iter().find_map(|work| if let Work::DryRun(spec_hash) = work { Some(spec_hash) } else { None })
    };
    let old = submit(&mut state, "first", 1, "old").expect("it is asked about");
    assert_eq!(submit(&mut state, "second", 1, "old"), None, "it is alike");
    assert_eq!(state.dry_run(&old).expect("of these pods").len(), 1);
    let new = submit(&mut state, "first", 2, "new").expect("it is asked about");
    state.dry_run_answered(&old, Some("violates PodSecurity"));
    assert!(matches!(&state.jobs.dry_runs[&old], DryRun::Refused(..)));
    assert!(matches!(&state.jobs.dry_runs[&new], DryRun::Asked(_)), "nobody has answered yet");
    // The dry run for the old pods must come from another job.
    assert!(state.dry_run(&old).is_none() && !state.jobs.dry_runs.contains_key(&old));
    let mut work = Vec::new();
    state.round(NOW + 1, &String::new, &mut work);
    assert!(work.contains(&Work::DryRun(old.clone())), "{work:?}");
    assert_eq!(state.jobs.dry_runs[&old].asker(), Some(&Key::new("team-a", "second")));
}

// SEMANTICS: J2
#[test]
fn pods_of_an_earlier_job_have_names_that_a_job_which_was_invalid_at_first_does_not_use() {
    let mut state = state(2, 0);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "namespace": "team-a", "name": "train-worker-0-6", "uid": "uid-pod", "labels": {"larder.dev/job": "train"},
        "ownerReferences": [{"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "uid-earlier",
            "controller": true}]},
        "spec": {"containers": []}, "status": {"phase": "Running"}});
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
    let mut train = job("train");
    let roles = std::mem::replace(&mut train["spec"]["roles"], json!([]));
    let mut submit = |state: &mut State, generation: u32, roles: Value| {
        (train["metadata"]["generation"], train["spec"]["roles"]) = (generation.into(), roles);
        state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, train.clone())));
        look(state, NOW);
        state.jobs.job_states.values_mut().for_each(|job_state| job_state.pending = None);
        accept(state);
        look(state, NOW).0
    };
    submit(&mut state, 1, json!([]));
    let writes = submit(&mut state, 2, roles);
    let pods: Vec<&str> =
        writes.iter().filter(|write| write.kind == Kind::Pod).map(|write| write.name.as_str()).collect();
    assert_eq!(pods, ["train-worker-0-7"], "{writes:#?}");
}

// SEMANTICS: J16
#[test]
fn many_refused_dry_runs_together_are_repeated_ten_times_a_second() {
    let mut state = State::default();
    assert_eq!(state.longest_dry_run_pause(), 0);
    for at in 0..10_000 {
        let refused = DryRun::Refused(Key::new("team-a", &format!("j{at}")), "no".to_owned());
        state.jobs.dry_runs.insert(format!("spec-{at}"), refused);
    }
    assert_eq!(state.longest_dry_run_pause(), 1_000_000);
}
