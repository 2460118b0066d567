use std::ops::{Deref, DerefMut};

use super::{step as machine_step, *};
use crate::jobs::planned::{Plan, PlannedPod, RefusedBy};
use crate::jobs::queue::{Running, Verdict};
use crate::time::Seconds;
use larder_api::TrainingJob;
use larder_api::training_job::KeepPods;
use larder_api::training_job::checked::CheckedRule;
use serde_json::{Value, json};

mod any_order;
mod losses;
mod order;
mod rows;
mod rules;
mod stories;
mod unmade;

pub(super) const NOW: Seconds = Seconds(1_000_000);

/// The input of a step: the observed facts and the decision.
#[derive(Clone, Default)]
pub(super) struct Shown {
    pub(super) observed: Observed,
    pub(super) verdict: Option<Verdict>,
    pub(super) plan: Option<Plan>,
}

impl Shown {
    pub(super) fn of(terms: Terms) -> Self {
        Self { observed: Observed { terms, ..Observed::default() }, ..Self::default() }
    }
}

impl Deref for Shown {
    type Target = Observed;

    fn deref(&self) -> &Observed {
        &self.observed
    }
}

impl DerefMut for Shown {
    fn deref_mut(&mut self) -> &mut Observed {
        &mut self.observed
    }
}

pub(super) fn step(state: State, shown: &Shown, now: Seconds) -> (State, Vec<Action>) {
    let decisions = Decisions { verdict: shown.verdict.clone(), plan: shown.plan.clone() };
    machine_step(state, &shown.observed, &decisions, now)
}

/// A job of workers that may shrink to `min`, of a type that allows two pods of an index.
pub(super) fn elastic(min: u32) -> Terms {
    Terms {
        roles: vec![RoleTerms {
            name: "worker".into(),
            min,
            decides: Decides::All,
            two_pods: true,
            ..RoleTerms::default()
        }],
        keep_pods: KeepPods::None,
        max_crashes: 3,
        gang_timeout: Some(30),
        active_deadline: Some(3_600),
        ttl: Some(600),
        ..Terms::default()
    }
}

/// The checked form of `spec.restart.rules` of a job with these roles.
pub(super) fn rules_of(roles: &[&str], rules: &Value) -> Vec<CheckedRule> {
    let role = |name: &&str| json!({"name": name, "template": {"spec": {"containers": [{"name": "main"}]}}});
    let roles: Vec<Value> = roles.iter().map(role).collect();
    let job: TrainingJob = serde_json::from_value(json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "train"},
        "spec": {"type": "single", "roles": roles, "restart": {"rules": rules}},
    }))
    .expect("of the schema's form");
    job.check().expect("valid").rules
}

pub(super) fn slot(attempt: u32, stage: Stage) -> Slot {
    Slot { attempt, node: Some("n1".into()), stage }
}

pub(super) fn pod(index: u32, attempt: u32, stage: PodStage) -> Pod {
    let node = (stage != PodStage::Pending).then(NodeHealth::default);
    Pod { id: PodId { role: 0, index, attempt }, stage, node, ..Pod::default() }
}

/// A job of three workers that run.
pub(super) fn running(terms: Terms) -> (State, Shown) {
    let state = State {
        phase: Phase::Running,
        since: NOW - 100,
        roles: vec![vec![slot(1, Stage::Seen); 3]],
        attempts: 1,
        started: Some(NOW - 200),
        ..State::default()
    };
    let pods = (0..3).map(|index| pod(index, 1, PodStage::Ready)).collect();
    (state, Shown { observed: Observed { terms, pods, ..Observed::default() }, ..Shown::default() })
}

pub(super) fn run(granted: u32, may_grow_to: u32) -> Option<Verdict> {
    Some(Verdict::Run(Running { granted: vec![granted], may_grow_to: vec![may_grow_to], ..Running::default() }))
}

pub(super) fn start(workers: u32) -> Option<Verdict> {
    let nodes = vec![(0..workers).map(|index| format!("n{index}")).collect()];
    Some(Verdict::Start { granted: vec![workers], nodes, flavors: Vec::new() })
}

pub(super) fn planned(indexes: &[u32]) -> Option<Plan> {
    let planned = |index: &u32| PlannedPod { role: 0, index: *index, node: Some(format!("m{index}")) };
    Some(Plan::Nodes(indexes.iter().map(planned).collect()))
}

/// Pods by index and attempt.
type Pods = Vec<(u32, u32)>;

/// The pods that are made, and those that are deleted.
pub(super) fn changes(actions: &[Action]) -> (Pods, Pods) {
    let created = actions.iter().filter_map(|action| match action {
        Action::Create { pod, .. } => Some((pod.index, pod.attempt)),
        _ => None,
    });
    let deleted = actions.iter().filter_map(|action| match action {
        Action::Delete(pod) => Some((pod.index, pod.attempt)),
        _ => None,
    });
    (created.collect(), deleted.collect())
}

pub(super) fn again(actions: &[Action]) -> Option<Seconds> {
    actions.iter().find_map(|action| match action {
        Action::Again(at) => Some(*at),
        _ => None,
    })
}
