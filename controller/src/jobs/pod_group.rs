//! Gangs of kube-scheduler: PodGroups of `scheduling.k8s.io/v1beta1` (Kubernetes 1.37, where it is turned on).
//!
//! The cast: [`choice`] says which jobs get them, [`groups`] makes and removes the PodGroups of a job, [`known`] reads them, [`messages`]
//! says what the scheduler says of them.
//!
//! # One PodGroup for each time that pods are made together
//! All pods of an attempt are in one group, `JOB-ATTEMPT`. The scheduler counts every pod of a group that has a node towards its
//! `minCount`, also one that is ending, and never takes a condition of a group back. With a single group, the pods of an earlier
//! attempt that hang on a dead node would count for the gang that replaces them, and part of it would start. So a gang that starts
//! again has another group, and what was said of the first is not about it.
//!
//! `minCount` is the number of pods of the attempt that the job needs: for each role its `min`, less those of other attempts. A
//! worker that is replaced alone, and pods by which a job grows, are needed by nobody or one by one: an attempt of which fewer than
//! two are needed has no group. A pod that is lost or has ended well is never made again under the number of its attempt, so `minCount`
//! is lowered by it: others that have no node yet would wait for one that is gone. It is never raised.
//!
//! # In a round
//! [`choice::choose`] says who plans a job. If that changes while it runs, pods that are there keep their groups, and those that are
//! made later are planned by the other. A native job has no nodes in its slots: the plan that its queue makes only
//! says whether there is room. If pods are not bound in five minutes, or in a longer `gang.timeout`, they are not planned again: the
//! job does without them, or gives its room back. After each step [`groups::changes`] is written before the pods.
//!
//! A cluster may list PodGroups whose API server drops the group of a pod, and says nothing. The first pod that comes back without
//! its group ends native gangs until the controller starts again: such pods are bound one by one, and those that are not in time
//! are planned like any others.

pub mod choice;
pub mod groups;
pub mod known;
pub mod messages;

#[cfg(test)]
mod tests;
