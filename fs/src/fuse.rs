//! The FUSE callbacks: decode, call, reply. They decide only how a request is answered on the wire.
//!
//! Invariant: no callback waits for the network (see `reading`).
//!
//! OPEN, OPENDIR and FLUSH are answered with ENOSYS. The kernel then stops sending them, and RELEASE too. It keeps
//! pages and listings from one open to the next, which is correct because a snapshot never changes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use larder_cachenode::counters::{StatsCounters, add};
use larder_cachenode::{WARM_IOCTL, WARM_LIST_IOCTL, WarmListPart};
use larder_dataset::Ownership;
use larder_dataset::name::PATH_MAX;
use tracing::{debug, info};

use crate::errno::Errno;
use crate::filesystem::{Attr, Filesystem, FsError, NodeKind};
use crate::reading::Reader;
use crate::wire::ReadRequest;

/// How long the kernel may cache immutable attributes: the longest time that it accepts.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The block size that statfs reports.
const STATFS_BLOCK: u64 = 4096;

/// Limits requested from the kernel at INIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLimits {
    /// The most background requests (read-ahead) that the kernel keeps in flight. A hung origin blocks as many of them
    /// as there are readers of missing blocks; the rest must suffice for the other readers.
    pub(crate) max_background: u16,
    /// Whether the mount may be mapped into user namespaces. The kernel then sends no user with its requests, so that
    /// no request can be refused for its user.
    pub(crate) idmapped: bool,
}

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
#[derive(Clone, Debug)]
pub(crate) struct Front {
    reader: Reader,
    filesystem: Arc<Filesystem>,
    limits: KernelLimits,
    shown: Shown,
}

impl Front {
    pub(crate) fn new(reader: Reader, limits: KernelLimits, shown: Shown) -> Self {
        Self { filesystem: Arc::clone(reader.filesystem()), reader, limits, shown }
    }

    fn counters(&self) -> &Arc<StatsCounters> {
        self.reader.counters()
    }

    fn guard(&self, callback: impl FnOnce()) {
        self.reader.guard(callback);
    }

