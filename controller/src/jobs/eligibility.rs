//! Whether a job may start, as its check has found.

use crate::jobs::refusal::Refusal;

/// Whether a job may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// It may, as soon as there is room.
    Eligible,
    /// The API server has not answered the dry run of its pods.
    Unanswered,
    /// A ResourceQuota of its namespace is used up; the sentence says which. The job keeps its place in the queue.
    QuotaUsed(String),
    /// It may not start until its spec, its type or a permission changes.
    Refused(Refusal),
}

impl Eligibility {
    /// Why the job may not start.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Eligible | Self::Unanswered | Self::QuotaUsed(_) => None,
        }
    }

    /// The ResourceQuota that is used up, in a sentence.
    pub fn shortage(&self) -> Option<&String> {
        match self {
            Self::QuotaUsed(why) => Some(why),
            Self::Eligible | Self::Unanswered | Self::Refused(_) => None,
        }
    }

    /// True if the API server has not answered the dry run.
    pub fn is_unanswered(&self) -> bool {
        *self == Self::Unanswered
    }

    /// True if the job has a place in its queue.
    pub fn may_queue(&self) -> bool {
        matches!(self, Self::Eligible | Self::QuotaUsed(_))
    }
}
