//! The speed at which the kernel sends over one connection.
#![expect(unsafe_code, reason = "no safe wrapper sets SO_MAX_PACING_RATE")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Has the kernel send at most this many bytes per second over the connection, evenly.
pub(crate) fn pace(socket: impl AsFd, bytes_per_second: u64) -> io::Result<()> {
    // The largest number means no limit.
    let rate = u32::try_from(bytes_per_second).unwrap_or(u32::MAX).min(u32::MAX - 1);
    // SAFETY: the kernel reads the four bytes of `rate` and keeps no pointer to them.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            size_of_val(&rate) as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_rate_of_a_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (wanted, kept) in [(60_000_000, 60_000_000), (1 << 40, u32::MAX - 1)] {
            pace(&stream, wanted).unwrap();
            let (mut found, mut len) = (0_u32, size_of::<u32>() as libc::socklen_t);
            // SAFETY: the kernel writes at most `len` bytes into `found`, which is that large.
            let outcome = unsafe {
                libc::getsockopt(
                    stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_MAX_PACING_RATE,
                    (&raw mut found).cast(),
                    &raw mut len,
                )
            };
            assert_eq!((outcome, found), (0, kept));
        }
    }
}
