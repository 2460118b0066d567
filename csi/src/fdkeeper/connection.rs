//! A FUSE connection and everything that is needed to serve it again.

use std::os::fd::OwnedFd;

use larder_daemon_api::v1;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::mount_id::MountId;

/// A FUSE connection and everything that is needed to serve it again.
#[derive(Debug)]
pub struct Connection {
    /// Its mount.
    pub mount: MountId,
    /// The device.
    pub fd: OwnedFd,
    /// The dataset that it serves, with credentials, as larderd was given it.
    pub dataset: v1::Dataset,
    /// The kernel's INIT request.
    pub init: Vec<u8>,
}

impl Connection {
    /// False once the kernel has ended it.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.fd)
    }

    pub(crate) fn to_wire(&self) -> v1::Connection {
        v1::Connection { mount: self.mount.to_string(), dataset: Some(self.dataset.clone()), init: self.init.clone() }
    }
}

/// False once the kernel has ended the connection: it was unmounted everywhere, or aborted.
pub(crate) fn is_alive(fd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}
