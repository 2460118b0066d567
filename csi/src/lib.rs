//! The CSI driver `csi.larder.dev`: mounts datasets into pods, and holds their FUSE connections.
//!
//! The parts: [`node`] publishes and unpublishes volumes, [`mounter`] creates mounts, [`fdkeeper`] holds their
//! connections and hands them to larderd, and [`records`] stores the published targets. [`attributes`], [`secrets`],
//! `pod_identity` and [`datasets`] decide what a volume may request. [`startup_taint`] keeps pods off a node on which
//! they cannot mount yet. [`volumes`] stores the volumes of claims, [`status`] maps errors to gRPC codes, and [`driver`]
//! runs everything.
//!
//! Invariants: no secret is written to disk, logged or reported. Nothing outside the kubelet's folder is mounted on or
//! removed. No call sends a request to a FUSE mount, so everything except a new mount works while larderd is not
//! running.

mod admin;
pub mod attributes;
pub mod calls;
pub mod controller;
pub mod daemon;
pub mod datasets;
pub mod driver;
pub mod driver_name;
pub mod fdkeeper;
pub mod identity;
mod json_dir;
mod locks;
pub mod mount_id;
pub mod mounter;
pub mod node;
pub mod node_service;
mod pod_identity;
pub mod records;
pub mod secrets;
pub mod startup_taint;
pub mod status;
pub mod target_path;
pub mod volume_request;
pub mod volumes;

pub use driver::{Config, Driver};
