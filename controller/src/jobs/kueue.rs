//! Jobs in queues of Kueue: Kueue decides which of them start, and Larder does for them what Kueue's own integrations do for a Job.
//!
//! The cast: [`names`] and [`priority`] are Kueue's; [`wanted`] makes the Workload of a job; [`workload`] is what decisions need of it, and [`mod@read`] reads that; [`decide`] turns
//! it into the [`Verdict`](crate::jobs::queue::Verdict) that the machine also gets from [`crate::jobs::queue`], with the writes that
//! Kueue waits for (`status`); [`places`] are where admitted pods may go. `usage` counts pods, `messages` has the sentences.
//!
//! # The contract (that of Kueue 0.14's `pkg/controller/jobframework`)
//! - A job has one Workload, controlled by it, with a pod set for each role and Kueue's finalizer. Without quota its spec follows the
//!   job; with quota its pods and queue are fixed.
//! - Kueue takes 8 pod sets at most, and `minCount` in one of them: the role with most surplus. Others are admitted whole.
//! - The job may run while the Workload is `Admitted`, active, and neither evicted, deleted nor finished. A pod set may be admitted
//!   with fewer pods. Flavors, then checks, add labels, annotations, node labels and tolerations; what contradicts finishes the
//!   Workload as `FailedToStart`.
//! - After `Evicted` the pods end. Only when all are gone is the quota given back (`admission` null, `QuotaReserved` and `Admitted`
//!   False, `Requeued` True after a preemption): Kueue counts them until then, and queues the job again after.
//! - `PodsReady` starts and ends Kueue's timeouts, if it has any. `reclaimablePods` only grow while there is quota, so a pod is among
//!   them only if it is never made again: it was given up for good, or it has ended in a job that replaces single pods.
//! - An ended job's Workload is `Finished` once nothing runs; that frees its quota. Whoever makes a Workload takes the finalizer off: when it is
//!   finished, when it is deleted and nothing runs, and when its job is gone.
//!
//! A Workload that no longer fits is deleted and made again once nothing runs: a role was admitted with fewer pods than `min` is now.
//! Fewer `replicas` give quota back; more are asked for with the next admission, after an eviction or `spec.suspend`.
//!
//! # In a round
//! Before Workloads, flavors and classes are listed, nothing is decided about such a job, and none of its pods is made. No pass of
//! [`crate::jobs::queue`] sees it; the pods that it has use room like any others. Kueue's verdict names no nodes: they are planned in
//! the room that the queues leave, within [`places::confine`], and without room the verdict becomes a wait. Places with gates get
//! neither plan nor PodGroup: Kueue chooses their nodes.
//!
//! A write that the API server refuses because the Workload has changed (409) is nothing: another decision follows. Workloads whose
//! job is gone, or in no queue of Kueue's any longer, are [abandoned](decide::abandon).
//!
//! Where Kueue's pod integration is on and a namespace has a LocalQueue `default`, or `manageJobsWithoutQueueName` is set, Kueue must
//! know that the pods of a TrainingJob are not its own: `integrations.externalFrameworks: [TrainingJob.v1alpha1.larder.dev]`.

pub mod decide;
pub mod messages;
pub mod names;
pub mod places;
pub mod priority;
pub mod read;
mod status;
mod usage;
pub mod wanted;
pub mod workload;

#[cfg(test)]
mod tests;
