//! The part of the main loop that handles training jobs.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use larder_api::names::SETTINGS;
use larder_api::{LarderSettingsStatus, Phase};
use larder_telemetry::trace_past;
use serde_json::json;
use tracing::warn;

use super::{Control, after_round};
use crate::execute::Written;
use crate::jobs::dry_run::shortage;
use crate::jobs::job_state::JobState;
use crate::jobs::kueue::moved::Outcome;
use crate::jobs::{job_types, queues};
use crate::time::{Millis, Seconds};
use crate::work_queue::Work;
use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// The interval between two dry runs of pods that were not created because a ResourceQuota is used up.
const SHORT_MILLIS: u64 = 60_000;

/// The phase that a job was in `before` a status was written, and when it began and ended, if it ended with that.
fn ended_phase(before: Option<(Phase, Seconds)>, after: Option<(Phase, Seconds)>) -> Option<(Phase, [SystemTime; 2])> {
    let ((phase, began), (now, ended)) = (before?, after?);
    // Any user may have written the times.
    let time = |seconds: Seconds| {
        let since = Duration::from_secs(u64::try_from(seconds.0).unwrap_or(0));
        SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    (phase != now).then(|| (phase, [time(began.min(ended)), time(ended)]))
}

impl Control {
    /// Runs a round over all jobs. Events that arrive before the next round are handled together.
    pub(super) fn round(&mut self, now: Millis) {
        let time = self.seconds();
        let mut work = Vec::new();
        self.state.clusters.now = now;
        let again_at = self.state.round(time, &draw, &mut work);
        self.publish();
        let ended = self.millis();
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        self.counters.count_jobs(&self.state.jobs);
        self.next_round = after_round(now, ended);
        for work in work {
            self.add(work, ended);
        }
        self.again(Work::Jobs, again_at, time, ended);
    }

    /// The writes that the last round decided for a job, unless the job was deleted since.
    pub(super) fn plan_job(&mut self, key: &Key) -> Vec<Write> {
        let writes = self.state.jobs.ready.remove(key).unwrap_or_default();
        let begun = !writes.is_empty() && self.state.jobs.job_states.get_mut(key).is_some_and(JobState::begin);
        if begun { writes } else { Vec::new() }
    }

    /// The writes about a job that MultiKueue moves.
    pub(super) fn plan_moved(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        let time = self.seconds();
        let Outcome { writes, again_at } = self.state.moved(key, time);
        self.again(Work::Moved(key.clone()), again_at, time, now);
        writes
    }

    /// The writes of a sweep.
    pub(super) fn plan_sweep(&mut self, key: &Key, now: Millis) -> Vec<Write> {
        let time = self.seconds();
        let Some(decision) = self.state.sweep(key, time) else { return Vec::new() };
        self.again(Work::Sweep(key.clone()), decision.again_at, time, now);
        decision.writes
    }

    pub(super) fn plan_dry_run(&mut self, spec_hash: &str, now: Millis) -> Vec<Write> {
        self.state.dry_run(spec_hash).unwrap_or_else(|| {
            self.add(Work::Jobs, now);
            Vec::new()
        })
    }

    /// The write of a JobType's condition, if it has changed.
    pub(super) fn plan_type(&self, name: &str) -> Vec<Write> {
        let of_type = self.state.jobs.types.get(&Key::cluster(name));
        let Some(status) = of_type.and_then(|of_type| job_types::status(of_type, self.seconds())) else {
            return Vec::new();
        };
        vec![Write::new(Kind::JobType, "", name, Change::ApplyStatus(json!({"status": status})))]
    }

    /// The write of a queue's status, if it has changed.
    pub(super) fn plan_queue(&self, name: &str) -> Vec<Write> {
        let object = self.state.jobs.queues.get(&Key::cluster(name));
        let status =
            object.and_then(|object| queues::to_write(object, self.state.jobs.queue_reports.get(name), self.seconds()));
        let Some(status) = status else { return Vec::new() };
        vec![Write::new(Kind::JobQueue, "", name, Change::ApplyStatus(json!({"status": status})))]
    }

    /// The names of all JobTypes, for the admission policy that warns about jobs of other types.
    pub(super) fn plan_types(&self) -> Vec<Write> {
        if !self.state.jobs.presence.is_there() {
            return Vec::new();
        }
        let names = |keys: BTreeSet<Key>| -> Vec<String> { keys.into_iter().map(|key| key.name).collect() };
        let job_types = names(self.state.jobs.types.keys());
        let clusters = names(self.state.clusters.objects.keys());
        let there = self.state.larder_settings.get(&Key::cluster(SETTINGS));
        if there.is_none_or(|settings| settings.job_types == job_types && settings.clusters == clusters) {
            return Vec::new();
        }
        let fields = json!({"status": LarderSettingsStatus { job_types, clusters }});
        vec![Write::new(Kind::LarderSettings, "", SETTINGS, Change::ApplyStatus(fields))]
    }

    /// Handles the completion of a job's writes.
    pub(super) fn job_written(&mut self, key: &Key, written: &Written) {
        let now = self.seconds();
        let refused = written.refused.iter().find(|((kind, _), _)| *kind != Kind::Event);
        let refused = refused.map(|((kind, key), said)| format!("{} {key}: {said}", kind.name()));
        let short = refused.as_deref().and_then(shortage).and_then(|quota| self.state.not_created(key, quota));
        if let Some(spec_hash) = short {
            self.add(Work::DryRun(spec_hash), self.millis() + SHORT_MILLIS);
        }
        if let Some(job_state) = self.state.jobs.job_states.get_mut(key) {
            let phase = job_state.written_phase();
            job_state.end(written.succeeded, written.wrote_status, refused, now);
            if let Some((phase, times)) = ended_phase(phase, job_state.written_phase()) {
                let attributes = [("namespace", &key.namespace), ("job", &key.name), ("queue", &job_state.queue)];
                let attributes = attributes.map(|(name, value)| (name, value.clone()));
                trace_past("phase", times, attributes.into_iter().chain([("phase", format!("{phase:?}"))]));
            }
            if written.wrote_status {
                self.counters.count_steps(&job_state.queue, &std::mem::take(&mut job_state.counts));
            }
        }
        if written.drops_groups && !self.state.jobs.drops_groups {
            warn!(
                "the API server drops the PodGroups of pods: turn on its feature for them, or native gangs are planned by Larder"
            );
            self.state.jobs.drops_groups = true;
            self.state.jobs.wake_all();
        }
        self.add(Work::Jobs, self.millis());
    }

    /// Handles the answer to a dry run. Without an answer, the dry run is repeated.
    pub(super) fn dry_run_answered(&mut self, spec_hash: &str, written: &Written) {
        // One role may be rejected permanently and another temporarily. The permanent reason comes first.
        let refusal = written.refused.values().min_by_key(|why| shortage(why).is_some());
        let is_answered = written.succeeded || refusal.is_some();
        if is_answered {
            self.state.dry_run_answered(spec_hash, refusal.map(String::as_str));
        }
        if self.state.unanswered(spec_hash, written.failed.as_deref()) || is_answered {
            self.add(Work::Jobs, self.millis());
        }
    }
}

/// Generates an unpredictable key of 64 hex digits.
fn draw() -> String {
    let mut bytes = [0; 32];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.expect("Linux always has random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: P10
    #[test]
    fn a_phase_has_ended_once_a_status_with_another_is_written_whatever_its_times_are() {
        let at = |phase, seconds| Some((phase, Seconds(seconds)));
        assert_eq!(ended_phase(None, at(Phase::Queued, 5)), None);
        assert_eq!(ended_phase(at(Phase::Queued, 5), at(Phase::Queued, 5)), None);
        let times = [5, 65].map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(ended_phase(at(Phase::Queued, 5), at(Phase::Starting, 65)), Some((Phase::Queued, times)));
        for seconds in [i64::MIN, i64::MAX] {
            let (_, [began, ended]) = ended_phase(at(Phase::Queued, seconds), at(Phase::Running, 65)).unwrap();
            assert!(began <= ended && ended == times[1]);
        }
    }
}
