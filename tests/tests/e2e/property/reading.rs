//! What readers do, compared with the model.
#![expect(unsafe_code, reason = "maps files of the mount")]

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dataset::Dataset;
use super::drawn::{Op, Pick};
use super::model::{Allowed, FileModel};

impl Dataset {
    fn path(&self, file: &FileModel) -> PathBuf {
        self.mount.path(&file.key)
    }

    fn pick(&self, file: Pick) -> &FileModel {
        file.among(&self.files)
    }

    /// Runs one operation and compares its result with the model.
    pub(super) fn run(&self, op: &Op, allowed: &Allowed) -> Result<(), String> {
        // A piece starts anywhere in the file, and now and then past its end.
        let start = |file: &FileModel, at: Pick| at.of(file.bytes.len() as u64 + 1 + file.bytes.len() as u64 / 16);
        let piece = |file: &FileModel, at: Pick, len: u32| {
            let from = (start(file, at) as usize).min(file.bytes.len());
            let to = (from + len as usize).min(file.bytes.len());
            from..to
        };
        let check = |file: &FileModel, got: std::io::Result<Vec<u8>>, expected: &[u8]| match got {
            Ok(got) if got == expected => Ok(()),
            Ok(got) => Err(format!(
                "{:?}: wrong bytes: {} where {} were expected, first difference at {:?}",
                file.key,
                got.len(),
                expected.len(),
                got.iter().zip(expected).position(|(a, b)| a != b)
            )),
            Err(error) if allowed.permits(&error, file.lost) => Ok(()),
            Err(error) => Err(format!("{:?}: {error}, which nothing allows", file.key)),
        };
        let name_error = |file: &FileModel, error: std::io::Error| {
            // Names and attributes need no origin, so they may fail only when the process dies.
            if allowed.anything { Ok(()) } else { Err(format!("{:?}: {error}", file.key)) }
        };
        match op {
            Op::Read { file, at, len } | Op::Direct { file, at, len } => {
                let direct = if matches!(op, Op::Direct { .. }) { OFlags::DIRECT } else { OFlags::empty() };
                let file = self.pick(*file);
                let got = read_piece(&self.path(file), direct, start(file, *at), *len as usize);
                check(file, got, &file.bytes[piece(file, *at, *len)])
            }
            Op::Whole { file } => {
                let file = self.pick(*file);
                check(file, std::fs::read(self.path(file)), &file.bytes)
            }
            Op::Mapped { file, at, len } => {
                let file = self.pick(*file);
                let piece = piece(file, *at, *len);
                if piece.is_empty() {
                    return Ok(());
                }
                check(file, read_mapped(&self.path(file), piece.clone()), &file.bytes[piece])
            }
            Op::Stat { file } => {
                let file = self.pick(*file);
                match std::fs::metadata(self.path(file)) {
                    Ok(found) if found.is_file() && found.len() == file.bytes.len() as u64 => Ok(()),
                    Ok(found) => Err(format!("{:?}: {found:?}", file.key)),
                    Err(error) => name_error(file, error),
                }
            }
            Op::List { file } => {
                let file = self.pick(*file);
                let folder = file.key.rsplit_once('/').map_or("", |(folder, _)| folder);
                let listed = std::fs::read_dir(self.mount.path(folder)).and_then(|entries| {
                    entries.map(|entry| Ok(entry?.file_name().as_bytes().to_vec())).collect::<std::io::Result<Vec<_>>>()
                });
                let mut listed = match listed {
                    Ok(listed) => listed,
                    Err(error) => return name_error(file, error),
                };
                listed.sort_unstable();
                let expected: Vec<_> = self.folders[folder].iter().map(|name| name.as_bytes().to_vec()).collect();
                if listed == expected { Ok(()) } else { Err(format!("{folder:?} holds {listed:?}")) }
            }
            Op::Attributes { file } => {
                let file = self.pick(*file);
                let (name, expected) = if self.packed {
                    ("user.larder.crc32c", format!("{:08x}", larder_dataset::crc32c(&file.bytes)))
                } else {
                    ("user.larder.etag", format!("\"{}\"", file.etag))
                };
                let mut value = [0; 100];
                match rustix::fs::getxattr(self.path(file), name, &mut value) {
                    Ok(len) if value[..len] == *expected.as_bytes() => Ok(()),
                    Ok(len) => Err(format!("{:?}: {name} is {}", file.key, value[..len].escape_ascii())),
                    Err(errno) => name_error(file, errno.into()),
                }
            }
            Op::DropPages { file } => {
                let file = self.pick(*file);
                match File::open(self.path(file)) {
                    Ok(open) => {
                        // The kernel need not follow this advice.
                        let _ = rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed);
                        Ok(())
                    }
                    Err(error) => name_error(file, error),
                }
            }
            Op::NoSuchName { file } => {
                let mut path = self.path(self.pick(*file)).into_os_string();
                path.push("-");
                let is_another = self.files.iter().any(|file| self.path(file) == path)
                    || self.folders.keys().any(|folder| self.mount.path(folder) == path);
                match std::fs::metadata(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound || allowed.anything => Ok(()),
                    // The longest names become too long.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NAMETOOLONG) => Ok(()),
                    Ok(_) if is_another => Ok(()),
                    other => Err(format!("{path:?}: {other:?}")),
                }
            }
        }
    }
}

/// Reads `len` bytes from `at`, or up to the end, by as many reads as that takes.
fn read_piece(path: &Path, flags: OFlags, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty())?);
    let mut piece = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut piece[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) => return Err(error),
        }
    }
    piece.truncate(filled);
    Ok(piece)
}

/// Reads a piece of a file through a mapping. The kernel copies: if it cannot fetch a page it returns EFAULT, and this process
/// does not get SIGBUS for touching the page.
fn read_mapped(path: &Path, piece: std::ops::Range<usize>) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // SAFETY: the mount is read-only and its files never change, so nothing alters or truncates what is mapped.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    let copy = File::from(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC)?);
    let mut from = piece.start;
    while from < piece.end {
        match copy.write_at(&map[from..piece.end], (from - piece.start) as u64) {
            Ok(written) => from += written,
            // Only a read tells why.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::FAULT) => {
                return match read_piece(path, OFlags::empty(), from as u64, 1) {
                    Ok(_) => read_mapped(path, piece),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        }
    }
    let mut bytes = vec![0; piece.len()];
    copy.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
