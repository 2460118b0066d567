//! Roles that start after others.

use larder_api::training_job::Until;
use larder_api::training_job::checked::Predecessor;
use proptest::prelude::*;

use super::*;

/// A job of two workers, which start after a server.
fn terms(until: Until) -> Terms {
    let server = RoleTerms { name: "ps".into(), min: 1, ..RoleTerms::default() };
    let starts_after = vec![Predecessor { role: 0, until }];
    let worker = RoleTerms { min: 2, starts_after, two_pods: false, ..elastic(2).roles.remove(0) };
    Terms { roles: vec![server, worker], active_deadline: None, ..elastic(2) }
}

fn started(until: Until) -> (State, Vec<Action>, Shown) {
    let mut observed = Shown::of(terms(until));
    let nodes = vec![vec!["n0".into()], vec!["n1".into(), "n2".into()]];
    observed.verdict = Some(Verdict::Start { granted: vec![1, 2], nodes, flavors: Vec::new() });
    let (state, actions) = step(State::default(), &observed, NOW);
    observed.verdict = None;
    (state, actions, observed)
}

fn of(role: usize, index: u32, attempt: u32, stage: PodStage) -> Pod {
    Pod { id: PodId { role, index, attempt }, ..pod(index, attempt, stage) }
}

/// The pods to create, by role and index.
fn created(actions: &[Action]) -> Vec<(usize, u32)> {
    let created = actions.iter().filter_map(|action| match action {
        Action::Create { pod, .. } => Some((pod.role, pod.index)),
        _ => None,
    });
    created.collect()
}

// SEMANTICS: J32
#[test]
fn pods_of_a_role_are_created_once_those_before_it_are_ready_or_done() {
    for (until, enough) in [(Until::Ready, PodStage::Ready), (Until::Done, PodStage::Succeeded)] {
        let (state, actions, mut observed) = started(until);
        assert_eq!((state.granted(), created(&actions)), (vec![1, 2], vec![(0, 0)]), "the room is reserved");
        let text = waits_for(&state, &observed, NOW).expect("it waits");
        assert!(text.contains("worker starts after ps"), "{text}");
        observed.pods = vec![of(0, 0, 1, PodStage::Bound)];
        // The workers do not exist, so however long the server takes, they are not late.
        let (state, actions) = step(state, &observed, NOW + 10_000);
        assert_eq!((state.phase, created(&actions)), (Phase::Starting, vec![]));
        observed.pods[0].stage = enough;
        let (state, actions) = step(state, &observed, NOW + 10_001);
        assert_eq!((state.phase, created(&actions)), (Phase::Starting, vec![(1, 0), (1, 1)]));
        observed.pods.push(Pod { since: NOW + 10_001, ..of(1, 0, 1, PodStage::Ready) });
        observed.pods.push(Pod { since: NOW + 10_001, ..of(1, 1, 1, PodStage::Pending) });
        let (late, _) = step(state.clone(), &observed, NOW + 10_031);
        assert!(late.planned_again, "from now on they may be late");
        observed.pods[2].stage = PodStage::Ready;
        assert_eq!(step(state, &observed, NOW + 10_002).0.phase, Phase::Running);
    }
}

// SEMANTICS: J32
#[test]
fn a_restart_of_all_pods_keeps_the_order() {
    let (state, _, mut observed) = started(Until::Ready);
    observed.terms.scope = Scope::Job;
    observed.pods = vec![
        of(0, 0, 1, PodStage::Ready),
        of(1, 0, 1, PodStage::Ready),
        Pod { exit_code: Some(1), ..of(1, 1, 1, PodStage::Failed) },
    ];
    let (state, _) = step(state, &observed, NOW + 100);
    assert!(state.slots().all(|(id, slot)| id.attempt == 2 && slot.stage == Stage::Unplaced), "{state:?}");
    observed.pods.clear();
    let at = |role, index| PlannedPod { role, index, node: Some("n1".into()) };
    observed.plan = Some(Plan::Nodes(vec![at(0, 0), at(1, 0), at(1, 1)]));
    let (_, actions) = step(state, &observed, NOW + 200);
    assert_eq!(created(&actions), [(0, 0)]);
}

/// The stages of a role's pods.
fn any_stages() -> impl Strategy<Value = Vec<(Stage, Option<PodStage>)>> {
    let stage = prop::sample::select(vec![Stage::Placed, Stage::Seen, Stage::Done]);
    let pod = prop::sample::select(vec![
        None,
        Some(PodStage::Pending),
        Some(PodStage::Bound),
        Some(PodStage::Ready),
        Some(PodStage::Succeeded),
    ]);
    prop::collection::vec((stage, pod), 1..4)
}

proptest! {
    #[test]
    fn no_pod_is_created_before_its_turn_whatever_the_others_do(
        server in any_stages(), worker in any_stages(), is_done in any::<bool>(),
    ) {
        let until = if is_done { Until::Done } else { Until::Ready };
        let mut observed = Shown::of(Terms { gang_timeout: None, ..terms(until) });
        let mut state = State { phase: Phase::Recovering, attempts: 1, started: Some(NOW), ..State::default() };
        for (role, stages) in [server, worker].into_iter().enumerate() {
            state.roles.push(stages.iter().map(|(stage, _)| slot(1, *stage)).collect());
            let pods = (0..).zip(&stages).filter_map(|(index, (_, pod))| Some(of(role, index, 1, (*pod)?)));
            observed.pods.extend(pods);
        }
        let (state, actions) = step(state, &observed, NOW);
        prop_assume!(state.phase.has_pods());
        let up = |pod: &Pod| match until {
            Until::Ready => matches!(pod.stage, PodStage::Ready | PodStage::Succeeded),
            Until::Done => pod.stage == PodStage::Succeeded,
        };
        let is_up = |id: PodId| observed.pods.iter().any(|pod| pod.id == id && up(pod));
        let mut first = state.slots().filter(|(id, _)| id.role == 0);
        let has_turn = first.all(|(id, slot)| slot.stage == Stage::Done || is_up(id));
        let makes_workers = created(&actions).iter().any(|(role, _)| *role == 1);
        prop_assert!(has_turn || !makes_workers, "{state:?} {actions:?}");
    }
}
