//! [`FailingDisk`]: an ext4 on a disk whose bad sectors a test chooses, and which a test can slow down, freeze or let
//! hang.
//!
//! ```text
//!  ext4 ── loop device ── FUSE: one file, served by this process ── image, a sparse file
//! ```
//! The FUSE server answers EIO for the blocks that a test has broken. Everything above it is the real kernel: the page
//! cache, ext4 and its journal, SIGBUS under a mapping, EIO of a system call.
//!
//! As on a real disk, an unreadable block becomes readable again when it is written whole. Mounting needs root.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use rustix::fs::Advice;
use rustix::mount::{UnmountFlags, unmount};

/// The block size of the disk.
const BLOCK_BYTES: u64 = 4096;

/// How long the kernel may cache attributes and entries, which never change.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// An ext4 on a disk with bad sectors, or that fails as a whole. Dropping it removes the file system and the disk as
/// soon as no process uses them.
#[derive(Debug)]
pub struct FailingDisk {
    dir: PathBuf,
    image: PathBuf,
    faults: Arc<Mutex<Faults>>,
    /// The FUSE session, which serves the image until it is dropped.
    _serving: BackgroundSession,
    _folder: tempfile::TempDir,
}

/// A frozen file system. It is thawed when this is dropped, and when this process ends.
#[derive(Debug)]
pub struct FrozenDisk {
    /// Thaws the file system when its input ends.
    keeper: Child,
}

