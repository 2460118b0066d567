//! The benchmarks as commands, one file each.

pub(crate) mod controller;
pub(crate) mod devices;
pub(crate) mod extender;
pub(crate) mod far_origin;
pub(crate) mod fio;
pub(crate) mod import;
pub(crate) mod jobs;
pub(crate) mod loader;
mod measure;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod mlperf;
pub(crate) mod outage;
pub(crate) mod peers;
pub(crate) mod peers_net;
pub(crate) mod plan;
mod program;
pub(crate) mod restart;
pub(crate) mod spread;
mod steps;
pub(crate) mod sync;
