use super::*;

#[test]
fn a_job_goes_from_its_first_wait_to_its_end() {
    let mut observed = Shown { verdict: start(2), ..Shown::of(elastic(2)) };
    observed.data.push(Data { name: "pets".into(), percent: 62, enough: 90, timeout: 600, obstacle: String::new() });
    let (state, actions) = step(State::default(), &observed, NOW);
    assert_eq!((state.phase, again(&actions)), (Phase::DataWarming, Some(NOW + 600)));
    assert_eq!(changes(&actions), (vec![], vec![]));
    let waits = waits_for(&state, &observed, NOW);
    assert_eq!(waits.unwrap(), "data: pets 62 % on its nodes, enough at 90 % or 13:56 UTC");
    // The data does not arrive before its timeout.
    observed.verdict = None;
    let (state, actions) = step(state, &observed, NOW + 600);
    assert_eq!((state.phase, state.started), (Phase::Starting, Some(NOW + 600)));
    let node = |index: u32| Some(format!("n{index}"));
    let create = |index| Action::Create { pod: PodId { role: 0, index, attempt: 1 }, node: node(index) };
    assert_eq!(actions, [create(0), create(1), Action::Again(NOW + 630)]);
    observed.pods = vec![pod(0, 1, PodStage::Ready), pod(1, 1, PodStage::Pending)];
    let (state, _) = step(state, &observed, NOW + 610);
    assert_eq!(waits_for(&state, &observed, NOW).unwrap(), "1 of 2 pods are ready; 1 not bound yet");
    observed.pods[1] = pod(1, 1, PodStage::Ready);
    let (state, _) = step(state, &observed, NOW + 612);
    assert_eq!((state.phase, waits_for(&state, &observed, NOW)), (Phase::Running, None));
    for done in &mut observed.pods {
        done.stage = PodStage::Succeeded;
    }
    let (state, actions) = step(state, &observed, NOW + 700);
    assert_eq!((state.phase, state.finished), (Phase::Succeeded, Some(NOW + 700)));
    assert_eq!((changes(&actions).1, again(&actions)), (vec![(0, 1), (1, 1)], Some(NOW + 1_300)));
    let (_, actions) = step(state.clone(), &observed, NOW + 1_300);
    assert!(actions.contains(&Action::Remove));
    for keeps in [KeepPods::Ended, KeepPods::All] {
        observed.terms.keep_pods = keeps;
        assert_eq!(changes(&step(state.clone(), &observed, NOW + 700).1), (vec![], vec![]));
    }
    // Pods that still run are kept only with `All`.
    observed.pods[0].stage = PodStage::Ready;
    assert_eq!(changes(&step(state.clone(), &observed, NOW + 700).1).1, vec![]);
    observed.terms.keep_pods = KeepPods::Ended;
    assert_eq!(changes(&step(state, &observed, NOW + 700).1).1, vec![(0, 1)]);
}

#[test]
fn a_lost_worker_is_replaced_before_its_pod_is_gone_if_the_type_allows_two() {
    let (state, mut observed) = running(elastic(2));
    observed.pods[1].node = Some(NodeHealth { lost_at: Some(NOW + 20), ..NodeHealth::default() });
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, again(&actions)), (Phase::Running, Some(NOW + 20)));
    let (state, actions) = step(state, &observed, NOW + 20);
    assert_eq!((state.phase, state.restarts.node_lost), (Phase::Recovering, 1));
    assert_eq!(changes(&actions), (vec![], vec![(1, 1)]));
    assert_eq!(unplaced(&state, &observed, NOW + 20), [vec![1]]);
    observed.pods[1].leaving = Some(NOW + 50);
    observed.plan = planned(&[1]);
    let (state, actions) = step(state, &observed, NOW + 20);
    assert_eq!(changes(&actions), (vec![(1, 2)], vec![]));
    observed.plan = None;
    observed.pods.push(pod(1, 2, PodStage::Ready));
    let (state, _) = step(state, &observed, NOW + 25);
    assert_eq!((state.phase, state.restarts.node_lost), (Phase::Running, 1), "the old pod blocks nothing");
}

