//! Explains to the user of a TrainingJob, in one sentence, why it waits, how it runs or how it ended, and what to do.
//!
//! The controller's own sentence, `status.waitingFor`, comes first. This module adds the meaning of the reasons, and
//! facts about the Queue and the other jobs in it. It is pure.

mod facts;
mod words;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use super::LOOK_AT_THE_CONTROLLER;
use crate::training_job::conditions::{JobConditionKind, JobReason};
use crate::training_job::{Phase, TrainingJob, TrainingJobStatus, is_newer_record};
pub use facts::Around;
use words::{Words, part};

/// The state of a job, as the verb of its sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum JobSituation {
    /// The job has no pods, and waits to start or to restart.
    Waits,
    /// The job's pods are being created.
    Starts,
    /// The job runs.
    Runs,
    /// The job replaces lost pods.
    Recovers,
    /// The job has no pods until it is resumed.
    Suspended,
    /// The job has succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
    /// The job was deleted, and its pods are terminating.
    Deleted,
    /// Another controller runs the job.
    OfOthers,
}

impl JobSituation {
    /// The words that follow the name of a job in a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Starts => "starts",
            Self::Runs => "runs",
            Self::Recovers => "recovers",
            Self::Suspended => "is suspended",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Deleted => "is being deleted",
            Self::OfOthers => "is run by another controller",
        }
    }
}

/// The explanation of a job's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExplanation {
    /// The state of the job.
    pub standing: JobSituation,
    /// The reason of the decisive condition, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the job is in this state.
    pub why: String,
    /// The next step that happens automatically; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// What the user should do; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

impl JobExplanation {
    /// The sentence about the job `key`, on one line.
    pub fn sentence(&self, key: &str) -> String {
        let parts = [&self.why, &self.next, &self.todo].into_iter().filter(|part| !part.is_empty());
        let parts = parts.map(String::as_str).collect::<Vec<_>>().join("; ");
        let text = format!("{key} {}: {parts}", self.standing.as_str());
        // Messages are untrusted text and may have line breaks.
        let is_control = |c: char| c.is_control();
        let line: Vec<&str> = text.split(is_control).filter(|part| !part.is_empty()).collect();
        format!("{}.", line.join(" ").trim_end_matches([' ', ':', '.']))
    }
}

/// Explains the state of a job.
pub fn explain_job(job: &TrainingJob, around: &Around) -> JobExplanation {
    let no_status = TrainingJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&no_status);
    if job.metadata.deletion_timestamp.is_some() {
        return of(
            JobSituation::Deleted,
            "its pods are terminating, and the job is removed with the last of them".to_owned(),
        );
    }
    // MultiKueue copies the status from the cluster that runs the job.
    let is_moved = job.is_of_multikueue() && status.phase.is_some();
    if let Some(other) = job.spec.managed_by.as_ref().filter(|_| job.is_of_others() && !is_moved) {
        let why = format!("spec.managedBy names {other}, so larder-controller leaves the job alone");
        let todo = format!("ask the administrator of {other}");
        return JobExplanation { todo, ..of(JobSituation::OfOthers, why) };
    }
    let mut explanation = match status.phase {
        None if status.conditions.is_empty() => {
            let next = "a running controller does so within seconds".to_owned();
            let todo = format!(
                "otherwise check that the controller runs: {LOOK_AT_THE_CONTROLLER}; and that the component `jobs` is applied: kubectl \
                 get clusterrolebinding larder-controller-jobs"
            );
            let why = "larder-controller has not processed it yet".to_owned();
            return JobExplanation { next, todo, ..of(JobSituation::Waits, why) };
        }
        Some(Phase::Succeeded) => succeeded(status),
        Some(Phase::Failed) => failed(job, status),
        Some(Phase::Suspended) => suspended(job, status),
        None | Some(Phase::Queued | Phase::DataWarming) => waits(job, status, around),
        Some(Phase::Starting) => moves(job, status, JobSituation::Starts),
        Some(Phase::Recovering) => moves(job, status, JobSituation::Recovers),
        Some(Phase::Running) if status.sweep.is_some() => sweeps(job, status),
        Some(Phase::Running | Phase::Shrinking | Phase::Growing) => moves(job, status, JobSituation::Runs),
    };
    append(&mut explanation.why, &facts::cluster(status));
    let is_ended = status.phase.is_some_and(Phase::is_terminal);
    if is_moved && !is_ended {
        // The copy has a generation of its own.
        append(&mut explanation.why, "MultiKueue chooses its cluster");
        if status.record.as_deref().is_some_and(is_newer_record) {
            append(&mut explanation.why, "a newer version of Larder runs it there");
        }
    } else if status.observed_generation < job.metadata.generation && !is_ended {
        append(&mut explanation.next, "larder-controller has not processed the last change of its spec yet");
    }
    explanation
}

