//! The steps of a job in a round: what has happened to its pods, the verdict of the queues, new nodes for lost pods,
//! the verdict of Kueue.

use std::collections::BTreeSet;

use larder_api::Phase;

use super::{Checked, JobInRound, Mode};
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::counts::{Before, takes_room};
use crate::jobs::data_locality;
use crate::jobs::flavors;
use crate::jobs::machine::{Action, Data, Decisions, step};
use crate::jobs::plan::{self, Cluster};
use crate::jobs::planned::{Plan, PlannedPod};
use crate::jobs::queue::{Lack, Verdict, Waiting, pause_after};
use crate::time::Seconds;
use crate::write::Write;

/// A job whose state reflects what has happened to its pods.
pub(in crate::jobs) struct Stepped<'a> {
    pub(in crate::jobs) job: JobInRound<'a>,
    actions: Vec<Action>,
}

/// A job with the verdict of Larder's queues, if it is in one.
pub(in crate::jobs) struct Ruled<'a> {
    pub(in crate::jobs) job: JobInRound<'a>,
    actions: Vec<Action>,
    /// The verdict that the state machine applied.
    verdict: Option<Verdict>,
}

/// A job whose lost pods have new nodes, as far as there is room.
pub(in crate::jobs) struct Placed<'a>(Ruled<'a>);

/// A job about which everything is decided.
pub(in crate::jobs) struct Decided<'a> {
    pub(in crate::jobs) job: JobInRound<'a>,
    pub(super) actions: Vec<Action>,
    /// The verdict of the queues or of Kueue that the state machine applied.
    pub(super) verdict: Option<Verdict>,
    /// The writes that Kueue waits for.
    pub(super) for_kueue: Vec<Write>,
}

/// A verdict that the state machine applied, with the actions that follow.
struct Applied {
    verdict: Verdict,
    actions: Vec<Action>,
}

impl<'a> Checked<'a> {
    /// Makes the step that follows from the observed facts alone.
    pub(in crate::jobs) fn step(self, view: &ClusterView<'_>) -> Stepped<'a> {
        let Self(mut job) = self;
        let actions = match job.mode {
            Mode::Steps(_) => job.advance(view, &Decisions::default()),
            Mode::InFlight(_) | Mode::Invalid => Vec::new(),
        };
        Stepped { job, actions }
    }
}

impl JobInRound<'_> {
    /// Advances the state machine. The caller ensures that the job is in [`Mode::Steps`].
    fn advance(&mut self, view: &ClusterView<'_>, decisions: &Decisions) -> Vec<Action> {
        let state = std::mem::take(&mut self.job_state.record.state);
        let before = Before::of(&state);
        let (state, actions) = step(state, &self.observed, decisions, view.now);
        self.job_state.counts.step(before, &state, view.now);
        self.job_state.record.state = state;
        actions
    }

    /// Like [`Self::advance`], with decisions. They may move the job to other nodes, which hold other data.
    fn advance_with(&mut self, view: &ClusterView<'_>, decisions: &Decisions) -> Vec<Action> {
        self.observed.data = self.data(view, decisions.verdict.as_ref());
        self.advance(view, decisions)
    }

    /// How much of the job's data is on the nodes that a start names; without a start, on the job's current nodes.
    fn data(&self, view: &ClusterView<'_>, verdict: Option<&Verdict>) -> Vec<Data> {
        let Some(job) = self.spec().filter(|job| !job.datasets.is_empty()) else { return Vec::new() };
        let nodes: BTreeSet<String> = match verdict {
            Some(Verdict::Start { nodes, .. }) => nodes.iter().flatten().cloned().collect(),
            _ => self.nodes(),
        };
        data_locality::on_nodes(view, &self.object.meta.key, job, &nodes)
    }