#[test]
fn a_gang_whose_type_allows_one_pod_starts_again_as_a_whole_once_live_pods_are_gone() {
    let terms = one_pod(elastic(3));
    let (state, mut observed) = running(terms);
    observed.pods[1].disruption = "EvictionByEvictionAPI".into();
    observed.pods[1].leaving = Some(NOW + 30);
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.evicted), (Phase::Recovering, 1));
    assert_eq!(changes(&actions), (vec![], vec![(0, 1), (2, 1)]));
    assert_eq!(unplaced(&state, &observed, NOW), [Vec::<u32>::new()], "the old pods still run");
    observed.pods.retain(|pod| pod.id.index == 1);
    observed.pods[0].node = Some(NodeHealth { is_out_of_service: true, ..NodeHealth::default() });
    assert_eq!(unplaced(&state, &observed, NOW), [vec![0, 1, 2]], "one on a lost node is not waited for");
    observed.plan = planned(&[0, 1, 2]);
    let (state, actions) = step(state, &observed, NOW + 5);
    assert_eq!(changes(&actions).0, [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(state.restarts, Restarts { evicted: 1, ..Restarts::default() });
}

// SEMANTICS: J5
#[test]
fn a_crashed_pod_is_replaced_alone_and_only_crashes_are_limited() {
    let (mut state, mut observed) = running(one_pod(elastic(3)));
    state.restarts = Restarts { preempted: 50, evicted: 50, node_lost: 50, device_fault: 50, crashed: 2 };
    observed.pods[2].stage = PodStage::Failed;
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.crashed), (Phase::Recovering, 3));
    assert_eq!(unplaced(&state, &observed, NOW), [vec![2]]);
    observed.plan = planned(&[2]);
    let (state, _) = step(state, &observed, NOW);
    observed.plan = None;
    observed.pods[2] = pod(2, 2, PodStage::Failed);
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.crashed), (Phase::Failed, 4));
    assert_eq!(state.why, "its pods have crashed 4 times, most recently worker 2; spec.restart.maxCrashes is 3");
    assert_eq!(changes(&actions).1, [(0, 1), (1, 1), (2, 2)]);
}

// SEMANTICS: J5
#[test]
fn pods_that_are_lost_together_count_one_by_one_up_to_the_limit() {
    let crash = |max_crashes: u32| {
        let (state, mut observed) = running(Terms { max_crashes, ..elastic(2) });
        observed.pods.iter_mut().for_each(|pod| pod.stage = PodStage::Failed);
        (step(state, &observed, NOW).0, observed)
    };
    let (state, observed) = crash(3);
    assert_eq!((state.phase, state.restarts.crashed, state.attempts), (Phase::Recovering, 3, 4));
    assert_eq!(unplaced(&state, &observed, NOW), [vec![0, 1, 2]]);
    let (state, _) = crash(1);
    assert_eq!((state.phase, state.restarts.crashed), (Phase::Failed, 2));
    assert_eq!(state.why, "its pods have crashed 2 times, most recently worker 1; spec.restart.maxCrashes is 1");
}

// SEMANTICS: J6
#[test]
fn a_job_does_not_wait_for_data_on_a_node_that_is_lost() {
    let mut observed = Shown { verdict: start(2), ..Shown::of(elastic(2)) };
    observed.data.push(Data { name: "pets".into(), percent: 62, enough: 90, timeout: 600, obstacle: String::new() });
    let (state, _) = step(State::default(), &observed, NOW);
    observed.verdict = None;
    let health = |is_out_of_service: bool| NodeHealth { is_out_of_service, ..NodeHealth::default() };
    observed.planned = vec![("n0".into(), health(false)), ("n1".into(), health(false))];
    assert_eq!(step(state.clone(), &observed, NOW + 60).0, state);
    observed.planned[1].1 = health(true);
    let (state, _) = step(state, &observed, NOW + 60);
    assert_eq!((state.phase, state.restarts, state.not_before), (Phase::Queued, Restarts::default(), None));
    assert_eq!(state.why, "the node n1, on which its data was being fetched, is lost");
}

