//! The part of the FUSE protocol that is needed in addition to fuser: finding requests that an earlier process had
//! read, and answering them.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::io::Errno as SystemErrno;

use crate::errno::Errno;

/// `struct fuse_in_header`: length, operation (u32), unique, node (u64), user, group, process, extensions (u32).
const HEADER_BYTES: usize = 40;

/// `struct fuse_read_in`: handle, offset (u64), size (u32), and fields that a snapshot does not use.
const READ_BYTES: usize = HEADER_BYTES + 40;

/// One byte more than `struct fuse_out_header`, so that the kernel rejects the length.
const PROBE_BYTES: usize = 17;

const FORGET: u32 = 2;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const NOTIFY_REPLY: u32 = 41;
const BATCH_FORGET: u32 = 42;

/// A READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// The kernel's number of the request. It is never used twice on a connection.
    pub(crate) unique: u64,
    pub(crate) ino: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// A request that was read from the kernel and waits for its answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<'a> {
    Read(ReadRequest),
    /// A request of another kind, as the kernel sent it.
    Other {
        unique: u64,
        request: &'a [u8],
    },
}

impl<'a> Taken<'a> {
    /// Parses the request at the beginning of a buffer. `None` if there is none, it is incomplete, or the kernel
    /// expects no answer to it.
    pub(crate) fn parse(buffer: &'a [u8]) -> Option<Self> {
        let len = u32_at(buffer, 0)? as usize;
        let (operation, unique) = (u32_at(buffer, 4)?, u64_at(buffer, 8)?);
        let request = buffer.get(..len)?;
        if len < HEADER_BYTES || unique == 0 {
            return None;
        }
        match operation {
            FORGET | INIT | INTERRUPT | DESTROY | NOTIFY_REPLY | BATCH_FORGET => None,
            READ if len < READ_BYTES => None,
            READ => Some(Self::Read(ReadRequest {
                unique,
                ino: u64_at(request, 16)?,
                offset: u64_at(request, HEADER_BYTES + 8)?,
                size: u32_at(request, HEADER_BYTES + 16)?,
            })),
            _ => Some(Self::Other { unique, request }),
        }
    }

    pub(crate) fn unique(&self) -> u64 {
        match *self {
            Self::Read(ReadRequest { unique, .. }) | Self::Other { unique, .. } => unique,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// The DESTROY request, which ends a session.
pub(crate) fn destroy() -> [u8; HEADER_BYTES] {
    let mut request = [0; HEADER_BYTES];
    request[..4].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
    request[4..8].copy_from_slice(&DESTROY.to_ne_bytes());
    request[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
    request
}

/// Answers a request with bytes or an errno.
pub(crate) fn answer(fuse: BorrowedFd<'_>, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
    let (bytes, error) = match outcome {
        Ok(bytes) => (bytes, 0),
        Err(Errno(errno)) => (&[][..], -errno),
    };
    // `struct fuse_out_header`: length, error, unique.
    let mut header = [0; 16];
    let len = (header.len() + bytes.len()) as u32;
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    send(fuse, &[IoSlice::new(&header), IoSlice::new(bytes)])
}

/// False if the kernel already has the answer to a request. Probes with an answer of an invalid length: the kernel
/// looks the request up first and rejects the length afterwards.
pub(crate) fn waits(fuse: BorrowedFd<'_>, unique: u64) -> bool {
    // Formed as the answer to an INTERRUPT of the request, whose number has this bit set.
    const INTERRUPT_BIT: u64 = 1;
    let mut odd = [0; PROBE_BYTES];
    odd[..4].copy_from_slice(&(PROBE_BYTES as u32).to_ne_bytes());
    odd[8..16].copy_from_slice(&(unique | INTERRUPT_BIT).to_ne_bytes());
    rustix::io::write(fuse, &odd) != Err(SystemErrno::NOENT)
}

/// Sends an answer to the kernel. An answer to a request that was answered before has no effect.
pub(crate) fn send(fuse: BorrowedFd<'_>, answer: &[IoSlice<'_>]) -> io::Result<()> {
    match rustix::io::writev(fuse, answer) {
        Ok(_) | Err(SystemErrno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use larder_testkit::kernel;

    use super::*;

    /// A request whose header states the length `len`, with any body.
    fn request(len: usize, operation: u32, unique: u64, body: &[u8]) -> Vec<u8> {
        let mut request = kernel::request(operation, unique, 7, body);
        request[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        request
    }

    #[test]
    fn a_read_is_understood_and_other_requests_are_kept_as_they_are() {
        let read = kernel::read(READ, 5, 7, 9, 10);
        let found = Taken::parse(&read).unwrap();
        assert_eq!(found, Taken::Read(ReadRequest { unique: 5, ino: 7, offset: 9, size: 10 }));
        // The end of an earlier, longer request is still in the buffer.
        let lookup = request(45, 1, 6, b"name\0and more");
        let found = Taken::parse(&lookup).unwrap();
        assert_eq!(found, Taken::Other { unique: 6, request: &lookup[..45] });
    }

    #[test]
    fn torn_requests_and_those_without_an_answer_are_skipped() {
        assert_eq!(Taken::parse(&[]), None);
        assert_eq!(Taken::parse(&[0; 4096]), None);
        assert_eq!(Taken::parse(&[0xff; 4096]), None, "longer than its buffer");
        assert_eq!(Taken::parse(&request(39, 1, 6, &[0; 100])), None, "shorter than a header");
        assert_eq!(Taken::parse(&request(200, 1, 6, &[0; 100])), None, "cut off");
        assert_eq!(Taken::parse(&request(79, READ, 6, &[0; 100])), None, "shorter than a READ");
        assert_eq!(Taken::parse(&request(80, 1, 0, &[0; 100])), None, "without a number");
        for operation in [FORGET, INIT, INTERRUPT, DESTROY, NOTIFY_REPLY, BATCH_FORGET] {
            assert_eq!(Taken::parse(&request(80, operation, 6, &[0; 100])), None);
        }
        for len in 0..80 {
            assert_eq!(Taken::parse(&request(80, READ, 6, &[0; 40])[..len]), None, "{len} bytes");
        }
    }
}
