//! The status of a job, and Events for its user.

use larder_api::training_job::conditions::JobConditionKind;
use larder_api::{Phase, TrainingJobStatus};
use serde_json::json;

use super::Writer;
use crate::events::write_event;
use crate::jobs::job_state::Record;
use crate::jobs::machine::Cause;
use crate::jobs::report;
use crate::time::Seconds;
use crate::write::Change;
use larder_kube::events::Severity;
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// How long small changes of a status are delayed, so that several are written together.
const SMALL_NEWS_SECONDS: i64 = 20;

/// The rate of small status changes per second, over all jobs.
const SMALL_NEWS_A_SECOND: i64 = 25;

/// A job that starts within this time after its creation never reports that it waits.
const FIRST_NEWS_SECONDS: i64 = 2;

impl Writer<'_> {
    pub(super) fn status(&mut self) {
        let (job, view) = (self.job, self.view);
        let job_state = &*job.job_state;
        let facts = report::Facts {
            now: view.now,
            object: job.object,
            job_state,
            observed: &job.observed,
            eligibility: &job.eligibility,
            has_queue: job_state.queue.is_empty() || view.jobs.queues.get(&Key::cluster(&job_state.queue)).is_some(),
            verdict: self.decided.verdict.as_ref(),
        };
        let mut status = report::status(&facts);
        let gist = job_state.record.gist();
        if job_state.written.as_ref() == Some(&gist) && same(&status, &job_state.status) {
            return;
        }
        let due = self.due(&gist, &status);
        if view.now < due {
            self.output.again.note(due);
            return;
        }
        status.record = Some(job_state.record.text());
        let key = &job.object.meta.key;
        self.events(&status);
        let fields = json!({"metadata": {"uid": job.object.meta.uid}, "status": status});
        self.add_first(Kind::TrainingJob, &key.name, Change::ApplyStatus(fields));
        self.pending.status = Some((gist, status));
    }

    /// When the status must be written.
    fn due(&self, gist: &Record, status: &TrainingJobStatus) -> Seconds {
        let now = self.view.now;
        let job_state = &*self.job.job_state;
        let Some(written) = &job_state.written else {
            let is_news = gist.state.phase != Phase::Queued || self.job.eligibility.refusal().is_some();
            return if is_news { now } else { gist.state.since + FIRST_NEWS_SECONDS };
        };
        if written != gist || news(status) != news(&job_state.status) {
            return now;
        }
        let share = i64::try_from(self.waiting).unwrap_or(i64::MAX) / SMALL_NEWS_A_SECOND;
        job_state.written_at + SMALL_NEWS_SECONDS.saturating_add(share)
    }

    /// Events for the user of the job.
    fn events(&mut self, status: &TrainingJobStatus) {
        let (state, before) = (self.job.state(), &self.job.job_state.status);
        let mut events: Vec<(Severity, String, String)> = Vec::new();
        let valid = |status: &TrainingJobStatus| {
            JobConditionKind::Valid.find(&status.conditions).filter(|valid| valid.status == "False").cloned()
        };
        if let Some(refused) =
            valid(status).filter(|refused| valid(before).is_none_or(|old| old.reason != refused.reason))
        {
            events.push((Severity::Warning, refused.reason, refused.message));
        }
        let old = &before.restarts;
        let counts = [old.crashed, old.preempted, old.evicted, old.node_lost, old.device_fault];
        for (cause, old) in Cause::ALL.into_iter().zip(counts) {
            let now = state.restarts.of(cause);
            if now > old {
                let why = if state.why.is_empty() { String::new() } else { format!(": {}", state.why) };
                let message = format!("{} pods were lost for this reason, {now} in total{why}", now - old);
                events.push((Severity::Warning, cause.name().to_owned(), message));
            }
        }
        if state.phase == Phase::Failed && before.phase != Some(Phase::Failed) {
            events.push((Severity::Warning, "JobFailed".to_owned(), state.why.clone()));
        }
        let meta = &self.job.object.meta;
        for (severity, reason, message) in events {
            let said = (severity, &*reason, &*message);
            let identity = [&*meta.uid, &*reason, &*message];
            let mut write = write_event(self.view.now, Kind::TrainingJob, meta, &identity, said);
            write.needs.clone_from(&self.last);
            self.output.writes.push(write);
        }
    }
}

/// True if two statuses are equal apart from their records.
fn same(one: &TrainingJobStatus, other: &TrainingJobStatus) -> bool {
    let cut = |status: &TrainingJobStatus| TrainingJobStatus { record: None, ..status.clone() };
    cut(one) == cut(other)
}

/// The part of a status whose changes must be visible immediately.
fn news(status: &TrainingJobStatus) -> impl PartialEq {
    let at_once = [JobConditionKind::Valid, JobConditionKind::QuotaReserved, JobConditionKind::DataWarm];
    let conditions: Vec<(String, String)> = at_once
        .into_iter()
        .filter_map(|kind| kind.find(&status.conditions))
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .collect();
    (status.phase, status.observed_generation, status.restarts, conditions)
}
