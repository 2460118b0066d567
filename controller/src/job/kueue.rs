//! Jobs in queues of Kueue's: it decides which of them start, and Larder does with them what Kueue's own integrations do with a Job.
//!
//! The cast: [`names`] and [`priority`] are Kueue's; [`wanted`] makes the Workload of a job; [`workload`] reads it; [`decide`] turns
//! it into the [`Verdict`](crate::job::queue::Verdict) that the machine also gets from [`crate::job::queue`], with the writes that
//! Kueue waits for (`status`); [`places`] are where admitted pods may go. `usage` counts pods, `words` has the sentences.
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
//! - An ended job's Workload is `Finished`; that frees its quota. Whoever makes a Workload takes the finalizer off: when it is
//!   finished, when it is deleted and nothing runs, and when its job is gone.
//!
//! A Workload that no longer fits is deleted and made again once nothing runs: a role was admitted with fewer pods than `min` is now.
//! Fewer `replicas` give quota back; more are asked for with the next admission, after an eviction or `spec.suspend`.
//!
//! # What the loop does
//! 1. It keeps every Workload for which [`workload::workload`] returns one, in a `Store` of its own: the AdmissionChecks of
//!    [`crate::kueue`] forget Workloads without checks. An event of one leads to the job of its name (`belongs_to`); if there is no
//!    job with the owner's uid, or it has no queue of Kueue's any more, [`decide::abandon`] is its next write.
//! 2. It follows WorkloadPriorityClasses and PriorityClasses as [`priority::Classes`]. Before Workloads, flavors and classes are listed,
//!    it decides nothing about such a job and makes none of its pods. It says so of a job in a cluster without Kueue.
//! 3. For a job with `Queueing::Kueue`, no pass of [`crate::job::queue`] sees it as waiting; its pods use room like any others. It
//!    renders a pod of each role with `Place::default()` and makes [`wanted::Wanted`] and [`decide::decide`] of that, whenever job,
//!    Workload, flavors or pods change. The verdict goes into the next step.
//! 4. `Verdict::Start` names no nodes. Unless a place has gates, the loop adds [`places::confine`] to each role's `Places`, plans the
//!    gang, and fills in the nodes; if there are none, the verdict of this step is a `Wait` with the shortage. Places with gates get no
//!    plan, and no PodGroup: Kueue chooses their nodes.
//! 5. Pods are rendered with `Decision::places`, by role, with the planned node added. With `None`, no pod is made in this step.
//! 6. Writes are executed as they are. One that the API server refuses because the Workload has changed (409) is nothing: the event
//!    of that change leads to another decision. Kueue's webhook may be away: others are tried again like any write.
//!
//! Where Kueue's pod integration is on and a namespace has a LocalQueue `default`, or `manageJobsWithoutQueueName` is set, Kueue must
//! know that the pods of a TrainingJob are not its own: `integrations.externalFrameworks: [TrainingJob.v1alpha1.larder.dev]`.

pub mod decide;
pub mod names;
pub mod places;
pub mod priority;
mod status;
mod usage;
pub mod wanted;
pub mod words;
pub mod workload;

#[cfg(test)]
mod tests;
