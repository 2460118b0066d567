//! Benchmarks, and the quickstart that shows Larder at work.
//!
//! The cast: [`tree`] makes files with the sizes of a training set; [`epochs`] reads a folder the way training does, in
//! the order that [`order`] gives, and checks every byte; [`quickstart`] puts an embedded S3, a mount and the readers
//! together; [`sim`] computes hit ratios without a mount. [`systems`] are Larder and its peers; [`peers`], [`meta`] and
//! [`fio`] measure them [side by side](side_by_side). [`peers_net`] measures reads from another node, [`fuse_requests`]
//! counts the kernel's requests to a daemon, [`controller`] measures larder-controller at size and
//! [`jobs`] its training jobs, [`extender`] the scheduler's extender, [`devices`] the device plugin, [`imports`] makes
//! snapshots of made-up objects and of folders, [`kernel_caches`] empties the kernel's caches, and [`plot`] draws.
//!
//! Invariant: a figure is counted or timed, never computed from what it should be.

pub mod controller;
pub mod devices;
pub mod epochs;
pub mod extender;
mod figures;
pub mod fio;
pub mod fuse_requests;
pub mod imports;
pub mod jobs;
pub mod kernel_caches;
mod kubernetes;
pub mod meta;
pub mod order;
pub mod peers;
pub mod peers_net;
pub mod plot;
pub mod quickstart;
pub mod side_by_side;
pub mod sim;
pub mod systems;
pub mod tree;