    fn file_attr(&self, attr: &Attr) -> FileAttr {
        let time = time(attr.mtime_ns);
        FileAttr {
            ino: INodeNo(attr.ino),
            size: attr.size,
            blocks: attr.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: file_type(attr.kind),
            perm: match attr.kind {
                NodeKind::Dir => self.shown.dir_mode,
                NodeKind::File => self.shown.file_mode,
                // The mode of a link has no effect, and Linux shows this one.
                NodeKind::Link => 0o777,
            },
            nlink: attr.nlink,
            uid: self.shown.uid,
            gid: self.shown.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

const fn file_type(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::Dir => FileType::Directory,
        NodeKind::File => FileType::RegularFile,
        NodeKind::Link => FileType::Symlink,
    }
}

fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    let time = if ns < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

const fn ttl(attr: &Attr) -> Duration {
    if attr.forever { FOREVER } else { Duration::ZERO }
}

impl fuser::Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let idmapped = (InitFlags::FUSE_ALLOW_IDMAP, "the mount can be mapped into user namespaces (Linux 6.12)");
        let capabilities = [
            (InitFlags::FUSE_PARALLEL_DIROPS, "look-ups in one folder run in parallel"),
            (InitFlags::FUSE_DO_READDIRPLUS, "a listing includes attributes"),
            (InitFlags::FUSE_READDIRPLUS_AUTO, "attributes are left out where no caller wants them"),
            (InitFlags::FUSE_NO_OPEN_SUPPORT, "no OPEN and RELEASE"),
            (InitFlags::FUSE_NO_OPENDIR_SUPPORT, "no OPENDIR and RELEASEDIR"),
            (InitFlags::FUSE_AUTO_INVAL_DATA, "stats.json is read again when its time has changed"),
            (InitFlags::FUSE_CACHE_SYMLINKS, "the kernel keeps the text of symbolic links"),
            (InitFlags::FUSE_ASYNC_DIO, "direct reads of one file run in parallel"),
        ];
        for (capability, effect) in capabilities.into_iter().chain(self.limits.idmapped.then_some(idmapped)) {
            match config.add_capabilities(capability) {
                Ok(()) => debug!(effect, "kernel capability in use"),
                Err(_) => info!(effect, "the kernel lacks a capability"),
            }
        }
        // The kernel offers its current read-ahead as the limit. `mount` raises the read-ahead once the mount exists.
        let readahead = config.set_max_readahead(u32::MAX).or_else(|most| config.set_max_readahead(most));
        let max_background = self.limits.max_background;
        let background = config.set_max_background(max_background);
        if let Err(error) = readahead.and(background.map(u32::from).map_err(u32::from)) {
            return Err(io::Error::other(format!("the kernel refused a limit; it would accept {error}")));
        }
        info!(abi = %config.kernel_abi(), max_background, "FUSE session open");
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.guard(|| {
            add(&self.counters().lookups, 1);
            match self.filesystem.lookup(parent.0, name.as_bytes()) {
                Ok(Some(attr)) => {
                    reply.entry_with_ttls(&ttl(&attr), &FOREVER, &self.file_attr(&attr), Generation(0));
                }
                // Inode 0 means that the name does not exist, and allows the kernel to cache that.
                Ok(None) => {
                    let kind = NodeKind::File;
                    let none = Attr { ino: 0, kind, size: 0, mtime_ns: 0, nlink: 0, forever: true };
                    reply.entry(&FOREVER, &self.file_attr(&none), Generation(0));
                }
                Err(error) => reply.error(Errno::from(&error).into()),
            }
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.guard(|| match self.filesystem.attr(ino.0) {
            Ok(attr) => reply.attr(&ttl(&attr), &self.file_attr(&attr)),
            Err(error) => reply.error(Errno::from(&error).into()),
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.guard(|| match self.filesystem.link_text(ino.0) {
            // The kernel cuts off a longer text, which would then lead elsewhere.
            Ok(text) if text.len() <= PATH_MAX => reply.data(&text),
            Ok(_) => reply.error(Errno::from(&FsError::NameTooLong).into()),
            Err(error) => reply.error(Errno::from(&error).into()),
        });
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.guard(|| {
            add(&self.counters().reads, 1);
            let read = ReadRequest { unique: req.unique().0, ino: ino.0, offset, size };
            self.reader.read(read, req.pid(), None, reply);
        });
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.guard(|| {
            let listed = self.filesystem.read_dir(ino.0, offset, |entry| {
                let kind = file_type(entry.attr.kind);
                reply.add(INodeNo(entry.attr.ino), entry.next_offset, kind, OsStr::from_bytes(entry.name))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(Errno::from(&error).into()),
            }
        });
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.guard(|| {
            let listed = self.filesystem.read_dir(ino.0, offset, |entry| {
                reply.add(
                    INodeNo(entry.attr.ino),
                    entry.next_offset,
                    OsStr::from_bytes(entry.name),
                    &ttl(&entry.attr),
                    &self.file_attr(&entry.attr),
                    Generation(0),
                )
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(Errno::from(&error).into()),
            }
        });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let totals = self.filesystem.dataset().manifest().totals();
        let blocks = totals.bytes.div_ceil(STATFS_BLOCK);
        let files = u64::from(totals.files) + u64::from(totals.dirs) + u64::from(totals.links);
        reply.statfs(blocks, 0, 0, files, 0, STATFS_BLOCK as u32, 255, STATFS_BLOCK as u32);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.guard(|| xattr_reply(self.filesystem.xattr(ino.0, name.as_bytes()), size, reply));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.guard(|| xattr_reply(self.filesystem.xattr_names(ino.0), size, reply));
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.guard(|| {
            if !self.filesystem.is_stats(ino.0) {
                return reply.error(fuser::Errno::ENOTTY);
            }
            let taken = match cmd {
                WARM_IOCTL => {
                    self.filesystem.start_warming();
                    Ok(())
                }
                WARM_LIST_IOCTL => match WarmListPart::decode(in_data) {
                    Some(part) => self.filesystem.warm_listed(part).map_err(Errno::from),
                    None => Err(Errno(libc::EINVAL)),
                },
                _ => Err(Errno(libc::ENOTTY)),
            };
            match taken {
                Ok(()) => reply.ioctl(0, &[]),
                Err(errno) => reply.error(errno.into()),
            }
        });
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // Files have no holes: each offset is data, and the only hole is at the end of the file.
        self.guard(|| match self.filesystem.attr(ino.0) {
            Ok(attr) if (0..attr.size.cast_signed()).contains(&offset) => match whence {
                libc::SEEK_DATA => reply.offset(offset),
                libc::SEEK_HOLE => reply.offset(attr.size.cast_signed()),
                _ => reply.error(fuser::Errno::EINVAL),
            },
            Ok(_) => reply.error(fuser::Errno::ENXIO),
            Err(error) => reply.error(Errno::from(&error).into()),
        });
    }

    // The requests below would modify the file system. The kernel rejects them itself while the mount is read-only. If
    // root has remounted it writable, they are rejected here.

    fn access(&self, _req: &Request, _ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if mask.contains(AccessFlags::W_OK) { reply.error(fuser::Errno::EROFS) } else { reply.ok() }
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(fuser::Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &std::path::Path, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(fuser::Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(fuser::Errno::EROFS);
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(fuser::Errno::EROFS);
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }
}

/// Replies with a value, or with the value's size if the caller requests the size first.
fn xattr_reply(value: Result<Vec<u8>, FsError>, room: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if room == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > room as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(Errno::from(&error).into()),
    }
}
