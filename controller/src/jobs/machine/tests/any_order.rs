//! Events in any order, with a controller that dies after any action.

use std::collections::BTreeSet;

use larder_api::training_job::RestartAction;
use proptest::prelude::*;

use super::*;

/// An operation on the job or on one of its pods, chosen by number.
#[derive(Clone, Debug)]
enum Op {
    Wait(i64),
    Start(u32),
    Stop,
    Resize(u32, u32),
    Plan(bool),
    Suspend(bool),
    Warm,
    Bind(usize),
    /// The scheduler cannot bind a pod.
    Refuse(usize),
    Ready(usize),
    Succeed(usize),
    Crash(usize),
    Lose(usize, Cause),
    /// A terminating pod is deleted.
    Gone(usize),
    /// Another client deletes a pod, and it disappears immediately.
    Vanish(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    let pod = || 0..6_usize;
    let cause = prop::sample::select(&Cause::ALL[1..]);
    prop_oneof![
        3 => (0..70_i64).prop_map(Op::Wait),
        2 => (2..5_u32).prop_map(Op::Start),
        1 => Just(Op::Stop),
        2 => (2..5_u32, 2..6_u32).prop_map(|(granted, most)| Op::Resize(granted, most)),
        4 => prop::bool::weighted(0.8).prop_map(Op::Plan),
        1 => prop::bool::weighted(0.2).prop_map(Op::Suspend),
        2 => Just(Op::Warm),
        5 => pod().prop_map(Op::Bind),
        2 => pod().prop_map(Op::Refuse),
        5 => pod().prop_map(Op::Ready),
        1 => pod().prop_map(Op::Succeed),
        2 => pod().prop_map(Op::Crash),
        2 => (pod(), cause).prop_map(|(pod, cause)| Op::Lose(pod, cause)),
        4 => pod().prop_map(Op::Gone),
        1 => pod().prop_map(Op::Vanish),
    ]
}

fn any_terms() -> impl Strategy<Value = Terms> {
    let action = prop::sample::select(vec!["fail", "restartPod", "restartRole", "restartJob", "ignore", ""]);
    (any::<bool>(), any::<bool>(), 0..4_u32, 0..3_usize, any::<bool>(), any::<bool>(), action).prop_map(
        |(two_pods, whole, max_crashes, keep_pods, native, unreserved, action)| Terms {
            rules: if action.is_empty() { Vec::new() } else { rules_of(&["worker"], &json!([{"action": action}])) },
            forgive_after: 100,
            roles: elastic(2).roles.into_iter().map(|role| RoleTerms { two_pods, ..role }).collect(),
            scope: if whole { Scope::Job } else { Scope::Worker },
            max_crashes,
            keep_pods: [KeepPods::None, KeepPods::Ended, KeepPods::All][keep_pods],
            by_scheduler: native,
            unreserved,
            ..elastic(2)
        },
    )
}

struct World {
    state: State,
    observed: Shown,
    now: Seconds,
    made: BTreeSet<PodId>,
}

fn total(restarts: Restarts) -> u32 {
    Cause::ALL.iter().map(|cause| restarts.of(*cause)).sum()
}

impl World {
    fn new(terms: Terms) -> Self {
        let mut observed = Shown::of(terms);
        observed.data.push(Data { name: "pets".into(), percent: 0, enough: 90, timeout: 300, obstacle: String::new() });
        Self { state: State::default(), observed, now: NOW, made: BTreeSet::new() }
    }

