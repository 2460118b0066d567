//! The state of one job between rounds, and how much of it is written to its status.
//!
//! The state in memory is authoritative. The written state follows before any action that depends on it. The next
//! controller process resumes from the written state.

use std::sync::Arc;

use larder_api::training_job::checked::ROLES_MAX;
use larder_api::{Phase, TrainingJobStatus};
use larder_kube::key::Key;
use serde::{Deserialize, Serialize};

use crate::jobs::counts::Counts;
use crate::jobs::dry_run;
use crate::jobs::machine::{REFUSALS_MAX, Stage, State};
use crate::jobs::objects::{JobObject, TypeObject};
use crate::jobs::profile::{Generations, Profile, Rules, generations};
use crate::jobs::queue::{Job, Waiting};
use crate::jobs::refusal::Refusal;
use crate::jobs::render::{Facts, Rendered};
use crate::time::Seconds;
use crate::warm_request::WarmRequest;

/// The part of a job's state that is written to its status and survives the controller. Its form has a version
/// ([`is_newer_record`](larder_api::training_job::is_newer_record)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    #[serde(flatten)]
    pub state: State,
    /// Since when it has been the head of its queue without finding room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_since: Option<Seconds>,
    /// Other jobs are being preempted for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub claims: bool,
    /// How many times in a row pods of others took the room that was freed for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub in_vain: u32,
    /// No other job is preempted for it before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempts_after: Option<Seconds>,
    /// The flavors of its nodes, by role, if it has room or room is reserved for it; an empty name is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<String>,
    /// The rules of its JobType.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Record {
    /// Reads the record of a status. Without a readable record the controller cannot know what the job's pods did, so
    /// the job starts over.
    fn of(status: &TrainingJobStatus) -> Self {
        if let Some(record) = status.record.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
            return Self::bounded(record);
        }
        let phase = status.phase.filter(|phase| phase.is_terminal()).unwrap_or_default();
        Self::bounded(Self { state: State { phase, ..State::default() }, ..Self::default() })
    }

    /// Limits all numbers to safe ranges: other clients may also write a status.
    fn bounded(mut self) -> Self {
        let state = &mut self.state;
        state.attempts = state.attempts.min(ATTEMPTS_MAX);
        state.since = state.since.clamp(Seconds(0), TIME_MAX);
        state.good_seconds = state.good_seconds.clamp(0, TIME_MAX.0);
        let times = [
            &mut state.started,
            &mut state.finished,
            &mut state.room_since,
            &mut state.binding_since,
            &mut state.not_before,
        ];
        state.refused_by.truncate(REFUSALS_MAX);
        state.result.take_if(|result| result.len() > RESULT_BYTES_MAX);
        self.flavors.truncate(ROLES_MAX);
        for time in times.into_iter().chain([&mut self.head_since, &mut self.preempts_after]).flatten() {
            *time = (*time).clamp(Seconds(0), TIME_MAX);
        }
        self
    }

    /// The text that is stored in the status.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts")
    }

    /// The record without changes that may be written later: that a pod was observed or refused, that a type has
    /// changed, and timers that restart if they are lost.
    pub fn gist(&self) -> Self {
        let mut gist = Self { head_since: None, rules: None, ..self.clone() };
        (gist.state.room_since, gist.state.binding_since) = (None, None);
        gist.state.refused_by.clear();
        for slot in gist.state.roles.iter_mut().flatten().filter(|slot| slot.stage == Stage::Seen) {
            slot.stage = Stage::Placed;
        }
        gist
    }
}

#[derive(Debug, Default)]
pub struct JobState {
    pub uid: String,
    /// The current record, which may be ahead of the written one.
    pub record: Record,
    /// The record has been compared with the spec.
    pub is_read: bool,
    /// The record in the written status; `None` before the first write.
    pub written: Option<Record>,
    /// The last written status.
    pub status: TrainingJobStatus,
    /// When the status was written last.
    pub written_at: Seconds,
    /// Since when the written status says why the job waits. Of a status that an earlier process has written, only the
    /// time at which this one has read it is known.
    pub said_since: Seconds,
    /// Writes for the job are pending or in flight. Nothing is decided about it until they complete.
    pub pending: Option<Pending>,
    /// A write that was rejected or got no answer is not retried before this time, unless another decision is made.
    pub retry_at: Seconds,
    /// The record whose write was rejected.
    refused_of: Option<Record>,
    /// Set while nothing needs to be done about the job.
    pub rest: Option<Rest>,
    /// Consecutive failed writes.
    pub failures: u32,
    /// The API server's message about a rejected write.
    pub refused: Option<String>,
    /// Why an object of the job could not be rendered with its current spec and type.
    pub unrendered: Option<String>,
    /// The requirements of its pods, once they are known.
    pub profile: Option<Profile>,
    /// Why the requirements are unknown (a pod cannot be rendered), and for which generations.
    pub unprofiled: Option<(Generations, Refusal)>,
    /// Its queue; empty for none.
    pub queue: String,
    /// The condition that it waits for.
    pub waiting: Option<Waiting>,
    /// Since when the dry run of its pods has had no answer. Until it has one, the job may not queue.
    pub undecided_since: Option<Seconds>,
    /// The attempt for which this process has written the objects that its pods share.
    pub equipped: Option<u32>,
    /// The facts with which its files were rendered, and when they were written.
    pub files: Option<(Facts, Seconds)>,
    /// The events that its steps have counted since its status was written.
    pub counts: Counts,
}

