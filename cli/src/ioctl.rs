//! The only command that a mount accepts: start warming.
#![expect(unsafe_code, reason = "this ioctl has no safe wrapper")]

use std::fs::File;
use std::io;

use larder_cachenode::WARM_IOCTL;

/// Starts warming the mount whose `.larder/stats.json` is open as `stats`.
pub(crate) fn start_warming(stats: &File) -> io::Result<()> {
    // SAFETY: the ioctl `_IO('L', 1)` neither reads nor writes our memory.
    let start = unsafe { rustix::ioctl::NoArg::<{ WARM_IOCTL }>::new() };
    // SAFETY: as above; any other file system returns ENOTTY.
    unsafe { rustix::ioctl::ioctl(stats, start) }.map_err(Into::into)
}
