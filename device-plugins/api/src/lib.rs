//! The messages of NRI 0.12, generated: what containerd says to NRI plugins. NRI speaks ttrpc, so no gRPC service is
//! generated. `tests/regenerate.rs` fails if the checked-in code differs from what `proto/` generates.

/// NRI, package `nri.pkg.api.v1alpha1`.
#[path = "gen/nri.pkg.api.v1alpha1.rs"]
#[rustfmt::skip]
pub mod nri;
