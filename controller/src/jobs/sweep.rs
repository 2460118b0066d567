//! Sweeps: which trials exist, how they ended, and when a sweep stops.
//!
//! A trial is a TrainingJob `NAME-NUMBER` that the sweep owns; it waits, runs and recovers like any other job. Its
//! parameters follow from its number (`parameters`). The `tally` in the sweep's status says which trials have ended,
//! and how. Everything else follows from the trials that exist, so a controller may be killed at any write:
//! - A trial that has not ended and does not exist is created. Its name follows from its number, so it is created once.
//! - A trial that has ended is counted. It is deleted only once the status that counts it was written.
//! - Once the status says that the sweep has ended, its other trials are deleted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::names::{FIELD_MANAGER, SWEEP_LABEL, TRIAL_LABEL, TRIAL_VARIABLE};
use larder_api::training_job::checked::{CheckedJob, CheckedSweep};
use larder_api::training_job::conditions::{JobConditionKind, JobReason};
use larder_api::training_job::{BestTrial, ShownJob, SweepStatus};
use larder_api::{InvalidField, Phase, TrainingJob, TrainingJobStatus};
use larder_kube::Resource;
use larder_kube::events::Severity;
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use serde_json::{Value, json};

use crate::events::write_event;
use crate::jobs::condition::time;
use crate::jobs::objects::JobObject;
use crate::time::Seconds;
use crate::write::{Change, Write, to_text};
use parameters::parameters;
use tally::Tally;

mod parameters;
mod tally;
#[cfg(test)]
mod tests;

/// The most trials that are created in one turn.
const TRIALS_AT_ONCE: usize = 32;

/// The number of ended trials that are kept, for their logs. The best one is kept as well.
const KEPT: usize = 100;

/// A sweep and its trials.
pub struct View<'a> {
    pub now: Seconds,
    pub object: &'a JobObject,
    pub job: &'a CheckedJob,
    pub sweep: &'a CheckedSweep,
    /// The jobs that it owns.
    pub owned: Vec<&'a JobObject>,
    /// How long ended jobs are kept, in seconds; `None`: until somebody deletes them.
    pub keep_ended_jobs: Option<i64>,
    /// The trial that the API server did not create the last time, and why.
    pub refused: Option<(&'a Key, &'a str)>,
}

/// The writes of a sweep, and when it is due again if nothing changes before.
#[derive(Debug, Default)]
pub struct Decision {
    pub writes: Vec<Write>,
    pub again_at: Option<Seconds>,
}