impl FrozenDisk {
    /// Freezes the file system that is mounted at `dir`, as for a snapshot of its disk: whatever would change it waits.
    pub fn freeze(dir: &Path) -> io::Result<Self> {
        // A process of its own, and not of this process's group: a killed test must leave no file system frozen, since
        // a process that waits for it cannot be killed.
        let script = "fsfreeze --freeze \"$0\" && echo frozen && read -r _; fsfreeze --unfreeze \"$0\"";
        let mut keeper = Command::new("sh");
        keeper.args(["-c", script]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut frozen = Self { keeper: keeper.spawn()? };
        let mut said = String::new();
        BufReader::new(frozen.keeper.stdout.take().expect("stdout is a pipe")).read_line(&mut said)?;
        if said.is_empty() {
            return Err(io::Error::other(format!("{} cannot be frozen: fsfreeze needs root", dir.display())));
        }
        Ok(frozen)
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// The failing blocks, and the number of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Faults {
    unreadable: BTreeSet<u64>,
    unwritable: BTreeSet<u64>,
    no_reads: bool,
    no_writes: bool,
    /// Nothing is answered.
    hangs: bool,
    /// The bytes per second that can be written, if the disk is slow.
    write_rate: Option<u64>,
    errors: DiskErrors,
}

/// The number of errors that a disk has returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskErrors {
    /// Failed reads.
    pub reads: u64,
    /// Failed writes.
    pub writes: u64,
}

impl FailingDisk {
    /// Creates a disk of this size without faults, and mounts its ext4 at `dir`, which is created if missing.
    pub fn new(dir: &Path, bytes: u64) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (backing, image) = (folder.path().join("backing"), folder.path().join("image"));
        let file = File::options().read(true).write(true).create_new(true).open(&backing)?;
        file.set_len(bytes)?;
        run(Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(&backing))?;
        File::create(&image)?;
        let faults = Arc::default();
        let disk = Disk { file, bytes, faults: Arc::clone(&faults) };
        let serving = Session::new(disk, &image, &Config::default())?.spawn()?;
        std::fs::create_dir_all(dir)?;
        let disk = Self { dir: dir.to_owned(), image, faults, _serving: serving, _folder: folder };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> io::Result<()> {
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&self.image).arg(&self.dir)).map(drop)
    }

    /// Unmounts the file system and mounts it again, like a restart of the machine. Waits at most 10 s for processes
    /// that use it.
    pub fn remount(&self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            match unmount(&self.dir, UnmountFlags::empty()) {
                // The kernel closes the files of a process some time after the process has ended.
                Err(rustix::io::Errno::BUSY) if started.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                unmounted => break unmounted?,
            }
        }
        self.mount()
    }

    /// Makes a part of a file unreadable, and drops the file's pages from the page cache, except mapped pages.
    pub fn break_reads(&self, path: &Path, range: Range<u64>) -> io::Result<()> {
        let blocks = self.blocks(path, range)?;
        self.faults().unreadable.extend(blocks);
        rustix::fs::fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
        Ok(())
    }

    /// Makes a part of a file unwritable.
    pub fn break_writes(&self, path: &Path, range: Range<u64>) -> io::Result<()> {
        let blocks = self.blocks(path, range)?;
        self.faults().unwritable.extend(blocks);
        Ok(())
    }

    /// Makes the whole disk unwritable.
    pub fn break_all_writes(&self) {
        self.faults().no_writes = true;
    }

    /// Makes every read and write fail.
    pub fn break_all(&self) {
        let mut faults = self.faults();
        (faults.no_reads, faults.no_writes) = (true, true);
    }

    /// Answers no read and no write until the disk is mended. Threads that wait for it cannot be killed.
    pub fn hang(&self) {
        self.faults().hangs = true;
    }

    /// Slows the disk down: it writes this many bytes per second, and reads nothing meanwhile.
    pub fn slow_writes(&self, bytes_per_second: u64) {
        self.faults().write_rate = Some(bytes_per_second);
    }

    /// Freezes the file system.
    pub fn freeze(&self) -> io::Result<FrozenDisk> {
        FrozenDisk::freeze(&self.dir)
    }

    /// Repairs the disk: every block can be read and written again, at full speed.
    pub fn mend(&self) {
        let mut faults = self.faults();
        *faults = Faults { errors: faults.errors, ..Faults::default() };
    }

    /// The number of blocks that cannot be read.
    pub fn unreadable(&self) -> usize {
        self.faults().unreadable.len()
    }

    /// The errors that the disk has returned so far.
    pub fn errors(&self) -> DiskErrors {
        self.faults().errors
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        lock(&self.faults)
    }

    /// The disk's blocks that hold this part of a file. Writes the file's dirty pages first, so that the blocks exist.
    fn blocks(&self, path: &Path, range: Range<u64>) -> io::Result<Vec<u64>> {
        File::open(path)?.sync_all()?;
        let listed = run(Command::new("filefrag").args(["-e", "-b4096"]).arg(path))?;
        let wanted = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let mut blocks = Vec::new();
        for (first, physical, count) in listed.lines().filter_map(extent) {
            blocks.extend((0..count).filter(|i| wanted.contains(&(first + i))).map(|i| physical + i));
        }
        if blocks.is_empty() {
            return Err(io::Error::other(format!("no blocks of {} in {listed}", path.display())));
        }
        Ok(blocks)
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        // Broken blocks must not make the unmount wait for writes that cannot succeed.
        self.mend();
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = unmount(&self.image, UnmountFlags::DETACH);
    }
}

/// Parses a line of `filefrag -e`: the first block in the file, the first on the disk, and the number of blocks, as in
/// `   0:        0..       2:      34304..     34306:      3:             last,eof`.
fn extent(line: &str) -> Option<(u64, u64, u64)> {
    let mut fields = line.split(':').map(str::trim);
    fields.next()?.parse::<u64>().ok()?;
    let mut start = || fields.next()?.split("..").next()?.trim().parse().ok();
    Some((start()?, start()?, fields.next()?.parse().ok()?))
}

fn lock(faults: &Mutex<Faults>) -> MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The FUSE file system, whose root is a regular file: the disk.
#[derive(Debug)]
struct Disk {
    file: File,
    bytes: u64,
    faults: Arc<Mutex<Faults>>,
}

impl Disk {
    fn blocks(offset: u64, len: u64) -> Range<u64> {
        offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
    }

