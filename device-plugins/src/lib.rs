//! `larder-devices`: one process per node that offers GPUs and HCAs to the kubelet.
//!
//! The cast: [`machine`] is what a node has; [`inventory`] reads it from sysfs, and [`nvml`] its GPUs. [`config`] says which
//! resources are made of it, and [`resource`] makes them; [`health`] says which devices are in service. A [`view`] is all of that at
//! one moment, and [`state`] is the one task that makes views. [`plugin`] offers them to the kubelet: a [`grant`] is what a container
//! gets, [`cdi`] is how it gets HCAs, [`prefer`] chooses devices that are near each other, and [`instance`] says which of two
//! processes registers. [`dra`] offers those to the scheduler that the configuration says. [`limits`] and [`nri`] limit what
//! containers do with HCAs. [`node`] tells Kubernetes of the devices, and [`admin`] people, with a [`report`] and the [`usage`] of what
//! is limited. Several of them share `socket`, where the kubelet calls us, `pace`, which says when a failed request is tried again, and
//! `whole_file`, which writes what must survive a crash.
//!
//! Invariant: whatever talks to others reads the newest view and decides nothing about devices.

pub mod admin;
pub mod cdi;
pub mod config;
pub mod dra;
pub mod grant;
pub mod health;
pub mod instance;
pub mod inventory;
pub mod limits;
pub mod machine;
pub mod names;
pub mod node;
pub mod nri;
pub mod nvml;
mod pace;
pub mod plugin;
pub mod prefer;
pub mod report;
pub mod resource;
pub mod run;
pub mod state;
pub mod usage;
pub mod view;
