//! The CSI driver `csi.larder.dev`: mounts datasets into pods, and keeps their FUSE connections.
//!
//! The cast: [`node`] publishes and unpublishes, [`mounter`] makes mounts, [`fdkeeper`] holds their connections and hands
//! them to larderd, [`records`] remember what is where, [`attributes`], [`secrets`] and [`datasets`] decide what a volume may ask for,
//! [`controller`] keeps the volumes of claims, [`status`] turns errors into codes, [`driver`] runs it all.
//!
//! Invariants: no secret is written to disk, logged or told; nothing outside the kubelet's folder is mounted on or removed;
//! no call asks a FUSE mount anything, so all but a new mount works while larderd is away.

mod admin;
pub mod attributes;
mod authority;
pub mod calls;
pub mod controller;
pub mod daemon;
pub mod datasets;
pub mod driver;
pub mod fdkeeper;
pub mod identity;
mod json_dir;
mod locks;
pub mod mount_id;
pub mod mounter;
pub mod mountinfo;
pub mod node;
pub mod records;
pub mod registration;
pub mod secrets;
mod socket;
pub mod status;
pub mod target_path;

pub use driver::{Config, Driver};
