//! The wire formats of `larder-devices`: the messages of NRI 0.12, which containerd exchanges with NRI plugins, and the report of
//! a node's devices, which `larder devices` reads.
//!
//! The messages of NRI are generated. NRI uses ttrpc, so no gRPC service is generated. `tests/regenerate.rs` fails if the
//! checked-in code differs from what `proto/` generates.

pub mod report;

/// NRI, package `nri.pkg.api.v1alpha1`.
#[path = "gen/nri.pkg.api.v1alpha1.rs"]
#[rustfmt::skip]
pub mod nri;
