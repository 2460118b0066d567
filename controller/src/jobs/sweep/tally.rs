//! How the trials of a sweep ended, as the record in its status keeps it.

use larder_api::TrainingJobStatus;
use larder_api::training_job::checked::CheckedObjective;
use serde::{Deserialize, Serialize};

/// A trial that has not ended.
const OPEN: u8 = b'-';
const SUCCEEDED: u8 = b's';
const FAILED: u8 = b'f';

/// The longest number of a trial.
const RESULT_BYTES_MAX: usize = 32;

/// How the trials of a sweep ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Tally {
    /// A character for each trial.
    outcomes: String,
    /// The trial with the best number.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<Best>,
    /// How many trials have ended since.
    since_best: u32,
}

/// The trial with the best number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Best {
    pub(super) trial: u32,
    /// Its number, as it wrote it.
    pub(super) result: String,
}

impl Best {
    pub(super) fn number(&self) -> Option<f64> {
        number(&self.result)
    }
}

/// The number in a text; `None` if there is none. Any user with the right to write a status may have written the text.
fn number(text: &str) -> Option<f64> {
    let number = text.parse::<f64>().ok()?;
    (number.is_finite() && text.len() <= RESULT_BYTES_MAX).then_some(number)
}

impl Tally {
    /// Reads the record of a sweep with this number of trials. Without a readable record, no trial has been counted.
    pub(super) fn read(status: &TrainingJobStatus, trials: u32) -> Self {
        let record = status.record.as_deref().and_then(|text| serde_json::from_str::<Self>(text).ok());
        let is_outcome = |byte: u8| [OPEN, SUCCEEDED, FAILED].contains(&byte);
        let is_whole = |tally: &Self| tally.outcomes.len() == trials as usize && tally.outcomes.bytes().all(is_outcome);
        let none = || Self { outcomes: char::from(OPEN).to_string().repeat(trials as usize), ..Self::default() };
        record.filter(is_whole).unwrap_or_else(none)
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts")
    }

    pub(super) fn has_ended(&self, trial: u32) -> bool {
        self.outcomes.as_bytes().get(trial as usize).is_some_and(|outcome| *outcome != OPEN)
    }

    pub(super) fn succeeded(&self) -> u32 {
        self.with(SUCCEEDED)
    }

    pub(super) fn failed(&self) -> u32 {
        self.with(FAILED)
    }

    fn with(&self, outcome: u8) -> u32 {
        self.outcomes.bytes().filter(|there| *there == outcome).count() as u32
    }

    pub(super) fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    pub(super) fn since_best(&self) -> u32 {
        self.since_best
    }

    /// Counts a trial that has ended, once.
    pub(super) fn count(
        &mut self,
        trial: u32,
        succeeded: bool,
        result: Option<&str>,
        objective: Option<&CheckedObjective>,
    ) {
        if self.has_ended(trial) || trial as usize >= self.outcomes.len() {
            return;
        }
        let outcome = char::from(if succeeded { SUCCEEDED } else { FAILED });
        let at = trial as usize;
        self.outcomes.replace_range(at..=at, outcome.encode_utf8(&mut [0; 4]));
        let best = self.best.as_ref().and_then(Best::number);
        let is_better =
            |number: f64| objective.is_some_and(|objective| best.is_none_or(|best| objective.is_better(number, best)));
        match result.filter(|text| number(text).is_some_and(is_better)) {
            Some(result) => {
                self.best = Some(Best { trial, result: result.to_owned() });
                self.since_best = 0;
            }
            None => self.since_best = self.since_best.saturating_add(1),
        }
    }
}
