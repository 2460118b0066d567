//! Why a job may not start.

use larder_api::training_job::conditions::JobReason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, as one CamelCase word.
    pub reason: JobReason,
    /// The reason, as a sentence.
    pub why: String,
}

impl Refusal {
    pub fn new(reason: JobReason, why: impl ToString) -> Self {
        Self { reason, why: why.to_string() }
    }
}
