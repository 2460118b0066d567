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

/// The rate of status changes per second, over all jobs, of those that may wait.
const NEWS_A_SECOND: i64 = 25;

/// How long the news that a job runs may wait while others start. Their pods come first, and a job that ends before
/// needs no such write.
const RUNS_SECONDS: i64 = 10;

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
        let ((phase, more), (old_phase, old_more)) = (news(status), news(&job_state.status));
        if has_only_started(written, gist) && more == old_more {
            return gist.state.since + share(self.numbers.starting).min(RUNS_SECONDS);
        }
        if written != gist || phase != old_phase || more != old_more {
            return now;
        }
        job_state.written_at + SMALL_NEWS_SECONDS.saturating_add(share(self.numbers.queued))
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

/// The seconds that the statuses of this many jobs may take.
fn share(jobs: usize) -> i64 {
    i64::try_from(jobs).unwrap_or(i64::MAX) / NEWS_A_SECOND
}

/// True if nothing has happened since a record was written but that the job's pods have come up. The next controller
/// process finds that out by itself.
fn has_only_started(written: &Record, now: &Record) -> bool {
    if (written.state.phase, now.state.phase) != (Phase::Starting, Phase::Running) {
        return false;
    }
    let mut started = written.clone();
    (started.state.phase, started.state.since) = (Phase::Running, now.state.since);
    started == *now
}

/// True if two statuses are equal apart from their records.
fn same(one: &TrainingJobStatus, other: &TrainingJobStatus) -> bool {
    let cut = |status: &TrainingJobStatus| TrainingJobStatus { record: None, ..status.clone() };
    cut(one) == cut(other)
}

/// The part of a status whose changes must be visible immediately: the phase, and all else.
fn news(status: &TrainingJobStatus) -> (Option<Phase>, impl PartialEq) {
    let at_once = [JobConditionKind::Valid, JobConditionKind::QuotaReserved, JobConditionKind::DataWarm];
    let conditions: Vec<(String, String)> = at_once
        .into_iter()
        .filter_map(|kind| kind.find(&status.conditions))
        .map(|condition| (condition.status.clone(), condition.reason.clone()))
        .collect();
    (status.phase, (status.observed_generation, status.restarts, conditions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::machine::{Slot, State};

    #[test]
    fn that_a_job_runs_may_wait_and_nothing_else_may() {
        let at = |phase: Phase, since: i64| State { phase, since: Seconds(since), attempts: 1, ..State::default() };
        let record = |state: State| Record { state, ..Record::default() };
        let starting = record(State { roles: vec![vec![Slot::default()]], ..at(Phase::Starting, 5) });
        let running = record(State { roles: starting.state.roles.clone(), ..at(Phase::Running, 9) });
        assert!(has_only_started(&starting, &running));
        let lost = record(State { attempts: 2, ..running.state.clone() });
        let over = record(State { phase: Phase::Succeeded, ..running.state.clone() });
        for other in [&starting, &lost, &over] {
            assert!(!has_only_started(&starting, other), "{other:?}");
        }
        let growing = record(State { phase: Phase::Growing, ..starting.state.clone() });
        assert!(!has_only_started(&growing, &running) && !has_only_started(&running, &running));
        assert_eq!([0, 24, 25, 10_000].map(share), [0, 0, 1, 400]);
    }
}