#[test]
fn a_restart_scope_of_job_starts_all_again_for_one_crash() {
    let (state, mut observed) = running(Terms { scope: Scope::Job, ..elastic(3) });
    observed.pods[0].stage = PodStage::Failed;
    observed.pods[1].stage = PodStage::Failed;
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!(state.restarts.crashed, 1, "both belong to one restart");
    assert_eq!(changes(&actions).1, [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(unplaced(&state, &observed, NOW), [Vec::<u32>::new()]);
}

#[test]
fn an_elastic_job_without_room_shrinks_and_grows_back_after_a_minute() {
    let (state, mut observed) = running(elastic(2));
    observed.pods.remove(2);
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.evicted), (Phase::Recovering, 1));
    observed.plan = Some(Plan::None("there is no room".into()));
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.granted()), (Phase::Running, vec![2]));
    observed.plan = None;
    observed.verdict = run(2, 3);
    let (state, actions) = step(state, &observed, NOW + 10);
    assert_eq!((state.phase, again(&actions)), (Phase::Running, Some(NOW + 70)));
    // Another job takes the room and leaves it again.
    observed.verdict = run(2, 2);
    let (state, _) = step(state, &observed, NOW + 20);
    observed.verdict = run(2, 3);
    let (state, _) = step(state, &observed, NOW + 30);
    let (state, _) = step(state, &observed, NOW + 89);
    assert_eq!(state.phase, Phase::Running);
    let (state, _) = step(state, &observed, NOW + 90);
    assert_eq!((state.phase, state.granted()), (Phase::Growing, vec![3]));
    observed.verdict = None;
    observed.plan = planned(&[2]);
    let (state, actions) = step(state, &observed, NOW + 91);
    assert_eq!(changes(&actions).0, [(2, 3)], "no name is used twice");
    observed.plan = None;
    observed.pods.push(pod(2, 3, PodStage::Ready));
    assert_eq!(step(state, &observed, NOW + 95).0.phase, Phase::Running);
}

// SEMANTICS: J14
#[test]
fn growth_that_fails_is_tried_again_ever_less_often() {
    let (mut state, mut observed) = running(Terms { active_deadline: None, ..elastic(2) });
    let mut now = NOW;
    let mut grow = |state: State, observed: &mut Shown| {
        (observed.verdict, observed.plan) = (run(3, 4), None);
        let offered = now;
        let (mut state, mut actions) = step(state, observed, now);
        while state.phase != Phase::Growing {
            now = again(&actions).expect("a time to grow");
            (state, actions) = step(state, observed, now);
        }
        observed.verdict = None;
        (state, now - offered)
    };
    let mut waits = Vec::new();
    for _ in 0..8 {
        let (growing, waited) = grow(state, &mut observed);
        waits.push(waited);
        observed.plan = Some(Plan::None("the scheduler refuses".into()));
        state = step(growing, &observed, NOW + 100_000).0;
        assert_eq!((state.phase, state.granted()), (Phase::Running, vec![3]));
    }
    assert_eq!(waits, [60, 120, 240, 480, 960, 1_920, 3_840, 3_840]);
    // Once it has grown, the next growth waits a minute.
    let (growing, _) = grow(state, &mut observed);
    observed.plan = planned(&[3]);
    let (growing, _) = step(growing, &observed, NOW + 100_000);
    observed.plan = None;
    observed.pods.push(pod(3, growing.attempts, PodStage::Ready));
    let (grown, _) = step(growing, &observed, NOW + 100_000);
    assert_eq!((grown.phase, grown.failed_growths), (Phase::Running, 0));
}

#[test]
fn the_highest_indexes_end_when_the_queue_takes_room_back() {
    let (state, mut observed) = running(elastic(1));
    observed.verdict = run(1, 1);
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, changes(&actions).1), (Phase::Shrinking, vec![(1, 1), (2, 1)]));
    assert_eq!(waits_for(&state, &observed, NOW).unwrap(), "2 pods are still terminating");
    observed.verdict = None;
    observed.pods.remove(2);
    observed.pods[1].leaving = Some(NOW - 60);
    let (state, _) = step(state, &observed, NOW);
    assert_eq!(state.phase, Phase::Running, "a pod that is stuck blocks nothing");
    assert_eq!(state.restarts, Restarts::default());
}

