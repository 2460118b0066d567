//! The FUSE protocol of a read-only mount: requests as the kernel writes them, and replies as it reads them. See
//! `linux/fuse.h`.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno as SystemErrno;
use tracing::warn;

use crate::errno::Errno;

/// `struct fuse_in_header`: length, operation (u32), unique, node (u64), user, group, process, extensions (u32).
const HEADER_BYTES: usize = 40;

/// `struct fuse_read_in`: handle, offset (u64), size (u32), and fields that a snapshot does not use.
const READ_BYTES: usize = HEADER_BYTES + 40;

/// One byte more than `struct fuse_out_header`, so that the kernel rejects the length.
const PROBE_BYTES: usize = 17;

/// `struct fuse_attr`.
const ATTR_BYTES: usize = 88;

/// `struct fuse_entry_out`: node, generation, two validities in seconds (u64) and nanoseconds (u32), attributes.
const ENTRY_BYTES: usize = 40 + ATTR_BYTES;

/// `struct fuse_dirent`: inode, offset (u64), length of the name, type (u32). The name follows, padded to 8 bytes.
const DIRENT_BYTES: usize = 24;

/// `struct fuse_notify_retrieve_in`: offset (u64), size (u32), and fields that are not used.
const RETRIEVED_BYTES: usize = 40;

/// The two structures of a notification that asks for cached pages.
const RETRIEVE_BYTES: usize = 16 + 32;

/// FUSE_NOTIFY_RETRIEVE, of `enum fuse_notify_code`.
const NOTIFY_RETRIEVE: u32 = 5;

/// `struct fuse_ioctl_in`: handle (u64), flags, command (u32), argument (u64), sizes (u32).
const IOCTL_BYTES: usize = 32;

/// The kernel's names of the requests, from `enum fuse_opcode`.
pub(crate) mod operation {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
}

/// A READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// The kernel's number of the request. It is never used twice on a connection.
    pub(crate) unique: u64,
    pub(crate) ino: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

/// A request as it was read from the kernel. The accessors of its fields return `None` if it is too short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) operation: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    /// The user that asks; `u32::MAX` if the kernel does not say it.
    pub(crate) user: u32,
    /// The kernel's number of the thread that asks; 0 if it has none in the PID namespace of the process that mounted.
    pub(crate) thread: u32,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses the request at the beginning of a buffer, which may be longer or contain only a part of the body. `None`
    /// if it contains no header.
    pub(crate) fn parse(buffer: &'a [u8]) -> Option<Self> {
        let len = u32_at(buffer, 0)? as usize;
        Some(Self {
            operation: u32_at(buffer, 4)?,
            unique: u64_at(buffer, 8)?,
            node: u64_at(buffer, 16)?,
            user: u32_at(buffer, 24)?,
            thread: u32_at(buffer, 32)?,
            body: buffer.get(HEADER_BYTES..len.min(buffer.len()))?,
        })
    }

    /// The fields of a READ, READDIR or READDIRPLUS.
    pub(crate) fn read(&self) -> Option<ReadRequest> {
        let (offset, size) = (u64_at(self.body, 8)?, u32_at(self.body, 16)?);
        Some(ReadRequest { unique: self.unique, ino: self.node, offset, size })
    }

    /// The name in a LOOKUP.
    pub(crate) fn name(&self) -> Option<&'a [u8]> {
        name_at(self.body, 0)
    }

    /// The room for the value, and the name, in a GETXATTR.
    pub(crate) fn xattr(&self) -> Option<(u32, &'a [u8])> {
        Some((self.word()?, name_at(self.body, 8)?))
    }

    /// The first field: the room for the names in a LISTXATTR, the mask in an ACCESS, the flags in an OPEN.
    pub(crate) fn word(&self) -> Option<u32> {
        u32_at(self.body, 0)
    }

    /// The flags, the command and its data in an IOCTL.
    pub(crate) fn ioctl(&self) -> Option<(u32, u32, &'a [u8])> {
        Some((u32_at(self.body, 8)?, u32_at(self.body, 12)?, self.body.get(IOCTL_BYTES..)?))
    }

    /// The bytes that a NOTIFY_REPLY has of a file.
    pub(crate) fn retrieved(&self) -> Option<&'a [u8]> {
        self.body.get(RETRIEVED_BYTES..)
    }

    /// The offset and the kind of an LSEEK.
    pub(crate) fn seek(&self) -> Option<(i64, i32)> {
        Some((u64_at(self.body, 8)?.cast_signed(), u32_at(self.body, 16)?.cast_signed()))
    }
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
        use operation::{BATCH_FORGET, DESTROY, FORGET, INIT, INTERRUPT, NOTIFY_REPLY, READ};
        let len = u32_at(buffer, 0)? as usize;
        let bytes = buffer.get(..len)?;
        let request = Request::parse(bytes)?;
        let unique = request.unique;
        if unique == 0 {
            return None;
        }
        match request.operation {
            FORGET | INIT | INTERRUPT | DESTROY | NOTIFY_REPLY | BATCH_FORGET => None,
            READ if len < READ_BYTES => None,
            READ => request.read().map(Self::Read),
            _ => Some(Self::Other { unique, request: bytes }),
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

/// The bytes before the next NUL.
fn name_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    rest.iter().position(|&byte| byte == 0).map(|end| &rest[..end])
}

