//! Waits for several file descriptors at the same time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A file descriptor and the events to wait for.
pub(crate) type Interest<'a> = (BorrowedFd<'a>, PollFlags);

/// Waits until a descriptor is ready, a signal arrives, or the time has passed. Returns for each entry whether it is
/// ready; `None` entries never are.
pub(crate) fn wait(interests: &[Option<Interest<'_>>], time: Duration) -> io::Result<Vec<bool>> {
    let mut fds: Vec<PollFd<'_>> =
        interests.iter().flatten().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let time = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut fds, Some(&time)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(vec![false; interests.len()]),
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(interests.iter().map(|interest| interest.is_some() && ready.next().unwrap_or(false)).collect())
}