/// Decides about a sweep.
pub fn decide(view: &View<'_>) -> Decision {
    let status = &view.object.status;
    let trials = view.trials();
    let written = Tally::read(status, view.sweep.trials);
    let mut writes = Vec::new();
    if status.phase.is_some_and(Phase::is_terminal) {
        writes
            .extend(trials.values().filter(|trial| is_live(trial) && !trial.meta.deleting).map(|trial| delete(trial)));
        writes.extend(view.excess(&trials, &written));
        let ttl = view.job.ttl_after_finished.map(|time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
        let ttl = ttl.into_iter().chain(view.keep_ended_jobs).min();
        let finished = status.finished.as_ref().map(|time| Seconds(time.0.as_second()));
        let removed_at = finished.zip(ttl).map(|(finished, ttl)| finished + ttl);
        if removed_at.is_some_and(|at| view.now >= at) && !view.object.meta.deleting {
            writes.push(delete(view.object));
        }
        return Decision { writes, again_at: removed_at.filter(|at| *at > view.now) };
    }
    let mut tally = written.clone();
    for (number, trial) in &trials {
        if let Some(phase) = trial.status.phase.filter(|phase| phase.is_terminal()) {
            let result = trial.status.result.as_deref().filter(|_| phase == Phase::Succeeded);
            tally.count(*number, phase == Phase::Succeeded, result, view.sweep.objective.as_ref());
        }
    }
    let end = view.end(&tally);
    let now = view.status(&trials, &tally, end.as_ref());
    if now != *status {
        writes.push(status_write(view.object, &now));
    }
    if end.is_none() {
        writes.extend(view.suspended(&trials));
        writes.extend(view.created(&trials, &tally));
        writes.extend(view.excess(&trials, &written));
    }
    Decision { writes, again_at: None }
}

/// Reports that the spec of a sweep is invalid. Its record and its trials stay, for when the spec is corrected.
pub fn refuse(object: &JobObject, error: &InvalidField, now: Seconds) -> Decision {
    let (meta, before) = (&object.meta, &object.status);
    let (kind, reason, why) = (JobConditionKind::Valid, JobReason::InvalidSpec, error.to_string());
    let old = kind.find(&before.conditions).filter(|old| old.status == "False");
    let since = old.map_or_else(|| time(now), |old| old.last_transition_time.clone());
    let shown = before.shown.clone().unwrap_or_default();
    let status = TrainingJobStatus {
        observed_generation: Some(object.generation),
        phase: Some(before.phase.unwrap_or_default()),
        waiting_for: Some(why.clone()),
        shown: Some(ShownJob { why: reason.to_string(), ..shown }),
        conditions: vec![kind.is(false, reason, why.clone(), object.generation, since)],
        ..before.clone()
    };
    if status == *before || before.phase.is_some_and(Phase::is_terminal) {
        return Decision::default();
    }
    let said = (Severity::Warning, reason.as_str(), why.as_str());
    let event = write_event(now, Kind::TrainingJob, meta, &[meta.uid.as_str(), said.1, said.2], said);
    Decision { writes: vec![status_write(object, &status), event], again_at: None }
}

/// Writes a status over the one that was read and no other: that of another controller process may count trials that
/// are gone by now.
fn status_write(object: &JobObject, status: &TrainingJobStatus) -> Write {
    let meta = &object.meta;
    let metadata = json!({"uid": meta.uid, "resourceVersion": meta.version.to_string()});
    let change = Change::ApplyStatus(json!({"metadata": metadata, "status": status}));
    Write::new(Kind::TrainingJob, &meta.key.namespace, &meta.key.name, change)
}

/// How a sweep ended.
struct End {
    phase: Phase,
    /// The reason and the message of the condition Failed or Complete.
    reason: JobReason,
    why: String,
}

impl<'a> View<'a> {
    /// The trials that exist, by number.
    fn trials(&self) -> BTreeMap<u32, &'a JobObject> {
        let numbered = |trial: &'a JobObject| Some((self.number(&trial.meta.key.name)?, trial));
        self.owned.iter().copied().filter_map(numbered).collect()
    }

    /// The number of the trial with this name; `None` if no trial has it.
    fn number(&self, name: &str) -> Option<u32> {
        let text = name.strip_prefix(self.object.meta.key.name.as_str())?.strip_prefix('-')?;
        text.parse::<u32>().ok().filter(|number| number.to_string() == text && *number < self.sweep.trials)
    }

    fn write(&self, name: &str, change: Change) -> Write {
        Write::new(Kind::TrainingJob, &self.object.meta.key.namespace, name, change)
    }

    /// Whether the sweep has ended, and how.
    fn end(&self, tally: &Tally) -> Option<End> {
        let (succeeded, failed) = (tally.succeeded(), tally.failed());
        if failed > self.sweep.max_failed {
            let why = format!("{failed} trials have failed; spec.sweep.maxFailed is {}", self.sweep.max_failed);
            return Some(End { phase: Phase::Failed, reason: JobReason::TrialsFailed, why });
        }
        let all = succeeded + failed == self.sweep.trials;
        if all && succeeded == 0 {
            let why = format!("none of its {} trials has succeeded", self.sweep.trials);
            return Some(End { phase: Phase::Failed, reason: JobReason::TrialsFailed, why });
        }
        let done = |why: String| Some(End { phase: Phase::Succeeded, reason: JobReason::Succeeded, why });
        if all {
            let best = tally.best().map(|best| format!("; the best is {} with {}", self.name(best.trial), best.result));
            let best = best.unwrap_or_default();
            return done(format!("all {} trials have ended, {failed} of them failed{best}", self.sweep.trials));
        }
        let (objective, best) = (self.sweep.objective.as_ref()?, tally.best()?);
        let name = self.name(best.trial);
        if best.number().is_some_and(|number| objective.is_reached(number)) {
            return done(format!("{name} has reached the target with {}", best.result));
        }
        let patience = objective.patience.filter(|patience| tally.since_best() >= *patience)?;
        done(format!("{patience} trials in a row were not better than {name} with {}", best.result))
    }

    /// The name of a trial.
    fn name(&self, number: u32) -> String {
        format!("{}-{number}", self.object.meta.key.name)
    }

    fn status(&self, trials: &BTreeMap<u32, &JobObject>, tally: &Tally, end: Option<&End>) -> TrainingJobStatus {
        let before = &self.object.status;
        // Once a sweep has ended, the other trials are deleted.
        let active = trials.values().filter(|trial| end.is_none() && is_live(trial)).count() as u32;
        let (succeeded, failed) = (tally.succeeded(), tally.failed());
        let best = tally.best().map(|best| BestTrial {
            name: self.name(best.trial),
            result: best.result.clone(),
            parameters: parameters(&self.sweep.space, best.trial),
        });
        let running = if self.job.suspend { Phase::Suspended } else { Phase::Running };
        let phase = end.map_or(running, |end| end.phase);
        let shown = ShownJob { ready: format!("{}/{}", succeeded + failed, self.sweep.trials), ..ShownJob::default() };
        TrainingJobStatus {
            observed_generation: Some(self.object.generation),
            phase: Some(phase),
            sweep: Some(SweepStatus { trials: self.sweep.trials, active, succeeded, failed, best }),
            waiting_for: if end.is_some() { None } else { self.waiting_for(trials) },
            started: before.started.clone().or_else(|| Some(time(self.now))),
            finished: end.map(|_| time(self.now)),
            shown: Some(shown),
            record: Some(tally.text()),
            conditions: self.conditions(end),
            ..TrainingJobStatus::default()
        }
    }

    /// Why no trial runs.
    fn waiting_for(&self, trials: &BTreeMap<u32, &JobObject>) -> Option<String> {
        if let Some((trial, why)) = self.refused {
            let text = format!("the API server refuses the trial {trial}: {why}");
            return Some(text.chars().take(1000).collect());
        }
        if self.job.suspend {
            return Some("spec.suspend is true".to_owned());
        }
        let live = || trials.values().filter(|trial| is_live(trial));
        if live().any(|trial| trial.status.phase.is_some_and(Phase::has_pods)) {
            return None;
        }
        live().find_map(|trial| Some(format!("{}: {}", trial.meta.key.name, trial.status.waiting_for.as_ref()?)))
    }

    fn conditions(&self, end: Option<&End>) -> Vec<Condition> {
        let before = &self.object.status.conditions;
        let of = |kind: JobConditionKind, is: bool, reason: JobReason, message: &str| {
            let status = if is { "True" } else { "False" };
            let old = kind.find(before).filter(|old| old.status == status);
            let since = old.map_or_else(|| time(self.now), |old| old.last_transition_time.clone());
            kind.is(is, reason, message, self.object.generation, since)
        };
        let ended = |kind, phase: Phase| {
            let end = end.filter(|end| end.phase == phase)?;
            Some(of(kind, true, end.reason, &end.why))
        };
        let valid = of(JobConditionKind::Valid, true, JobReason::Accepted, "");
        let complete = ended(JobConditionKind::Complete, Phase::Succeeded);
        let failed = ended(JobConditionKind::Failed, Phase::Failed);
        [Some(valid), complete, failed].into_iter().flatten().collect()
    }

    /// Suspends and resumes the trials with the sweep.
    fn suspended(&self, trials: &BTreeMap<u32, &JobObject>) -> Vec<Write> {
        let differs =
            |trial: &&&JobObject| is_live(trial) && trial.job.as_ref().is_ok_and(|job| job.suspend != self.job.suspend);
        let suspend = |trial: &&JobObject| {
            let fields = json!({"metadata": {"uid": trial.meta.uid}, "spec": {"suspend": self.job.suspend}});
            self.write(&trial.meta.key.name, Change::Merge(fields))
        };
        trials.values().filter(differs).map(suspend).collect()
    }

    /// The next trials.
    fn created(&self, trials: &BTreeMap<u32, &JobObject>, tally: &Tally) -> Vec<Write> {
        if self.job.suspend {
            return Vec::new();
        }
        let live = trials.values().filter(|trial| is_live(trial)).count();
        let room = (self.sweep.parallelism as usize).saturating_sub(live).min(TRIALS_AT_ONCE);
        let next = (0..self.sweep.trials).filter(|number| !tally.has_ended(*number) && !trials.contains_key(number));
        // After a refused trial come those with higher numbers, so that no other waits, however many are refused.
        let refused = self.refused.and_then(|(trial, _)| self.number(&trial.name));
        let (last, first): (Vec<u32>, Vec<u32>) = next.partition(|number| refused.is_some_and(|at| *number <= at));
        first.into_iter().chain(last).take(room).map(|number| self.trial(number)).collect()
    }

    fn trial(&self, number: u32) -> Write {
        let object = self.object;
        let mut spec = object.trial_spec.clone().unwrap_or_default();
        let own = parameters(&self.sweep.space, number).into_iter();
        let all = own.chain([(TRIAL_VARIABLE.to_owned(), number.to_string())]);
        spec["parameters"] =
            all.map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<Value>>().into();
        let mut labels = object.labels.clone();
        let of_trial = [
            ("app.kubernetes.io/managed-by", FIELD_MANAGER.to_owned()),
            (SWEEP_LABEL, object.meta.key.name.clone()),
            (TRIAL_LABEL, number.to_string()),
        ];
        labels.extend(of_trial.map(|(name, value)| (name.to_owned(), value)));
        let (version, kind) = (TrainingJob::api_version(&()), TrainingJob::kind(&()));
        let owner = json!({
            "apiVersion": version, "kind": kind, "name": object.meta.key.name, "uid": object.meta.uid,
            "controller": true, "blockOwnerDeletion": true,
        });
        let metadata = json!({"labels": labels, "annotations": object.annotations, "ownerReferences": [owner]});
        self.write(&self.name(number), Change::Make(to_text(&json!({"metadata": metadata, "spec": spec}))))
    }

    /// The deletions of the oldest ended trials, beyond those that are kept. Only trials that the written status has
    /// counted are deleted.
    fn excess(&self, trials: &BTreeMap<u32, &JobObject>, written: &Tally) -> Vec<Write> {
        let best = written.best().map(|best| best.trial);
        let goes = |(number, trial): &(&u32, &&JobObject)| {
            !is_live(trial) && written.has_ended(**number) && Some(**number) != best
        };
        let ended = trials.iter().rev().filter(goes).skip(KEPT);
        ended.filter(|(_, trial)| !trial.meta.deleting).map(|(_, trial)| delete(trial)).collect()
    }
}

/// True for a trial that has not ended.
fn is_live(trial: &JobObject) -> bool {
    !trial.status.phase.is_some_and(Phase::is_terminal)
}

fn delete(job: &JobObject) -> Write {
    let key = &job.meta.key;
    Write::new(Kind::TrainingJob, &key.namespace, &key.name, Change::Delete(job.meta.uid.clone()))
}
