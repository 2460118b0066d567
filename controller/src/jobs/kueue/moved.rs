//! A job that MultiKueue runs in another cluster: its Workload here.
//!
//! MultiKueue moves the Workload, and the job after it. From the cluster that has admitted the Workload, it copies the
//! status of the job, and that the Workload is finished. It copies nothing else, and expects the rest from the
//! controller of the job, as for a job that runs here (`pkg/controller/jobframework` of Kueue 0.19): that there is a
//! Workload while the job may run, that its quota is given back after an eviction, and that its finalizer is removed.
//!
//! The job has no pods here. Its status is written here only while it has no Workload, because no cluster has the job
//! then. An ended job does not begin again, even if the cluster in which it ran is lost before MultiKueue has seen the
//! end of the Workload there. Of a status that a newer version has written there, everything counts that this version
//! can read.

use larder_api::training_job::ShownJob;
use larder_api::training_job::checked::CheckedJob;
use larder_api::training_job::conditions::{JobConditionKind, JobReason};
use larder_api::{Phase, TrainingJobStatus};
use larder_kube::kinds::{Kind, KueueVersion};
use serde_json::{Value, json};

use super::messages;
use super::status::{Status, let_go, remove};
use super::wanted::Wanted;
use crate::jobs::condition::time;
use crate::jobs::objects::JobObject;
use crate::jobs::refusal::Refusal;
use crate::kueue::workload::{JobWorkload, since};
use crate::time::Seconds;
use crate::write::{Change, Write};

/// How long an evicted job keeps its quota while its copied status has pods: their cluster is to end them and to say so.
/// One that does not answer never says so.
const ENDING_SECONDS: i64 = 300;

/// The inputs of the decision about a job.
pub struct Situation<'a> {
    /// Seconds since 1970.
    pub now: Seconds,
    pub version: KueueVersion,
    pub object: &'a JobObject,
    pub job: &'a CheckedJob,
    /// Its LocalQueue.
    pub queue: &'a str,
    /// The Workload with its name.
    pub workload: Option<&'a JobWorkload>,
    /// Builds the Workload that the job should have, or says why it can have none.
    pub wanted: &'a dyn Fn() -> Result<Wanted, Refusal>,
    /// How long ended jobs are kept, in seconds; `None`: until a user deletes them.
    pub keep_ended_jobs: Option<i64>,
}

#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Writes in this order.
    pub writes: Vec<Write>,
    /// When to decide again if nothing changes before.
    pub again_at: Option<Seconds>,
}

impl Outcome {
    fn of(writes: impl IntoIterator<Item = Write>) -> Self {
        Self { writes: writes.into_iter().collect(), again_at: None }
    }
}

/// Decides about a job that MultiKueue moves.
pub fn decide(situation: &Situation<'_>) -> Outcome {
    let is_own = |workload: &&JobWorkload| workload.is_of(&situation.object.meta.uid);
    match situation.workload.filter(is_own) {
        Some(workload) => situation.with(workload),
        None => situation.without(),
    }
}