#[test]
fn pods_that_are_not_bound_in_time_are_planned_again_and_then_the_gang_is_released() {
    let mut observed = Shown { verdict: start(2), ..Shown::of(elastic(2)) };
    let (state, _) = step(State::default(), &observed, NOW);
    assert_eq!(state.phase, Phase::Starting, "it waits for no data");
    observed.verdict = None;
    observed.pods = vec![pod(0, 1, PodStage::Bound), pod(1, 1, PodStage::Pending)];
    let (state, actions) = step(state, &observed, NOW + 29);
    assert_eq!(again(&actions), Some(NOW + 30));
    let (state, actions) = step(state, &observed, NOW + 30);
    assert_eq!(changes(&actions), (vec![], vec![(1, 1)]));
    observed.plan = planned(&[1]);
    let (state, actions) = step(state, &observed, NOW + 31);
    assert_eq!(changes(&actions), (vec![], vec![(1, 1)]), "it may be bound at this moment");
    observed.plan = None;
    observed.pods[1].leaving = Some(NOW + 61);
    let (state, actions) = step(state, &observed, NOW + 31);
    assert_eq!((changes(&actions), again(&actions)), ((vec![(1, 2)], vec![]), Some(NOW + 61)));
    observed.pods[1] = pod(1, 2, PodStage::Pending);
    let (state, actions) = step(state, &observed, NOW + 61);
    assert_eq!((state.phase, changes(&actions).1), (Phase::Queued, vec![(0, 1), (1, 2)]));
    assert_eq!(state.why, "1 pod was planned twice and not bound in time");
    // A constraint that the plan does not see would block it again, so the job lets other jobs go first.
    assert_eq!((state.not_before, again(&actions)), (Some(NOW + 91), Some(NOW + 91)));
}

// SEMANTICS: J1
#[test]
fn a_gang_of_any_size_starts_while_its_pods_are_created_and_bound_one_after_the_other() {
    const PODS: u32 = 5_000;
    /// The pods that are created in a turn, and those that kube-scheduler binds in a second.
    const CREATED: usize = 256;
    const BOUND: usize = 50;
    let mut observed = Shown { verdict: start(PODS), ..Shown::of(elastic(PODS)) };
    let (mut state, mut actions) = step(State::default(), &observed, NOW);
    observed.verdict = None;
    let (mut now, mut bound) = (NOW, 0);
    while state.phase == Phase::Starting {
        now += 1;
        let created = actions.iter().filter_map(|action| match action {
            Action::Create { pod, .. } => Some(Pod { id: *pod, since: now, ..Pod::default() }),
            _ => None,
        });
        observed.pods.extend(created.take(CREATED).collect::<Vec<_>>());
        let next = (bound + BOUND).min(observed.pods.len());
        for pod in &mut observed.pods[bound..next] {
            (pod.stage, pod.node, pod.since) = (PodStage::Ready, Some(NodeHealth::default()), now);
        }
        bound = next;
        (state, actions) = step(state, &observed, now);
        assert_eq!(changes(&actions).1, vec![], "{bound} of {PODS} are bound after {} s", now - NOW);
    }
    assert_eq!((state.phase, state.attempts), (Phase::Running, 1));
}

#[test]
fn a_gang_is_late_once_no_pod_of_it_was_bound_for_the_timeout() {
    let mut observed = Shown { verdict: start(3), ..Shown::of(elastic(3)) };
    let (state, _) = step(State::default(), &observed, NOW);
    observed.verdict = None;
    observed.pods = vec![pod(0, 1, PodStage::Bound), pod(1, 1, PodStage::Bound), pod(2, 1, PodStage::Pending)];
    (observed.pods[0].since, observed.pods[1].since) = (NOW + 5, NOW + 20);
    // A pod that another one has replaced is no progress of the gang.
    observed.pods.push(Pod { leaving: Some(NOW + 100), since: NOW + 40, ..pod(2, 0, PodStage::Bound) });
    let (state, actions) = step(state, &observed, NOW + 49);
    assert_eq!((changes(&actions).1, again(&actions)), (vec![], Some(NOW + 50)));
    assert_eq!(changes(&step(state, &observed, NOW + 50).1).1, [(2, 1)]);
}

#[test]
fn no_step_is_due_when_the_node_of_a_pod_that_is_done_is_lost() {
    let (state, mut observed) = running(elastic(2));
    observed.pods[1].stage = PodStage::Succeeded;
    observed.pods[1].node = Some(NodeHealth { lost_at: Some(NOW + 20), ..NodeHealth::default() });
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.roles[0][1].stage), (Phase::Running, Stage::Done));
    assert_ne!(again(&actions), Some(NOW + 20));
}

