//! Every event in every phase, row by row.

use super::*;

/// A job in a phase, with facts that change nothing.
fn quiet(phase: Phase) -> (State, Shown) {
    let (mut state, mut observed) = running(elastic(2));
    observed.terms.roles[0].decides = Decides::First;
    observed.data.push(Data { name: "pets".into(), percent: 10, enough: 90, timeout: 10_000, obstacle: String::new() });
    state.phase = phase;
    match phase {
        Phase::Queued | Phase::Suspended => {
            (state.roles, state.started, observed.pods) = (Vec::new(), None, Vec::new());
            observed.terms.suspend = phase == Phase::Suspended;
        }
        Phase::DataWarming => {
            (state.roles, state.started, observed.pods) = (vec![vec![slot(1, Stage::Placed); 3]], None, Vec::new());
        }
        Phase::Starting | Phase::Growing | Phase::Recovering => observed.pods[0].stage = PodStage::Bound,
        Phase::Shrinking => observed.pods.push(pod(3, 1, PodStage::Ready)),
        Phase::Running => {}
        Phase::Succeeded | Phase::Failed => state.finished = Some(NOW - 10),
    }
    (state, observed)
}

/// Makes an event happen if the phase allows it, and returns the time at which it happens.
fn provoke(event: EventKind, state: &mut State, observed: &mut Shown) -> Seconds {
    let unplace = |state: &mut State, observed: &mut Shown| {
        if let Some(slot) = state.roles.get_mut(0).and_then(|slots| slots.get_mut(2)) {
            *slot = Slot { attempt: 2, node: None, stage: Stage::Unplaced };
        }
        observed.pods.retain(|pod| pod.id.index < 2);
        // One pod is not ready, so that `Up` does not follow.
        observed.pods.iter_mut().take(1).for_each(|pod| pod.stage = PodStage::Bound);
    };
    let last = |observed: &mut Shown, change: &dyn Fn(&mut Pod)| {
        observed.pods.iter_mut().filter(|pod| pod.id.index == 2).for_each(change);
    };
    match event {
        // In `Starting`, the same facts release the gang.
        EventKind::NoRoom if state.phase == Phase::Starting => {}
        EventKind::Suspend => observed.terms.suspend = true,
        EventKind::Resume => observed.terms.suspend = false,
        EventKind::Deadline => return NOW + 3_400,
        EventKind::Granted => observed.verdict = start(3),
        EventKind::Revoked => observed.verdict = Some(Verdict::Stop { why: "others need it".into() }),
        EventKind::Shrunk => observed.verdict = run(2, 2),
        EventKind::Grown => {
            observed.verdict = run(3, 5);
            state.room_since = Some(NOW - 60);
        }
        EventKind::Seen => {
            if let Some(slot) = state.roles.get_mut(0).and_then(|slots| slots.get_mut(2)) {
                slot.stage = Stage::Placed;
            }
        }
        EventKind::Done => last(observed, &|pod| pod.stage = PodStage::Succeeded),
        EventKind::Finished => observed.pods.iter_mut().for_each(|pod| pod.stage = PodStage::Succeeded),
        EventKind::Lost => last(observed, &|pod| pod.stage = PodStage::Failed),
        EventKind::Spent => {
            observed.terms.max_crashes = 0;
            last(observed, &|pod| pod.stage = PodStage::Failed);
        }
        EventKind::Warm => observed.data.iter_mut().for_each(|data| data.percent = 90),
        EventKind::Planned | EventKind::NoRoom | EventKind::Released => {
            unplace(state, observed);
            if state.phase == Phase::DataWarming {
                state.roles[0][2].stage = Stage::Placed;
            }
            observed.terms.roles[0].min = if event == EventKind::Released { 3 } else { 2 };
            let refused = Some(Plan::None("there is no room".into()));
            observed.plan = if event == EventKind::Planned { planned(&[2]) } else { refused };
        }
        EventKind::Unbound => {
            last(observed, &|pod| pod.stage = PodStage::Pending);
            state.binding_since = Some(NOW - 30);
        }
        EventKind::Up => {
            observed.pods.retain(|pod| pod.id.index < 3);
            observed.pods.iter_mut().for_each(|pod| pod.stage = PodStage::Ready);
        }
    }
    NOW
}

/// The table in the documentation of the module.
fn documented() -> Vec<(String, Vec<Option<String>>)> {
    let text = include_str!("../table.rs");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | ")).map(|row| {
        let mut cells = row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_owned());
        (cells.next().unwrap(), cells.map(|cell| Some(cell).filter(|cell| !cell.is_empty())).collect())
    });
    rows.collect()
}

#[test]
fn the_documented_table_is_the_one_that_is_followed() {
    let mut rows = documented().into_iter();
    let (_, phases) = rows.next().unwrap();
    assert_eq!(phases, Phase::ALL.map(|phase| Some(format!("{phase:?}"))));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), EventKind::ALL.len());
    for (event, (name, cells)) in EventKind::ALL.into_iter().zip(rows) {
        assert_eq!(name, format!("{event:?}"));
        let followed = Phase::ALL.map(|phase| table::next(phase, event).map(|phase| format!("{phase:?}")));
        assert_eq!(cells, followed, "{event:?}");
    }
}

#[test]
fn nothing_happens_where_nothing_has_happened() {
    for phase in Phase::ALL {
        let (state, observed) = quiet(phase);
        let (after, actions) = step(state.clone(), &observed, NOW);
        assert_eq!(after, state, "{phase:?}");
        if !phase.is_terminal() {
            let surplus = if phase == Phase::Shrinking { vec![(3, 1)] } else { Vec::new() };
            assert_eq!(changes(&actions), (Vec::new(), surplus), "{phase:?}");
        }
    }
}

#[test]
fn every_event_has_its_effect_in_every_phase_and_no_other() {
    for (phase, event) in Phase::ALL.into_iter().flat_map(|phase| EventKind::ALL.map(|event| (phase, event))) {
        let (mut state, mut observed) = quiet(phase);
        let now = provoke(event, &mut state, &mut observed);
        let (after, _) = step(state.clone(), &observed, now);
        match table::next(phase, event) {
            Some(next) => {
                assert_eq!(after.phase, next, "{event:?} in {phase:?}");
                assert!(after != state, "{event:?} in {phase:?}");
            }
            None => {
                state.room_since = after.room_since;
                assert_eq!(after, state, "{event:?} in {phase:?}");
            }
        }
        // Decisions are applied once, and other facts change nothing when they are observed again.
        (observed.verdict, observed.plan) = (None, None);
        assert_eq!(step(after.clone(), &observed, now).0, after, "{event:?} in {phase:?}, seen twice");
    }
}
