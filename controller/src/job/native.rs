//! Gangs of kube-scheduler: PodGroups of `scheduling.k8s.io/v1beta1` (Kubernetes 1.37, where it is turned on).
//!
//! The cast: [`choice`] says which jobs get them, [`groups`] makes and removes the PodGroups of a job, [`words`] says what the
//! scheduler says of them.
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
//! # What the loop does
//! 1. With the API's groups, it asks for the resources of `scheduling.k8s.io/v1beta1` now and then; [`choice::is_served`] is the
//!    answer. [`choice::choose`] says who plans a job. If that changes while it runs, pods that are there keep their groups, and those
//!    that are made later are planned by the other.
//! 2. For a native job it sets `Terms::gang_timeout` to `None`, drops the nodes of `Verdict::Start` and answers
//!    [`crate::job::machine::unplaced`] with pods without nodes. It follows the PodGroups that have the job's label, and after each
//!    step executes [`groups::changes`] before the actions. The pods of an attempt have `Place::group` = [`groups::of_attempt`].
//! 3. [`words::waits_for`] is added to the sentence of a job that starts.
//! 4. A pod in the API server's answer that has lost its group ([`groups::is_kept`]) was made where the feature is off: the loop
//!    takes native gangs for not served from then on, and starts the job again with a plan.

pub mod choice;
pub mod groups;
pub mod words;

#[cfg(test)]
mod tests;