fn of(standing: JobSituation, why: String) -> JobExplanation {
    JobExplanation { standing, reason: None, why, next: String::new(), todo: String::new() }
}

/// Adds a part to a sentence.
fn append(text: &mut String, part: &str) {
    if !part.is_empty() {
        let between = if text.is_empty() { "" } else { "; " };
        *text = format!("{text}{between}{part}");
    }
}

fn succeeded(status: &TrainingJobStatus) -> JobExplanation {
    let mut why = facts::took(status);
    append(&mut why, &facts::replaced(status));
    let complete = JobConditionKind::Complete.find(&status.conditions).filter(|_| status.sweep.is_some());
    append(&mut why, complete.map(|complete| part(&complete.message)).unwrap_or_default());
    JobExplanation { reason: Some(JobReason::Succeeded.to_string()), ..of(JobSituation::Succeeded, why) }
}

fn failed(job: &TrainingJob, status: &TrainingJobStatus) -> JobExplanation {
    let condition = JobConditionKind::Failed.find(&status.conditions).filter(|failed| failed.status == "True");
    let mut explanation = match condition {
        Some(condition) => by_reason(job, JobSituation::Failed, condition, part(&condition.message)),
        None => {
            let said = status.waiting_for.as_deref().map(part).filter(|said| !said.is_empty());
            let todo = format!("see its pods: {}", words::logs(job));
            let why = said.unwrap_or("larder-controller does not say why").to_owned();
            JobExplanation { todo, ..of(JobSituation::Failed, why) }
        }
    };
    append(&mut explanation.why, &facts::replaced(status));
    explanation
}

fn suspended(job: &TrainingJob, status: &TrainingJobStatus) -> JobExplanation {
    let mut why = match (job.spec.suspend, status.waiting_for.as_deref().map(part)) {
        (true, _) => format!("spec.suspend is true, and {}", facts::still_ending(status)),
        (false, Some(said)) if !said.is_empty() && said != "spec.suspend is true" => said.to_owned(),
        (false, _) => format!("it was suspended, and {}", facts::still_ending(status)),
    };
    append(&mut why, &facts::replaced(status));
    let reason = Some(JobReason::Suspended.to_string());
    let todo = format!("to resume: {}", words::resume(job));
    let mut explanation = JobExplanation { reason, todo, ..of(JobSituation::Suspended, why) };
    say_if_invalid(&mut explanation, job, status);
    explanation
}

/// Adds the reason why a job that is not waiting could not start again.
fn say_if_invalid(explanation: &mut JobExplanation, job: &TrainingJob, status: &TrainingJobStatus) {
    let invalid = JobConditionKind::Valid.find(&status.conditions).filter(|valid| valid.status == "False");
    if let Some(invalid) = invalid {
        let now = by_reason(job, explanation.standing, invalid, part(&invalid.message));
        append(&mut explanation.next, &format!("it could not start again now: {}", now.why));
        append(&mut explanation.todo, &now.todo);
    }
}

/// The condition that a job without pods waits for: the first one that is not true for its own reason.
fn in_the_way(status: &TrainingJobStatus) -> Option<&Condition> {
    use JobConditionKind::{DataWarm, Placed, QuotaReserved, Valid};
    let is_false = |condition: &&Condition| condition.status == "False";
    let found = [Valid, QuotaReserved, DataWarm, Placed].into_iter().filter_map(|kind| kind.find(&status.conditions));
    let mut not_true = found.filter(is_false);
    let first = not_true.next()?;
    let is_own = |condition: &&Condition| condition.reason != JobReason::Waiting.as_str();
    Some([first].into_iter().chain(not_true).find(is_own).unwrap_or(first))
}

