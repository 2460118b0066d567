//! Reads untrusted folders and attributes.
//!
//! Invariant: for any kind of file at a path, a read returns immediately and uses a few KiB. A file is read only if it
//! is a regular file, without following links, and only up to the size of an attribute. Only a bounded number of a
//! folder's entries is read.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use super::attribute;
use crate::machine::Warning;

/// The size of a page, which is the largest size of a sysfs attribute.
const ATTRIBUTE_BYTES_MOST: usize = 4096;

/// The most entries of a folder that are read: enough for a thousand virtual functions.
pub(super) const ENTRIES_MOST: usize = 4096;

/// The most warnings that one inventory keeps.
const WARNINGS_MAX: usize = 256;

/// The most bytes of malformed content that a warning shows.
const SHOWN_BYTES: usize = 40;

/// The warnings of an inventory.
#[derive(Debug, Default)]
pub(super) struct Warnings(Vec<Warning>);

impl Warnings {
    pub(super) fn add(&mut self, at: &Path, why: impl Into<String>) {
        if self.0.len() < WARNINGS_MAX {
            self.0.push(Warning { at: at.display().to_string(), why: why.into() });
        }
    }

    pub(super) fn into_vec(self) -> Vec<Warning> {
        self.0
    }
}

/// Why an attribute could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The attribute does not exist, or the kernel reports that it has no value.
    Absent,
    /// The entry is not a valid attribute, for example a link or an oversized file.
    Odd(String),
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO => Self::Absent,
            Errno::LOOP => Self::Odd("a link instead of a file".to_owned()),
            other => Self::Odd(io::Error::from(other).to_string()),
        }
    }
}

/// The text of an attribute.
fn text(bytes: &[u8]) -> Result<&str, Unread> {
    if bytes.len() > ATTRIBUTE_BYTES_MOST {
        return Err(Unread::Odd(format!("larger than {ATTRIBUTE_BYTES_MOST} bytes")));
    }
    attribute::first_line(bytes).ok_or_else(|| Unread::Odd(format!("not UTF-8: {}", shown(bytes))))
}

/// Malformed content for a warning: shortened, and escaped to be printable.
fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(SHOWN_BYTES)];
    format!("\"{}\"{}", head.escape_ascii(), if head.len() < bytes.len() { "…" } else { "" })
}

/// An open attribute, which can be read repeatedly.
#[derive(Debug)]
pub(super) struct Attribute(OwnedFd);

impl Attribute {
    pub(super) fn open(path: &Path) -> Result<Self, Unread> {
        Self::open_at(CWD, path)
    }

    fn open_at(folder: impl rustix::fd::AsFd, path: &Path) -> Result<Self, Unread> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(folder, path, flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(Self(file)),
            other => Err(Unread::Odd(format!("not a regular file: {other:?}"))),
        }
    }

    /// Reads the attribute from offset 0, which makes the kernel query the device again.
    pub(super) fn read<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a str, Unread> {
        let length = rustix::io::pread(&self.0, &mut *buffer, 0)?;
        text(&buffer[..length])
    }
}

/// An open folder of sysfs, and the path by which warnings name it.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder and follows links.
    pub(super) fn open(path: PathBuf) -> Result<Self, Unread> {
        let fd = openat(CWD, &path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a subfolder; `None` if it is absent. If the entry is not a folder, adds a warning.
    pub(super) fn below(&self, name: &str, warnings: &mut Warnings) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = self.path.join(name);
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Some(Self { fd, path }),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                warnings.add(&path, io::Error::from(errno).to_string());
                None
            }
        }
    }

    /// The text of an attribute.
    pub(super) fn text(&self, name: &str) -> Result<String, Unread> {
        // One read is enough: the kernel returns an attribute in one piece.
        let mut buffer = [0; ATTRIBUTE_BYTES_MOST + 1];
        Attribute::open_at(&self.fd, Path::new(name))?.read(&mut buffer).map(str::to_owned)
    }

    fn value<T>(&self, name: &str, decode: impl FnOnce(&str) -> Option<T>) -> Result<T, Unread> {
        let text = self.text(name)?;
        decode(&text).ok_or_else(|| Unread::Odd(format!("unexpected content: {}", shown(text.as_bytes()))))
    }

    /// An attribute that may be absent. A malformed one adds a warning.
    pub(super) fn optional<T>(
        &self,
        name: &str,
        decode: impl FnOnce(&str) -> Option<T>,
        warnings: &mut Warnings,
    ) -> Option<T> {
        match self.value(name, decode) {
            Ok(value) => return Some(value),
            Err(Unread::Absent) => {}
            Err(Unread::Odd(why)) => warnings.add(&self.path.join(name), why),
        }
        None
    }

    /// An attribute that every such folder has. An absent or malformed one adds a warning.
    pub(super) fn required<T>(
        &self,
        name: &str,
        decode: impl FnOnce(&str) -> Option<T>,
        warnings: &mut Warnings,
    ) -> Option<T> {
        let why = match self.value(name, decode) {
            Ok(value) => return Some(value),
            Err(Unread::Absent) => "missing".to_owned(),
            Err(Unread::Odd(why)) => why,
        };
        warnings.add(&self.path.join(name), why);
        None
    }

    /// The last part of a link's target; `None` if there is no such link.
    pub(super) fn link(&self, name: &str, warnings: &mut Warnings) -> Option<String> {
        let target = match readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT) => return None,
            Err(errno) => {
                warnings.add(&self.path.join(name), io::Error::from(errno).to_string());
                return None;
            }
        };
        let last = target.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match std::str::from_utf8(last) {
            Ok(last) => Some(last.to_owned()),
            Err(_) => {
                warnings.add(&self.path.join(name), "the target is not UTF-8");
                None
            }
        }
    }

    /// The names of the folder's entries, sorted. A name that is not UTF-8 adds a warning.
    pub(super) fn entries(&self, warnings: &mut Warnings) -> Vec<String> {
        entries(&self.path, warnings)
    }
}

/// The names of a folder's entries, sorted; empty if the folder does not exist. A name that is not UTF-8 adds a
/// warning.
pub(super) fn entries(path: &Path, warnings: &mut Warnings) -> Vec<String> {
    let read = match std::fs::read_dir(path) {
        Ok(read) => read,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                warnings.add(path, error.to_string());
            }
            return Vec::new();
        }
    };
    let mut names = Vec::new();
    for entry in read {
        if names.len() == ENTRIES_MOST {
            warnings.add(path, format!("more than {ENTRIES_MOST} entries: the rest is left out"));
            break;
        }
        match entry.map(|entry| entry.file_name().into_string()) {
            Ok(Ok(name)) => names.push(name),
            Ok(Err(name)) => warnings.add(&path.join(name), "the name is not UTF-8"),
            Err(error) => {
                warnings.add(path, error.to_string());
                break;
            }
        }
    }
    names.sort_unstable();
    names
}
