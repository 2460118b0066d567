//! A FUSE connection, with all data that larderd needs to serve it after a restart.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use larder_daemon_api::handover::is_alive;
use larder_daemon_api::mountinfo::Device;
use larder_daemon_api::v1;

use crate::mount_id::MountId;

/// A FUSE connection, with all data that larderd needs to serve it after a restart.
#[derive(Debug)]
pub struct Connection {
    pub mount: MountId,
    /// The FUSE device, from which requests are read.
    pub fd: OwnedFd,
    /// The shared memory in which larderd keeps requests that it has read and not answered.
    pub memory: OwnedFd,
    /// The kernel's INIT request.
    pub init: Vec<u8>,
    /// The file system of the mount, as far as it was seen: somebody may have unmounted it since, but no bind of it.
    pub device: OnceLock<Device>,
    served: Mutex<Served>,
}

/// The dataset that a connection serves.
#[derive(Debug)]
struct Served {
    dataset: v1::Dataset,
    /// True until larderd has confirmed that it uses the newest credentials.
    untold: bool,
}

impl Connection {
    /// A connection that serves `dataset`, with its credentials.
    pub fn new(mount: MountId, fd: OwnedFd, memory: OwnedFd, init: Vec<u8>, dataset: v1::Dataset) -> Self {
        let (device, served) = (OnceLock::new(), Mutex::new(Served { dataset, untold: false }));
        Self { mount, fd, memory, init, device, served }
    }

    /// False once the kernel has ended the connection.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.fd)
    }

    /// The credentials with which the connection's dataset is read.
    pub fn credentials(&self) -> Option<v1::Credentials> {
        self.lock().dataset.credentials.clone()
    }

    /// Replaces the credentials. Returns true if they must be sent to larderd: they are new, or larderd has not
    /// confirmed them.
    pub(crate) fn renew(&self, credentials: &Option<v1::Credentials>) -> bool {
        let mut served = self.lock();
        if served.dataset.credentials != *credentials {
            served.dataset.credentials.clone_from(credentials);
            served.untold = true;
        }
        served.untold
    }

    /// Records that larderd uses these credentials.
    pub(crate) fn told(&self, credentials: &Option<v1::Credentials>) {
        let mut served = self.lock();
        if served.dataset.credentials == *credentials {
            served.untold = false;
        }
    }

    pub(crate) fn to_wire(&self, request: u64) -> v1::Connection {
        let (mount, dataset) = (self.mount.to_string(), Some(self.lock().dataset.clone()));
        v1::Connection { mount, dataset, init: self.init.clone(), request }
    }

    fn lock(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