    /// Applies a verdict of the queues or of Kueue. `None`: the job does not change in this round, and the next round
    /// decides again.
    fn apply(&mut self, view: &ClusterView<'_>, mut verdict: Verdict) -> Option<Applied> {
        if let Verdict::Start { nodes, .. } = &mut verdict
            && !self.is_planned()
        {
            nodes.clear();
        }
        let steps = matches!(self.mode, Mode::Steps(_));
        // It waited for its data before other jobs were preempted, and by now room without pods would be lost to
        // others. Or its nodes do not exist yet.
        let is_late = match &verdict {
            Verdict::Start { nodes, .. } => self.job_state.record.claims || self.is_planned() && nodes.is_empty(),
            _ => false,
        };
        let record = &mut self.job_state.record;
        match &verdict {
            Verdict::Wait(waiting) => {
                if waiting.in_vain {
                    record.in_vain = record.in_vain.saturating_add(1);
                    record.preempts_after = Some(view.now + pause_after(record.in_vain));
                }
                record.claims = waiting.claims;
                if waiting.claims {
                    record.flavors.clone_from(&waiting.flavors);
                }
                record.head_since = waiting.is_head.then(|| record.head_since.unwrap_or(view.now));
                let mut waiting = waiting.clone();
                if waiting.is_untried
                    && let Some(before) = self.job_state.waiting.take()
                {
                    let Waiting { lacks, why, .. } = before;
                    waiting = Waiting { lacks, why, ..waiting };
                } else if waiting.lacks == Lack::Pause && !record.state.why.is_empty() {
                    waiting.why = format!("{}; {}", record.state.why, waiting.why);
                }
                self.job_state.waiting = Some(waiting);
            }
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } if steps => {
                (record.claims, record.head_since) = (false, None);
                (record.in_vain, record.preempts_after) = (0, None);
                self.job_state.waiting = None;
            }
            // The job applies it once its writes have completed.
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } => {}
        }
        if !steps {
            return None;
        }
        if let Verdict::Start { flavors, .. } = &verdict
            && self.kueue_queue().is_none()
        {
            self.move_to(view, flavors.clone());
        }
        let mut plan = None;
        if let Verdict::Run(running) = &mut verdict {
            plan = running.plan.take();
            // Without a type, no pods are created, so the job cannot grow.
            if self.typed.is_none() {
                running.may_grow_to.clone_from(&running.granted);
            }
        }
        let takes_room = takes_room(&verdict, self.state(), self.roles());
        let decisions = Decisions { verdict: Some(verdict.clone()), plan };
        self.observed.data = self.data(view, decisions.verdict.as_ref());
        if is_late {
            self.observed.data.iter_mut().for_each(|data| data.timeout = 0);
        }
        let actions = self.advance(view, &decisions);
        // The step may have found that the job has ended. Then no room was taken from it.
        let state = self.state();
        let goes_on = state.phase == Phase::Queued || state.holds_room();
        self.job_state.counts.preemptions += u64::from(takes_room && goes_on);
        Some(Applied { verdict, actions })
    }

    /// The job starts on nodes of these flavors, by role.
    fn move_to(&mut self, view: &ClusterView<'_>, flavors: Vec<String>) {
        if let Some(typed) = &mut self.typed {
            typed.places = flavors::places(view.flavors, flavors.len(), &flavors);
        }
        self.job_state.record.flavors = flavors;
    }

    /// Nodes for lost pods for which Larder's queues do not find nodes: pods of jobs in Kueue's queues, placed in the
    /// remaining room, and pods whose nodes the scheduler chooses. `None`: no pod needs a node.
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
    /// Applies the verdict of Larder's queues. Jobs of Kueue, and jobs that neither wait nor run, have none.
    pub(in crate::jobs) fn rule(self, view: &ClusterView<'_>, verdict: Option<Verdict>) -> Ruled<'a> {
        let Self { mut job, actions } = self;
        match verdict.and_then(|verdict| job.apply(view, verdict)) {
            Some(Applied { verdict, actions }) => Ruled { job, actions, verdict: Some(verdict) },
            None => Ruled { job, actions, verdict: None },
        }
    }
}

impl<'a> Ruled<'a> {
    /// Finds new nodes for lost pods, and takes them from `free`.
    pub(in crate::jobs) fn place(mut self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> Placed<'a> {
        if let Some(plan) = self.job.plan(view, free) {
            let decisions = Decisions { plan: Some(plan), verdict: None };
            self.actions = self.job.advance_with(view, &decisions);
        }
        Placed(self)
    }
}

impl<'a> Placed<'a> {
    pub(super) fn job(&self) -> &JobInRound<'a> {
        &self.0.job
    }

    /// Applies Kueue's verdict about a job in its queues. A start or growth needs nodes, which are taken from `free`.
    pub(in crate::jobs) fn ask_kueue(self, view: &ClusterView<'_>, free: &mut Cluster<'_>) -> Decided<'a> {
        let answer = self.kueue_answer(view, free);
        let Ruled { mut job, mut actions, mut verdict } = self.0;
        if let Some(applied) = answer.verdict.and_then(|verdict| job.apply(view, verdict)) {
            (actions, verdict) = (applied.actions, Some(applied.verdict));
        }
        Decided { job, actions, verdict, for_kueue: answer.writes }
    }
}

impl Decided<'_> {
    /// When the job entered its phase.
    pub(in crate::jobs) fn since(&self) -> Seconds {
        self.job.state().since
    }

    /// True if pods of the job are to be created.
    pub(in crate::jobs) fn creates_pods(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Create { .. }))
    }

    /// Leaves its pods to be created in a later round, because it is the turn of other jobs. The timeout for binding
    /// them does not run while they wait. Returns true if the job has other writes, which other jobs may wait for.
    pub(in crate::jobs) fn hold_back(&mut self, now: Seconds) -> bool {
        self.actions.retain(|action| !matches!(action, Action::Create { .. }));
        let state = &mut self.job.job_state.record.state;
        state.binding_since = state.binding_since.map(|_| now);
        !self.for_kueue.is_empty() || self.actions.iter().any(|action| matches!(action, Action::Delete(_)))
    }

    /// When the state machine's next step is due if nothing changes before.
    pub(super) fn again(&self) -> Option<Seconds> {
        self.actions.iter().find_map(|action| match action {
            Action::Again(at) => Some(*at),
            _ => None,
        })
    }
}
