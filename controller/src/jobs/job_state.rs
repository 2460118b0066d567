//! The state of one job between rounds, and how much of it is written.
//!
//! The state in memory is the truth. The written one follows before any action that depends on it, and is where the next
//! controller process resumes.

use larder_api::TrainingJobStatus;
use serde::{Deserialize, Serialize};

use crate::jobs::counts::Counts;
use crate::jobs::dry_run;
use crate::jobs::machine::{Stage, State};
use crate::jobs::objects::{JobObject, TypeObject};
use crate::jobs::profile::{Generations, Profile, Rules, generations};
use crate::jobs::queue::Waiting;
use crate::jobs::refusal::Refusal;
use crate::jobs::render::{Facts, Rendered};
use crate::time::Seconds;

/// The part of it that outlives the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// Where the job is.
    #[serde(flatten)]
    pub state: State,
    /// Since when it is the first of its queue and finds no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_since: Option<Seconds>,
    /// Others end to make room for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub claims: bool,
    /// What its type says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
}

impl Record {
    /// The record of a status. Without a readable one nobody knows what the job's pods did, so the job starts over.
    fn of(status: &TrainingJobStatus) -> Self {
        if let Some(record) = status.record.as_deref().and_then(|text| serde_json::from_str(text).ok()) {
            return Self::bounded(record);
        }
        let phase = status.phase.filter(|phase| phase.is_terminal()).unwrap_or_default();
        Self::bounded(Self { state: State { phase, ..State::default() }, ..Self::default() })
    }

    /// The same with numbers that can be counted with: others may write a status, too.
    fn bounded(mut self) -> Self {
        let state = &mut self.state;
        state.attempts = state.attempts.min(ATTEMPTS_MAX);
        state.since = state.since.clamp(Seconds(0), TIME_MAX);
        let times = [
            &mut state.started,
            &mut state.finished,
            &mut state.room_since,
            &mut state.binding_since,
            &mut state.not_before,
        ];
        for time in times.into_iter().chain([&mut self.head_since]).flatten() {
            *time = (*time).clamp(Seconds(0), TIME_MAX);
        }
        self
    }

    /// As the status has it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts")
    }

    /// The same without what need not be written at once: that a pod was seen, that a type has changed, and times that start anew
    /// if they are lost.
    pub fn gist(&self) -> Self {
        let mut gist = Self { head_since: None, rules: None, ..self.clone() };
        (gist.state.room_since, gist.state.binding_since) = (None, None);
        for slot in gist.state.roles.iter_mut().flatten().filter(|slot| slot.stage == Stage::Seen) {
            slot.stage = Stage::Placed;
        }
        gist
    }
}

/// The state of a job between rounds.
#[derive(Debug, Default)]
pub struct JobState {
    /// The uid of the job.
    pub uid: String,
    /// Where it is.
    pub record: Record,
    /// The record was compared with the spec.
    pub is_read: bool,
    /// What of that is written; `None` if nothing is.
    pub written: Option<Record>,
    /// The status that is written.
    pub status: TrainingJobStatus,
    /// When it was written last.
    pub written_at: Seconds,
    /// Writes for it wait or are under way. Nothing is decided about it until they end.
    pub pending: Option<Pending>,
    /// A write that was refused or not answered is not retried before this time, unless something else is decided.
    pub retry_at: Seconds,
    /// What was decided when it was refused.
    refused_of: Option<Record>,
    /// The job has ended, and nothing is to be done before this time, unless it or one of its pods changes.
    pub sleeps_until: Seconds,
    /// Failures in a row.
    pub failures: u32,
    /// The API's words about a write that it refused.
    pub refused: Option<String>,
    /// Why an object of it could not be rendered, as it is and its type is.
    pub unrendered: Option<String>,
    /// What its pods need, once that is known.
    pub profile: Option<Profile>,
    /// Why that cannot be found out, and of what: a pod cannot be rendered.
    pub unprofiled: Option<(Generations, Refusal)>,
    /// Its queue; empty for none.
    pub queue: String,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// Since when the dry run of its pods has had no answer, so that nobody knows whether it may queue.
    pub undecided_since: Option<Seconds>,
    /// The attempt for which this process has made the objects that its pods share.
    pub equipped: Option<u32>,
    /// The facts that its files were written with, and when.
    pub files: Option<(Facts, Seconds)>,
    /// What its steps have counted since its status was written.
    pub counts: Counts,
}

/// What is remembered once its writes have succeeded.
#[derive(Debug, Default)]
pub struct Pending {
    /// The record and the status, if they are written.
    pub status: Option<(Record, TrainingJobStatus)>,
    /// [`JobState::equipped`].
    pub equipped: Option<u32>,
    /// [`JobState::files`].
    pub files: Option<(Facts, Seconds)>,
    /// The writes are under way. Writes that end before that belong to an earlier job of the same name.
    is_begun: bool,
}

/// No record counts from more attempts, and so never to the end of their numbers.
const ATTEMPTS_MAX: u32 = 1 << 30;

/// The last time that a record may name.
const TIME_MAX: Seconds = Seconds(1 << 37);

/// The longest time between two tries, in seconds.
const RETRY_MAX_SECONDS: i64 = 60;

impl JobState {
    /// What is known of a job that this process has not seen before.
    pub fn new(object: &JobObject) -> Self {
        let mut record = Record::of(&object.status);
        // A new one waits since it was made.
        record.state.since = record.state.since.max(Seconds(object.meta.created));
        let written = object.status.record.is_some().then(|| record.gist());
        Self { uid: object.meta.uid.clone(), record, written, status: object.status.clone(), ..Self::default() }
    }

    /// Finds out what its pods need, if that is not known. What could not be rendered still cannot, and is not tried in every round.
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

    /// Why its pods are not made, if that is for want of quota.
    pub fn shortage(&self) -> Option<String> {
        let refused = self.refused.as_deref().filter(|_| self.record.state.phase.is_making());
        refused.and_then(dry_run::shortage).map(dry_run::used_up)
    }

    /// No attempt is made again up to this one.
    pub fn count_from(&mut self, attempt: u32) {
        self.record.state.attempts = attempt.min(ATTEMPTS_MAX);
    }

    /// Its writes are under way from now on. False if there are none.
    pub fn begin(&mut self) -> bool {
        self.pending.as_mut().is_some_and(|pending| {
            pending.is_begun = true;
            true
        })
    }

    /// Its writes have ended. `refused`: the API's words about one that it refused.
    pub fn end(&mut self, succeeded: bool, wrote_status: bool, refused: Option<String>, now: Seconds) {
        let Some(pending) = self.pending.take_if(|pending| pending.is_begun) else { return };
        if wrote_status && let Some((record, status)) = pending.status {
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

    /// True if something can be decided about it now.
    pub fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// True if nothing is to be written now: it was refused a moment ago, and nothing else was decided since.
    pub fn holds_back(&self, now: Seconds) -> bool {
        now < self.retry_at && self.refused_of.as_ref() == Some(&self.record.gist())
    }
}
