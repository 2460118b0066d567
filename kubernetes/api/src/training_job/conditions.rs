//! The conditions of a TrainingJob and the closed list of their reasons.
//!
//! A reason is for programs and for the column WHY; the message beside it is for people and has the numbers.

use crate::vocabulary::{conditions, reasons};

conditions! {
    /// The type of a condition of a TrainingJob.
    pub enum JobConditionKind {
        /// Its JobType, datasets and Queue exist and are granted, and the API server would admit its pods.
        Valid,
        /// Its pods are paid for.
        QuotaReserved,
        /// Enough of its datasets is cached, or it has waited long enough.
        DataWarm,
        /// Every pod that it needs has a node.
        Placed,
        /// It succeeded.
        Complete,
        /// It is given up.
        Failed,
    }
}

reasons! {
    /// Why a condition of a TrainingJob has its status.
    pub enum JobReason of JobConditionKind {
        /// Nothing speaks against it.
        Accepted of Valid,
        /// The spec has a value that the schema let pass and the checks refuse.
        InvalidSpec of Valid,
        /// There is no such JobType.
        TypeMissing of Valid,
        /// The JobType is not valid itself.
        TypeInvalid of Valid,
        /// The roles are not those of the JobType: one is unknown, missing, too large or not elastic, or all have more pods than
        /// files and variables can name.
        RolesUnfit of Valid,
        /// A Dataset does not exist, or is not granted to the namespace.
        DatasetNotGranted of Valid,
        /// The Queue does not exist, or is not granted to the namespace.
        QueueNotGranted of Valid,
        /// The API server does not admit a pod of it. The message has its answer.
        PodRefused of Valid,
        /// It asks for gangs of the scheduler, and cannot have them. The message says what is in the way.
        GangRefused of Valid,
        /// The condition before this one is not true yet.
        Waiting of QuotaReserved | DataWarm | Placed,
        /// It is in no queue.
        NoQueue of QuotaReserved,
        /// Its queue has the quota for it.
        Reserved of QuotaReserved,
        /// Its queue uses what it has. The message has the arithmetic.
        QuotaUsed of QuotaReserved,
        /// A ResourceQuota of its namespace is used up. The message has the API server's arithmetic.
        ResourceQuotaUsed of QuotaReserved,
        /// Jobs before it in the queue are waited for.
        NotItsTurn of QuotaReserved,
        /// Its queue is stopped.
        QueueStopped of QuotaReserved,
        /// Kueue has not admitted it.
        KueueDecides of QuotaReserved,
        /// Another job took its quota.
        Preempted of QuotaReserved,
        /// It is suspended.
        Suspended of QuotaReserved,
        /// It reads no dataset.
        NoData of DataWarm,
        /// Enough is cached.
        Cached of DataWarm,
        /// The data is being fetched. The message has percentage and time.
        Warming of DataWarm,
        /// It waited for `warmTimeout` and starts cold.
        WarmTimeout of DataWarm,
        /// All pods that it needs are bound.
        Bound of Placed,
        /// Its pods are being bound.
        Binding of Placed,
        /// No nodes have room for all of it now. The message has the arithmetic.
        NoRoom of Placed,
        /// All nodes together are too small for it.
        LargerThanTheCluster of Placed,
        /// Pods were not bound in time, and it is planned anew.
        NotBoundInTime of Placed,
        /// Its success rule is met.
        Succeeded of Complete,
        /// Its success rule is not met yet.
        NotDone of Complete,
        /// It has not failed.
        NotFailed of Failed,
        /// More pods crashed than `maxCrashes`.
        CrashedTooOften of Failed,
        /// It ran for `activeDeadline`.
        DeadlineExceeded of Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_as_it_was_written_and_belongs_to_a_condition() {
        for reason in JobReason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(*reason));
            assert!(!reason.conditions().is_empty());
        }
        for kind in JobConditionKind::ALL {
            assert!(JobReason::ALL.iter().any(|reason| reason.conditions().contains(kind)), "{kind} has no reason");
        }
        assert!("Listed".parse::<JobReason>().is_err(), "a reason of Datasets");
    }
}
