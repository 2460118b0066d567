//! Jobs that create their pods in turns.

use super::*;

/// Submits a job of so many pods, whose containers have so many variables.
fn put_job(state: &mut State, namespace: &str, name: &str, pods: usize, variables: usize) {
    let mut job = job(name);
    job["metadata"]["namespace"] = namespace.into();
    job["spec"]["roles"][0]["replicas"] = pods.into();
    let container = &mut job["spec"]["roles"][0]["template"]["spec"]["containers"][0];
    container["resources"]["limits"] = json!({"cpu": "1"});
    container["env"] = (0..variables).map(|at| json!({"name": format!("V{at:04}"), "value": "x"})).collect();
    state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, job)));
}

/// Submits a job of 250 pods.
fn put_large_job(state: &mut State, namespace: &str, name: &str) {
    put_job(state, namespace, name, 250, 0);
}

/// Submits large jobs, which start in the next round.
fn put_large_jobs(state: &mut State, jobs: usize, now: Seconds) {
    for at in 0..jobs {
        put_large_job(state, "team-a", &format!("j{at:05}"));
    }
    look(state, now);
    accept(state);
}

/// True if pods are among the writes.
fn creates_pods(writes: &[Write]) -> bool {
    writes.iter().any(|write| write.kind == Kind::Pod && matches!(write.change, Change::Make(_)))
}

#[test]
fn the_pods_of_many_jobs_are_created_in_turns() {
    const JOBS: usize = 40;
    let mut state = state(300, 0);
    put_large_jobs(&mut state, JOBS, NOW);
    let mut made = BTreeSet::new();
    for round in 0_usize.. {
        let again_at = state.round(NOW + 2 * round as i64, &String::new, &mut Vec::new());
        let before = state.jobs.ready.clone();
        assert!(before.len() <= 7, "round {round}: {} jobs have writes", before.len());
        assert_eq!(phases(&state, Phase::Starting), JOBS, "all have room");
        // While their pods wait to be written, no other job has its turn.
        let at = NOW + 2 * round as i64 + 1;
        assert!(before.len() < 7 || again_at == Some(at));
        state.round(at, &String::new, &mut Vec::new());
        assert!(before.len() < 7 || state.jobs.ready == before);
        let pods =
            std::mem::take(&mut state.jobs.ready).into_values().flatten().filter(|write| write.kind == Kind::Pod);
        let pods: Vec<Write> = pods.collect();
        if pods.is_empty() {
            break;
        }
        for write in pods {
            assert!(made.insert(write.name.clone()), "{} twice", write.name);
            let mut pod = made_pod(&write).unwrap_or_else(|| panic!("{write:?}"));
            pod["metadata"]["uid"] = format!("uid-{}", write.name).into();
            state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
        }
        end_writes(&mut state);
    }
    assert_eq!(made.len(), 250 * JOBS);
}

/// Jobs of 64 pods with as many variables as a template has room for create all of their pods. Meanwhile, those that
/// wait to be written keep to the limit, and each namespace has some of them at first.
fn create_pods_of_many_variables(jobs: usize, namespaces: usize) {
    const PODS: usize = 64;
    let mut state = state(20, 0);
    for at in 0..jobs {
        put_job(&mut state, &format!("team-{}", at % namespaces), &format!("j{at:05}"), PODS, 2_000);
    }
    look(&mut state, NOW);
    accept(&mut state);
    let mut made = BTreeSet::new();
    for round in 1.. {
        let (writes, _) = look(&mut state, NOW + round);
        let length = |write: &Write| match &write.change {
            Change::Make(text) if write.kind == Kind::Pod => Some(text.len()),
            _ => None,
        };
        let (all, longest) = writes.iter().filter_map(length).fold((0, 0), |(all, longest), bytes| {
            assert!(bytes > 50_000, "{bytes} bytes");
            (all + bytes, bytes.max(longest))
        });
        if all == 0 {
            break;
        }
        assert!(all <= (16 << 20) + namespaces * longest, "round {round}: {all} bytes");
        let pods = writes.iter().filter_map(|write| Some((write, made_pod(write)?)));
        let mut at_once = BTreeSet::new();
        for (write, mut pod) in pods {
            at_once.insert(&write.namespace);
            assert!(made.insert(write.name.clone()), "{} twice", write.name);
            pod["metadata"]["uid"] = format!("uid-{}", write.name).into();
            state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
        }
        assert!(round > 1 || at_once.len() == namespaces, "pods in {at_once:?}");
        end_writes(&mut state);
    }
    assert_eq!(made.len(), PODS * jobs);
}

// SEMANTICS: J12
#[test]
fn large_pods_of_one_namespace_keep_to_the_limit_of_bytes_while_they_wait() {
    create_pods_of_many_variables(6, 1);
}

// SEMANTICS: J12, J16
#[test]
fn large_pods_of_many_namespaces_keep_to_the_limit_of_bytes_while_they_wait() {
    create_pods_of_many_variables(12, 12);
}

