use super::*;

fn caused(change: impl FnOnce(&mut Pod)) -> Option<Cause> {
    let mut pod = pod(0, 1, PodStage::Ready);
    change(&mut pod);
    loss::cause(&pod, NOW)
}

fn on_node(node: NodeHealth) -> Option<Cause> {
    caused(|pod| pod.node = Some(node))
}

#[test]
fn each_loss_has_its_cause() {
    let well = NodeHealth::default();
    assert_eq!(on_node(well), None);
    assert_eq!(on_node(NodeHealth { lost_at: Some(NOW + 1), ..well }), None);
    for lost in [NodeHealth { lost_at: Some(NOW), ..well }, NodeHealth { is_out_of_service: true, ..well }] {
        assert_eq!(on_node(lost), Some(Cause::NodeLost), "{lost:?}");
    }
    let faulty = NodeHealth { device_fault: Some(true), ..well };
    let fault = Some(Cause::DeviceFault);
    for (devices, anywhere, watched, there) in [
        (Devices::None, None, None, None),
        (Devices::Unreported, None, None, fault),
        (Devices::Well, None, None, None),
        (Devices::Unhealthy, fault, fault, fault),
        (Devices::UnhealthyToLarder, fault, None, fault),
    ] {
        assert_eq!(caused(|pod| pod.devices = devices), anywhere, "{devices:?}");
        let on = |node| caused(|pod| (pod.devices, pod.node) = (devices, Some(node)));
        assert_eq!(on(NodeHealth { device_fault: Some(false), ..well }), watched, "{devices:?}");
        assert_eq!(on(faulty), there, "{devices:?}");
    }
    assert_eq!(caused(|pod| pod.leaving = Some(NOW)), Some(Cause::Evicted));
    for (reason, cause) in [
        ("PreemptionByScheduler", Cause::Preempted),
        ("EvictionByEvictionAPI", Cause::Evicted),
        ("TerminationByKubelet", Cause::Evicted),
        ("DeletionByTaintManager", Cause::NodeLost),
        ("DeletionByPodGC", Cause::NodeLost),
    ] {
        assert_eq!(caused(|pod| pod.disruption = reason.into()), Some(cause), "{reason}");
    }
    for (reason, cause) in [
        ("", Cause::Crashed),
        ("Error", Cause::Crashed),
        ("OOMKilled", Cause::Crashed),
        ("Evicted", Cause::Evicted),
        ("NodeShutdown", Cause::Evicted),
        ("Preempting", Cause::Preempted),
        ("NodeLost", Cause::NodeLost),
        ("OutOfcpu", Cause::Evicted),
        ("OutOfnvidia.com/gpu", Cause::Evicted),
        ("UnexpectedAdmissionError", Cause::Evicted),
    ] {
        let failed = |pod: &mut Pod| (pod.stage, pod.reason) = (PodStage::Failed, reason.into());
        assert_eq!(caused(failed), Some(cause), "{reason}");
    }
    let refused = |pod: &mut Pod| (pod.stage, pod.never_ran) = (PodStage::Failed, true);
    assert_eq!(caused(refused), Some(Cause::Evicted));
    // A device fault is not a crash of the program, and a pod that has succeeded cannot be lost any more.
    let faulty = |pod: &mut Pod| (pod.stage, pod.devices) = (PodStage::Failed, Devices::Unhealthy);
    assert_eq!(caused(faulty), Some(Cause::DeviceFault));
    let done = |pod: &mut Pod| (pod.stage, pod.leaving) = (PodStage::Succeeded, Some(NOW));
    assert_eq!(caused(done), None);
}

#[test]
fn a_job_that_starts_anew_makes_no_pod_beside_one_that_has_not_been_told_to_end() {
    let (_, mut observed) = running(elastic(1));
    observed.verdict = start(3);
    let queued = State { attempts: 1, ..State::default() };
    let (state, actions) = step(queued, &observed, NOW);
    assert_eq!(changes(&actions), (vec![], vec![(0, 1), (1, 1), (2, 1)]));
    observed.verdict = None;
    observed.pods[0].leaving = Some(NOW + 30);
    observed.pods.remove(2);
    let (_, actions) = step(state, &observed, NOW);
    assert_eq!(changes(&actions), (vec![(0, 2), (2, 2)], vec![(1, 1)]));
}

