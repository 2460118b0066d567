//! Jobs in Kueue's queues start once their data is warm, or when their deadline has passed.
//!
//! Kueue reserves quota for a Workload and then waits for the AdmissionChecks of its ClusterQueue. The controller
//! answers the checks of `larder.dev/data`. From the reservation on, a Workload is a warm request: each of its datasets
//! is warmed on as many nodes as its pods can use, through the same promises and jobs that `spec.nodes` causes. After
//! an eviction or at the end of the Workload, the request ends, and the promises and jobs are removed. [`check`]
//! converts the progress on the nodes into the state that Kueue reads.
//!
//! In a cluster without Kueue none of this happens; [`discovery`] polls for its API.

pub mod check;
pub mod discovery;
pub mod known;
pub mod objects;
pub mod read;
mod topology;
pub mod workload;
