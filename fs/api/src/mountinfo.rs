//! Mounts as /proc/self/mountinfo lists them.
//!
//! Reading that file sends no request to any file system. It therefore works while the process behind a FUSE mount is
//! stopped or dead, when `stat` and `statfs` would block.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The prefix of the source of every Larder mount. The type cannot identify one: it is `fuse` if root mounts, and
/// `fuse.larder` if fusermount3 does.
pub const SOURCE_PREFIX: &str = "larder:";

/// The device number of a superblock. It is unique while the superblock is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// One mount in this process's mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's id of the mount.
    pub id: u64,
    /// The device of the mounted superblock.
    pub device: Device,
    /// The mount point, with escapes decoded.
    pub path: PathBuf,
    /// True if mounts below this one propagate to other mount namespaces.
    pub shared: bool,
    /// The type of the file system, for example `fuse`.
    pub fs_type: String,
    /// The source that was passed to mount, for example `larder:imagenet`.
    pub source: String,
}

impl MountEntry {
    /// True for a Larder mount.
    pub fn is_ours(&self) -> bool {
        self.fs_type.starts_with("fuse") && self.source.starts_with(SOURCE_PREFIX)
    }
}

/// The source of a mount that shows `dataset`. Replaces characters that the mount table cannot hold: a comma would end
/// a mount option, and a newline would end a line of /proc/mounts.
pub fn source_of(dataset: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != ',' && c != '\\' { c } else { '_' };
    SOURCE_PREFIX.chars().chain(dataset.chars().map(plain)).collect()
}

/// All mounts that this thread sees. If mounts cover each other, the covered one comes first.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/thread-self/mountinfo")?))
}

/// The Larder mounts that this process sees. Empty if /proc cannot be read.
pub fn larder_mounts() -> Vec<MountEntry> {
    mounts().unwrap_or_default().into_iter().filter(MountEntry::is_ours).collect()
}

/// The uppermost mount at exactly `path`. `path` must have no symbolic links.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|mount| mount.path == path))
}

/// The mount that contains the file at `path`.
pub fn holding(path: &Path) -> io::Result<Option<MountEntry>> {
    let path = path.canonicalize()?;
    let holders = mounts()?.into_iter().filter(|mount| path.starts_with(&mount.path));
    Ok(holders.max_by_key(|mount| mount.path.as_os_str().len()))
}

/// Parses the text of a mountinfo file. Skips lines that do not have the documented form.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    // A lone hyphen ends the optional fields, of which there may be any number.
    let dash = fields.iter().position(|field| *field == b"-")?;
    let plain = |index: usize| Some(String::from_utf8_lossy(&unescape(fields.get(index)?)).into_owned());
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    Some(MountEntry {
        id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
        device: Device { major: major.parse().ok()?, minor: minor.parse().ok()? },
        path: OsString::from_vec(unescape(fields.get(4)?)).into(),
        shared: fields.get(6..dash)?.iter().any(|field| field.starts_with(b"shared:")),
        fs_type: plain(dash + 1)?,
        source: plain(dash + 2)?,
    })
}

/// Decodes the kernel's escapes: blanks, tabs, newlines and backslashes are written as a backslash and three octal
/// digits.
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
                     38 35 8:1 / /mnt/private rw master:3 - ext4 /dev/vda rw\n\
                     broken line\n\n";
        let all = parse(text);
        let [ours, other, private] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((ours.id, ours.device), (36, Device { major: 0, minor: 98 }));
        assert_eq!(ours.path, Path::new("/mnt/a b\\c"));
        assert!(ours.is_ours() && !other.is_ours());
        assert!(ours.shared && other.shared && !private.shared);
    }

    #[test]
    fn mountinfo_gives_our_mounts_with_their_real_names() {
        let text = b"36 35 98:0 / /mnt/a\\040b\\134c ro,noatime shared:1 - fuse.larder larder:set ro,user_id=0\n\
                     37 35 98:1 / /mnt/other rw - ext4 larder:vda rw\n\
                     38 35 98:2 / /mnt/root rw - fuse larder:two rw\n\
                     39 35 98:3 / /mnt/sshfs rw - fuse host:dir rw\n\
                     broken line\n\n";
        let ours: Vec<_> = parse(text).into_iter().filter(MountEntry::is_ours).map(|m| (m.path, m.source)).collect();
        let entry = |path: &str, source: &str| (PathBuf::from(path), source.to_owned());
        assert_eq!(ours, [entry("/mnt/a b\\c", "larder:set"), entry("/mnt/root", "larder:two")]);
    }

    #[test]
    fn a_backslash_without_three_octal_digits_is_one() {
        assert_eq!(unescape(br"\04"), br"\04");
    }

    #[test]
    fn the_root_holds_everything_and_a_fresh_folder_is_no_mount() {
        let folder = tempfile::tempdir().unwrap();
        assert!(mounted_at(folder.path()).unwrap().is_none());
        assert!(mounted_at(Path::new("/proc")).unwrap().is_some());
        assert_eq!(holding(Path::new("/proc/self")).unwrap().unwrap().fs_type, "proc");
    }

    #[test]
    fn a_dataset_name_cannot_smuggle_mount_options_in() {
        assert_eq!(source_of("a,suid b\n"), "larder:a_suid_b_");
    }
}
