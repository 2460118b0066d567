//! One job in a round: what is found out about it, and what it takes of the decisions.

mod kueue;
mod room;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use larder_api::Phase;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedJob;
use larder_api::training_job::conditions::JobReason;

use crate::jobs::cluster_view::{Scene, Seen, dataset_key};
use crate::jobs::counts::{Before, takes_room};
use crate::jobs::data_locality;
use crate::jobs::dry_run::{Trial, Trials};
use crate::jobs::job_state::Memory;
use crate::jobs::kueue::places::confine;
use crate::jobs::machine::loss::uses_quota;
use crate::jobs::machine::{Action, Observed, PodStage, step, unplaced};
use crate::jobs::objects::JobObject;
use crate::jobs::plan::{Cluster, Gang, Want};
use crate::jobs::pod_group::choice::{BOUND_SECONDS, Planner, choose};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_group::messages::waits_for;
use crate::jobs::profile::{Rules, terms};
use crate::jobs::queue::{self, Lack, Verdict, Waiting};
use crate::jobs::refusal::Refusal;
use crate::jobs::render::{Place, Rendered};
use crate::jobs::validate;
use crate::jobs::writes::{self, Output, Turn};
use crate::kueue::wish::{Wish, Wisher};
use crate::write::Write;
use larder_kube::key::Key;
use larder_kube::pod::node_affinity::Places;

/// A job says what it waits for if the API server has not answered for so long.
const ANSWER_SECONDS: i64 = 2;

/// So many letters of the scheduler's words are kept.
const SAID_MAX: usize = 400;

/// A job in the round.
pub(super) struct Actor<'a> {
    pub(super) key: &'a Key,
    pub(super) object: &'a JobObject,
    pub(super) memory: &'a mut Memory,
    pub(super) job: Option<&'a CheckedJob>,
    pub(super) kind: Option<&'a CheckedType>,
    /// What speaks against it.
    pub(super) refusal: Option<Refusal>,
    /// The API server was asked about its pods, or need not be.
    pub(super) is_tried: bool,
    /// The API server would not make them now, but may later: why.
    pub(super) shortage: Option<String>,
    pub(super) pods: Vec<Seen<'a>>,
    pub(super) observed: Observed,
    pub(super) actions: Vec<Action>,
    pub(super) verdict: Option<Verdict>,
    pub(super) is_idle: bool,
    /// Who finds its nodes.
    pub(super) planner: Planner,
    /// Where its pods may be, by role; `None` as long as none may be made.
    pub(super) places: Option<Vec<Place>>,
    /// What Kueue waits for.
    pub(super) for_kueue: Vec<Write>,
}

impl<'a> Actor<'a> {
    pub(super) fn phase(&self) -> Phase {
        self.memory.record.state.phase
    }

    /// True if a pod of it may still run.
    fn runs(&self, scene: &Scene<'_>) -> bool {
        self.observed.pods.iter().any(|pod| uses_quota(pod, scene.now))
    }

    /// True if it has not started, or is to start again: what speaks against that counts.
    fn is_to_start(&self) -> bool {
        matches!(self.phase(), Phase::Queued | Phase::Suspended)
    }

    /// True if it waits, and it is not known yet whether it may.
    pub(super) fn is_undecided(&self) -> bool {
        self.phase() == Phase::Queued && !self.is_tried
    }

    pub(super) fn check(
        &mut self,
        scene: &Scene<'a>,
        trials: &mut Trials,
        asked: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let job = validate::spec(self.object)?;
        self.job = Some(job);
        if self.memory.record.state.attempts == 0 {
            self.memory.count_from(scene.last_attempt(self.object, job));
        }
        self.memory.queue = job.queue().unwrap_or_default().to_owned();
        self.pods = scene.pods_of(self.object, job);
        self.doubt(job);
        self.observed.terms = terms(job, self.memory.record.rules.as_ref());
        // Without its type no pods are made, so none are late.
        self.observed.terms.gang_timeout = None;
        self.observed.pods = self.pods.iter().map(|seen| seen.pod.clone()).collect();
        self.observed.said = self.said(scene);
        self.observed.shortage = self.memory.shortage();
        // What has ended needs no type any more, but to know what its pods may use.
        if self.phase().is_terminal() {
            if self.runs(scene)
                && let Ok(kind) = validate::kind(scene, job)
            {
                let _ = self.profile(scene, job, kind);
            }
            return Ok(());
        }
        let kind = validate::kind(scene, job)?;
        self.kind = Some(kind);
        self.memory.record.rules = Some(Rules::new(job, kind));
        self.observed.terms = terms(job, self.memory.record.rules.as_ref());
        self.places = Some(vec![Place::default(); job.roles.len()]);
        let profiled = self.profile(scene, job, kind);
        // One that runs goes on as it was.
        self.look_at_kueue(scene);
        self.choose_planner(scene)?;
        profiled?;
        if let Some(why) = &self.memory.unrendered {
            let why = format!("the JobType {}: {why}", job.kind);
            return Err(Refusal::new(JobReason::TypeInvalid, why));
        }
        if !self.is_to_start() {
            return Ok(());
        }
        validate::grants(scene, &self.key.namespace, job)?;
        let likeness = self.memory.profile.as_ref().map(|profile| profile.likeness.clone()).unwrap_or_default();
        let is_short = trials.get(&likeness).is_some_and(|trial| trial.shortage().is_some());
        if !is_short && validate::was_accepted(self.object) {
            return Ok(());
        }
        let trial = trials.entry(likeness.clone()).or_insert_with(|| {
            asked.push(likeness);
            Trial::Asked(self.key.clone())
        });
        self.is_tried = !matches!(trial, Trial::Asked(_));
        self.shortage = trial.shortage();
        trial.refusal().map_or(Ok(()), |why| Err(Refusal::new(JobReason::PodRefused, why)))
    }