fn waits(job: &TrainingJob, status: &TrainingJobStatus, around: &Around) -> JobExplanation {
    let waiting_for = status.waiting_for.as_deref().map(part).filter(|said| !said.is_empty());
    let condition = in_the_way(status);
    let is_invalid = condition.is_some_and(|condition| condition.type_ == JobConditionKind::Valid.as_str());
    let mut explanation = match condition {
        // An invalid job waits for nothing else.
        Some(condition) if is_invalid => {
            return by_reason(job, JobSituation::Waits, condition, part(&condition.message));
        }
        Some(condition) => {
            let said = waiting_for.unwrap_or_else(|| part(&condition.message));
            let lacks = if said.is_empty() { facts::lacks(job, around) } else { None };
            by_reason(job, JobSituation::Waits, condition, lacks.as_deref().unwrap_or(said))
        }
        None => {
            let said = waiting_for.map(str::to_owned).or_else(|| facts::lacks(job, around));
            of(JobSituation::Waits, said.unwrap_or_else(|| "larder-controller is about to process it".to_owned()))
        }
    };
    // The job that ends next is named only to a job that waits for quota: an ending job returns quota, but does not
    // free the needed nodes or restart a stopped queue.
    let wants_quota = condition.is_none_or(|condition| {
        use JobReason::{NotItsTurn, Preempted, QuotaUsed};
        [QuotaUsed, NotItsTurn, Preempted].iter().any(|reason| reason.as_str() == condition.reason)
    });
    if status.phase != Some(Phase::DataWarming) && !facts::is_of_kueue(job) {
        let why = explanation.why.clone();
        if wants_quota {
            append(&mut explanation.why, &facts::next_to_end(job, around, &why));
        }
        append(&mut explanation.next, &facts::place(job, around, &why));
    }
    let why = explanation.why.clone();
    append(&mut explanation.why, &facts::data(status, &why));
    append(&mut explanation.why, &facts::replaced(status));
    explanation
}

/// Explains a sweep that has not ended. Its trials are jobs of their own.
fn sweeps(job: &TrainingJob, status: &TrainingJobStatus) -> JobExplanation {
    let sweep = status.sweep.clone().unwrap_or_default();
    let ended = sweep.succeeded.saturating_add(sweep.failed);
    let mut explanation = of(
        JobSituation::Runs,
        format!(
            "{ended} of {} trials have ended, {} of them failed, and {} exist",
            sweep.trials, sweep.failed, sweep.active
        ),
    );
    if let Some(best) = &sweep.best {
        append(&mut explanation.why, &format!("the best is {} with {}", best.name, best.result));
    }
    append(&mut explanation.why, status.waiting_for.as_deref().map(part).unwrap_or_default());
    explanation.todo = words::trials(job);
    explanation
}

/// Explains a job that has pods.
fn moves(job: &TrainingJob, status: &TrainingJobStatus, standing: JobSituation) -> JobExplanation {
    let waiting_for = status.waiting_for.as_deref().map(part).unwrap_or_default();
    let not_placed = JobConditionKind::Placed.find(&status.conditions).filter(|placed| {
        placed.status == "False" && status.phase != Some(Phase::Running) && placed.reason != JobReason::Waiting.as_str()
    });
    let mut explanation = match not_placed {
        Some(condition) => {
            let said = if waiting_for.is_empty() { part(&condition.message) } else { waiting_for };
            by_reason(job, standing, condition, said)
        }
        None => of(standing, waiting_for.to_owned()),
    };
    if explanation.why.is_empty() {
        explanation.why = facts::ready(status);
    }
    append(&mut explanation.why, &facts::fewer(job, status, waiting_for));
    append(&mut explanation.why, &facts::replaced(status));
    if let Some(phase) = status.phase.filter(|phase| matches!(phase, Phase::Shrinking | Phase::Growing)) {
        let what = if phase == Phase::Growing {
            "more pods join it"
        } else {
            "some of its pods end to make room for other jobs"
        };
        append(&mut explanation.next, what);
    }
    let cold = JobConditionKind::DataWarm.find(&status.conditions);
    if cold.is_some_and(|warm| warm.reason == JobReason::WarmTimeout.as_str()) {
        append(&mut explanation.next, "it started before its data was cached, and reads the rest from the origin");
    }
    say_if_invalid(&mut explanation, job, status);
    explanation
}

fn by_reason(job: &TrainingJob, standing: JobSituation, condition: &Condition, said: &str) -> JobExplanation {
    let Words { why, next, todo } = match condition.reason.parse() {
        Ok(reason) => words::words(job, reason, said),
        // An unknown reason: the controller is newer than this program.
        Err(_) => {
            let why = if said.is_empty() { condition.reason.clone() } else { said.to_owned() };
            Words { why, ..Words::default() }
        }
    };
    JobExplanation { standing, reason: Some(condition.reason.clone()), why, next: next.to_owned(), todo }
}

#[cfg(test)]
mod tests;
