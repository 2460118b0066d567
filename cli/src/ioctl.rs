//! The ioctls of a mount: start warming, accept a part of a list of files to warm, and those of plans.
#![expect(unsafe_code, reason = "these ioctls have no safe wrapper")]

use std::ffi::c_void;
use std::fs::File;
use std::io;

use larder_cachenode::warm::list_part::PART_BYTES;
use larder_cachenode::{WARM_IOCTL, WARM_LIST_IOCTL, WarmListPart};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// An ioctl that reads bytes and returns a number.
struct Pass<'a> {
    opcode: Opcode,
    bytes: &'a [u8],
}

// SAFETY: `plan` makes this for ioctls that read as many bytes as their numbers say, which it checks, and write none.
unsafe impl Ioctl for Pass<'_> {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.bytes.as_ptr().cast_mut().cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        // The call has succeeded, so it is not negative.
        Ok(out.cast_unsigned())
    }
}

/// Starts warming the mount whose `.larder/stats.json` is open as `stats`.
pub(crate) fn start_warming(stats: &File) -> io::Result<()> {
    // SAFETY: the ioctl `_IO('L', 1)` neither reads nor writes our memory.
    let start = unsafe { rustix::ioctl::NoArg::<{ WARM_IOCTL }>::new() };
    // SAFETY: as above; any other file system returns ENOTTY.
    unsafe { rustix::ioctl::ioctl(stats, start) }.map_err(Into::into)
}

/// Sends a part of a list to the mount whose `.larder/stats.json` is open as `stats`. [`WARM_LIST_IOCTL`] documents the
/// errors.
pub(crate) fn warm_list(stats: &File, part: &WarmListPart) -> io::Result<()> {
    // SAFETY: the ioctl `_IOW('L', 2, [u8; PART_BYTES])` reads that many bytes of our memory and writes none.
    let hand_over = unsafe { rustix::ioctl::Setter::<{ WARM_LIST_IOCTL }, [u8; PART_BYTES]>::new(part.encode()) };
    // SAFETY: as above; any other file system returns ENOTTY.
    unsafe { rustix::ioctl::ioctl(stats, hand_over) }.map_err(Into::into)
}

/// Sends a command about a plan to the mount of `folder`. Returns how many more files the plan wants.
/// `larder_cachenode::plan::command` documents the errors.
pub(crate) fn plan(folder: &File, opcode: u32, bytes: &[u8]) -> io::Result<u32> {
    let size = (opcode >> 16 & 0x3fff) as usize;
    assert_eq!(bytes.len(), size, "an ioctl has the size that its number says");
    // SAFETY: the ioctl reads these bytes and writes none; any other file system returns ENOTTY.
    unsafe { rustix::ioctl::ioctl(folder, Pass { opcode, bytes }) }.map_err(Into::into)
}
