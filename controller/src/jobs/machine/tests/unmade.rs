//! Pods that the API server does not create for lack of quota.

use super::*;

/// A job of three workers whose last worker has not been created yet.
fn making(phase: Phase, min: u32) -> (State, Shown) {
    let (mut state, mut observed) = running(elastic(min));
    (state.phase, state.binding_since) = (phase, Some(NOW - 1));
    state.roles[0][2].stage = Stage::Placed;
    observed.pods.truncate(2);
    (state, observed)
}

fn short(mut shown: Shown) -> Shown {
    shown.shortage = Some("no quota".into());
    shown
}

#[test]
fn a_job_that_cannot_go_on_without_them_gives_its_room_back_at_once() {
    for (phase, min) in [(Phase::Starting, 1), (Phase::Recovering, 3)] {
        let (state, observed) = making(phase, min);
        assert_eq!(step(state.clone(), &observed, NOW).0.phase, phase, "as long as nothing is said");
        let (released, actions) = step(state, &short(observed), NOW);
        assert_eq!((released.phase, released.why.as_str()), (Phase::Queued, "no quota"));
        assert_eq!(released.not_before, Some(NOW + 30));
        assert_eq!(actions.iter().filter(|action| matches!(action, Action::Delete(_))).count(), 2);
    }
}

#[test]
fn one_that_can_or_whose_own_pods_may_still_have_the_quota_goes_on() {
    let (state, observed) = making(Phase::Recovering, 2);
    assert_eq!(step(state.clone(), &short(observed), NOW).0, state);
    let (state, mut observed) = making(Phase::Recovering, 3);
    observed.pods.push(Pod { leaving: Some(NOW - 1), ..pod(2, 0, PodStage::Ready) });
    assert_eq!(step(state.clone(), &short(observed), NOW).0, state);
    // A job that has all its pods is not affected either.
    let (state, observed) = running(elastic(3));
    assert_eq!(step(state.clone(), &short(observed), NOW).0, state);
}
