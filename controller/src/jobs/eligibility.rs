//! Whether a job may start, according to its check.

use crate::jobs::refusal::Refusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// The job may start when there is room.
    Eligible,
    /// The dry run of its pods has no answer yet.
    Unanswered,
    /// A ResourceQuota of its namespace is used up, as the sentence describes. The job keeps its position in the queue.
    QuotaUsed(String),
    /// The job may not start until its spec, its type or a permission changes.
    Refused(Refusal),
}

impl Eligibility {
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Eligible | Self::Unanswered | Self::QuotaUsed(_) => None,
        }
    }

    /// A sentence about the exhausted ResourceQuota.
    pub fn shortage(&self) -> Option<&String> {
        match self {
            Self::QuotaUsed(why) => Some(why),
            Self::Eligible | Self::Unanswered | Self::Refused(_) => None,
        }
    }

    /// True while the dry run has no answer.
    pub fn is_unanswered(&self) -> bool {
        *self == Self::Unanswered
    }

    /// True if the job has a position in its queue.
    pub fn may_queue(&self) -> bool {
        matches!(self, Self::Eligible | Self::QuotaUsed(_))
    }
}
