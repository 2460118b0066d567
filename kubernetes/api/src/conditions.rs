//! The conditions of a Dataset and the closed list of their reasons.
//!
//! A reason is for programs and for the column WHY: it is one of [`Reason::ALL`]. The message beside it is for people
//! and says what to do.

pub use crate::vocabulary::UnknownReason;
use crate::vocabulary::{conditions, reasons};

conditions! {
    /// The type of a condition of a Dataset.
    pub enum ConditionKind {
        /// The snapshot is known and its manifest can be read.
        Imported,
        /// Enough nodes have promised room.
        Placed,
        /// Those nodes have the bytes.
        Warm,
        /// Something is worse than asked for, and readers are served nevertheless.
        Degraded,
        /// A pod that starts now finds what the spec asks for. Its reason is that of the first condition that holds it up.
        Ready,
    }
}

reasons! {
    /// Why a condition of a Dataset has its status.
    pub enum Reason of ConditionKind {
        /// The snapshot was listed and its manifest published.
        Listed of Imported,
        /// A manifest that somebody published was found.
        Found of Imported,
        /// The credentials may not write the manifest, so each node lists for itself.
        ListedByNodes of Imported,
        /// The origin is being listed. The message has the progress.
        Importing of Imported,
        /// The Secret does not exist.
        SecretMissing of Imported,
        /// The bucket does not exist.
        BucketMissing of Imported,
        /// The origin refuses the credentials.
        AccessDenied of Imported,
        /// The origin does not answer.
        OriginUnreachable of Imported,
        /// The snapshot that `spec.snapshot` names cannot be found.
        SnapshotUnknown of Imported,
        /// The listing failed for another reason, which the message has.
        ImportFailed of Imported,
        /// Only the administrator's Datasets may have this: larderd's identity, `file://`, an endpoint that is not listed.
        NotAllowed of Imported,
        /// The spec has a value that the schema let pass and the checks refuse.
        InvalidSpec of Imported,
        /// The condition before this one is not true yet.
        Waiting of Placed | Warm,
        /// `nodes.count` is 0: pods bring the bytes to their nodes.
        NotWanted of Placed | Warm,
        /// As many nodes as wanted have promised room.
        Promised of Placed,
        /// Too few nodes match `nodes.selector`, accept pods and report a cache.
        NoNodeMatches of Placed,
        /// The dataset is larger than any node's cache.
        LargerThanAnyCache of Placed,
        /// Other datasets have the room. The message has the arithmetic.
        NotEnoughRoom of Placed,
        /// Nodes fetch it. The message has percentage and time.
        Warming of Warm,
        /// The nodes have all bytes that they promised.
        Cached of Warm,
        /// Warming failed and is tried again. The message has the error.
        WarmingFailed of Warm,
        /// A node that held the dataset is gone or does not report.
        NodeLost of Degraded,
        /// The last `refresh` failed; the snapshot before it is served.
        RefreshFailed of Degraded,
        /// A node cannot keep its promise: its cache has become smaller.
        PromiseUnkept of Degraded,
        /// The annotation `larder.dev/clean` is not a time, or cannot be acted on.
        InvalidClean of Degraded,
        /// Kubernetes refuses an object of the dataset: another has its name, or a quota or policy is in the way. The
        /// message has its words.
        WriteRefused of Degraded,
        /// Inline volumes cannot name it: its namespace has more Datasets without a Secret than there is room for in
        /// their list.
        InlineLimit of Degraded,
        /// Nothing is worse than asked for.
        AsWanted of Degraded,
        /// A pod that starts now finds what the spec asks for.
        Available of Ready,
        /// The Dataset was deleted and its users still read it; the message names them.
        InUse of Ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_as_it_was_written_and_belongs_to_a_condition() {
        for reason in Reason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(*reason));
            assert!(!reason.conditions().is_empty());
            // The form that Kubernetes asks of reasons.
            let text = reason.as_str();
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric));
        }
        assert!("Whatever".parse::<Reason>().is_err());
    }
}
