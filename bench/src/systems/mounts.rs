//! Waits for mounts, and removes them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_daemon_api::mountinfo::{mounted_at, mounts};
use rustix::mount::{UnmountFlags, unmount as unmount_now};

use super::child::Child;
use super::stop::Stop;

/// How long a daemon may take to mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a mount may be busy before it is detached.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which mounts are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until something is mounted at `folder`. If the daemon ends first or takes too long, the error quotes its
/// output.
pub fn wait_for(folder: &Path, daemon: &mut Child, stop: &Stop) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        if mounted_at(folder)?.is_some() {
            return Ok(());
        }
        stop.check()?;
        if let Some(status) = daemon.ended()? {
            bail!("mount: the daemon ended with {status}; {}", daemon.last_words());
        }
        if started.elapsed() > MOUNT_TIMEOUT {
            bail!("mount: no mount appeared within {} s; {}", MOUNT_TIMEOUT.as_secs(), daemon.last_words());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Removes all mounts at `folder`. A mount that stays busy is detached and ends with its last user.
pub fn unmount(folder: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    while mounted_at(folder)?.is_some() {
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
    for mount in mounts()?.into_iter().rev().filter(|mount| mount.path.starts_with(folder)) {
        unmount_now(&mount.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .with_context(|| format!("detach {}", mount.path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_a_mount_needs_no_unmount() {
        let folder = tempfile::tempdir().unwrap();
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
