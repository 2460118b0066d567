//! The ioctls of a mount: start warming, and accept a part of a list of files to warm.
#![expect(unsafe_code, reason = "this ioctl has no safe wrapper")]

use std::fs::File;
use std::io;

use larder_cachenode::warm::list_part::PART_BYTES;
use larder_cachenode::{WARM_IOCTL, WARM_LIST_IOCTL, WarmListPart};

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
