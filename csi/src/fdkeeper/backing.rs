//! Registers files with the kernel, which then reads them by itself (FUSE passthrough, Linux 6.9).
#![expect(unsafe_code, reason = "this ioctl has no safe wrapper")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// `struct fuse_backing_map`: the descriptor of a file, and fields that must be zero.
#[repr(C)]
#[derive(Debug)]
struct BackingMap {
    fd: RawFd,
    flags: u32,
    padding: u64,
}

// SAFETY: FUSE_DEV_IOC_BACKING_OPEN, `_IOW(229, 1, struct fuse_backing_map)`, reads that struct, which `self` is, and
// writes no memory. Its result is the number.
unsafe impl Ioctl for BackingMap {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(229, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> io::Result<u32> {
        u32::try_from(number).map_err(|_| io::Errno::RANGE)
    }
}

/// Registers a file on a FUSE connection. Returns its number, under which the kernel holds the file until the
/// connection ends. Errors: this process lacks CAP_SYS_ADMIN, or the kernel or the connection does not allow it.
pub(super) fn register(fuse: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: as above; another kind of descriptor returns ENOTTY.
    unsafe { ioctl(fuse, map) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_no_connection_takes_no_file() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(register(file.as_fd(), file.as_fd()), Err(io::Errno::NOTTY));
    }
}
