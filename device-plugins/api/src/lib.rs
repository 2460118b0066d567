//! The wire protocols of the device plugins, generated: what the kubelet of Kubernetes 1.36 says to device plugins and to DRA
//! drivers and tells about its pods, and what containerd says to NRI plugins. `tests/regenerate.rs` fails if the checked-in
//! code differs from what `proto/` generates.

/// Device plugins, package `v1beta1`.
#[path = "gen/v1beta1.rs"]
#[rustfmt::skip]
pub mod deviceplugin;

/// The devices of pods, package `v1`.
#[path = "gen/v1.rs"]
#[rustfmt::skip]
pub mod podresources;

/// Dynamic resource allocation, package `k8s.io.kubelet.pkg.apis.dra.v1`.
#[path = "gen/k8s.io.kubelet.pkg.apis.dra.v1.rs"]
#[rustfmt::skip]
pub mod dra;

/// The health of devices that were given through claims, package `v1alpha1`.
#[path = "gen/v1alpha1.rs"]
#[rustfmt::skip]
pub mod dra_health;

/// NRI 0.12, package `nri.pkg.api.v1alpha1`: the messages alone, since NRI speaks ttrpc.
#[path = "gen/nri.pkg.api.v1alpha1.rs"]
#[rustfmt::skip]
pub mod nri;