    /// Applies an operation. Returns the cause that must be counted for it.
    fn apply(&mut self, op: &Op) -> Option<Cause> {
        (self.observed.verdict, self.observed.plan) = (None, None);
        match op {
            Op::Wait(seconds) => self.now += *seconds,
            Op::Start(workers) => self.observed.verdict = start(*workers),
            Op::Stop => self.observed.verdict = Some(Verdict::Stop { why: "others".into() }),
            Op::Resize(granted, most) => self.observed.verdict = run(*granted, *most),
            Op::Plan(fits) => {
                let asked = unplaced(&self.state, &self.observed, self.now);
                let asked = asked.first().map_or(&[][..], Vec::as_slice);
                self.observed.plan = if *fits { planned(asked) } else { Some(Plan::None("no room".into())) };
            }
            Op::Suspend(is) => self.observed.terms.suspend = *is,
            Op::Warm => self.observed.data[0].percent = 100,
            Op::Bind(at) => self.change(*at, |pod| {
                if pod.stage == PodStage::Pending {
                    (pod.stage, pod.node) = (PodStage::Bound, Some(NodeHealth::default()));
                    pod.is_refused = false;
                }
            }),
            Op::Refuse(at) => self.change(*at, |pod| pod.is_refused = pod.stage == PodStage::Pending),
            Op::Ready(at) => self.change(*at, |pod| {
                if pod.stage == PodStage::Bound {
                    pod.stage = PodStage::Ready;
                }
            }),
            Op::Succeed(at) => self.change(*at, |pod| {
                if pod.stage == PodStage::Ready {
                    pod.stage = PodStage::Succeeded;
                }
            }),
            Op::Crash(at) => return self.lose(*at, Cause::Crashed),
            Op::Lose(at, cause) => return self.lose(*at, *cause),
            Op::Gone(at) => {
                let pods = &mut self.observed.pods;
                if let Some(at) = at.checked_rem(pods.len()).filter(|at| pods[*at].leaving.is_some()) {
                    pods.remove(at);
                }
            }
            Op::Vanish(at) => {
                let expected = self.lose(*at, Cause::Evicted);
                if let Some(at) = at.checked_rem(self.observed.pods.len()) {
                    let gone = self.observed.pods.remove(at).id;
                    // The state never contained the pod, so no controller can know of it, and the pod is recreated.
                    if self.state.slot(gone).is_some_and(|slot| slot.stage == Stage::Placed) {
                        self.made.remove(&gone);
                    }
                }
                return expected;
            }
        }
        None
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut Pod)) {
        if let Some(at) = at.checked_rem(self.observed.pods.len()) {
            change(&mut self.observed.pods[at]);
        }
    }

    /// Loses a pod. The loss counts if the pod belongs to a slot and was not lost before.
    fn lose(&mut self, at: usize, cause: Cause) -> Option<Cause> {
        let at = at.checked_rem(self.observed.pods.len())?;
        let (now, pod) = (self.now, &mut self.observed.pods[at]);
        let counts = self.state.phase.has_pods()
            && self.state.slot(pod.id).is_some_and(|slot| slot.stage == Stage::Seen)
            && loss::cause(pod, now).is_none()
            && pod.stage != PodStage::Succeeded;
        let cannot = match cause {
            Cause::Crashed => pod.stage != PodStage::Ready,
            Cause::NodeLost => pod.node.is_none(),
            _ => pod.stage == PodStage::Succeeded,
        };
        if cannot {
            return None;
        }
        match cause {
            Cause::Crashed => pod.stage = PodStage::Failed,
            Cause::Preempted => pod.disruption = "PreemptionByScheduler".into(),
            Cause::Evicted => pod.leaving = Some(pod.leaving.unwrap_or(now + 30)),
            Cause::NodeLost => pod.node = Some(NodeHealth { lost_at: Some(Seconds(0)), ..NodeHealth::default() }),
            Cause::DeviceFault => pod.devices = Devices::Unhealthy,
        }
        counts.then_some(cause)
    }

    /// Makes a step and executes `done` actions.
    fn step(&mut self, expected: Option<Cause>, done: usize) {
        let before = self.state.clone();
        let (after, actions) = step(before.clone(), &self.observed, self.now);
        // The controller may die here, so the test continues from what was written.
        let written = serde_json::to_string(&after).unwrap();
        self.state = serde_json::from_str(&written).unwrap();
        assert_eq!(self.state, after, "{written}");
        self.check(&before, expected);
        (self.observed.verdict, self.observed.plan) = (None, None);
        assert_eq!(step(after.clone(), &self.observed, self.now), (after, actions.clone()), "a step is made once");
        // Pods are created and deleted concurrently, so the order of the actions must not matter.
        for action in actions.into_iter().rev().take(done) {
            self.execute(&action);
        }
        self.check_live();
    }

