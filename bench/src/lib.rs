//! Benchmarks of every part of Larder. No other program links them.
//!
//! The cast: [`systems`] are Larder and its peers; [`peers`], [`meta`] and [`fio`] measure them
//! [side by side](side_by_side). [`peers_net`] measures reads from another node, [`imports`] imports of generated
//! objects and of folders, [`controller`] larder-controller at scale, [`jobs`] its training jobs, [`extender`] the
//! scheduler extender, and [`devices`] the device plugin.
//!
//! Invariant: every figure is counted or timed, never derived from an expected value.

pub mod controller;
pub mod devices;
pub mod extender;
pub mod fio;
pub mod imports;
pub mod jobs;
mod kubernetes;
pub mod meta;
pub mod peers;
pub mod peers_net;
pub mod side_by_side;
pub mod systems;