    /// Others may write a status, too: of pods that the spec does not ask for, a record that was read is believed only those that
    /// there are. A job whose pods count each other keeps them when fewer are asked for.
    fn doubt(&mut self, job: &CheckedJob) {
        let roles = &mut self.memory.record.state.roles;
        roles.truncate(job.roles.len());
        if std::mem::replace(&mut self.memory.is_read, true) {
            return;
        }
        for (at, (slots, role)) in roles.iter_mut().zip(&job.roles).enumerate() {
            let there =
                self.pods.iter().filter(|seen| seen.pod.id.role == at).map(|seen| seen.pod.id.index.saturating_add(1));
            slots.truncate(there.chain([role.max]).max().unwrap_or(0) as usize);
        }
    }

    /// Finds out what its pods need, and what speaks against them.
    fn profile(&mut self, scene: &Scene<'_>, job: &CheckedJob, kind: &CheckedType) -> Result<(), Refusal> {
        if let Some(of_type) = scene.jobs.types.get(&Key::cluster(&job.kind)) {
            self.memory.find_profile(self.object, of_type, &rendered(self.object, job, kind))?;
        }
        self.memory.profile.as_ref().and_then(|profile| profile.refusal.clone()).map_or(Ok(()), Err)
    }

    /// What the scheduler says of its gang, or of the first pod that has no node.
    fn said(&self, scene: &Scene<'_>) -> Option<String> {
        let unbound = || self.pods.iter().filter(|seen| seen.pod.stage == PodStage::Pending);
        let attempts: Vec<u32> = unbound().map(|seen| seen.pod.id.attempt).collect();
        let groups: Vec<&KnownGroup> = scene.jobs.groups.of(self.key).collect();
        let of_pod = || unbound().map(|seen| seen.of_job.unscheduled.clone()).find(|said| !said.is_empty());
        let said = waits_for(&self.key.name, &attempts, &groups).or_else(of_pod)?;
        Some(said.chars().take(SAID_MAX).collect())
    }

    /// Who finds its nodes. Only a job that has not started is refused for that.
    fn choose_planner(&mut self, scene: &Scene<'_>) -> Result<(), Refusal> {
        let (Some(job), Some(profile)) = (self.job, &self.memory.profile) else { return Ok(()) };
        let has_gates = self.has_gates();
        match choose(job, profile.obstacle.as_deref(), scene.has_gangs()) {
            // Where Kueue chooses nodes, pods have no group.
            Ok(planner) if !has_gates => self.planner = planner,
            Ok(_) => {}
            Err(why) if self.is_to_start() => return Err(Refusal::new(JobReason::GangRefused, why)),
            Err(_) => {}
        }
        let terms = &mut self.observed.terms;
        terms.by_scheduler = self.planner == Planner::Native || has_gates;
        if terms.by_scheduler {
            terms.gang_timeout = terms.gang_timeout.map(|timeout| timeout.max(BOUND_SECONDS));
        }
        Ok(())
    }

    /// True if its nodes are found here, and not by the scheduler or by Kueue.
    pub(super) fn is_planned(&self) -> bool {
        self.planner == Planner::Builtin && !self.has_gates()
    }

    fn has_gates(&self) -> bool {
        self.places.iter().flatten().any(|place| !place.gates.is_empty())
    }

    /// True if the state machine can make a step now.
    pub(super) fn can_step(&self) -> bool {
        self.is_idle && self.job.is_some()
    }

