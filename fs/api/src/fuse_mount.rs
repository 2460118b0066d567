//! Makes FUSE mounts whose connection another process can serve: as root, with mount(2).

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::mountinfo::source_of;

/// How long the kernel may take to send its first request.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel requires a buffer for the largest possible request on every read.
const REQUEST_BYTES: usize = 1 << 20;

/// Longer dataset names are cut in the source of a mount.
const NAME_CHARS: usize = 64;

/// The operation code of FUSE_INIT, in the second word of a request.
const FUSE_INIT: u32 = 26;

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FuseMountError {
    /// A system call failed.
    #[error("{what} the mount")]
    Io {
        /// The failed step.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The kernel sent no INIT request; the mount is gone again.
    #[error("the kernel did not start the FUSE connection: {0}")]
    NoInit(&'static str),
}

/// Mounts at the folder `path`, shows `dataset` as the source, and reads the kernel's first request. Only a process of
/// the user `uid` may answer requests. The mount's connection ends when the last descriptor of it closes.
pub fn fuse_mount(path: &Path, dataset: &str, uid: u32) -> Result<(OwnedFd, Vec<u8>), FuseMountError> {
    let failed = |what, source| FuseMountError::Io { what, source };
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| failed("open /dev/fuse for", errno.into()))?;
    let options =
        format!("fd={},rootmode=40555,user_id={uid},group_id={uid},allow_other,default_permissions", fd.as_raw_fd(),);
    let options = CString::new(options).map_err(|error| failed("mount", error.into()))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    let name: String = dataset.chars().take(NAME_CHARS).collect();
    rustix::mount::mount(source_of(&name), path, "fuse", flags, options.as_c_str())
        .map_err(|errno| failed("mount", errno.into()))?;
    match read_init(&fd) {
        Ok(init) => Ok((fd, init)),
        Err(what) => {
            drop(fd);
            let _ = rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
            Err(FuseMountError::NoInit(what))
        }
    }
}

fn read_init(fd: &OwnedFd) -> Result<Vec<u8>, &'static str> {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let within = Timespec::try_from(INIT_TIMEOUT).map_err(|_| "the timeout is out of range")?;
    match rustix::event::poll(&mut polled, Some(&within)) {
        Ok(ready) if ready > 0 => {}
        _ => return Err("it sent no request"),
    }
    let device = fd.as_fd().try_clone_to_owned().map_err(|_| "the process has no descriptor left")?;
    let mut request = vec![0; REQUEST_BYTES];
    let length = File::from(device).read(&mut request).map_err(|_| "its first request cannot be read")?;
    request.truncate(length);
    let operation = request.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes);
    if operation == Some(FUSE_INIT) { Ok(request) } else { Err("its first request is not INIT") }
}
