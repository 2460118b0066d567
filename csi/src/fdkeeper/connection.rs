//! A FUSE connection and everything that is needed to serve it again.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_daemon_api::handover::is_alive;
use larder_daemon_api::v1;

use crate::mount_id::MountId;

/// A FUSE connection and everything that is needed to serve it again.
#[derive(Debug)]
pub struct Connection {
    /// Its mount.
    pub mount: MountId,
    /// The device.
    pub fd: OwnedFd,
    /// Where larderd keeps the requests that it has taken and not answered.
    pub memory: OwnedFd,
    /// The kernel's INIT request.
    pub init: Vec<u8>,
    dataset: Mutex<v1::Dataset>,
}

impl Connection {
    /// A connection that serves `dataset`, with its credentials.
    pub fn new(mount: MountId, fd: OwnedFd, memory: OwnedFd, init: Vec<u8>, dataset: v1::Dataset) -> Self {
        Self { mount, fd, memory, init, dataset: Mutex::new(dataset) }
    }

    /// False once the kernel has ended it.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.fd)
    }

    /// The credentials with which its dataset is read.
    pub fn credentials(&self) -> Option<v1::Credentials> {
        self.dataset().credentials.clone()
    }

    /// Replaces the credentials. False: they are the same.
    pub(crate) fn renew(&self, credentials: Option<v1::Credentials>) -> bool {
        let mut dataset = self.dataset();
        let differ = dataset.credentials != credentials;
        dataset.credentials = credentials;
        differ
    }

    pub(crate) fn to_wire(&self, request: u64) -> v1::Connection {
        let (mount, dataset) = (self.mount.to_string(), Some(self.dataset().clone()));
        v1::Connection { mount, dataset, init: self.init.clone(), request }
    }

    fn dataset(&self) -> MutexGuard<'_, v1::Dataset> {
        self.dataset.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
