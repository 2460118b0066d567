//! Why a job may not start.

use larder_api::training_job::conditions::JobReason;

/// Why a job may not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In one word.
    pub reason: JobReason,
    /// In a sentence.
    pub why: String,
}

impl Refusal {
    /// A reason and its sentence.
    pub fn new(reason: JobReason, why: impl ToString) -> Self {
        Self { reason, why: why.to_string() }
    }
}
