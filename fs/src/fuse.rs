//! The requests of the kernel: decode, call, reply. Decides only how a request is answered on the wire.
//!
//! Invariant: no answer waits for the network (see `reading`).
//!
//! OPEN, OPENDIR and FLUSH are answered with ENOSYS. The kernel then stops sending them, and RELEASE too. It keeps
//! pages and listings from one open to the next, which is correct because a snapshot never changes. OPEN is answered
//! only in mounts whose large files the kernel may read by itself (`passthrough`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use larder_cachenode::counters::{StatsCounters, add};
use larder_cachenode::plan::command::{Command, Malformed, OWNED_IOCTL, decode_owned};
use larder_cachenode::{PageCache, WARM_IOCTL, WARM_LIST_IOCTL, WarmListPart};
use larder_dataset::Ownership;
use larder_dataset::name::PATH_MAX;

use crate::errno::Errno;
use crate::filesystem::{Attr, Filesystem, FsError, NodeKind};
use crate::pages::Pages;
use crate::passthrough::Passthrough;
use crate::pool::Serve;
use crate::reading::Reader;
use crate::wire::{FileAttr, Listing, Reply, Request, operation};

/// How long the kernel may cache immutable attributes, in seconds: the longest time that it accepts.
const FOREVER: u64 = u32::MAX as u64;

/// The most background requests that a connection may have in flight, as many as the kernel's protocol can express. A
/// read that waits for the origin takes 32 bytes of the connection's memory and 4 KiB of this process. The kernel stops
/// reading ahead at three quarters, fuser's default, which leaves the rest to the reads that a reader waits for.
pub(crate) const BACKGROUND_MOST: u16 = u16::MAX;

/// The block size that statfs reports.
const STATFS_BLOCK: u32 = 4096;

/// The flag of an ioctl whose data the kernel does not copy.
const IOCTL_UNRESTRICTED: u32 = 1 << 1;

/// The owner and the modes of all files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    uid: u32,
    gid: u32,
    file_mode: u16,
    dir_mode: u16,
}

impl Shown {
    /// `default_owner` is the user and group where `ownership` has none.
    pub(crate) fn new(ownership: Ownership, default_owner: (u32, u32)) -> Self {
        Self {
            uid: ownership.uid.unwrap_or(default_owner.0),
            gid: ownership.gid.unwrap_or(default_owner.1),
            file_mode: ownership.file_mode.unwrap_or(0o444),
            dir_mode: ownership.dir_mode.unwrap_or(0o555),
        }
    }
}

/// Serves one mount.
#[derive(Debug)]
pub(crate) struct Front {
    reader: Reader,
    shown: Shown,
    /// None if the kernel sends all reads.
    passthrough: Option<Passthrough>,
    pages: Arc<Pages>,
}

impl Front {
    /// Answers over the connection `fuse`.
    pub(crate) fn new(reader: Reader, shown: Shown, passthrough: Option<Passthrough>, fuse: &Arc<OwnedFd>) -> Self {
        let pages = Arc::new(Pages::new(Arc::clone(fuse), reader.filesystem().inodes()));
        let watched: Weak<dyn PageCache> = Arc::<Pages>::downgrade(&pages);
        reader.filesystem().dataset().watch_pages(watched);
        Self { reader, shown, passthrough, pages }
    }

    fn filesystem(&self) -> &Arc<Filesystem> {
        self.reader.filesystem()
    }

    fn counters(&self) -> &Arc<StatsCounters> {
        self.reader.counters()
    }

    fn file_attr(&self, attr: &Attr) -> FileAttr {
        let mode = match attr.kind {
            NodeKind::Dir => libc::S_IFDIR | u32::from(self.shown.dir_mode),
            NodeKind::File => libc::S_IFREG | u32::from(self.shown.file_mode),
            // The mode of a link has no effect, and Linux shows this one.
            NodeKind::Link => libc::S_IFLNK | 0o777,
        };
        FileAttr {
            ino: attr.ino,
            size: attr.size,
            time_ns: attr.mtime_ns,
            mode,
            nlink: attr.nlink,
            uid: self.shown.uid,
            gid: self.shown.gid,
        }
    }

