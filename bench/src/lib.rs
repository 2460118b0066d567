//! Benchmarks of every part of Larder. No other program links them.
//!
//! The cast: [`systems`] are Larder and its peers; [`peers`], [`meta`], [`fio`], [`loader`] and [`mlperf`] measure them
//! [side by side](side_by_side). [`peers_net`] measures reads from another node, [`spread`] a large file that several
//! nodes read at once, [`imports`] imports of generated objects and of folders, [`far_origin`] a cold epoch and a
//! warm-up with an origin that is far away, [`plan`] reads with a plan, [`sync`] copies to another S3 server.
//! [`outage`], [`restart`] and [`memory`] measure a whole [`node`]. [`controller`] measures larder-controller at scale,
//! [`jobs`] its training jobs, [`extender`] the scheduler extender, and [`devices`] the device plugin. `reader` is the
//! process that reads, `ceiling` reads the objects without any filesystem, `mount_stats` reads a mount's statistics,
//! and `silence` keeps an S3 server from answering.
//!
//! Invariant: every figure is counted or timed, never derived from an expected value.

mod ceiling;
pub mod controller;
pub mod devices;
pub mod extender;
pub mod far_origin;
pub mod fio;
pub mod imports;
pub mod jobs;
mod kubernetes;
pub mod loader;
pub mod memory;
pub mod meta;
pub mod mlperf;
mod mount_stats;
pub mod node;
pub mod outage;
pub mod peers;
pub mod peers_net;
pub mod plan;
mod reader;
pub mod restart;
pub mod side_by_side;
mod silence;
pub mod spread;
pub mod sync;
pub mod systems;
