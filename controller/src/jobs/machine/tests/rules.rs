//! Rules for pods that crash, restarts in place, and crashes that no longer count.

use super::*;

/// A running job of two servers and three workers, each replaced alone without a rule.
fn servers_and_workers(rules: &Value) -> (State, Shown) {
    let (mut state, mut observed) = running(Terms { active_deadline: None, ..elastic(3) });
    observed.terms.roles.push(RoleTerms { name: "ps".into(), min: 2, ..RoleTerms::default() });
    observed.terms.roles[0].two_pods = false;
    observed.terms.rules = rules_of(&["worker", "ps"], rules);
    state.roles.push(vec![slot(1, Stage::Seen); 2]);
    let server = |index| Pod { id: PodId { role: 1, index, attempt: 1 }, ..pod(0, 1, PodStage::Ready) };
    observed.pods.extend((0..2).map(server));
    (state, observed)
}

/// Has a pod crash.
fn crash(observed: &mut Shown, role: usize, index: u32, code: Option<u8>) {
    let pod = observed.pods.iter_mut().find(|pod| (pod.id.role, pod.id.index) == (role, index)).expect("a pod");
    (pod.stage, pod.exit_code) = (PodStage::Failed, code);
}

/// The slots that have another attempt than the first, by role and index.
fn replaced(state: &State) -> Vec<(usize, u32)> {
    state.slots().filter(|(id, _)| id.attempt != 1).map(|(id, _)| (id.role, id.index)).collect()
}

// SEMANTICS: J30
#[test]
fn the_first_rule_for_the_role_and_the_exit_code_says_what_restarts() {
    let rules = json!([
        {"exitCodes": "2,126-127", "action": "fail"},
        {"roles": ["ps"], "exitCodes": "3", "action": "restartRole"},
        {"roles": ["ps"], "action": "restartJob"},
        {"exitCodes": "4", "action": "restartRole"},
        {"exitCodes": "143", "action": "ignore"},
    ]);
    let all = vec![(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
    for (role, index, code, expected, counted) in [
        (0, 1, Some(1), vec![(0, 1)], 1),
        (0, 1, None, vec![(0, 1)], 1),
        (0, 1, Some(4), vec![(0, 0), (0, 1), (0, 2)], 1),
        (0, 1, Some(143), vec![(0, 1)], 0),
        (1, 1, Some(3), vec![(1, 0), (1, 1)], 1),
        (1, 1, Some(143), all.clone(), 1),
        (1, 1, None, all.clone(), 1),
    ] {
        let (state, mut observed) = servers_and_workers(&rules);
        crash(&mut observed, role, index, code);
        let (state, _) = step(state, &observed, NOW);
        let counts = state.crashes(&observed.terms, NOW);
        assert_eq!((replaced(&state), counts), (expected, counted), "{role} {code:?}");
        assert_eq!((state.phase, state.restarts.crashed), (Phase::Recovering, 1), "{role} {code:?}");
    }
    for (role, code) in [(0, 2), (1, 127)] {
        let (state, mut observed) = servers_and_workers(&rules);
        crash(&mut observed, role, 1, Some(code));
        let (state, _) = step(state, &observed, NOW);
        assert_eq!((state.phase, state.is_failed_by_rule), (Phase::Failed, true));
        let name = ["worker", "ps"][role];
        let why =
            format!("its pod {name} 1 ended with exit code {code}, for which spec.restart.rules[0] fails the job");
        assert_eq!(state.why, why);
    }
}

// SEMANTICS: J30
#[test]
fn a_crash_that_fails_the_job_comes_before_those_that_follow_from_it() {
    let rules = json!([{"exitCodes": "2", "action": "fail"}, {"action": "restartJob"}]);
    let (state, mut observed) = servers_and_workers(&rules);
    crash(&mut observed, 0, 0, Some(1));
    crash(&mut observed, 1, 1, Some(2));
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.crashed), (Phase::Failed, 1), "{}", state.why);
}

// SEMANTICS: J30
#[test]
fn a_rule_is_about_crashes_and_not_about_other_losses() {
    let (state, mut observed) = servers_and_workers(&json!([{"action": "fail"}]));
    observed.pods[0].leaving = Some(NOW + 30);
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.evicted), (Phase::Recovering, 1));
}

// SEMANTICS: J30
#[test]
fn crashes_that_a_rule_ignores_never_fail_a_job() {
    let (mut state, mut observed) = servers_and_workers(&json!([{"exitCodes": "143", "action": "ignore"}]));
    observed.terms.max_crashes = 0;
    for attempt in 2..20 {
        crash(&mut observed, 0, 0, Some(143));
        state = step(state, &observed, NOW + i64::from(attempt) * 1_000).0;
        assert_eq!((state.phase, state.restarts.crashed), (Phase::Recovering, attempt - 1));
        state.roles[0][0].stage = Stage::Seen;
        let next = &mut observed.pods[0];
        (next.id.attempt, next.stage) = (state.roles[0][0].attempt, PodStage::Ready);
    }
    crash(&mut observed, 0, 0, Some(1));
    assert_eq!(step(state, &observed, NOW + 100_000).0.phase, Phase::Failed);
}

/// Has the kubelet restart the containers of worker 1.
fn restarted(state: &State, observed: &mut Shown, code: u8, restarts: u32) -> State {
    let pod = observed.pods.iter_mut().find(|pod| (pod.id.role, pod.id.index) == (0, 1)).expect("a pod");
    (pod.exit_code, pod.restarts) = (Some(code), restarts);
    step(state.clone(), observed, NOW).0
}

