//! Jobs in queues of Kueue. Kueue decides which of them start, and Larder does for them what Kueue's own integrations
//! do for a Job.
//!
//! Parts:
//! - [`names`] and [`priority`] follow Kueue's conventions.
//! - [`wanted`] builds the Workload of a job; [`JobWorkload`](crate::kueue::workload::JobWorkload) is the reduced form
//!   that decisions need.
//! - [`decide`] turns the Workload into a [`Verdict`](crate::jobs::queue::Verdict), the type that
//!   [`crate::jobs::queue`] also returns, and into the writes that Kueue waits for (`status`).
//! - `slices` sorts the Workloads of a job that grows.
//! - [`moved`] decides about a job that MultiKueue runs in another cluster, and `prebuilt` is about the Workload of such a
//!   job in that cluster.
//! - [`places`] determines where admitted pods may run, `usage` counts pods, `messages` builds the sentences.
//!
//! # The contract (`pkg/controller/jobframework` of Kueue 0.19)
//! - A job has one Workload, which it controls, with a pod set per role and with Kueue's finalizer. Without quota, the
//!   Workload's spec follows the job's. With quota, its pods and its queue are fixed.
//! - Kueue accepts at most 8 pod sets, and `minCount` in only one of them: the role with the most pods above the
//!   minimum gets it. The other roles are admitted whole.
//! - The job may run while the Workload is `Admitted`, active, and neither evicted, deleted nor finished. A pod set may
//!   be admitted with fewer pods. Flavors, and then checks, add labels, annotations, node labels and tolerations. If
//!   these contradict each other, the Workload is finished as `FailedToStart`.
//! - After `Evicted`, the pods are terminated. Only when all are gone is the quota given back (`admission` null,
//!   `QuotaReserved` and `Admitted` False, `Requeued` True after a preemption or a loss of nodes). Kueue counts the
//!   pods until then, and queues the job again afterwards.
//! - `PodsReady` starts and stops Kueue's timeouts, if any are configured. `reclaimablePods` may only grow while the
//!   job has quota. A pod is therefore counted there only if it is never recreated: it was permanently given up, or it
//!   ended in a job that replaces single pods.
//! - The Workload of an ended job is `Finished` once none of its pods runs, which frees its quota. The creator of a
//!   Workload removes the finalizer: when the Workload is finished, when it is deleted and no pod runs, and when its
//!   job was deleted.
//!
//! A Workload with the annotation `workload-slice-replacement-for` replaces another one of the same job: Kueue counts
//! only the difference, and finishes the replaced one (`pkg/workloadslicing`).
//!
//! A Workload that no longer matches the job is deleted and recreated once no pod runs: a role was admitted with fewer
//! pods than the current `min`. Lower `replicas` give quota back. Higher `replicas` take effect at the next admission,
//! after an eviction or `spec.suspend`, and in an elastic job at once, by a Workload that replaces the first.
//!
//! # In a round
//! Until Workloads, flavors and classes are listed, nothing is decided about such a job, and none of its pods is
//! created. The passes of [`crate::jobs::queue`] ignore it, but its existing pods use room like any other pods. Kueue's
//! verdict names no nodes. They are planned in the room that the queues leave, within [`places::confine`]; if there is
//! no room, the verdict becomes a wait. Places with scheduling gates get neither a plan nor a PodGroup, because Kueue
//! chooses their nodes.
//!
//! If the API server rejects a write because the Workload has changed (409), the write is dropped, and the next
//! decision replaces it. Workloads whose job was deleted, or has left Kueue's queues, are [abandoned](decide::abandon).
//!
//! If Kueue's pod integration is on and a namespace has a LocalQueue `default`, or if `manageJobsWithoutQueueName` is
//! set, Kueue must know that the pods of a TrainingJob belong to another controller: `integrations.externalFrameworks:
//! [TrainingJob.v1alpha1.larder.dev]`.

pub mod decide;
pub mod messages;
pub mod moved;
pub mod names;
pub mod places;
mod prebuilt;
pub mod priority;
mod slices;
mod status;
mod usage;
pub mod wanted;

#[cfg(test)]
mod tests;
