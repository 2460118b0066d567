//! Jobs in other clusters: where each goes, and what happens to it there.
//!
//! This cluster is the *home* of a job whose `spec.clusters` names others. [`choice`] compares the clusters by their
//! [`summary`], and [`elsewhere`] decides about one job. A [`link`] to each cluster copies the job there and reports what
//! becomes of it; over there it is an ordinary job, except that its controller ends its pods while the home's lease is too
//! old ([`fence`]). [`nominate`] is about jobs that MultiKueue moves instead. [`known`] keeps everything known about
//! clusters, and [`objects`] are their reduced forms.
//!
//! Only [`link`] calls the API. All other modules are pure: they read neither a clock nor the API.
//!
//! Invariants: the cluster of a job is in its status before anything is written to that cluster. A job is chosen another
//! cluster only if the one that it leaves either says that it has no copy or cannot let its copy run: a lease has no times
//! but those that the home has read there, so neither the difference of two clocks nor a request that arrives late lets a
//! copy run longer.

pub mod choice;
pub mod desired;
pub mod elsewhere;
pub mod fence;
pub mod known;
pub mod link;
pub mod nominate;
pub mod objects;
pub mod summary;
