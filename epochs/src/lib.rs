//! The quickstart, the epochs benchmark and the simulation that users run, and the parts that the other benchmarks
//! share.
//!
//! The cast: [`tree`] makes files with the sizes of a training set; [`epochs`] reads a folder the way training does, in
//! the order that [`order`] gives, and checks every byte; [`quickstart`] puts an embedded S3, a mount and the readers
//! together; [`sim`] computes hit ratios without a mount. [`fuse_requests`] counts the kernel's requests to a daemon,
//! [`kernel_caches`] empties the kernel's caches, [`process`] reads the resources that processes use, [`figures`] are
//! statistics, [`table`] makes text tables, and [`plot`] draws.
//!
//! Invariant: every figure is counted or timed, never derived from an expected value.

pub mod epochs;
pub mod figures;
pub mod fuse_requests;
pub mod kernel_caches;
pub mod order;
pub mod plot;
pub mod process;
pub mod quickstart;
pub mod sim;
pub mod table;
pub mod tree;
