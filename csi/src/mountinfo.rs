//! What is mounted, by /proc/self/mountinfo. Reading it never asks a file system anything, so it works while the process
//! behind a FUSE mount is stopped or gone; `stat` and `statfs` would wait for it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What the source of our mounts begins with.
pub(crate) const SOURCE_PREFIX: &str = "larder:";

/// A superblock, as long as it is mounted anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's id of the mount.
    pub id: u64,
    /// What is mounted.
    pub device: Device,
    /// Where.
    pub path: PathBuf,
    /// The file system.
    pub fs_type: String,
    /// What it calls its source.
    pub source: String,
}

impl MountEntry {
    /// True for a FUSE mount that larder-csi (or `larder mount`) made.
    pub fn is_ours(&self) -> bool {
        self.fs_type.starts_with("fuse") && self.source.starts_with(SOURCE_PREFIX)
    }
}

/// All mounts that this process sees, lower ones before those above them.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that one sees at `path`, which must be resolved.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.path == path))
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    let entry = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let plain = |index: usize| Some(String::from_utf8_lossy(&unescape(fields.get(index)?)).into_owned());
        let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
        Some(MountEntry {
            id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
            device: Device { major: major.parse().ok()?, minor: minor.parse().ok()? },
            path: OsString::from_vec(unescape(fields.get(4)?)).into(),
            fs_type: plain(dash + 1)?,
            source: plain(dash + 2)?,
        })
    };
    text.split(|&byte| byte == b'\n').filter_map(entry).collect()
}

/// Blanks, tabs, newlines and backslashes stand as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_real_names() {
        let text = b"36 35 0:98 / /mnt/a\\040b\\134c ro,noatime shared:1 - fuse larder:set ro,user_id=0\n\
                     37 35 8:1 / /mnt/other rw master:3 shared:4 - ext4 larder:vda rw\n\
                     broken line\n\n";
        let all = parse(text);
        let [ours, other] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((ours.id, ours.device), (36, Device { major: 0, minor: 98 }));
        assert_eq!(ours.path, Path::new("/mnt/a b\\c"));
        assert!(ours.is_ours() && !other.is_ours());
    }
}
