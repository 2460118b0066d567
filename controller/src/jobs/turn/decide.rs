//! The steps of a job in a round: what has happened to its pods, what the queues decide, where lost pods go, what Kueue decides.

use std::collections::BTreeSet;

use larder_api::Phase;

use super::Checked;
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::counts::{Before, takes_room};
use crate::jobs::data_locality;
use crate::jobs::machine::{Action, Data, Decisions, step};
use crate::jobs::plan::{self, Cluster};
use crate::jobs::planned::{Plan, PlannedPod};
use crate::jobs::queue::{Lack, Verdict};
use crate::write::Write;

/// A job whose state knows what has happened to its pods.
pub(in crate::jobs) struct Stepped<'a> {
    pub(in crate::jobs) job: Checked<'a>,
    actions: Vec<Action>,
}

/// A job that Larder's queues have decided about, if it is theirs.
pub(in crate::jobs) struct Ruled<'a> {
    pub(in crate::jobs) job: Checked<'a>,
    actions: Vec<Action>,
    /// What the state machine took.
    verdict: Option<Verdict>,
}

/// A job whose lost pods have nodes again, as far as there is room.
pub(in crate::jobs) struct Placed<'a>(Ruled<'a>);

/// A job that is decided about.
pub(in crate::jobs) struct Decided<'a> {
    pub(in crate::jobs) job: Checked<'a>,
    pub(super) actions: Vec<Action>,
    /// What the state machine took of the queues' or of Kueue's decision.
    pub(super) verdict: Option<Verdict>,
    /// What Kueue waits for.
    pub(super) for_kueue: Vec<Write>,
}

/// A verdict that the state machine took, and what is to be done then.
struct Applied {
    verdict: Verdict,
    actions: Vec<Action>,
}

