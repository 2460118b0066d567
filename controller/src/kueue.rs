//! Jobs in the queues of Kueue start once their data is there, or when their deadline has come.
//!
//! Kueue reserves quota for a Workload and asks the AdmissionChecks of its ClusterQueue. For those of `larder.dev/data`
//! the controller answers. From the reservation on, a Workload is a warm request: each of its datasets is warmed on as many
//! nodes as its pods can use, by the same promises and jobs that `spec.nodes` makes. With an eviction or the end the
//! wish is gone, and so are they. [`check`] turns how far the nodes are into the state that Kueue reads.
//!
//! A cluster without Kueue has none of this: [`discovery`] looks for its API now and then.

pub mod check;
pub mod discovery;
pub mod known;
pub mod objects;
pub mod read;
