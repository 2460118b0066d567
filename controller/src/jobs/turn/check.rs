//! The check of a job: its spec, its type, its pods, and whether it may start.

use std::collections::BTreeSet;

use larder_api::Phase;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedJob;
use larder_api::training_job::conditions::JobReason;

use super::{Checked, JobInRound, Mode, Typed, has_gates, kueue, kueue_queue, nodes, rendered, runs};
use crate::jobs::cluster_view::{ClusterView, Seen};
use crate::jobs::data_locality;
use crate::jobs::dry_run::{DryRun, DryRuns, used_up};
use crate::jobs::eligibility::Eligibility;
use crate::jobs::flavors;
use crate::jobs::job_state::JobState;
use crate::jobs::machine::{Leeway, Observed, PodStage, Terms};
use crate::jobs::objects::JobObject;
use crate::jobs::pod_group::choice::{BOUND_SECONDS, Planner, choose};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_group::messages::waits_for;
use crate::jobs::profile::{Rules, terms};
use crate::jobs::refusal::Refusal;
use crate::jobs::render::Place;
use crate::jobs::validate;
use larder_kube::key::Key;

/// The most characters of the scheduler's message that are kept.
const MESSAGE_MAX: usize = 400;

/// Checks a job. If that needs a dry run that has not been requested yet, adds the pod-spec hash to `asked`.
pub(in crate::jobs) fn check<'a>(
    view: &ClusterView<'a>,
    object: &'a JobObject,
    job_state: &'a mut JobState,
    dry_runs: &mut DryRuns,
    asked: &mut Vec<String>,
) -> Checked<'a> {
    match validate::spec(object) {
        Ok(job) => ObservedJob::new(view, object, job, job_state).check(view, dry_runs, asked),
        Err(refusal) => Checked(JobInRound {
            object,
            eligibility: refuse(job_state, refusal),
            job_state,
            mode: Mode::Invalid,
            typed: None,
            pods: Vec::new(),
            observed: Observed::default(),
            before: None,
        }),
    }
}

/// A job with a valid spec, and its pods.
struct ObservedJob<'a> {
    object: &'a JobObject,
    job: &'a CheckedJob,
    job_state: &'a mut JobState,
    pods: Vec<Seen<'a>>,
}

impl<'a> ObservedJob<'a> {
    fn new(view: &ClusterView<'a>, object: &'a JobObject, job: &'a CheckedJob, job_state: &'a mut JobState) -> Self {
        if job_state.record.state.attempts == 0 {
            job_state.count_from(view.last_attempt(object, job));
        }
        job_state.queue = job.queue().unwrap_or_default().to_owned();
        let pods = view.pods_of(object, job);
        doubt(job_state, job, &pods);
        Self { object, job, job_state, pods }
    }

