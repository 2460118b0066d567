//! The check of a job: its spec, its type, its pods, and whether it may start.

use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedJob;
use larder_api::training_job::conditions::JobReason;

use super::{Checked, Typed, has_gates, rendered};
use crate::jobs::cluster_view::{ClusterView, Seen};
use crate::jobs::dry_run::{DryRun, DryRuns, used_up};
use crate::jobs::eligibility::Eligibility;
use crate::jobs::job_state::JobState;
use crate::jobs::machine::{Observed, PodStage, Terms};
use crate::jobs::objects::JobObject;
use crate::jobs::pod_group::choice::{BOUND_SECONDS, Planner, choose};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_group::messages::waits_for;
use crate::jobs::profile::{Rules, terms};
use crate::jobs::refusal::Refusal;
use crate::jobs::render::Place;
use crate::jobs::validate;
use larder_kube::key::Key;

/// How many letters of the scheduler's message are kept.
const MESSAGE_MAX: usize = 400;

impl<'a> Checked<'a> {
    /// Checks a job. Where that takes a dry run that nobody has asked for yet, the hash of the pod specs is added to `asked`.
    pub(in crate::jobs) fn new(
        view: &ClusterView<'a>,
        key: &'a Key,
        object: &'a JobObject,
        job_state: &'a mut JobState,
        dry_runs: &mut DryRuns,
        asked: &mut Vec<String>,
    ) -> Self {
        let spec = validate::spec(object);
        let (pods, observed) = match spec {
            Ok(job) => observe(view, object, job, job_state),
            Err(_) => Default::default(),
        };
        let eligibility = Eligibility::Eligible;
        let mut checked = Self {
            key,
            object,
            job_state,
            eligibility,
            spec: spec.as_ref().ok().copied(),
            typed: None,
            pods,
            observed,
        };
        let eligibility = spec.and_then(|job| checked.check(view, job, dry_runs, asked));
        checked.eligibility = eligibility.unwrap_or_else(|refusal| {
            // It waits for nothing but an end of that.
            checked.job_state.waiting = None;
            Eligibility::Refused(refusal)
        });
        if checked.can_step() {
            checked.observed.data = checked.data(view, None);
        }
        checked
    }

    /// Finds the type of the job, and whether the job may start.
    fn check(
        &mut self,
        view: &ClusterView<'a>,
        job: &'a CheckedJob,
        dry_runs: &mut DryRuns,
        asked: &mut Vec<String>,
    ) -> Result<Eligibility, Refusal> {
        if self.phase().is_terminal() {
            // An ended job needs its type only for what its last pods may use.
            if self.runs(view)
                && let Ok(kind) = validate::kind(view, job)
            {
                let _ = self.profile(view, job, kind);
            }
            return Ok(Eligibility::Eligible);
        }
        let kind = validate::kind(view, job)?;
        self.job_state.record.rules = Some(Rules::new(job, kind));
        self.observed.terms = terms(job, self.job_state.record.rules.as_ref());
        let profiled = self.profile(view, job, kind);
        let places = match &self.job_state.profile {
            Some(profile) if self.kueue_queue().is_some() => self.admitted_places(view, job, profile),
            _ => Some(vec![Place::default(); job.roles.len()]),
        };
        let planner = self.choose_planner(view, job, places.as_deref());
        self.typed = Some(Typed { kind, planner: planner.as_ref().copied().unwrap_or_default(), places });
        planner?;
        profiled?;
        if let Some(why) = &self.job_state.unrendered {
            let why = format!("the JobType {}: {why}", job.kind);
            return Err(Refusal::new(JobReason::TypeInvalid, why));
        }
        if !self.is_to_start() {
            return Ok(Eligibility::Eligible);
        }
        validate::grants(view, &self.key.namespace, job)?;
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
            DryRun::Asked(self.key.clone())
        });
        match dry_run {
            DryRun::Asked(_) => Ok(Eligibility::Unanswered),
            DryRun::Accepted => Ok(Eligibility::Eligible),
            DryRun::QuotaUsed(_, quota) => Ok(Eligibility::QuotaUsed(used_up(quota))),
            DryRun::Refused(_, why) => Err(Refusal::new(JobReason::PodRefused, why)),
        }
    }

    /// Finds out what the pods need, and whether anything in that makes the job ineligible.
    fn profile(&mut self, view: &ClusterView<'_>, job: &CheckedJob, kind: &CheckedType) -> Result<(), Refusal> {
        if let Some(of_type) = view.jobs.types.get(&Key::cluster(&job.kind)) {
            self.job_state.find_profile(self.object, of_type, &rendered(self.object, job, kind))?;
        }
        self.job_state.profile.as_ref().and_then(|profile| profile.refusal.clone()).map_or(Ok(()), Err)
    }

    /// Chooses who finds the nodes. Only a job that has not started is refused for that.
    fn choose_planner(
        &mut self,
        view: &ClusterView<'_>,
        job: &CheckedJob,
        places: Option<&[Place]>,
    ) -> Result<Planner, Refusal> {
        let Some(profile) = &self.job_state.profile else { return Ok(Planner::default()) };
        let has_gates = has_gates(places);
        let planner = match choose(job, profile.obstacle, view.has_gangs()) {
            // Where Kueue chooses nodes, pods have no group.
            Ok(planner) if !has_gates => planner,
            Err(why) if self.is_to_start() => return Err(Refusal::new(JobReason::GangRefused, why)),
            Ok(_) | Err(_) => Planner::default(),
        };
        let terms = &mut self.observed.terms;
        terms.by_scheduler = planner == Planner::Native || has_gates;
        if terms.by_scheduler {
            terms.gang_timeout = terms.gang_timeout.map(|timeout| timeout.max(BOUND_SECONDS));
        }
        Ok(planner)
    }
}

/// The pods of a job, and what is observed of it whatever its type is.
fn observe<'a>(
    view: &ClusterView<'a>,
    object: &JobObject,
    job: &CheckedJob,
    job_state: &mut JobState,
) -> (Vec<Seen<'a>>, Observed) {
    if job_state.record.state.attempts == 0 {
        job_state.count_from(view.last_attempt(object, job));
    }
    job_state.queue = job.queue().unwrap_or_default().to_owned();
    let pods = view.pods_of(object, job);
    doubt(job_state, job, &pods);
    let observed = Observed {
        // Without its type no pods are made, so none are late.
        terms: Terms { gang_timeout: None, ..terms(job, job_state.record.rules.as_ref()) },
        pods: pods.iter().map(|seen| seen.pod.clone()).collect(),
        scheduler_message: scheduler_message(view, &object.meta.key, &pods),
        shortage: job_state.shortage(),
        ..Observed::default()
    };
    (pods, observed)
}

/// Cuts a record that was read to the pods that the spec asks for and those that exist: anybody with the right to write a
/// status may have written it. A job whose pods count each other keeps them when its spec asks for fewer.
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

/// What the scheduler says of the job's gang, or of the first pod that has no node.
fn scheduler_message(view: &ClusterView<'_>, job: &Key, pods: &[Seen<'_>]) -> Option<String> {
    let unbound = || pods.iter().filter(|seen| seen.pod.stage == PodStage::Pending);
    let attempts: Vec<u32> = unbound().map(|seen| seen.pod.id.attempt).collect();
    let groups: Vec<&KnownGroup> = view.jobs.groups.of(job).collect();
    let of_pod = || unbound().map(|seen| seen.of_job.unscheduled.clone()).find(|message| !message.is_empty());
    let message = waits_for(&job.name, &attempts, &groups).or_else(of_pod)?;
    Some(message.chars().take(MESSAGE_MAX).collect())
}