/// The attributes of an inode. The three times are the same, since a snapshot does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileAttr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) time_ns: i64,
    /// The type and the permissions.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The fields of a reply, in the machine's byte order. Panics if there are more than `N` bytes.
struct Fields<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Fields<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    fn u32(self, value: u32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// `struct fuse_attr`: inode, size, blocks, three times in seconds (u64), in nanoseconds, mode, links, user, group,
    /// device, block size, flags (u32).
    fn attr(self, attr: &FileAttr) -> Self {
        const SECOND_NS: i64 = 1_000_000_000;
        let seconds = attr.time_ns.div_euclid(SECOND_NS).cast_unsigned();
        let nanoseconds = attr.time_ns.rem_euclid(SECOND_NS) as u32;
        let fields = self.u64(attr.ino).u64(attr.size).u64(attr.size.div_ceil(512));
        let fields = fields.u64(seconds).u64(seconds).u64(seconds);
        let fields = fields.u32(nanoseconds).u32(nanoseconds).u32(nanoseconds);
        fields.u32(attr.mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(0).u32(4096).u32(0)
    }

    /// `struct fuse_entry_out`. The kernel may keep the name and the attributes for so many seconds.
    fn entry(self, attr: &FileAttr, name_seconds: u64, attr_seconds: u64) -> Self {
        self.u64(attr.ino).u64(0).u64(name_seconds).u64(attr_seconds).u32(0).u32(0).attr(attr)
    }
}

/// The reply to a request. If it is dropped without an answer, as in a panic, the request fails with EIO: a reader must
/// not be left without an answer.
#[derive(Debug)]
pub(crate) struct Reply {
    fuse: Arc<OwnedFd>,
    unique: u64,
    sent: bool,
}

impl Reply {
    /// The reply to the request with this number on the connection `fuse`.
    pub(crate) fn new(fuse: &Arc<OwnedFd>, unique: u64) -> Self {
        Self { fuse: Arc::clone(fuse), unique, sent: false }
    }

    /// Answers with bytes.
    pub(crate) fn data(mut self, bytes: &[u8]) {
        self.send(Ok(bytes));
    }

    /// Fails the request.
    pub(crate) fn error(mut self, errno: Errno) {
        self.send(Err(errno));
    }

    /// Answers a LOOKUP. Inode 0 means that the name does not exist.
    pub(crate) fn entry(self, attr: &FileAttr, name_seconds: u64, attr_seconds: u64) {
        self.data(&Fields::<ENTRY_BYTES>::new().entry(attr, name_seconds, attr_seconds).bytes);
    }

    /// Answers a GETATTR.
    pub(crate) fn attr(self, attr: &FileAttr, seconds: u64) {
        self.data(&Fields::<{ 16 + ATTR_BYTES }>::new().u64(seconds).u32(0).u32(0).attr(attr).bytes);
    }

    /// Answers a STATFS: `struct fuse_statfs_out`. Nothing is free.
    pub(crate) fn statfs(self, blocks: u64, files: u64, block_bytes: u32, name_max: u32) {
        let fields = Fields::<80>::new().u64(blocks).u64(0).u64(0).u64(files).u64(0);
        self.data(&fields.u32(block_bytes).u32(name_max).u32(block_bytes).bytes);
    }

    /// Answers a GETXATTR or LISTXATTR that requests only the size.
    pub(crate) fn xattr_size(self, size: u32) {
        self.data(&Fields::<8>::new().u32(size).bytes);
    }

    /// Answers an IOCTL that succeeded, with its result and its data: `struct fuse_ioctl_out`. The result is below 2³¹.
    pub(crate) fn ioctl(self, result: u32, data: &[u8]) {
        self.data(&[&Fields::<16>::new().u32(result).bytes[..], data].concat());
    }

    /// Answers an OPEN: `struct fuse_open_out`. The kernel keeps the file's pages from one open to the next. With a
    /// `number`, it reads the file that is registered under it, and has no pages: both flags together are EIO.
    pub(crate) fn open(self, number: Option<u32>) {
        const KEEP_CACHE: u32 = 1 << 1;
        const PASSTHROUGH: u32 = 1 << 7;
        let flags = number.map_or(KEEP_CACHE, |_| PASSTHROUGH);
        self.data(&Fields::<16>::new().u64(0).u32(flags).u32(number.unwrap_or_default()).bytes);
    }

    /// Answers an LSEEK.
    pub(crate) fn offset(self, offset: i64) {
        self.data(&offset.to_ne_bytes());
    }

    fn send(&mut self, outcome: Result<&[u8], Errno>) {
        self.sent = true;
        if let Err(error) = answer(self.fuse.as_fd(), self.unique, outcome) {
            warn!(%error, "cannot send the answer to a request");
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.send(Err(Errno(libc::EIO)));
        }
    }
}

/// The entries in the answer to a READDIR or READDIRPLUS.
#[derive(Debug)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// A listing of at most `room` bytes.
    pub(crate) fn new(room: u32) -> Self {
        // The kernel asks for 1 MiB at most, so a larger number allocates nothing in advance.
        let room = room as usize;
        Self { bytes: Vec::with_capacity(room.min(1 << 20)), room }
    }

    /// Adds an entry, with its attributes and the seconds for which the kernel may keep them if it wants them. True if
    /// there is no room, and the entry was not added.
    pub(crate) fn add(&mut self, name: &[u8], next_offset: u64, attr: &FileAttr, kept_seconds: Option<u64>) -> bool {
        let before = kept_seconds.map_or(0, |_| ENTRY_BYTES);
        let len = (before + DIRENT_BYTES + name.len()).next_multiple_of(8);
        if self.bytes.len() + len > self.room {
            return true;
        }
        let end = self.bytes.len() + len;
        if let Some(seconds) = kept_seconds {
            self.bytes.extend_from_slice(&Fields::<ENTRY_BYTES>::new().entry(attr, seconds, seconds).bytes);
        }
        let fields = Fields::<DIRENT_BYTES>::new().u64(attr.ino).u64(next_offset);
        // The type is that of `readdir`: the upper four bits of the mode.
        self.bytes.extend_from_slice(&fields.u32(name.len() as u32).u32(attr.mode >> 12).bytes);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        false
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Answers a request with bytes or an errno.
fn answer(fuse: BorrowedFd<'_>, unique: u64, outcome: Result<&[u8], Errno>) -> io::Result<()> {
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

/// The number of an INIT in which the kernel offers to read files by itself.
pub(crate) fn offers_passthrough(init: &[u8]) -> Option<u64> {
    // `struct fuse_init_in`: two versions, read-ahead, flags, more flags (u32).
    const INIT_EXT: u32 = 1 << 30;
    const PASSTHROUGH: u32 = 1 << (37 - 32);
    let request = Request::parse(init)?;
    let (flags, more) = (u32_at(request.body, 12)?, u32_at(request.body, 16)?);
    (flags & INIT_EXT != 0 && more & PASSTHROUGH != 0).then_some(request.unique)
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

/// Asks the kernel for the page of a file at `offset` as far as its page cache has it. A NOTIFY_REPLY with this number,
/// which is not 0, brings it. Errors: ENOENT if the kernel does not know the node.
pub(crate) fn retrieve(fuse: BorrowedFd<'_>, number: u64, node: u64, offset: u64) -> Result<(), SystemErrno> {
    const PAGE_BYTES: u32 = 4096;
    // `struct fuse_out_header`, with the kind of the notification in place of the error and without a request's number,
    // and `struct fuse_notify_retrieve_out`: number, node, offset (u64), size (u32), padding.
    let fields = Fields::<RETRIEVE_BYTES>::new().u32(RETRIEVE_BYTES as u32).u32(NOTIFY_RETRIEVE).u64(0);
    let fields = fields.u64(number).u64(node).u64(offset).u32(PAGE_BYTES).u32(0);
    rustix::io::retry_on_intr(|| rustix::io::write(fuse, &fields.bytes)).map(drop)
}

/// Sends an answer to the kernel. An answer to a request that was answered before has no effect.
pub(crate) fn send(fuse: BorrowedFd<'_>, answer: &[IoSlice<'_>]) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::writev(fuse, answer)) {
        Ok(_) | Err(SystemErrno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use larder_testkit::kernel::{self, Kernel};

    use super::operation::{BATCH_FORGET, DESTROY, FORGET, INIT, INTERRUPT, NOTIFY_REPLY, READ};
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

    // SEMANTICS: K1
    #[test]
    fn a_request_whose_callback_panics_fails_with_eio() {
        let (kernel, fuse) = Kernel::connect();
        let reply = Reply::new(&Arc::new(fuse), 8);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _reply = reply;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(kernel.answer(), (8, -libc::EIO, Vec::new()));
    }

    #[test]
    fn the_fields_of_requests_are_found_and_cut_off_ones_have_none() {
        let name = kernel::request(operation::LOOKUP, 2, 7, b"name\0more");
        assert_eq!(Request::parse(&name).unwrap().name(), Some(&b"name"[..]));
        assert_eq!(Request::parse(&kernel::request(operation::LOOKUP, 2, 7, b"name")).unwrap().name(), None);
        let xattr = [&kernel::words(&[9, 0]), &b"user.a\0"[..]].concat();
        let xattr = kernel::request(operation::GETXATTR, 2, 7, &xattr);
        assert_eq!(Request::parse(&xattr).unwrap().xattr(), Some((9, &b"user.a"[..])));
        let ioctl = [kernel::longs(&[1]), kernel::words(&[2, 3]), kernel::longs(&[4]), kernel::words(&[1, 0])].concat();
        let ioctl = kernel::request(operation::IOCTL, 2, 7, &[&ioctl[..], b"x"].concat());
        assert_eq!(Request::parse(&ioctl).unwrap().ioctl(), Some((2, 3, &b"x"[..])));
        assert_eq!(Request::parse(&ioctl[..70]).unwrap().ioctl(), None);
        let retrieved = kernel::request(operation::NOTIFY_REPLY, 2, 7, &[&[0; 40][..], b"page"].concat());
        assert_eq!(Request::parse(&retrieved).unwrap().retrieved(), Some(&b"page"[..]));
        assert_eq!(Request::parse(&retrieved[..79]).unwrap().retrieved(), None);
        let seek = [kernel::longs(&[1, u64::MAX]), kernel::words(&[4, 0])].concat();
        let seek = kernel::request(operation::LSEEK, 2, 7, &seek);
        assert_eq!(Request::parse(&seek).unwrap().seek(), Some((-1, 4)));
        assert!(Request::parse(&seek[..39]).is_none(), "a part of a header");
    }

    #[test]
    fn an_init_offers_passthrough_with_a_bit_of_the_later_flags() {
        let init = |flags: u32, more: u32| {
            let body = kernel::words(&[7, 40, 1 << 17, flags, more]);
            offers_passthrough(&kernel::request(operation::INIT, 2, 0, &body))
        };
        assert_eq!(init(1 << 30, 1 << 5), Some(2));
        assert_eq!(init(!(1 << 30), !0), None, "the later flags have no meaning");
        assert_eq!(init(!0, !(1 << 5)), None);
        assert_eq!(offers_passthrough(&kernel::request(operation::INIT, 2, 0, &kernel::words(&[7, 40, 0, !0]))), None);
    }

    #[test]
    fn entries_are_aligned_and_a_full_listing_ends() {
        let attr = FileAttr { ino: 9, size: 513, time_ns: -1, mode: libc::S_IFREG | 0o444, nlink: 1, uid: 2, gid: 3 };
        let mut names = Listing::new(64);
        assert!(!names.add(b"a", 1, &attr, None) && !names.add(b"eight888", 2, &attr, None));
        assert!(names.add(b"b", 3, &attr, None), "32 bytes and 32 bytes leave no room");
        assert_eq!(names.bytes().len(), 64);
        assert_eq!(names.bytes()[..8], 9u64.to_ne_bytes());
        assert_eq!(names.bytes()[16..25], [&1u32.to_ne_bytes()[..], &8u32.to_ne_bytes(), b"a"].concat()[..]);
        let mut entries = Listing::new(160);
        assert!(!entries.add(b"a", 1, &attr, Some(5)) && entries.add(b"b", 2, &attr, Some(5)));
        assert_eq!(entries.bytes().len(), 160);
        // The attributes: two blocks, and a time of one nanosecond before the epoch.
        assert_eq!(entries.bytes()[56..64], 2u64.to_ne_bytes());
        assert_eq!(entries.bytes()[64..72], (-1i64).to_ne_bytes());
        assert_eq!(entries.bytes()[88..92], 999_999_999u32.to_ne_bytes());
    }
}