// SEMANTICS: J14
#[test]
fn a_node_that_refuses_a_pod_is_remembered_for_its_role_for_an_hour() {
    let mut observed = Shown { verdict: start(2), ..Shown::of(Terms { active_deadline: None, ..elastic(2) }) };
    let (state, _) = step(State::default(), &observed, NOW);
    observed.verdict = None;
    observed.pods = vec![pod(0, 1, PodStage::Bound), pod(1, 1, PodStage::Pending)];
    // The scheduler has not answered.
    let (again, _) = step(state.clone(), &observed, NOW + 60);
    assert!(again.planned_again && again.refused_by.is_empty(), "{again:?}");
    observed.pods[1].is_refused = true;
    let (state, _) = step(state, &observed, NOW + 1);
    assert!(state.refused_by.is_empty(), "it may still be bound");
    let (state, _) = step(state, &observed, NOW + 60);
    let refused_by = |at: i64| [RefusedBy { role: 0, node: "n1".into(), at: NOW + at }];
    assert!(state.planned_again);
    assert_eq!(state.refused_by, refused_by(60));
    // A suspended job does not forget it either.
    let mut suspended = observed.clone();
    suspended.terms.suspend = true;
    assert_eq!(step(state.clone(), &suspended, NOW + 61).0.refused_by, refused_by(60));
    assert_eq!(step(state.clone(), &observed, NOW + 3_659).0.refused_by, refused_by(60));
    assert!(step(state.clone(), &observed, NOW + 3_660).0.refused_by.is_empty(), "the reason may be gone");
    // It refuses again.
    let mut state = State { binding_since: Some(NOW + 60), ..state };
    state.roles[0][1] = Slot { attempt: 2, node: Some("n1".into()), stage: Stage::Placed };
    observed.pods[1] = Pod { is_refused: true, ..pod(1, 2, PodStage::Pending) };
    let (state, _) = step(state, &observed, NOW + 400);
    assert_eq!((state.phase, &state.refused_by[..]), (Phase::Queued, &refused_by(400)[..]));
}

// SEMANTICS: J14
#[test]
fn planned_nodes_become_preferences_once_the_scheduler_has_refused_them() {
    let refused_by = vec![RefusedBy { role: 0, node: "n1".into(), at: NOW }];
    let (fresh, refused) = (State::default(), State { refused_by, ..State::default() });
    let unbound = |unbound: u32| State { unbound, ..refused.clone() };
    let has = |state: &State, leeway: Leeway| state.has_leeway(&Terms { leeway, ..elastic(2) });
    assert_eq!([&fresh, &refused].map(|state| has(state, Leeway::Single)), [false, true]);
    assert!(has(&fresh, Leeway::Unplanned));
    // A gang has its data on the nodes of its plan, so it gives the plan up last.
    assert_eq!([0, 2, 3].map(|times| has(&unbound(times), Leeway::Gang)), [false, false, true]);
}

// SEMANTICS: J2
#[test]
fn an_index_that_is_done_gets_no_other_pod_when_the_others_have_lost_their_room() {
    let (state, mut observed) = running(elastic(3));
    (observed.pods[0].stage, observed.pods[1].stage) = (PodStage::Succeeded, PodStage::Failed);
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.roles[0][0].stage), (Phase::Recovering, Stage::Done));
    observed.plan = Some(Plan::None("no room".into()));
    let (state, _) = step(state, &observed, NOW + 2);
    assert_eq!((state.phase, state.granted().len()), (Phase::Queued, 0));
    (observed.plan, observed.verdict) = (None, start(3));
    observed.pods.truncate(1);
    let (again, actions) = step(state.clone(), &observed, NOW + 3);
    assert_eq!(changes(&actions), (vec![(1, 3), (2, 3)], vec![]));
    assert_eq!(again.done, [[]; 0]);
    // All pods of a gang run again.
    (observed.terms.scope, observed.verdict) = (Scope::Job, None);
    let mut gang = running(observed.terms.clone()).0;
    gang.roles[0][0].stage = Stage::Done;
    observed.verdict = Some(Verdict::Stop { why: "others".into() });
    let (gang, _) = step(gang, &observed, NOW);
    observed.verdict = start(3);
    assert_eq!(changes(&step(gang, &observed, NOW).1).0.len(), 3);
}

#[test]
fn a_suspended_job_has_no_pods_and_waits_again_when_it_goes_on() {
    let (state, mut observed) = running(elastic(2));
    observed.terms.suspend = true;
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.granted().len()), (Phase::Suspended, 0));
    assert_eq!(changes(&actions).1.len(), 3);
    observed.pods.iter_mut().for_each(|pod| pod.leaving = Some(NOW + 30));
    observed.terms.suspend = false;
    let (state, _) = step(state, &observed, NOW + 1);
    assert_eq!(state.phase, Phase::Queued);
    observed.verdict = start(3);
    let (state, actions) = step(state, &observed, NOW + 2);
    assert_eq!(changes(&actions), ((0..3).map(|index| (index, 2)).collect(), vec![]));
    assert_eq!(state.started, Some(NOW + 2), "its time begins anew");
}