// SEMANTICS: J30
#[test]
fn a_pod_that_restarts_in_place_is_replaced_only_after_its_last_restart() {
    let (state, mut observed) = servers_and_workers(&json!([
        {"exitCodes": "2", "action": "fail"}, {"exitCodes": "3", "action": "restartRole"},
        {"exitCodes": "4", "action": "ignore"},
    ]));
    observed.terms.in_place = 2;
    for (code, restarts) in [(1, 1), (1, 2), (4, 2)] {
        let after = restarted(&state, &mut observed, code, restarts);
        assert_eq!((after.phase, after.restarts.crashed, replaced(&after)), (Phase::Running, 0, vec![]), "{code}");
    }
    let after = restarted(&state, &mut observed, 1, 3);
    assert_eq!((after.phase, after.restarts.crashed, replaced(&after)), (Phase::Recovering, 1, vec![(0, 1)]));
    // The others must restart too, so a restart of this one alone is of no use.
    let after = restarted(&state, &mut observed, 3, 1);
    assert_eq!((after.restarts.crashed, replaced(&after)), (1, vec![(0, 0), (0, 1), (0, 2)]));
    assert_eq!(restarted(&state, &mut observed, 2, 1).phase, Phase::Failed);
    observed.terms.scope = Scope::Job;
    assert_eq!(replaced(&restarted(&state, &mut observed, 1, 1)).len(), 5);
    // Its kubelet restarts nothing, so another reason made it count.
    observed.terms.in_place = 0;
    assert_eq!(restarted(&state, &mut observed, 1, 1), state);
}

// SEMANTICS: J31
#[test]
fn each_stretch_of_running_without_a_crash_makes_up_for_one_crash() {
    const GOOD: i64 = 3_600;
    let (mut state, mut observed) = servers_and_workers(&json!([]));
    observed.terms.forgive_after = GOOD;
    observed.terms.max_crashes = 2;
    let mut now = NOW;
    let mut lose = |state: State, good: i64| {
        // It runs for so long, and a worker crashes.
        let mut state = State { phase: Phase::Running, since: now, ..state };
        state.roles[0][0].stage = Stage::Seen;
        let next = &mut observed.pods[0];
        (next.id.attempt, next.stage) = (state.roles[0][0].attempt, PodStage::Failed);
        now += good;
        let (state, _) = step(state, &observed, now);
        let counts = state.crashes(&observed.terms, now);
        // Time in which it does not run is not good.
        now += 10 * GOOD;
        (state, counts)
    };
    let mut counted = Vec::new();
    for good in [1, GOOD - 1, GOOD, GOOD, 2 * GOOD, 9 * GOOD, 1, GOOD - 1] {
        let (next, counts) = lose(state, good);
        state = next;
        counted.push(counts);
    }
    assert_eq!(counted, [1, 2, 2, 2, 1, 1, 2, 3]);
    assert_eq!((state.phase, state.restarts.crashed), (Phase::Failed, 8));
    let why = "its pods have crashed 3 times, of 8 in total, most recently worker 0; spec.restart.maxCrashes is 2";
    assert_eq!(state.why, why);
}

#[test]
fn good_hours_add_up_over_phases_between_two_crashes() {
    let (state, mut observed) = servers_and_workers(&json!([]));
    observed.terms.forgive_after = 100;
    let state = State { restarts: Restarts { crashed: 3, ..Restarts::default() }, since: NOW - 60, ..state };
    observed.verdict = Some(Verdict::Stop { why: "others".into() });
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.good_seconds, state.crashes(&observed.terms, NOW + 500)), (Phase::Queued, 60, 3));
    let running = State { phase: Phase::Running, since: NOW + 500, ..state };
    assert_eq!([539, 540, 640].map(|at| running.crashes(&observed.terms, NOW + at)), [3, 2, 1]);
}

// SEMANTICS: J31
#[test]
fn a_crash_that_a_rule_ignores_ends_no_good_hours() {
    let (state, mut observed) = servers_and_workers(&json!([{"exitCodes": "143", "action": "ignore"}]));
    observed.terms.forgive_after = 100;
    let state = State { restarts: Restarts { crashed: 2, ..Restarts::default() }, since: NOW - 60, ..state };
    crash(&mut observed, 0, 0, Some(143));
    let (state, _) = step(state, &observed, NOW);
    let counts = state.crashes(&observed.terms, NOW);
    assert_eq!((state.phase, state.restarts.crashed, counts, state.good_seconds), (Phase::Recovering, 3, 2, 60));
    let running = State { phase: Phase::Running, since: NOW + 500, ..state };
    assert_eq!([539, 540].map(|at| running.crashes(&observed.terms, NOW + at)), [2, 1]);
}

#[test]
fn the_number_of_the_first_deciding_pod_is_the_jobs_result() {
    let (state, mut observed) = servers_and_workers(&json!([]));
    for (at, result) in ["0.1", "0.2", "0.3", "0.4", "0.5"].into_iter().enumerate() {
        (observed.pods[at].stage, observed.pods[at].result) = (PodStage::Succeeded, Some(result.to_owned()));
    }
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.result.as_deref()), (Phase::Succeeded, Some("0.1")));
}
