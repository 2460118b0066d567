//! The one command that a mount takes: start warming.
#![expect(unsafe_code, reason = "an ioctl is a system call that no safe wrapper knows")]

use std::fs::File;
use std::io;

use larder_fs::WARM_IOCTL;

/// Tells the mount behind `stats`, its open `.larder/stats.json`, to start warming.
pub(crate) fn start_warming(stats: &File) -> io::Result<()> {
    // SAFETY: the ioctl `_IO('L', 1)` neither reads nor writes memory of ours.
    let start = unsafe { rustix::ioctl::NoArg::<{ WARM_IOCTL }>::new() };
    // SAFETY: as above; any other file system answers ENOTTY.
    unsafe { rustix::ioctl::ioctl(stats, start) }.map_err(Into::into)
}