    fn wait_until_it_answers(&self) {
        while lock(&self.faults).hangs {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read_at(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        self.wait_until_it_answers();
        let mut faults = lock(&self.faults);
        if faults.no_reads || faults.unreadable.range(Self::blocks(offset, len)).next().is_some() {
            faults.errors.reads += 1;
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        drop(faults);
        let mut bytes = vec![0; usize::try_from(len.min(self.bytes.saturating_sub(offset))).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u64;
        self.wait_until_it_answers();
        let mut faults = lock(&self.faults);
        if faults.no_writes || faults.unwritable.range(Self::blocks(offset, len)).next().is_some() {
            faults.errors.writes += 1;
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        self.file.write_all_at(data, offset)?;
        for block in offset.div_ceil(BLOCK_BYTES)..(offset + len) / BLOCK_BYTES {
            faults.unreadable.remove(&block);
        }
        let pause = faults.write_rate.map(|rate| Duration::from_secs_f64(len as f64 / rate as f64));
        drop(faults);
        // The server has one thread, so that the disk does one thing at a time.
        pause.into_iter().for_each(std::thread::sleep);
        Ok(())
    }
}

impl Filesystem for Disk {
    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let attr = FileAttr {
            ino,
            size: self.bytes,
            blocks: self.bytes / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&FOREVER, &attr);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Bypasses the page cache, so that each access of the loop device reaches this server.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_at(offset, size.into()) {
            Ok(bytes) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_at(offset, data) {
            // The kernel sends at most a few MiB.
            Ok(()) => reply.written(data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // Nothing to do: the image need not survive a power loss.
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_read_from_its_line() {
        assert_eq!(
            extent("   0:        0..       2:      34304..     34306:      3:             last,eof"),
            Some((0, 34304, 3))
        );
        assert_eq!(
            extent("   1:       10..      12:      40000..     40002:      3:      34314: unwritten"),
            Some((10, 40000, 3))
        );
        for other in ["Filesystem type is: ef53", " ext:     logical_offset:        physical_offset: length:", ""] {
            assert_eq!(extent(other), None);
        }
    }

    #[test]
    fn a_broken_block_fails_until_it_is_written_whole_or_the_disk_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FailingDisk::new(&folder.path().join("disk"), 16 << 20).unwrap();
        let path = folder.path().join("disk/file");
        let contents: Vec<u8> = (0..10 * 4096_u32).map(|i| (i / 4096) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let is_eio =
            |result: io::Result<()>| result.unwrap_err().raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut page = [0; 4096];

        disk.break_reads(&path, 3 * 4096..4 * 4096).unwrap();
        assert_eq!(disk.unreadable(), 1);
        assert!(is_eio(file.read_exact_at(&mut page, 3 * 4096)));
        file.read_exact_at(&mut page, 9 * 4096).unwrap();
        assert_eq!(page, [9; 4096]);
        // A partial write of the block fails, a whole write succeeds.
        assert!(is_eio(file.write_all_at(b"x", 3 * 4096)));
        file.write_all_at(&[7; 4096], 3 * 4096).unwrap();
        file.sync_all().unwrap();
        assert_eq!(disk.unreadable(), 0);

        disk.break_writes(&path, 0..4096).unwrap();
        file.write_all_at(&[8; 4096], 0).unwrap();
        assert!(is_eio(file.sync_all()));
        let errors = disk.errors();
        assert!(errors.reads > 0 && errors.writes > 0, "{errors:?}");
        disk.mend();
        drop(file);
        disk.remount().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!((&found[3 * 4096..4 * 4096], found.len()), (&[7; 4096][..], contents.len()));

        // ext4 becomes read-only when it cannot write its journal.
        disk.break_all_writes();
        let writes =
            || std::fs::write(folder.path().join("disk/other"), b"x").and_then(|()| File::open(&path)?.sync_all());
        assert!((0..100).any(|_| writes().is_err()));
        disk.mend();
        disk.remount().unwrap();
        std::fs::write(folder.path().join("disk/other"), b"x").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), found);
    }

    #[test]
    fn a_frozen_disk_takes_no_write_until_it_is_thawed() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FailingDisk::new(&folder.path().join("disk"), 16 << 20).unwrap();
        let path = folder.path().join("disk/file");
        let frozen = disk.freeze().unwrap();
        let (done, written) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                std::fs::write(path, b"x").unwrap();
                done.send(()).unwrap();
            }
        });
        assert!(written.recv_timeout(Duration::from_millis(200)).is_err());
        drop(frozen);
        written.recv_timeout(Duration::from_secs(30)).unwrap();
        writer.join().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
    }
}
