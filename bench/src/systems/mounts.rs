//! Mounts as the kernel lists them: finding, awaiting and removing them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::mount::{UnmountFlags, unmount as unmount_now};

use super::child::Child;
use super::stop::Stop;

/// How long a daemon may take to mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a mount may be busy before it is detached.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// The device number of its files, as `(major, minor)`.
    pub device: (u32, u32),
    /// The mount point.
    pub folder: PathBuf,
    /// The type, such as `ext4` or `fuse.juicefs`.
    pub kind: String,
}

/// The mounts that this thread sees.
pub fn all() -> anyhow::Result<Vec<MountLine>> {
    let text = std::fs::read("/proc/thread-self/mountinfo").context("read /proc/thread-self/mountinfo")?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// The mount at exactly this folder; the topmost if there are several.
pub fn at(folder: &Path) -> anyhow::Result<Option<MountLine>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.folder == folder))
}

/// The mount that contains a file.
pub fn holding(path: &Path) -> anyhow::Result<Option<MountLine>> {
    let path = path.canonicalize().with_context(|| format!("find {}", path.display()))?;
    let holders = all()?.into_iter().filter(|mount| path.starts_with(&mount.folder));
    Ok(holders.max_by_key(|mount| mount.folder.as_os_str().len()))
}

/// Waits until something is mounted at `folder`. If the daemon ends first or takes too long, the error quotes its
/// output.
pub fn wait_for(folder: &Path, daemon: &mut Child, stop: &Stop) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        if at(folder)?.is_some() {
            return Ok(());
        }
        stop.check()?;
        if let Some(status) = daemon.ended()? {
            bail!("mount: the daemon ended with {status}; {}", daemon.last_words());
        }
        if started.elapsed() > MOUNT_TIMEOUT {
            bail!("mount: no mount after {} s; {}", MOUNT_TIMEOUT.as_secs(), daemon.last_words());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Unmounts everything at `folder`. A mount that stays busy is detached and ends with its last user.
pub fn unmount(folder: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    while at(folder)?.is_some() {
        let flags = if started.elapsed() < BUSY_TIMEOUT { UnmountFlags::empty() } else { UnmountFlags::DETACH };
        match unmount_now(folder, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(POLL_INTERVAL),
            Err(error) => return Err(error).with_context(|| format!("unmount {}", folder.display())),
        }
    }
    Ok(())
}

/// Detaches all mounts below `folder`, the newest first.
pub fn detach_below(folder: &Path) -> anyhow::Result<()> {
    for mount in all()?.into_iter().rev().filter(|mount| mount.folder.starts_with(folder)) {
        unmount_now(&mount.folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .with_context(|| format!("detach {}", mount.folder.display()))?;
    }
    Ok(())
}

fn parse(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let folder = unescaped(fields.nth(1)?);
    // Optional fields follow, up to a lone hyphen.
    fields.by_ref().find(|&field| field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(MountLine { device: (major.parse().ok()?, minor.parse().ok()?), folder, kind })
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read_with_odd_names_and_optional_fields() {
        let line = br"98 27 0:53 / /tmp/a\040b\134c rw,nosuid shared:48 master:2 - fuse.juicefs JuiceFS:x rw,user_id=0";
        let expected =
            MountLine { device: (0, 53), folder: PathBuf::from(r"/tmp/a b\c"), kind: "fuse.juicefs".to_owned() };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"27 1 254:1 / / rw - ext4 /dev/vda1 rw").unwrap().device, (254, 1));
        assert_eq!(parse(b""), None);
        assert_eq!(unescaped(br"\04"), PathBuf::from(r"\04"));
    }

    #[test]
    fn the_root_holds_everything_and_a_fresh_folder_is_no_mount() {
        let folder = tempfile::tempdir().unwrap();
        assert!(at(folder.path()).unwrap().is_none());
        assert!(at(Path::new("/proc")).unwrap().is_some());
        assert_eq!(holding(Path::new("/proc/self")).unwrap().unwrap().kind, "proc");
        unmount(folder.path()).unwrap();
    }

    #[test]
    fn a_daemon_that_ends_instead_of_mounting_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo no such bucket >&2; exit 3"]);
        let mut child = Child::spawn("peer", &mut command, &folder.path().join("log")).unwrap();
        let error = wait_for(folder.path(), &mut child, &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("no such bucket") && error.contains('3'), "{error}");
    }
}