    pub(super) fn step(&mut self, scene: &Scene<'_>) {
        if !self.can_step() {
            return;
        }
        if let Some(job) = self.job.filter(|job| !job.datasets.is_empty()) {
            let nodes = match &self.observed.verdict {
                Some(Verdict::Start { nodes, .. }) => nodes.iter().flatten().cloned().collect(),
                _ => self.nodes(),
            };
            self.observed.data = data_locality::on_nodes(scene, job, &nodes);
        }
        let state = std::mem::take(&mut self.memory.record.state);
        let before = Before::of(&state);
        let (state, actions) = step(state, &self.observed, scene.now);
        self.memory.tally.step(before, &state, scene.now);
        self.memory.record.state = state;
        self.actions = actions;
        (self.observed.verdict, self.observed.plan) = (None, None);
    }

    /// The nodes where its pods are, or will be.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        let state = &self.memory.record.state;
        let planned = state.slots().filter_map(|(_, slot)| slot.node.clone());
        let current = self.pods.iter().filter(|seen| state.slot(seen.pod.id).is_some());
        planned.chain(current.map(|seen| seen.object.node.clone()).filter(|node| !node.is_empty())).collect()
    }

    pub(super) fn datasets(&self) -> Vec<Key> {
        let mounts = self.job.filter(|_| !self.phase().is_terminal()).map_or(&[][..], |job| &job.datasets[..]);
        mounts.iter().map(|mount| dataset_key(&mount.dataset)).collect()
    }

    /// Its pods, by role and index, that are to be given nodes.
    pub(super) fn unplaced(&self, scene: &Scene<'_>) -> Vec<Vec<u32>> {
        // Without its type no pods are made.
        if !self.can_step() || self.kind.is_none() {
            return Vec::new();
        }
        unplaced(&self.memory.record.state, &self.observed, scene.now)
    }

    /// What these pods need of nodes.
    pub(super) fn gang(&self, scene: &Scene<'_>, cluster: &Cluster<'_>, pods: &[Vec<u32>]) -> Option<Gang> {
        let (job, profile, places) = (self.job?, self.memory.profile.as_ref()?, self.places.as_ref()?);
        let want = |((role, place), pods): ((&queue::Role, &Place), &Vec<u32>)| {
            let mut places = role.places.clone();
            confine(&mut places, place);
            let (name, requests) = (role.name.clone(), role.requests.clone());
            Want { name, requests, places, required: pods.len() as u32, optional: 0 }
        };
        Some(Gang {
            roles: profile.roles.iter().zip(places).zip(pods).map(want).collect(),
            datasets: self.datasets().into_iter().map(|key| (key.clone(), scene.bytes(&key))).collect(),
            topology_key: job.topology_key.clone().unwrap_or_default(),
            near: self.nodes().iter().filter_map(|node| cluster.find(node)).collect(),
        })
    }

    /// Takes what the queues have decided.
    pub(super) fn hear(&mut self, scene: &Scene<'_>, mut verdict: Verdict) {
        if let Verdict::Start { nodes, .. } = &mut verdict
            && !self.is_planned()
        {
            nodes.clear();
        }
        let record = &mut self.memory.record;
        match &verdict {
            Verdict::Wait(waiting) => {
                record.claims = waiting.claims;
                record.head_since = waiting.is_head.then(|| record.head_since.unwrap_or(scene.now));
                let mut waiting = waiting.clone();
                if waiting.lacks == Lack::Pause && !record.state.why.is_empty() {
                    waiting.why = format!("{}; {}", record.state.why, waiting.why);
                }
                self.memory.waiting = Some(waiting);
            }
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } if self.is_idle => {
                (record.claims, record.head_since) = (false, None);
                self.memory.waiting = None;
            }
            // It hears of it once its writes have ended.
            Verdict::Start { .. } | Verdict::Run(_) | Verdict::Stop { .. } => {}
        }
        if self.can_step() {
            if let Verdict::Run(running) = &mut verdict {
                self.observed.plan = running.plan.take();
                if self.kind.is_none() {
                    running.may_grow_to.clone_from(&running.granted);
                }
            }
            let roles = self.memory.profile.as_ref().map_or(&[][..], |profile| &profile.roles);
            let takes_room = takes_room(&verdict, &self.memory.record.state, roles);
            self.observed.verdict = Some(verdict.clone());
            self.step(scene);
            // It may have ended meanwhile.
            let state = &self.memory.record.state;
            let goes_on = state.phase == Phase::Queued || state.holds_room();
            self.memory.tally.preemptions += u64::from(takes_room && goes_on);
            self.verdict = Some(verdict);
        }
    }

    /// Has its data warmed where its pods are or will be, or if it comes next where they might be.
    pub(super) fn wish(&self, wishes: &mut BTreeMap<Key, Vec<Wish>>) {
        let state = &self.memory.record.state;
        let datasets = self.datasets();
        if datasets.is_empty() {
            return;
        }
        let by = || Wisher::Job(self.key.clone());
        let comes_next = self.memory.waiting.as_ref().is_some_and(|waiting| waiting.warm);
        let mut found = Vec::new();
        if state.holds_room() {
            let nodes: Vec<String> = self.nodes().into_iter().collect();
            let pods = nodes.len();
            let named = NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(nodes),
            };
            let term = NodeSelectorTerm { match_fields: Some(vec![named]), ..NodeSelectorTerm::default() };
            let any = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
            let places = Places { terms: vec![term], tolerations: vec![any], ..Places::default() };
            found.push(Wish { by: by(), since: state.since, pods, places });
        } else if state.phase == Phase::Queued && comes_next && self.refusal.is_none() {
            let roles = self.memory.profile.iter().flat_map(|profile| &profile.roles);
            found.extend(roles.map(|role| Wish {
                by: by(),
                since: self.object.meta.created,
                pods: role.wanted as usize,
                places: role.places.clone(),
            }));
        }
        if found.is_empty() {
            return;
        }
        for dataset in datasets {
            wishes.entry(dataset).or_default().extend(found.iter().cloned());
        }
    }

    /// All that is to be written for it, and when there may be more by time alone.
    pub(super) fn write(
        self,
        scene: &Scene<'_>,
        waiting: usize,
        draw: &dyn Fn() -> String,
        again_at: &mut Option<i64>,
    ) -> Vec<Write> {
        if !self.is_idle {
            return Vec::new();
        }
        let next = self.actions.iter().find_map(|action| match action {
            Action::Again(at) => Some(*at),
            _ => None,
        });
        if let Some(at) = next {
            again(again_at, at);
        }
        if self.is_undecided() {
            let since = *self.memory.undecided_since.get_or_insert(scene.now);
            if scene.now < since + ANSWER_SECONDS {
                again(again_at, since + ANSWER_SECONDS);
                return Vec::new();
            }
            let likeness = self.memory.profile.as_ref().map(|profile| &profile.likeness);
            let unanswered = likeness.and_then(|likeness| scene.jobs.unanswered.get(likeness));
            self.memory.waiting = Some(Waiting { why: undecided(unanswered), ..Waiting::default() });
        } else {
            self.memory.undecided_since = None;
        }
        if self.memory.holds_back(scene.now) {
            again(again_at, self.memory.retry_at);
            return Vec::new();
        }
        let turn = Turn {
            scene,
            object: self.object,
            rendered: self.job.zip(self.kind).map(|(job, kind)| rendered(self.object, job, kind)),
            refusal: self.refusal.as_ref(),
            is_tried: self.is_tried,
            pods: &self.pods,
            observed: &self.observed,
            actions: &self.actions,
            verdict: self.verdict.as_ref(),
            planner: self.planner,
            places: self.places.as_deref(),
            for_kueue: &self.for_kueue,
            waiting,
            draw,
        };
        let Output { writes, pending, again_at: at, unrendered } = writes::of(&turn, self.memory);
        self.memory.unrendered = unrendered;
        if let Some(at) = at {
            again(again_at, at);
        }
        // Pods that it has left use quota until they have ended, or their node is lost.
        let is_over = self.phase().is_terminal() && !self.runs(scene);
        if writes.is_empty() && at.is_none() && is_over {
            self.memory.sleeps_until = next.unwrap_or(i64::MAX);
        }
        if !writes.is_empty() {
            self.memory.pending = Some(pending);
        }
        writes
    }
}

/// Why it is not known yet whether a job may wait for its turn.
fn undecided(unanswered: Option<&String>) -> String {
    let words = unanswered.map(|words| format!(": {words}")).unwrap_or_default();
    format!("the API server has not said yet whether it takes its pods{words}")
}

/// What renders the objects of a job.
pub(super) fn rendered<'a>(object: &'a JobObject, job: &'a CheckedJob, kind: &'a CheckedType) -> Rendered<'a> {
    let key = &object.meta.key;
    Rendered { namespace: &key.namespace, name: &key.name, uid: &object.meta.uid, job, kind }
}

/// Notes the earliest time.
pub(super) fn again(at: &mut Option<i64>, time: i64) {
    if time == i64::MAX {
        return;
    }
    *at = Some(at.map_or(time, |before| before.min(time)));
}
