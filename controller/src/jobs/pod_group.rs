//! Gang scheduling by kube-scheduler: PodGroups of `scheduling.k8s.io/v1beta1` (Kubernetes 1.37, off by default).
//!
//! Parts: [`choice`] decides which jobs use PodGroups, [`groups`] creates and deletes the PodGroups of a job, [`known`]
//! reads them, and [`messages`] renders the scheduler's messages about them.
//!
//! # One PodGroup for each attempt
//! All pods of an attempt belong to one group, `JOB-ATTEMPT`. The scheduler counts every pod of a group that has a node
//! towards its `minCount`, including terminating pods, and never reverts a condition of a group. With a single group
//! per job, pods of an earlier attempt that are stuck on a dead node would count for the gang that replaces them, and
//! the new gang would start incomplete. A restarted gang therefore gets a new group, to which earlier conditions do not
//! apply.
//!
//! `minCount` is the number of pods of the attempt that the job needs: for each role its `min`, less the pods of other
//! attempts. A worker that is replaced alone, and pods by which a job grows, are not needed together, so an attempt
//! with fewer than two needed pods has no group. A pod that is lost or has succeeded is never recreated in the same
//! attempt, so `minCount` is lowered by it: other pods without a node would otherwise wait for a pod that no longer
//! exists. `minCount` is never raised.
//!
//! # In a round
//! [`choice::choose`] decides who plans a job. If the planner changes while the job runs, existing pods keep their
//! groups, and the other planner places new pods. The slots of a native job contain no nodes: the plan that its queue
//! makes only determines whether there is room. If pods are not bound within five minutes, or within a longer
//! `gang.timeout`, they are not planned a second time. The job continues without them, or gives its room back. After
//! each step, [`groups::changes`] is written before the pods.
//!
//! An API server may serve PodGroups but silently drop the group of a pod. The first pod that is returned without its
//! group turns off native gangs until the controller restarts. Such pods are bound one by one, and pods that are not
//! bound in time are planned like any others.

pub mod choice;
pub mod groups;
pub mod known;
pub mod messages;

#[cfg(test)]
mod tests;