/// The pending writes, and the values that take effect once they have succeeded.
#[derive(Debug, Default)]
pub struct Pending {
    /// The record and the status, if they are among the writes.
    pub status: Option<(Record, TrainingJobStatus)>,
    /// [`JobState::equipped`].
    pub equipped: Option<u32>,
    /// [`JobState::files`].
    pub files: Option<(Facts, Seconds)>,
    /// The weight of the pods that are created ([`weight`](crate::jobs::pod_turns::weight)).
    pub pod_weight: usize,
    /// The writes are in flight. Completions that arrive earlier belong to a previous job of the same name.
    is_begun: bool,
}

/// How collecting the writes for a job changes its state.
#[derive(Debug, Default)]
pub struct Changes {
    /// `None` if there are no writes.
    pub pending: Option<Pending>,
    /// [`JobState::unrendered`].
    pub unrendered: Option<String>,
    /// [`JobState::rest`].
    pub rest: Option<Rest>,
}

/// The results of a round for a job that needs nothing until a time, unless the job or something that its decisions
/// depend on changes. The next rounds repeat them.
#[derive(Debug)]
pub struct Rest {
    pub until: Seconds,
    /// How often all jobs had been woken by that round. If they were woken since, the job no longer rests.
    pub wakes: u64,
    /// The job as queues see it; `None` if it has ended.
    pub counted: Option<Arc<Job>>,
    /// Its warm requests, by dataset.
    pub warm_requests: Vec<(Key, WarmRequest)>,
}

/// The number of attempts in a record is capped at this value, so that the counter never overflows.
const ATTEMPTS_MAX: u32 = 1 << 30;

/// The longest number that a job reports.
const RESULT_BYTES_MAX: usize = 32;

/// The times in a record are capped at this value.
const TIME_MAX: Seconds = Seconds(1 << 37);

/// The longest delay between two retries, in seconds.
const RETRY_MAX_SECONDS: i64 = 60;

impl JobState {
    /// The state of a job that this process has not seen before.
    pub fn new(object: &JobObject, now: Seconds) -> Self {
        let mut record = Record::of(&object.status);
        // A new job waits since its creation. The API server's clock may be ahead of this process's.
        record.state.since = record.state.since.max(Seconds(object.meta.created).min(now));
        let written = object.status.record.is_some().then(|| record.gist());
        let (uid, status) = (object.meta.uid.clone(), object.status.clone());
        Self { uid, record, written, status, said_since: now, ..Self::default() }
    }

    /// Determines the requirements of its pods if they are unknown. A pod that could not be rendered is not rendered
    /// again until the spec or the type changes.
    pub fn find_profile(
        &mut self,
        object: &JobObject,
        of_type: &TypeObject,
        rendered: &Rendered<'_>,
    ) -> Result<(), Refusal> {
        if self.profile.as_ref().is_some_and(|profile| profile.is_of(object, of_type)) {
            return Ok(());
        }
        let of = generations(object, of_type);
        if let Some((_, refusal)) = self.unprofiled.as_ref().filter(|(before, _)| *before == of) {
            return Err(refusal.clone());
        }
        let profile = Profile::new(object, of_type, rendered);
        self.unprofiled = profile.as_ref().err().map(|refusal| (of, refusal.clone()));
        self.profile = Some(profile?);
        self.unrendered = None;
        Ok(())
    }

    /// Why its pods are not created, if quota is the reason.
    pub fn shortage(&self) -> Option<String> {
        let refused = self.refused.as_deref().filter(|_| self.record.state.phase.is_making());
        refused.and_then(dry_run::shortage).map(dry_run::used_up)
    }

    /// Ensures that all further attempts have higher numbers than this one.
    pub fn count_from(&mut self, attempt: u32) {
        self.record.state.attempts = attempt.min(ATTEMPTS_MAX);
    }

    /// Marks the pending writes as in flight. Returns false if there are none.
    pub fn begin(&mut self) -> bool {
        self.pending.as_mut().is_some_and(|pending| {
            pending.is_begun = true;
            true
        })
    }

    /// Records the completion of the writes. `refused`: the API server's message about a rejected write.
    pub fn end(&mut self, succeeded: bool, wrote_status: bool, refused: Option<String>, now: Seconds) {
        let Some(pending) = self.pending.take_if(|pending| pending.is_begun) else { return };
        if wrote_status && let Some((record, status)) = pending.status {
            if status.waiting_for != self.status.waiting_for {
                self.said_since = now;
            }
            (self.written, self.status, self.written_at) = (Some(record), status, now);
        }
        self.refused = refused;
        if succeeded {
            self.failures = 0;
            (self.retry_at, self.refused_of) = (Seconds::default(), None);
            self.equipped = pending.equipped.or(self.equipped);
            self.files = pending.files.or_else(|| self.files.take());
        } else {
            self.retry_at = now + (1 << self.failures.min(6)).min(RETRY_MAX_SECONDS);
            self.refused_of = Some(self.record.gist());
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// The phase in the written status, and since when the job is in it.
    pub fn written_phase(&self) -> Option<(Phase, Seconds)> {
        self.written.as_ref().map(|record| (record.state.phase, record.state.since))
    }

    /// True if the job can be decided about now.
    pub fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// If the same decision was rejected a moment ago, nothing is written until the returned time.
    pub fn held_until(&self, now: Seconds) -> Option<Seconds> {
        let holds_back = now < self.retry_at && self.refused_of.as_ref() == Some(&self.record.gist());
        holds_back.then_some(self.retry_at)
    }

    pub fn apply(&mut self, changes: Changes) {
        let Changes { pending, unrendered, rest } = changes;
        // Nothing is written while other writes are pending.
        self.pending = pending;
        self.unrendered = unrendered;
        self.rest = rest;
    }
}