    fn execute(&mut self, action: &Action) {
        match action {
            Action::Create { pod, .. } => {
                assert!(self.made.insert(*pod), "{pod:?} is made twice");
                self.observed.pods.push(Pod { id: *pod, ..Pod::default() });
            }
            Action::Delete(id) => {
                let at = self.observed.pods.iter().position(|pod| pod.id == *id).unwrap();
                let pod = &mut self.observed.pods[at];
                pod.leaving = Some(self.now + 30);
                if pod.stage == PodStage::Pending || pod.stage.has_ended() {
                    self.observed.pods.remove(at);
                }
            }
            Action::Remove => assert!(self.state.phase.is_terminal()),
            Action::Again(at) => assert!(*at > self.now),
        }
    }

    fn check(&self, before: &State, expected: Option<Cause>) {
        let (old, new) = (before.restarts, self.state.restarts);
        assert!(before.attempts <= self.state.attempts, "attempts fall");
        for cause in Cause::ALL {
            assert!(old.of(cause) <= new.of(cause), "{cause:?} falls");
        }
        if before.phase.is_terminal() {
            assert_eq!(*before, self.state, "an ended job changes");
        } else if let Some(cause) = expected {
            assert_eq!((new.of(cause), total(new)), (old.of(cause) + 1, total(old) + 1), "{cause:?} counts once");
        }
        let attempts: Vec<u32> = self.state.slots().map(|(pod, _)| pod.attempt).collect();
        assert!(attempts.iter().all(|attempt| *attempt <= self.state.attempts));
        assert_eq!(self.state.finished.is_some(), self.state.phase.is_terminal());
        assert!(self.state.holds_room() || self.state.phase.is_terminal() || self.state.roles.is_empty());
    }

    /// Each index has one live pod, besides terminating pods if the type allows two.
    fn check_live(&self) {
        let two_pods = self.observed.terms.roles[0].two_pods;
        let counts = |pod: &&Pod| loss::is_live(pod, self.now) && !(two_pods && pod.leaving.is_some());
        let mut indexes: Vec<u32> = self.observed.pods.iter().filter(counts).map(|pod| pod.id.index).collect();
        let all = indexes.len();
        indexes.sort_unstable();
        indexes.dedup();
        assert_eq!(indexes.len(), all, "two pods of an index: {:?}", self.observed.pods);
    }
}

proptest! {
    #[test]
    fn no_event_is_lost_or_counts_twice_in_any_order(
        terms in any_terms(),
        ops in prop::collection::vec((any_op(), 0..9_usize), 1..120),
    ) {
        let mut world = World::new(terms);
        for (op, done) in &ops {
            let expected = world.apply(op);
            world.step(expected, *done);
        }
    }

    #[test]
    fn a_job_whose_cluster_is_well_ends_whatever_happened_before(
        terms in any_terms(),
        ops in prop::collection::vec((any_op(), 0..9_usize), 1..60),
    ) {
        let rules = terms.rules.iter().filter(|rule| rule.action != RestartAction::Fail).cloned().collect();
        let mut world = World::new(Terms { max_crashes: 1_000, active_deadline: None, rules, ..terms });
        for (op, done) in &ops {
            let expected = world.apply(op);
            world.step(expected, *done);
        }
        world.observed.terms.suspend = false;
        for round in 0..60 {
            // A healthy cluster over time: pods terminate, are bound, run, and complete.
            let waits = matches!(world.state.phase, Phase::Queued | Phase::DataWarming);
            let verdict = if waits { start(3) } else { None };
            world.observed.pods.retain(|pod| pod.leaving.is_none());
            for pod in &mut world.observed.pods {
                match pod.stage {
                    PodStage::Pending => (pod.stage, pod.node) = (PodStage::Bound, Some(NodeHealth::default())),
                    PodStage::Bound => pod.stage = PodStage::Ready,
                    PodStage::Ready if round > 40 => pod.stage = PodStage::Succeeded,
                    _ => {}
                }
            }
            world.now += 10;
            world.observed.verdict = verdict;
            let asked = unplaced(&world.state, &world.observed, world.now);
            world.observed.plan = asked.first().filter(|asked| !asked.is_empty()).and_then(|asked| planned(asked));
            world.step(None, usize::MAX);
        }
        prop_assert_eq!(world.state.phase, Phase::Succeeded, "{:?}", world.state);
    }
}
