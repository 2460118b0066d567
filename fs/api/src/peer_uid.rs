//! The user at the other end of a unix socket.
#![expect(unsafe_code, reason = "no safe wrapper returns the user of a process that another pid namespace hides")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user that the process at the other end ran as when it connected. Only the user is returned: a process in another
/// pid namespace has no process id here.
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `found`, which is that large. Any bits are valid in its
    // integers.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `found` was zeroed above and contains only integers.
    Ok(unsafe { found.assume_init() }.uid)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_peer_is_identified_by_its_user() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(peer_uid(one.as_fd()).unwrap(), rustix::process::geteuid().as_raw());
        assert!(peer_uid(std::io::stdin().as_fd()).is_err());
    }
}
