//! The kernel's side of a FUSE connection, over a socket that preserves message boundaries as `/dev/fuse` does: the
//! layout of its requests, and [`Kernel`], which sends them and receives the replies. See `linux/fuse.h`.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Looks a name up. This and the following operations are from `enum fuse_opcode`.
pub const LOOKUP: u32 = 1;
/// Forgets an inode.
pub const FORGET: u32 = 2;
/// Returns the attributes of an inode.
pub const GETATTR: u32 = 3;
/// Opens a file.
pub const OPEN: u32 = 14;
/// Reads bytes of a file.
pub const READ: u32 = 15;
/// Negotiates the protocol: the first request of a connection.
pub const INIT: u32 = 26;
/// Lists the entries of a folder with their attributes.
pub const READDIRPLUS: u32 = 44;

/// The root's inode number.
pub const ROOT: u64 = 1;

/// The timeout of a reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The size of `struct fuse_out_header`.
const ANSWER_HEADER_BYTES: usize = 16;

/// Larder probes whether a request is still waiting with a reply that is one byte too long. This kernel ignores such
/// replies.
const PROBE_BYTES: usize = ANSWER_HEADER_BYTES + 1;

/// 32-bit numbers as the bytes of a request.
pub fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// 64-bit numbers as the bytes of a request.
pub fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A request: `struct fuse_in_header` (length, operation, unique, node; user, group, process and extensions are 0) and
/// a body.
pub fn request(operation: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let header = [words(&[40 + body.len() as u32, operation]), longs(&[unique, node]), words(&[0; 4])];
    [&header.concat(), body].concat()
}

/// A READ or READDIRPLUS. Of `struct fuse_read_in` only the offset and the size matter; the other fields are 0.
pub fn read(operation: u32, unique: u64, node: u64, offset: u64, size: u32) -> Vec<u8> {
    request(operation, unique, node, &[longs(&[0, offset]), words(&[size, 0, 0, 0, 0, 0])].concat())
}

/// An INIT: `struct fuse_init_in` of protocol 7.40, with FUSE_DO_READDIRPLUS. Its `unique` is 1.
pub fn init() -> Vec<u8> {
    request(INIT, 1, 0, &words(&[&[7, 40, 1 << 20, 1 << 13][..], &[0; 12]].concat()))
}

/// The kernel's end of a connection. Panics if the other end violates the protocol.
pub struct Kernel(OwnedFd);

impl Kernel {
    /// Creates a connection: the kernel's end, and the end in place of `/dev/fuse`.
    pub fn connect() -> (Self, OwnedFd) {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair of sockets");
        set_socket_timeout(&ours, Timeout::Recv, Some(ANSWER_TIMEOUT)).expect("a socket has a timeout");
        (Self(ours), theirs)
    }

    /// Sends a request.
    pub fn send(&self, request: &[u8]) {
        rustix::net::send(&self.0, request, SendFlags::NOSIGNAL).expect("the request is sent");
    }

    /// Receives the next reply: its `unique`, its error, and its body.
    pub fn answer(&self) -> (u64, i32, Vec<u8>) {
        let mut answer = vec![0; 1 << 20];
        let (unique, error, len) = self.answer_into(&mut answer);
        (unique, error, answer[ANSWER_HEADER_BYTES..ANSWER_HEADER_BYTES + len].to_vec())
    }

    /// As [`answer`](Self::answer), into a reusable buffer. Returns the length of the body instead of the body.
    pub fn answer_into(&self, answer: &mut [u8]) -> (u64, i32, usize) {
        let mut receive = || rustix::net::recv(&self.0, &mut *answer, RecvFlags::empty()).expect("an answer in time").0;
        let len = std::iter::repeat_with(&mut receive).find(|&len| len != PROBE_BYTES).expect("it repeats for ever");
        let number = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(number(0) as usize, len);
        let unique = u64::from_ne_bytes(answer[8..16].try_into().expect("eight bytes"));
        (unique, number(4).cast_signed(), len - ANSWER_HEADER_BYTES)
    }
}