#[test]
fn a_job_that_all_else_takes_room_from_counts_one_preemption() {
    let (state, mut observed) = running(elastic(2));
    observed.verdict = Some(Verdict::Stop { why: "team/train needs its room".into() });
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.restarts.preempted), (Phase::Queued, 1));
    assert_eq!(waits_for(&state, &observed, NOW).unwrap(), "team/train needs its room");
}

#[test]
fn a_chief_that_is_done_ends_a_job_with_servers() {
    let (mut state, mut observed) = running(elastic(2));
    observed.terms.roles[0].decides = Decides::First;
    observed.terms.roles.push(RoleTerms { name: "ps".into(), min: 1, two_pods: true, ..RoleTerms::default() });
    state.roles.push(vec![slot(1, Stage::Seen)]);
    let id = PodId { role: 1, index: 0, attempt: 1 };
    observed.pods.push(Pod { id, ..pod(0, 1, PodStage::Ready) });
    observed.pods[1].stage = PodStage::Succeeded;
    let (state, _) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.roles[0][1].stage), (Phase::Running, Stage::Done));
    // A worker that is done is not recreated when its node is lost.
    observed.pods.remove(1);
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, changes(&actions)), (Phase::Running, (vec![], vec![])));
    observed.pods[0].stage = PodStage::Succeeded;
    assert_eq!(step(state, &observed, NOW).0.phase, Phase::Succeeded);
}

/// The terms of a type that allows only one pod of an index.
fn one_pod(mut terms: Terms) -> Terms {
    terms.roles[0].two_pods = false;
    terms
}

#[test]
fn a_lost_worker_is_replaced_at_once_and_a_lost_server_of_the_same_job_restarts_all() {
    let mut terms = elastic(3);
    let server = RoleTerms { name: "ps".into(), min: 1, ..RoleTerms::default() };
    terms.roles.push(server);
    let (mut state, mut observed) = running(terms);
    state.roles.push(vec![slot(1, Stage::Seen)]);
    let server = Pod { id: PodId { role: 1, index: 0, attempt: 1 }, ..pod(0, 1, PodStage::Ready) };
    observed.pods.push(server);
    let lose = |observed: &mut Shown, at: usize| {
        observed.pods[at].node = Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() });
    };
    let mut with_worker = observed.clone();
    lose(&mut with_worker, 2);
    let (after, _) = step(state.clone(), &with_worker, NOW);
    let attempts = |state: &State| state.slots().filter(|(_, slot)| slot.attempt == 2).count();
    assert_eq!(attempts(&after), 1);
    lose(&mut observed, 3);
    let (after, _) = step(state, &observed, NOW);
    assert_eq!(attempts(&after), 4);
}

#[test]
fn a_gang_that_the_scheduler_never_binds_gives_its_room_back_and_says_why() {
    let by_scheduler = Terms { by_scheduler: true, gang_timeout: Some(300), ..elastic(3) };
    let roles = vec![vec![Slot { attempt: 1, node: None, stage: Stage::Placed }; 3]];
    let state = State {
        phase: Phase::Starting,
        roles,
        attempts: 1,
        started: Some(NOW),
        binding_since: Some(NOW),
        ..State::default()
    };
    let pods = (0..3).map(|index| pod(index, 1, PodStage::Pending)).collect();
    let said = Some("3 pods start together or not at all: no claim".to_owned());
    let observed = Observed { terms: by_scheduler, pods, scheduler_message: said, ..Observed::default() };
    let observed = Shown { observed, ..Shown::default() };
    let (state, actions) = step(state, &observed, NOW + 299);
    assert_eq!((state.phase, again(&actions)), (Phase::Starting, Some(NOW + 300)));
    let (state, actions) = step(state, &observed, NOW + 300);
    assert_eq!((state.phase, state.attempts, state.not_before), (Phase::Queued, 1, Some(NOW + 330)));
    assert_eq!(changes(&actions), (vec![], vec![(0, 1), (1, 1), (2, 1)]));
    let why = "3 pods were not bound in time: 3 pods start together or not at all: no claim";
    assert_eq!(waits_for(&state, &observed, NOW + 300).as_deref(), Some(why));
}