    /// Answers a request. One that is too short for its operation is answered like an unknown one.
    fn dispatch(&self, request: &Request<'_>, reply: Reply) {
        let node = request.node;
        match request.operation {
            operation::LOOKUP => match request.name() {
                Some(name) => self.lookup(node, name, reply),
                None => unknown(reply),
            },
            operation::GETATTR => {
                add(&self.counters().getattrs, 1);
                match self.filesystem().attr(node) {
                    Ok(attr) => reply.attr(&self.file_attr(&attr), seconds(&attr)),
                    Err(error) => fail(reply, &error),
                }
            }
            operation::READLINK => match self.filesystem().link_text(node) {
                // The kernel cuts off a longer text, which would then lead elsewhere.
                Ok(text) if text.len() <= PATH_MAX => reply.data(&text),
                Ok(_) => fail(reply, &FsError::NameTooLong),
                Err(error) => fail(reply, &error),
            },
            operation::READ => match request.read() {
                Some(read) => {
                    add(&self.counters().reads, 1);
                    self.reader.read(read, request.thread, None, reply);
                }
                None => unknown(reply),
            },
            operation::OPEN => match (&self.passthrough, request.word()) {
                (Some(passthrough), Some(flags)) if flags & libc::O_ACCMODE.cast_unsigned() == 0 => {
                    reply.open(passthrough.open(node, || self.filesystem().lend(node)));
                }
                // If root has remounted it writable, the kernel would write to the cache's file by itself.
                (Some(_), Some(_)) => reply.error(Errno(libc::EROFS)),
                _ => unknown(reply),
            },
            operation::RELEASE => {
                if let Some(passthrough) = &self.passthrough {
                    passthrough.release(node);
                }
                reply.data(&[]);
            }
            operation::READDIR => self.list(request, false, reply),
            operation::READDIRPLUS => self.list(request, true, reply),
            operation::STATFS => {
                let totals = self.filesystem().dataset().manifest().totals();
                let blocks = totals.bytes.div_ceil(STATFS_BLOCK.into());
                let files = u64::from(totals.files) + u64::from(totals.dirs) + u64::from(totals.links);
                reply.statfs(blocks, files, STATFS_BLOCK, 255);
            }
            operation::GETXATTR => match request.xattr() {
                Some((room, name)) => xattr(self.filesystem().xattr(node, name), room, reply),
                None => unknown(reply),
            },
            operation::LISTXATTR => match request.word() {
                Some(room) => xattr(self.filesystem().xattr_names(node), room, reply),
                None => unknown(reply),
            },
            operation::IOCTL => match request.ioctl() {
                Some((flags, command, data)) if flags & IOCTL_UNRESTRICTED == 0 => {
                    match self.ioctl(request, command, data) {
                        Ok((result, data)) => reply.ioctl(result, &data),
                        Err(errno) => reply.error(errno),
                    }
                }
                _ => unknown(reply),
            },
            operation::LSEEK => match request.seek() {
                Some((offset, whence)) => self.seek(node, offset, whence, reply),
                None => unknown(reply),
            },
            operation::ACCESS => match request.word() {
                Some(mask) if mask & libc::W_OK.cast_unsigned() == 0 => reply.data(&[]),
                Some(_) => reply.error(Errno(libc::EROFS)),
                None => unknown(reply),
            },
            operation::RELEASEDIR => reply.data(&[]),
            // These would modify the file system. The kernel rejects them itself while the mount is read-only. If root
            // has remounted it writable, they are rejected here.
            operation::SETATTR
            | operation::SYMLINK
            | operation::MKNOD
            | operation::MKDIR
            | operation::UNLINK
            | operation::RMDIR
            | operation::RENAME
            | operation::RENAME2
            | operation::LINK
            | operation::WRITE
            | operation::SETXATTR
            | operation::REMOVEXATTR
            | operation::CREATE
            | operation::FALLOCATE
            | operation::COPY_FILE_RANGE => reply.error(Errno(libc::EROFS)),
            // After this answer to an INTERRUPT, the kernel sends no more of them.
            _ => unknown(reply),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: Reply) {
        add(&self.counters().lookups, 1);
        match self.filesystem().lookup(parent, name) {
            Ok(Some(attr)) => reply.entry(&self.file_attr(&attr), FOREVER, seconds(&attr)),
            // Inode 0 means that the name does not exist, and allows the kernel to cache that.
            Ok(None) => {
                let kind = NodeKind::File;
                let none = Attr { ino: 0, kind, size: 0, mtime_ns: 0, nlink: 0, forever: true };
                reply.entry(&self.file_attr(&none), FOREVER, FOREVER);
            }
            Err(error) => fail(reply, &error),
        }
    }

    fn list(&self, request: &Request<'_>, with_attributes: bool, reply: Reply) {
        let Some(read) = request.read() else { return unknown(reply) };
        add(&self.counters().listings, 1);
        let mut listing = Listing::new(read.size);
        let listed = self.filesystem().read_dir(read.ino, read.offset, |entry| {
            let kept_seconds = with_attributes.then(|| seconds(&entry.attr));
            listing.add(entry.name, entry.next_offset, &self.file_attr(&entry.attr), kept_seconds)
        });
        match listed {
            Ok(()) => reply.data(listing.bytes()),
            Err(error) => fail(reply, &error),
        }
    }

    /// The result of an ioctl, and its data.
    fn ioctl(&self, request: &Request<'_>, command: u32, data: &[u8]) -> Result<(u32, Vec<u8>), Errno> {
        if let Some(plan) = Command::decode(command, data) {
            let plan = plan.map_err(|Malformed| Errno(libc::EINVAL))?;
            let pages: Arc<dyn PageCache> = Arc::<Pages>::clone(&self.pages);
            let wanted = self.filesystem().plan(request.node, request.user, &plan, &pages)?;
            return Ok((wanted, Vec::new()));
        }
        if command == OWNED_IOCTL {
            let files = decode_owned(data).ok_or(Errno(libc::EINVAL))?;
            return Ok((0, self.filesystem().owned(files)));
        }
        if !self.filesystem().is_stats(request.node) {
            return Err(Errno(libc::ENOTTY));
        }
        match command {
            WARM_IOCTL => {
                self.filesystem().start_warming();
                Ok((0, Vec::new()))
            }
            WARM_LIST_IOCTL => match WarmListPart::decode(data) {
                Some(part) => self.filesystem().warm_listed(part).map(|()| (0, Vec::new())).map_err(Errno::from),
                None => Err(Errno(libc::EINVAL)),
            },
            _ => Err(Errno(libc::ENOTTY)),
        }
    }

    fn seek(&self, node: u64, offset: i64, whence: i32, reply: Reply) {
        // Files have no holes: each offset is data, and the only hole is at the end of the file.
        match self.filesystem().attr(node) {
            Ok(attr) if (0..attr.size.cast_signed()).contains(&offset) => match whence {
                libc::SEEK_DATA => reply.offset(offset),
                libc::SEEK_HOLE => reply.offset(attr.size.cast_signed()),
                _ => reply.error(Errno(libc::EINVAL)),
            },
            Ok(_) => reply.error(Errno(libc::ENXIO)),
            Err(error) => fail(reply, &error),
        }
    }
}

impl Serve for Front {
    fn answer(&self, request: &Request<'_>, reply: Reply) {
        self.reader.guard(|| self.dispatch(request, reply));
    }

    fn retrieved(&self, request: &Request<'_>) {
        self.pages.retrieved(request);
    }

    fn were_queued(&self, since: Instant) {
        self.filesystem().dataset().was_busy(since.into());
    }
}

/// How long the kernel may keep these attributes.
const fn seconds(attr: &Attr) -> u64 {
    if attr.forever { FOREVER } else { 0 }
}

fn fail(reply: Reply, error: &FsError) {
    reply.error(Errno::from(error));
}

fn unknown(reply: Reply) {
    reply.error(Errno(libc::ENOSYS));
}

/// Replies with a value, or with the value's size if the caller requests the size first.
fn xattr(value: Result<Vec<u8>, FsError>, room: u32, reply: Reply) {
    match value {
        Ok(value) if room == 0 => reply.xattr_size(value.len() as u32),
        Ok(value) if value.len() > room as usize => reply.error(Errno(libc::ERANGE)),
        Ok(value) => reply.data(&value),
        Err(error) => fail(reply, &error),
    }
}
