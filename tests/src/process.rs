//! What scenarios ask about a process.

use std::path::Path;
use std::process::Child;

/// True if a process has ended and its parent has not reaped it.
pub(crate) fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

/// True if a process holds a FUSE connection.
pub(crate) fn holds_a_connection(child: &Child) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
    fds.into_iter()
        .flatten()
        .flatten()
        .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == Path::new("/dev/fuse")))
}