impl Situation<'_> {
    fn without(&self) -> Outcome {
        // In a phase of a newer version, the job may have ended.
        if self.object.is_of_newer && self.object.status.phase.is_none() {
            return Outcome::default();
        }
        if self.is_ended() {
            return self.expire();
        }
        if self.job.suspend {
            return Outcome::of(self.status(Phase::Suspended, None));
        }
        let wanted = match self.workload {
            Some(other) => Err(waits(messages::is_of_another(&other.meta.key.name))),
            None => (self.wanted)(),
        };
        match wanted {
            Ok(wanted) => {
                let status = self.status(Phase::Queued, Some(&waits(messages::asks(self.queue))));
                Outcome::of(status.into_iter().chain([wanted.create()]))
            }
            Err(refusal) => Outcome::of(self.status(Phase::Queued, Some(&refusal))),
        }
    }

    fn with(&self, workload: &JobWorkload) -> Outcome {
        if workload.meta.deleting {
            return Outcome::of(let_go(workload, self.version));
        }
        if workload.holding("Finished").is_some() {
            return match let_go(workload, self.version) {
                Some(write) => Outcome::of([write]),
                None if self.is_ended() => self.expire(),
                None => Outcome::default(),
            };
        }
        let has_quota = workload.holding("QuotaReserved").is_some();
        let evicted = workload.holding("Evicted");
        if self.is_ended() {
            // While the Workload has quota here, MultiKueue finishes it once the one over there is finished.
            let is_forgotten = evicted.is_some() || !has_quota;
            return Outcome::of(is_forgotten.then(|| self.finish(workload)).flatten());
        }
        if self.job.suspend {
            // MultiKueue deletes the job over there with the Workload.
            return Outcome::of(remove(workload, self.version));
        }
        match evicted.filter(|_| has_quota) {
            Some(evicted) => {
                let due = since(&evicted) + ENDING_SECONDS;
                if self.object.has_pods_elsewhere() && self.now < due {
                    return Outcome { again_at: Some(due), ..Outcome::default() };
                }
                let mut status = Status::of(workload, self.version, self.now);
                status.release();
                Outcome::of(status.write())
            }
            None if has_quota => Outcome::default(),
            None => Outcome::of((self.wanted)().ok().and_then(|wanted| wanted.update(workload))),
        }
    }

    fn finish(&self, workload: &JobWorkload) -> Option<Write> {
        let mut status = Status::of(workload, self.version, self.now);
        match self.object.status.phase {
            Some(Phase::Succeeded) => status.set("Finished", true, "Succeeded", "The job has succeeded"),
            _ => status.set("Finished", true, "Failed", "The job has failed"),
        }
        status.write()
    }

    fn is_ended(&self) -> bool {
        self.object.status.phase.is_some_and(Phase::is_terminal)
    }

    /// The deletion of an ended job, in its time. Its copy over there is gone.
    fn expire(&self) -> Outcome {
        let ttl = self.job.ttl_after_finished.map(|ttl| i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX));
        let ttl = ttl.into_iter().chain(self.keep_ended_jobs).min();
        let (Some(finished), Some(ttl)) = (&self.object.status.finished, ttl) else { return Outcome::default() };
        let due = Seconds::of(finished) + ttl;
        if self.now < due {
            return Outcome { again_at: Some(due), ..Outcome::default() };
        }
        Outcome::of([self.write(Change::Delete(self.object.meta.uid.clone()))])
    }

    /// The write of the status of a job that no cluster has; `None` if it is written.
    fn status(&self, phase: Phase, waits: Option<&Refusal>) -> Option<Write> {
        let before = &self.object.status;
        let mut status = TrainingJobStatus {
            observed_generation: Some(self.object.generation),
            phase: Some(phase),
            restarts: before.restarts,
            ..TrainingJobStatus::default()
        };
        if let Some(Refusal { reason, why }) = waits {
            let why: String = why.chars().take(1000).collect();
            let kind = reason.conditions().first().copied().unwrap_or(JobConditionKind::Valid);
            let old = kind.find(&before.conditions).filter(|old| old.status == "False");
            let since = old.map_or_else(|| time(self.now), |old| old.last_transition_time.clone());
            status.conditions = vec![kind.is(false, *reason, why.as_str(), self.object.generation, since)];
            status.shown = Some(ShownJob { why: reason.to_string(), ..ShownJob::default() });
            status.waiting_for = Some(why);
        }
        if status == *before {
            return None;
        }
        // MultiKueue has written the fields of the last copy, so an apply would leave them.
        let (mut fields, old) = (json!(status), json!(before));
        if let (Value::Object(fields), Value::Object(old)) = (&mut fields, old) {
            for (name, _) in old {
                fields.entry(name).or_insert(Value::Null);
            }
        }
        let (uid, version) = (&self.object.meta.uid, self.object.meta.version.to_string());
        let metadata = json!({"uid": uid, "resourceVersion": version});
        Some(self.write(Change::MergeStatus(json!({"metadata": metadata, "status": fields}))))
    }

    fn write(&self, change: Change) -> Write {
        let key = &self.object.meta.key;
        Write::new(Kind::TrainingJob, &key.namespace, &key.name, change)
    }
}

fn waits(why: String) -> Refusal {
    Refusal::new(JobReason::KueueDecides, why)
}
