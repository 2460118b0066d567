//! The conditions of a Dataset and the closed list of their reasons.
//!
//! A reason is for programs and for the column WHY: it is one of [`Reason::ALL`]. The message beside it is for users,
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
        /// The promised bytes are cached on those nodes.
        Warm,
        /// Something is worse than the spec requests, but readers are served.
        Degraded,
        /// A pod that starts now finds what the spec requests. If it is not True, its reason is the reason of the first
        /// condition that prevents it.
        Ready,
    }
}

reasons! {
    /// Why a condition of a Dataset has its status.
    pub enum Reason of ConditionKind {
        /// The snapshot was listed and its manifest published.
        Listed of Imported,
        /// A manifest was found that was published earlier.
        Found of Imported,
        /// The credentials may not write the manifest, so each node lists for itself.
        ListedByNodes of Imported,
        /// The origin is being listed. The message has the progress.
        Importing of Imported,
        /// The Secret does not exist, or is empty.
        SecretMissing of Imported,
        /// The bucket does not exist.
        BucketMissing of Imported,
        /// The origin rejects the credentials.
        AccessDenied of Imported,
        /// The origin does not answer.
        OriginUnreachable of Imported,
        /// The snapshot that `spec.snapshot` names cannot be found.
        SnapshotUnknown of Imported,
        /// The listing failed for another reason, which the message has.
        ImportFailed of Imported,
        /// Only the administrator's Datasets may use this: larderd's identity, `file://`, or an endpoint that is not
        /// listed.
        NotAllowed of Imported,
        /// The spec has a value that the schema accepts and the controller rejects.
        InvalidSpec of Imported,
        /// The CacheQuota of the namespace is used up: by Datasets, imports or promised room. The message has the
        /// arithmetic.
        QuotaExceeded of Imported | Placed,
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
        /// The disks of the caches lack room. The message says what limits the largest one.
        CachesLackRoom of Placed,
        /// Other datasets use the room. The message has the arithmetic.
        NotEnoughRoom of Placed,
        /// Nodes fetch the dataset. The message has percentage and time.
        Warming of Warm,
        /// The nodes have all bytes that they promised.
        Cached of Warm,
        /// Warming failed and is retried. The message has the error.
        WarmingFailed of Warm,
        /// A node that held the dataset was deleted or does not report.
        NodeLost of Degraded,
        /// The last `refresh` failed; the previous snapshot is served.
        RefreshFailed of Degraded,
        /// A node cannot keep its promise, because its cache has become smaller.
        PromiseUnkept of Degraded,
        /// A mirror that is kept does not have the current snapshot, because copying failed and is retried. The message
        /// has the mirror and the error.
        MirrorBehind of Degraded,
        /// The annotation `larder.dev/clean` is not a time, or cannot be acted on.
        InvalidClean of Degraded,
        /// Kubernetes rejects an object of the dataset: another object has its name, or a quota or policy forbids it.
        /// The message has the error.
        WriteRefused of Degraded,
        /// Inline volumes cannot name the dataset: its namespace has more Datasets without a Secret than their list has
        /// room for.
        InlineLimit of Degraded,
        /// Nothing is worse than the spec requests.
        AsWanted of Degraded,
        /// A pod that starts now finds what the spec requests.
        Available of Ready,
        /// The Dataset was deleted, but pods still use it. The message names them.
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
            // The form that Kubernetes requires of reasons.
            let text = reason.as_str();
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric));
        }
        assert!("Whatever".parse::<Reason>().is_err());
    }
}