#[test]
fn a_pod_that_is_stuck_or_on_a_lost_node_is_not_live() {
    let live = |change: &dyn Fn(&mut Pod)| {
        let mut pod = pod(0, 1, PodStage::Ready);
        change(&mut pod);
        loss::is_live(&pod, NOW)
    };
    assert!(live(&|_| {}));
    assert!(live(&|pod| pod.leaving = Some(NOW - 59)));
    assert!(!live(&|pod| pod.leaving = Some(NOW - 60)));
    assert!(!live(&|pod| pod.stage = PodStage::Failed));
    assert!(live(&|pod| pod.leaving = Some(Seconds::NEVER)), "the job waits for it");
    assert!(!live(&|pod| pod.node = Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() })));
}

#[test]
fn a_pod_that_fails_soon_after_the_start_is_replaced_after_a_pause_that_doubles() {
    let (mut state, mut observed) = running(Terms { max_crashes: 100, active_deadline: None, ..elastic(3) });
    let (mut now, mut pauses) = (NOW, Vec::new());
    let mut lose = |state: State, now: &mut Seconds| {
        let attempt = state.roles[0][2].attempt;
        observed.pods[2] = pod(2, attempt, PodStage::Failed);
        observed.plan = None;
        let (mut state, mut actions) = step(state, &observed, *now);
        let lost_at = *now;
        if *now > NOW && pauses.len() == 1 {
            let said = "2 of 3 pods are ready; 1 without a node; pods failed soon after they started, and the next are created at 13:46 UTC";
            assert_eq!(waits_for(&state, &observed, *now).unwrap(), said);
        }
        while unplaced(&state, &observed, *now) != [vec![2]] {
            *now = again(&actions).expect("a time for the next one");
            (state, actions) = step(state, &observed, *now);
        }
        pauses.push(*now - lost_at);
        observed.plan = planned(&[2]);
        let (state, actions) = step(state, &observed, *now);
        assert_eq!(changes(&actions).0, [(2, attempt + 1)]);
        state
    };
    for _ in 0..10 {
        state = lose(state, &mut now);
        now += 5;
    }
    // It runs for longer than the early period, and fails again.
    (state.phase, state.since) = (Phase::Running, now);
    now += 60;
    state = lose(state, &mut now);
    assert_eq!(state.restarts.crashed, 11);
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 128, 256, 256, 0]);
}

// SEMANTICS: J1
#[test]
fn a_gang_of_which_a_pod_is_rejected_again_and_again_gives_its_room_back() {
    let lose = |min: u32, times: u32| {
        let (mut state, mut observed) = running(Terms { active_deadline: None, ..elastic(min) });
        (state.phase, state.since) = (Phase::Starting, NOW - 1);
        let mut now = NOW;
        for _ in 0..times {
            let attempt = state.roles[0][2].attempt;
            observed.pods[2] =
                Pod { never_ran: true, reason: "UnexpectedAdmissionError".into(), ..pod(2, attempt, PodStage::Failed) };
            observed.plan = None;
            state = step(state, &observed, now).0;
            if state.phase == Phase::Queued {
                break;
            }
            now = state.not_before.expect("a pause");
            observed.plan = planned(&[2]);
            state = step(state, &observed, now).0;
        }
        (state, now)
    };
    assert_eq!(lose(3, 3).0.phase, Phase::Starting);
    let (state, now) = lose(3, 4);
    assert_eq!((state.phase, state.granted().len(), state.restarts.evicted), (Phase::Queued, 0, 4));
    // Other jobs may have the room during the delay.
    assert_eq!((state.unbound, state.not_before, now - NOW), (1, Some(now + 30), 2 + 4 + 8));
    let said = "the kubelets of its nodes keep rejecting its pods, most recently worker 2 (UnexpectedAdmissionError)";
    assert_eq!(state.why, said);
}

#[test]
fn pods_that_are_lost_with_their_nodes_are_replaced_at_once() {
    let (mut state, mut observed) = running(elastic(3));
    (state.phase, state.since) = (Phase::Starting, NOW - 5);
    observed.pods[2].node = Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() });
    let (state, _) = step(state, &observed, NOW);
    assert_eq!(unplaced(&state, &observed, NOW), [vec![2]]);
}

#[test]
fn a_few_ended_pods_of_an_index_are_kept() {
    for keep_pods in [KeepPods::Ended, KeepPods::All] {
        let (mut state, mut observed) = running(Terms { keep_pods, ..elastic(3) });
        state.roles[0][2].attempt = 6;
        observed.pods[2] = pod(2, 6, PodStage::Ready);
        observed.pods.extend((1..6).map(|attempt| pod(2, attempt, PodStage::Failed)));
        assert_eq!(changes(&step(state, &observed, NOW).1), (vec![], vec![(2, 1), (2, 2)]), "{keep_pods:?}");
    }
}