    fn check(mut self, view: &ClusterView<'a>, dry_runs: &mut DryRuns, asked: &mut Vec<String>) -> Checked<'a> {
        let (typed, eligibility) = match self.kind(view) {
            Ok(Some(kind)) => {
                let (typed, allowed) = self.typed(view, kind);
                (Some(typed), allowed.and_then(|()| self.may_start(view, dry_runs, asked)))
            }
            Ok(None) => (None, Ok(Eligibility::Eligible)),
            Err(refusal) => (None, Err(refusal)),
        };
        let Self { object, job, job_state, pods } = self;
        let eligibility = eligibility.unwrap_or_else(|refusal| refuse(job_state, refusal));
        let mode = if job_state.is_idle() { Mode::Steps(job) } else { Mode::InFlight(job) };
        let planned = match job_state.record.state.phase {
            Phase::DataWarming => nodes(&job_state.record.state, &pods),
            _ => BTreeSet::new(),
        };
        // No pod runs there yet, so it does not matter how long the job's pods wait for a node.
        let since = job_state.record.state.since;
        let mut terms = terms_of(view, object, job, job_state, typed.as_ref());
        // Its home may be about to start it in another cluster.
        terms.suspend |= view.runs_until(object).is_some_and(|until| until <= view.now);
        let observed = Observed {
            planned: planned.into_iter().map(|node| (node.clone(), view.health(&node, since, None))).collect(),
            terms,
            pods: pods.iter().map(|seen| seen.pod.clone()).collect(),
            scheduler_message: scheduler_message(view, &object.meta.key, &pods),
            shortage: job_state.shortage(),
            data: match mode {
                Mode::Steps(job) => {
                    data_locality::on_nodes(view, &object.meta.key, job, &nodes(&job_state.record.state, &pods))
                }
                Mode::InFlight(_) | Mode::Invalid => Vec::new(),
            },
        };
        let before = (job_state.record.state.phase == Phase::Running).then(|| job_state.record.clone());
        Checked(JobInRound { object, job_state, eligibility, mode, typed, pods, observed, before })
    }

    /// The type of the job; `None` if the job has ended and needs no type.
    fn kind(&mut self, view: &ClusterView<'a>) -> Result<Option<&'a CheckedType>, Refusal> {
        let kind = validate::kind(view, self.job);
        if !self.phase().is_terminal() {
            return kind.map(Some);
        }
        // An ended job needs its type only for the resource usage of its last pods.
        if runs(view, &self.pods)
            && let Ok(kind) = kind
        {
            let _ = self.profile(view, kind);
        }
        Ok(None)
    }

    /// Everything that follows from the job's type, and whether the job may have such pods.
    fn typed(&mut self, view: &ClusterView<'_>, kind: &'a CheckedType) -> (Typed<'a>, Result<(), Refusal>) {
        self.job_state.record.rules = Some(Rules::new(self.job, kind));
        let profiled = self.profile(view, kind);
        let places = self.places(view);
        let planner = self.planner(view, places.as_deref());
        let rendered = self.job_state.unrendered.as_ref().map_or(Ok(()), |why| {
            Err(Refusal::new(JobReason::TypeInvalid, format!("the JobType {}: {why}", self.job.kind)))
        });
        let typed = Typed { kind, planner: planner.as_ref().copied().unwrap_or_default(), places };
        (typed, planner.map(|_| ()).and(profiled).and(rendered))
    }

    /// Computes the requirements of the pods, and checks whether any of them makes the job ineligible.
    fn profile(&mut self, view: &ClusterView<'_>, kind: &CheckedType) -> Result<(), Refusal> {
        if let Some(of_type) = view.jobs.types.get(&Key::cluster(&self.job.kind)) {
            self.job_state.find_profile(self.object, of_type, &rendered(self.object, self.job, kind))?;
        }
        self.job_state.profile.as_ref().and_then(|profile| profile.refusal.clone()).map_or(Ok(()), Err)
    }

    /// Where pods may run, by role; `None`: Kueue has not admitted the job, or one of its flavors is not known.
    fn places(&self, view: &ClusterView<'_>) -> Option<Vec<Place>> {
        match &self.job_state.profile {
            Some(profile) if kueue_queue(self.job).is_some() => {
                kueue::admitted_places(view, self.object, self.job, profile)
            }
            _ => {
                let record = &self.job_state.record;
                let chosen = if record.state.holds_room() { &record.flavors[..] } else { &[] };
                flavors::places(view.flavors, self.job.roles.len(), chosen)
            }
        }
    }

    /// Chooses the planner. A job that has started is not refused for it.
    fn planner(&self, view: &ClusterView<'_>, places: Option<&[Place]>) -> Result<Planner, Refusal> {
        let Some(profile) = &self.job_state.profile else { return Ok(Planner::default()) };
        match choose(self.job, profile.obstacle, view.has_gangs()) {
            // Where Kueue chooses nodes, pods have no PodGroup.
            Ok(planner) if !has_gates(places) => Ok(planner),
            Err(why) if self.is_to_start() => Err(Refusal::new(JobReason::GangRefused, why)),
            Ok(_) | Err(_) => Ok(Planner::default()),
        }
    }

    /// Whether a job with a valid spec and type may start.
    fn may_start(
        &self,
        view: &ClusterView<'_>,
        dry_runs: &mut DryRuns,
        asked: &mut Vec<String>,
    ) -> Result<Eligibility, Refusal> {
        if !self.is_to_start() {
            return Ok(Eligibility::Eligible);
        }
        validate::grants(view, &self.object.meta.key.namespace, self.job)?;
        self.dry_run(dry_runs, asked)
    }

    /// Whether the API server would create the pods.
    fn dry_run(&self, dry_runs: &mut DryRuns, asked: &mut Vec<String>) -> Result<Eligibility, Refusal> {
        let profile = self.job_state.profile.as_ref();
        let spec_hash = profile.map(|profile| profile.spec_hash.clone()).unwrap_or_default();
        let is_short = dry_runs.get(&spec_hash).is_some_and(DryRun::is_short);
        if !is_short && validate::was_accepted(self.object) {
            return Ok(Eligibility::Eligible);
        }
        let dry_run = dry_runs.entry(spec_hash.clone()).or_insert_with(|| {
            asked.push(spec_hash);
            DryRun::Asked(self.object.meta.key.clone())
        });
        match dry_run {
            DryRun::Asked(_) => Ok(Eligibility::Unanswered),
            DryRun::Accepted => Ok(Eligibility::Eligible),
            DryRun::QuotaUsed(_, quota) => Ok(Eligibility::QuotaUsed(used_up(quota))),
            DryRun::Refused(_, why) => Err(Refusal::new(JobReason::PodRefused, why)),
        }
    }

    fn phase(&self) -> Phase {
        self.job_state.record.state.phase
    }

    /// True if the job has not started, or must start again. Only then does a refusal stop it: a running job continues.
    fn is_to_start(&self) -> bool {
        matches!(self.phase(), Phase::Queued | Phase::Suspended)
    }
}

/// A refused job waits for nothing else until the refusal is resolved.
fn refuse(job_state: &mut JobState, refusal: Refusal) -> Eligibility {
    job_state.waiting = None;
    Eligibility::Refused(refusal)
}

/// The settings of the user, of the type and of the administrator, for the state machine.
fn terms_of(
    view: &ClusterView<'_>,
    object: &JobObject,
    job: &CheckedJob,
    job_state: &JobState,
    typed: Option<&Typed<'_>>,
) -> Terms {
    let mut terms = terms(job, job_state.record.rules.as_ref());
    // A trial that is gone before its sweep has counted it would run again.
    let keep_ended_jobs = view.keep_ended_jobs.filter(|_| !view.is_trial(object));
    // MultiKueue creates a copy again that is gone before it has seen its end.
    terms.ttl = terms.ttl.into_iter().chain(keep_ended_jobs).min().filter(|_| !object.is_copy());
    terms.nodes_timeout = view.wait_for_nodes;
    let is_unplanned = job_state.profile.as_ref().is_some_and(|profile| profile.is_unplanned);
    if job.roles.iter().map(|role| u64::from(role.max)).sum::<u64>() == 1 {
        terms.leeway = if is_unplanned { Leeway::Unplanned } else { Leeway::Single };
    }
    match typed {
        // Without a type, no pods are created, so none can be late.
        None => terms.gang_timeout = None,
        Some(typed) if typed.planner == Planner::Native || has_gates(typed.places.as_deref()) => {
            terms.by_scheduler = true;
            terms.gang_timeout = terms.gang_timeout.map(|timeout| timeout.max(BOUND_SECONDS));
        }
        Some(_) => {}
    }
    terms
}

/// Cuts a record to the pods that the spec requests and the pods that exist, because any user with the right to write a
/// status may have written it. A job whose pods count each other keeps its pods when its spec requests fewer.
fn doubt(job_state: &mut JobState, job: &CheckedJob, pods: &[Seen<'_>]) {
    let roles = &mut job_state.record.state.roles;
    roles.truncate(job.roles.len());
    if std::mem::replace(&mut job_state.is_read, true) {
        return;
    }
    for (at, (slots, role)) in roles.iter_mut().zip(&job.roles).enumerate() {
        let there = pods.iter().filter(|seen| seen.pod.id.role == at).map(|seen| seen.pod.id.index.saturating_add(1));
        slots.truncate(there.chain([role.max]).max().unwrap_or(0) as usize);
    }
}

/// The scheduler's message about the job's gang, or about the first pod that has no node.
fn scheduler_message(view: &ClusterView<'_>, job: &Key, pods: &[Seen<'_>]) -> Option<String> {
    let unbound = || pods.iter().filter(|seen| seen.pod.stage == PodStage::Pending);
    let attempts: Vec<u32> = unbound().map(|seen| seen.pod.id.attempt).collect();
    let groups: Vec<&KnownGroup> = view.jobs.groups.of(job).collect();
    let of_pod = || unbound().map(|seen| seen.of_job.unscheduled.clone()).find(|message| !message.is_empty());
    let message = waits_for(&job.name, &attempts, &groups).or_else(of_pod)?;
    Some(message.chars().take(MESSAGE_MAX).collect())
}