// SEMANTICS: J17
#[test]
fn pods_without_a_plan_wait_for_new_nodes_as_long_as_the_administrator_says() {
    let terms = Terms { nodes_timeout: Some(900), active_deadline: None, ..elastic(2) };
    let unplanned = Some(Verdict::Start { granted: vec![2], nodes: Vec::new(), flavors: Vec::new() });
    let mut observed = Shown { verdict: unplanned, ..Shown::of(terms) };
    let (state, actions) = step(State::default(), &observed, NOW);
    assert_eq!((state.phase, state.awaits_nodes, changes(&actions).0.len()), (Phase::Starting, true, 2));
    assert!(actions.iter().all(|action| !matches!(action, Action::Create { node: Some(_), .. })), "{actions:?}");
    observed.verdict = None;
    observed.pods = vec![pod(0, 1, PodStage::Pending), pod(1, 1, PodStage::Pending)];
    let (state, actions) = step(state, &observed, NOW + 899);
    assert_eq!((state.phase, again(&actions)), (Phase::Starting, Some(NOW + 900)));
    let (given_up, actions) = step(state.clone(), &observed, NOW + 900);
    assert_eq!((given_up.phase, given_up.awaits_nodes), (Phase::Queued, false));
    assert_eq!(changes(&actions).1, [(0, 1), (1, 1)]);
    assert_eq!(given_up.why, "2 pods were not bound in time");
    let mut without = observed.clone();
    without.terms.nodes_timeout = None;
    assert_eq!(step(state.clone(), &without, NOW + 899).0.phase, Phase::Queued, "there is no autoscaler any more");
    observed.pods.iter_mut().for_each(|pod| pod.stage = PodStage::Ready);
    let (runs, _) = step(state, &observed, NOW + 899);
    assert_eq!((runs.phase, runs.awaits_nodes), (Phase::Running, false));
    // A start with a plan does not wait for nodes.
    let mut planned = Shown { verdict: start(2), ..Shown::of(observed.terms.clone()) };
    let (state, _) = step(State::default(), &planned, NOW);
    assert!(!state.awaits_nodes);
    planned.verdict = None;
    planned.pods = vec![pod(0, 1, PodStage::Pending), pod(1, 1, PodStage::Pending)];
    assert!(step(state, &planned, NOW + 60).0.planned_again);
}

#[test]
fn a_job_that_runs_goes_on_without_pods_that_the_scheduler_never_binds() {
    let (mut state, mut observed) = running(Terms { by_scheduler: true, gang_timeout: Some(300), ..elastic(2) });
    (state.phase, state.binding_since) = (Phase::Growing, Some(NOW - 300));
    observed.pods[2] = pod(2, 1, PodStage::Pending);
    let (state, actions) = step(state, &observed, NOW);
    assert_eq!((state.phase, state.roles[0].len()), (Phase::Growing, 2));
    assert_eq!(changes(&actions).1, [(2, 1)]);
}

// SEMANTICS: J6
#[test]
fn a_job_whose_room_is_not_reserved_starts_once_a_decision_confirms_the_room() {
    let terms = Terms { unreserved: true, ..elastic(2) };
    let mut observed = Shown { verdict: start(2), ..Shown::of(terms.clone()) };
    observed.data.push(Data { name: "pets".into(), percent: 62, enough: 90, timeout: 600, obstacle: String::new() });
    let (state, _) = step(State::default(), &observed, NOW);
    assert_eq!(state.phase, Phase::DataWarming);
    observed.verdict = None;
    observed.data[0].percent = 100;
    let (state, _) = step(state, &observed, NOW + 1);
    assert_eq!(state.phase, Phase::DataWarming, "another job may have the room");
    observed.verdict = Some(Verdict::Stop { why: "others".into() });
    assert_eq!(step(state.clone(), &observed, NOW + 1).0.phase, Phase::Queued);
    observed.verdict = run(2, 2);
    let (state, actions) = step(state, &observed, NOW + 1);
    assert_eq!((state.phase, changes(&actions).0), (Phase::Starting, vec![(0, 1), (1, 1)]));
    // A start confirms the room, too.
    let observed = Shown { verdict: start(2), ..Shown::of(terms) };
    assert_eq!(step(State::default(), &observed, NOW).0.phase, Phase::Starting);
}