impl<'a> Checked<'a> {
    /// Makes the step that follows from what is observed alone.
    pub(in crate::jobs) fn step(mut self, view: &ClusterView<'_>) -> Stepped<'a> {
        let actions = if self.can_step() { self.advance(view, &Decisions::default()) } else { Vec::new() };
        Stepped { job: self, actions }
    }

    /// Moves the state machine. Only a job that can step may.
    fn advance(&mut self, view: &ClusterView<'_>, decisions: &Decisions) -> Vec<Action> {
        let state = std::mem::take(&mut self.job_state.record.state);
        let before = Before::of(&state);
        let (state, actions) = step(state, &self.observed, decisions, view.now);
        self.job_state.counts.step(before, &state, view.now);
        self.job_state.record.state = state;
        actions
    }

    /// The same with decisions, which may move the job to other nodes, and so to other data.
    fn advance_with(&mut self, view: &ClusterView<'_>, decisions: &Decisions) -> Vec<Action> {
        self.observed.data = self.data(view, decisions.verdict.as_ref());
        self.advance(view, decisions)
    }

    /// How much of its data is on the nodes that a start names, or else on those that the job has.
    pub(super) fn data(&self, view: &ClusterView<'_>, verdict: Option<&Verdict>) -> Vec<Data> {
        let Some(job) = self.spec.filter(|job| !job.datasets.is_empty()) else { return Vec::new() };
        let nodes: BTreeSet<String> = match verdict {
            Some(Verdict::Start { nodes, .. }) => nodes.iter().flatten().cloned().collect(),
            _ => self.nodes(),
        };
        data_locality::on_nodes(view, job, &nodes)
    }

    /// Applies what the queues or Kueue have decided. `None`: the job cannot step, and the next round decides again.
    fn apply(&mut self, view: &ClusterView<'_>, mut verdict: Verdict) -> Option<Applied> {
        if let Verdict::Start { nodes, .. } = &mut verdict
            && !self.is_planned()
        {
            nodes.clear();
        }
        let is_idle = self.job_state.is_idle();
        let record = &mut self.job_state.record;
        match &verdict {
            Verdict::Wait(waiting) => {
                record.claims = waiting.claims;
                record.head_since = waiting.is_head.then(|| record.head_since.unwrap_or(view.now));
                let mut waiting = waiting.clone();
                if waiting.lacks == Lack::Pause && !record.state.why.is_empty() {
                    waiting.why = format!("{}; {}", record.state.why, waiting.why);
                }
                self.job_state.waiting = Some(waiting);
            }
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } if is_idle => {
                (record.claims, record.head_since) = (false, None);
                self.job_state.waiting = None;
            }
            // The job takes it once its writes have ended.
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } => {}
        }
        if !self.can_step() {
            return None;
        }
        let mut plan = None;
        if let Verdict::Run(running) = &mut verdict {
            plan = running.plan.take();
            // Without its type no pods are made, so it cannot grow.
            if self.typed.is_none() {
                running.may_grow_to.clone_from(&running.granted);
            }
        }
        let takes_room = takes_room(&verdict, &self.job_state.record.state, self.roles());
        let decisions = Decisions { verdict: Some(verdict.clone()), plan };
        let actions = self.advance_with(view, &decisions);
        // The step may have found that the job has ended: nobody took room from it then.
        let state = &self.job_state.record.state;
        let goes_on = state.phase == Phase::Queued || state.holds_room();
        self.job_state.counts.preemptions += u64::from(takes_room && goes_on);
        Some(Applied { verdict, actions })
    }

    /// Nodes for pods that have lost theirs, where Larder's queues do not find them: for jobs in queues of Kueue, in the room
    /// that is left, and for jobs whose nodes the scheduler chooses. `None`: no pod needs one.
    fn plan(&self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> Option<Plan> {
        if self.kueue_queue().is_none() && self.is_planned() {
            return None;
        }
        let pods = self.unplaced(view);
        if pods.iter().all(Vec::is_empty) {
            return None;
        }
        if !self.is_planned() {
            let nowhere = |role: usize| move |index: &u32| PlannedPod { role, index: *index, node: None };
            let planned = pods.iter().enumerate().flat_map(|(role, pods)| pods.iter().map(nowhere(role)));
            return Some(Plan::Nodes(planned.collect()));
        }
        let gang = self.gang(view, free, &pods)?;
        Some(match plan::place(free, &gang) {
            Ok(placement) => {
                let mut planned = Vec::new();
                for (role, (indexes, nodes)) in pods.iter().zip(&placement.roles).enumerate() {
                    for (index, node) in indexes.iter().zip(nodes) {
                        free.take(*node, &gang.roles[role].requests, 1);
                        planned.push(PlannedPod { role, index: *index, node: Some(free.name(*node).to_owned()) });
                    }
                }
                Plan::Nodes(planned)
            }
            Err(shortage) => Plan::None(shortage.to_string()),
        })
    }
}

impl<'a> Stepped<'a> {
    /// Applies the verdict of Larder's queues; they have none for a job of Kueue, or one that neither waits nor runs.
    pub(in crate::jobs) fn rule(self, view: &ClusterView<'_>, verdict: Option<Verdict>) -> Ruled<'a> {
        let Self { mut job, actions } = self;
        match verdict.and_then(|verdict| job.apply(view, verdict)) {
            Some(Applied { verdict, actions }) => Ruled { job, actions, verdict: Some(verdict) },
            None => Ruled { job, actions, verdict: None },
        }
    }
}

impl<'a> Ruled<'a> {
    /// Gives lost pods other nodes, which are taken from `free`.
    pub(in crate::jobs) fn place(mut self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> Placed<'a> {
        if let Some(plan) = self.job.plan(view, free) {
            let decisions = Decisions { plan: Some(plan), verdict: None };
            self.actions = self.job.advance_with(view, &decisions);
        }
        Placed(self)
    }
}

impl<'a> Placed<'a> {
    /// Applies the verdict of Kueue about a job in its queues. A start or growth needs nodes, which are taken from `free`.
    pub(in crate::jobs) fn ask_kueue(self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> Decided<'a> {
        let Ruled { mut job, mut actions, mut verdict } = self.0;
        let answer = job.kueue_answer(view, free);
        if let Some(applied) = answer.verdict.and_then(|verdict| job.apply(view, verdict)) {
            (actions, verdict) = (applied.actions, Some(applied.verdict));
        }
        Decided { job, actions, verdict, for_kueue: answer.writes }
    }
}
