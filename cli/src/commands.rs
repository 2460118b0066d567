//! The sub-commands, one file each.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod clusters;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod example;
pub(crate) mod explain;
pub(crate) mod import;
pub(crate) mod job;
pub(crate) mod mount;
pub(crate) mod mounted_check;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod quickstart;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod top;
pub(crate) mod ui;
pub(crate) mod umount;
pub(crate) mod verify;
pub(crate) mod version;
pub(crate) mod warm;