// SEMANTICS: J12
#[test]
fn pods_that_are_being_written_take_turns_until_they_are_written() {
    let mut state = state(300, 0);
    put_large_jobs(&mut state, 20, NOW);
    state.round(NOW, &String::new, &mut Vec::new());
    for job in std::mem::take(&mut state.jobs.ready).into_keys() {
        assert!(state.jobs.job_states.get_mut(&job).is_some_and(|job_state| job_state.begin()), "{job}");
    }
    state.round(NOW + 1, &String::new, &mut Vec::new());
    assert!(!state.jobs.ready.values().any(|writes| creates_pods(writes)));
    end_writes(&mut state);
    state.round(NOW + 2, &String::new, &mut Vec::new());
    assert!(state.jobs.ready.values().any(|writes| creates_pods(writes)));
}

// SEMANTICS: J16
#[test]
fn jobs_whose_pods_are_rejected_leave_their_turns_to_others() {
    const JOBS: usize = 20;
    let mut state = state(300, 0);
    put_large_jobs(&mut state, JOBS, NOW);
    let mut had_turn = BTreeSet::new();
    for _ in 0..5 {
        state.round(NOW, &String::new, &mut Vec::new());
        had_turn.extend(std::mem::take(&mut state.jobs.ready).into_keys());
        for job_state in state.jobs.job_states.values_mut() {
            if job_state.begin() {
                job_state.end(false, true, Some("a webhook denied the request".to_owned()), NOW);
            }
        }
    }
    assert_eq!(had_turn.len(), JOBS);
}

// SEMANTICS: J16
#[test]
fn jobs_that_lack_the_type_of_their_pods_leave_their_turns_to_others() {
    let mut state = state(300, 0);
    put_large_jobs(&mut state, 20, NOW);
    state.round(NOW, &String::new, &mut Vec::new());
    assert_eq!(phases(&state, Phase::Starting), 20);
    end_writes(&mut state);
    state.jobs.ready.clear();
    state.apply(News::Gone(Kind::JobType, Key::cluster("single"), 2));
    let mut other: Value = serde_yaml_ng::from_str(SINGLE).expect("a type");
    (other["metadata"]["name"], other["metadata"]["uid"]) = ("other".into(), "uid-other".into());
    state.apply(News::Changed(Kind::JobType, read(Kind::JobType, other)));
    let mut train = job("train");
    train["spec"]["type"] = "other".into();
    state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, train)));
    for at in 1..3 {
        state.round(NOW + at, &String::new, &mut Vec::new());
        accept(&mut state);
    }
    assert!(creates_pods(&state.jobs.ready[&Key::new("team-a", "train")]));
}

// SEMANTICS: J16
#[test]
fn jobs_of_a_namespace_whose_writes_hang_leave_turns_to_others() {
    let mut state = state(300, 0);
    put_large_jobs(&mut state, 20, NOW);
    state.round(NOW, &String::new, &mut Vec::new());
    put_large_job(&mut state, "team-b", "other");
    for at in 1..3 {
        state.round(NOW + at, &String::new, &mut Vec::new());
        accept(&mut state);
    }
    assert!(creates_pods(&state.jobs.ready[&Key::new("team-b", "other")]));
    assert_eq!(state.jobs.ready.len(), 8);
}

// SEMANTICS: J16
#[test]
fn a_job_that_waits_for_its_turn_to_create_pods_is_not_late() {
    const JOBS: usize = 20;
    let mut state = state(300, 0);
    put_large_jobs(&mut state, JOBS, NOW);
    for at in (0..100).step_by(10) {
        state.round(NOW + at, &String::new, &mut Vec::new());
    }
    assert_eq!((state.jobs.ready.len(), phases(&state, Phase::Starting)), (7, JOBS));
    assert!(state.jobs.job_states.values().all(|job_state| job_state.record.state.attempts == 1));
}

#[test]
fn a_job_deletes_pods_while_it_waits_for_its_turn_to_create_others() {
    let mut state = state(300, 0);
    let mut first = job("first");
    first["spec"]["keepPods"] = "none".into();
    state.apply(News::Changed(Kind::TrainingJob, read(Kind::TrainingJob, first)));
    look(&mut state, NOW);
    accept(&mut state);
    let mut pod = look(&mut state, NOW).0.iter().find_map(made_pod).expect("its pod");
    pod["metadata"]["uid"] = "uid-pod".into();
    run_pod(&mut pod);
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod.clone())));
    end_writes(&mut state);
    look(&mut state, NOW);
    end_writes(&mut state);
    assert_eq!(phases(&state, Phase::Running), 1);
    let late = NOW + 100;
    put_large_jobs(&mut state, 20, late);
    end_writes(&mut state);
    state.round(late, &String::new, &mut Vec::new());
    pod["status"] = json!({"phase": "Failed"});
    state.apply(News::Changed(Kind::Pod, read(Kind::Pod, pod)));
    state.round(late + 1, &String::new, &mut Vec::new());
    let writes = &state.jobs.ready[&Key::new("team-a", "first")];
    assert!(writes.iter().any(|write| write.kind == Kind::Pod && matches!(write.change, Change::Delete(_))));
    assert!(!creates_pods(writes), "it waits for its turn");
}
