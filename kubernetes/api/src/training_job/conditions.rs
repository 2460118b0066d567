//! The conditions of a TrainingJob and the closed list of their reasons.
//!
//! A reason is for programs and for the column WHY. The message beside it is for users, and has the numbers.

use crate::vocabulary::{conditions, reasons};

conditions! {
    /// The type of a condition of a TrainingJob.
    pub enum JobConditionKind {
        /// The JobType, the datasets and the Queue exist and are granted, and the API server would admit the pods.
        Valid,
        /// The job's queue has quota for its pods.
        QuotaReserved,
        /// Enough of the datasets is cached, or the job has waited long enough.
        DataWarm,
        /// Every pod that the job needs has a node.
        Placed,
        /// The job succeeded. Jobs that have not ended have no such condition.
        Complete,
        /// The job failed. Jobs that have not ended have no such condition.
        Failed,
    }
}

reasons! {
    /// Why a condition of a TrainingJob has its status.
    pub enum JobReason of JobConditionKind {
        /// The job is valid.
        Accepted of Valid,
        /// The spec has a value that the schema accepts and the controller rejects.
        InvalidSpec of Valid,
        /// There is no such JobType.
        TypeMissing of Valid,
        /// The JobType itself is not valid.
        TypeInvalid of Valid,
        /// The roles do not match the JobType: a role is unknown, missing, too large or not elastic, or all roles
        /// together have more pods than files and variables can name.
        RolesUnfit of Valid,
        /// A Dataset does not exist, or is not granted to the namespace.
        DatasetNotGranted of Valid,
        /// The Queue does not exist, or is not granted to the namespace.
        QueueNotGranted of Valid,
        /// There is no Cluster of a name in spec.clusters.
        ClusterMissing of Valid,
        /// The API server does not admit a pod of the job. The message has its answer.
        PodRefused of Valid,
        /// The job requests native gangs and cannot have them. The message says what prevents them.
        GangRefused of Valid,
        /// The condition before this one is not true yet.
        Waiting of QuotaReserved | DataWarm | Placed,
        /// The job is in no queue, or its queue does not exist any more. Its pods count in none.
        NoQueue of QuotaReserved,
        /// The queue has quota for the job.
        Reserved of QuotaReserved,
        /// The queue's quota is used up. The message has the arithmetic.
        QuotaUsed of QuotaReserved,
        /// A ResourceQuota of the namespace is used up. The message has the API server's arithmetic.
        ResourceQuotaUsed of QuotaReserved,
        /// Jobs before it in the queue come first.
        NotItsTurn of QuotaReserved,
        /// The queue is stopped.
        QueueStopped of QuotaReserved,
        /// Kueue has not admitted the job.
        KueueDecides of QuotaReserved,
        /// Another job preempted the job.
        Preempted of QuotaReserved,
        /// The job is suspended.
        Suspended of QuotaReserved,
        /// The job reads no dataset.
        NoData of DataWarm,
        /// Enough is cached.
        Cached of DataWarm,
        /// The data is being fetched. The message has percentage and time.
        Warming of DataWarm,
        /// The job has waited for `warmTimeout` and starts with cold data.
        WarmTimeout of DataWarm,
        /// All pods that the job needs are bound.
        Bound of Placed,
        /// The pods are being bound.
        Binding of Placed,
        /// The nodes have no room for all of the job now. The message has the arithmetic.
        NoRoom of Placed,
        /// All nodes together are too small for the job.
        LargerThanTheCluster of Placed,
        /// The job fits in none of its clusters now. The message says why for each.
        NoCluster of Placed,
        /// Pods were not bound in time, and the job is planned again.
        NotBoundInTime of Placed,
        /// The success rule of the JobType is met.
        Succeeded of Complete,
        /// More pods crashed than `maxCrashes`.
        CrashedTooOften of Failed,
        /// A pod ended with an exit code for which one of `restart.rules` fails the job.
        FailedByRule of Failed,
        /// The job is a sweep of which too many trials have failed.
        TrialsFailed of Failed,
        /// The job has run for `activeDeadline`.
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
