//! The kubelet interfaces that Larder's node plugins share.
//!
//! The parts: [`registration`] registers a plugin, [`socket`] listens in the kubelet's folders, and [`atomic_file`]
//! replaces files atomically. [`pluginregistration`], [`deviceplugin`], [`podresources`], [`dra`] and [`dra_health`]
//! are the protocols of Kubernetes 1.36, generated; `tests/regenerate.rs` fails if the checked-in code differs from
//! what `proto/` generates.

#![warn(missing_docs)]

pub mod atomic_file;
pub mod registration;
pub mod socket;

/// The registration of plugins, package `pluginregistration`.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[path = "gen/pluginregistration.rs"]
#[rustfmt::skip]
pub mod pluginregistration;

/// Device plugins, package `v1beta1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[path = "gen/v1beta1.rs"]
#[rustfmt::skip]
pub mod deviceplugin;

/// The pod resources API, which lists the devices of pods; package `v1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[path = "gen/v1.rs"]
#[rustfmt::skip]
pub mod podresources;

/// Dynamic resource allocation, package `k8s.io.kubelet.pkg.apis.dra.v1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[path = "gen/k8s.io.kubelet.pkg.apis.dra.v1.rs"]
#[rustfmt::skip]
pub mod dra;

/// The health of devices that are allocated through claims, package `v1alpha1`.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[path = "gen/v1alpha1.rs"]
#[rustfmt::skip]
pub mod dra_health;
