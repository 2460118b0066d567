//! Creates and ends mounts: one FUSE mount per dataset snapshot in a private folder, and its binds at targets.
//!
//! All calls block. None sends a request to a FUSE file system: no `stat`, no `statfs`, no lookup below its root. So
//! they work while larderd is stopped. The caller holds the lock of the mount or of the target.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use larder_daemon_api::fuse_mount::{FuseMountError, fuse_mount};
use larder_daemon_api::handover::request_memory;
use larder_daemon_api::mountinfo::{Device, MountEntry, mounted_at, mounts};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};
use tracing::{debug, info, warn};

use crate::mount_id::MountId;
use crate::target_path::{TargetError, TargetPath};

/// Why a mount could not be created or ended.
#[derive(Debug, thiserror::Error)]
pub enum MounterError {
    /// A system call failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// The failed step.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The kernel sent no INIT request.
    #[error("the kernel did not start the FUSE connection of {path}: {what}")]
    NoInit {
        /// The mount.
        path: PathBuf,
        /// The event that came instead.
        what: &'static str,
    },
    /// The FUSE mount to bind is missing.
    #[error("nothing is mounted at {path}, but pods use the dataset; it can be mounted again once they have ended")]
    Gone {
        /// The mount.
        path: PathBuf,
    },
}

/// The mount at a target.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No mount.
    Nothing,
    /// A Larder mount.
    Ours(Device),
    /// Another mount.
    Foreign {
        /// Its file system.
        fs_type: String,
    },
}

/// Makes FUSE mounts and binds.
#[derive(Debug)]
pub struct Mounter {
    /// Resolved, as in mountinfo.
    dir: PathBuf,
    daemon_uid: u32,
    read_ahead_kib: u64,
}

/// A FUSE connection that is not served yet.
#[derive(Debug)]
pub struct Begun {
    /// The device from which its requests are read.
    pub fd: OwnedFd,
    /// The shared memory in which larderd keeps requests that it has read and not answered.
    pub memory: OwnedFd,
    /// The kernel's first request.
    pub init: Vec<u8>,
}

impl Mounter {
    /// Creates FUSE mounts in `dir`, which is created if missing. A process of user `daemon_uid` will answer their
    /// requests.
    pub fn new(dir: &Path, daemon_uid: u32, read_ahead_kib: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
        Ok(Self { dir: dir.canonicalize()?, daemon_uid, read_ahead_kib })
    }

    /// The path of a mount.
    pub fn path(&self, mount: &MountId) -> PathBuf {
        self.dir.join(mount.as_str())
    }

    /// The file system that is mounted for `mount`.
    pub fn device(&self, mount: &MountId) -> Result<Option<Device>, MounterError> {
        let path = self.path(mount);
        match mounted_at(&path) {
            Ok(entry) => Ok(entry.filter(MountEntry::is_ours).map(|entry| entry.device)),
            Err(source) => Err(MounterError::Io { what: "look for mounts at", path, source }),
        }
    }

    /// All mounts with a folder, mounted or not.
    pub fn left_over(&self) -> io::Result<Vec<MountId>> {
        let names = std::fs::read_dir(&self.dir)?.map(|entry| Ok(entry?.file_name().into_string()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        Ok(names.into_iter().flatten().filter_map(|name| MountId::try_from(name).ok()).collect())
    }

    /// Creates the mount, and reads the kernel's first request. The mount's connection ends when its last descriptor
    /// closes.
    pub fn begin(&self, mount: &MountId, dataset: &str) -> Result<Begun, MounterError> {
        let path = self.path(mount);
        let failed = |what, source| MounterError::Io { what, path: path.clone(), source };
        let memory = request_memory().map_err(|error| failed("make the memory of requests for", error))?;
        match DirBuilder::new().mode(0o750).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create the folder", error));
            }
            _ => {}
        }
        match fuse_mount(&path, dataset, self.daemon_uid) {
            Ok((fd, init)) => {
                info!(%mount, "mounted");
                Ok(Begun { fd, memory, init })
            }
            Err(FuseMountError::Io { what, source }) => Err(failed(what, source)),
            Err(FuseMountError::NoInit(what)) => {
                self.end(mount)?;
                Err(MounterError::NoInit { path, what })
            }
        }
    }

    /// Raises the kernel's read-ahead above the default of 128 KiB, which would otherwise limit the size of read
    /// requests. Call it after the INIT request was answered, since the answer also sets the read-ahead. Only logs a
    /// failure.
    pub fn raise_read_ahead(&self, mount: &MountId) {
        let Ok(Some(Device { major, minor })) = self.device(mount) else { return };
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&knob, self.read_ahead_kib.to_string()) {
            info!(%error, "cannot raise the read-ahead: files are read in smaller requests");
        }
    }

    /// Unmounts `mount`, if it is mounted, and removes its folder.
    pub fn end(&self, mount: &MountId) -> Result<(), MounterError> {
        let path = self.path(mount);
        let failed = |what, source| MounterError::Io { what, path: path.clone(), source };
        let looked = |source| failed("look for mounts at", source);
        while mounted_at(&path).map_err(looked)?.is_some() {
            unmount(&path).map_err(|errno| failed("unmount", errno.into()))?;
            debug!(%mount, "unmounted");
        }
        match std::fs::remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove the folder", error)),
            _ => Ok(()),
        }
    }

    /// Binds `mount` at `target`, whose folder is created. Nothing may be mounted there.
    pub fn bind(&self, mount: &MountId, target: &TargetPath) -> Result<(), BindError> {
        let path = self.path(mount);
        let failed = |what, errno: Errno| MounterError::Io { what, path: path.clone(), source: errno.into() };
        let parent =
            target.open_parent()?.ok_or_else(|| TargetError::NoParent { path: target.as_path().to_owned() })?;
        let folder = target.make(&parent)?;
        // A descriptor refers to the mount that it was opened on, so the mount that is checked is also the mount that
        // is cloned.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| failed("open", errno))?;
        let id = mount_of(&root).map_err(|source| MounterError::Io { what: "look at", path: path.clone(), source })?;
        let all = mounts().map_err(|source| MounterError::Io { what: "look at", path: path.clone(), source })?;
        if !all.iter().any(|entry| entry.id == id && entry.path == path && entry.is_ours()) {
            return Err(MounterError::Gone { path }.into());
        }
        let tree_flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(&root, "", tree_flags | OpenTreeFlags::AT_EMPTY_PATH)
            .map_err(|errno| failed("clone the mount", errno))?;
        let both_empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&tree, "", &folder, "", both_empty).map_err(|errno| MounterError::Io {
            what: "bind the dataset at",
            path: target.as_path().to_owned(),
            source: errno.into(),
        })?;
        Ok(())
    }

    /// Finds the mount at `target`. If nothing is mounted, the target must be a folder or missing.
    pub fn look(&self, target: &TargetPath) -> Result<Found, TargetError> {
        let Some(parent) = target.open_parent()? else { return Ok(Found::Nothing) };
        let entry = mounted_at(parent.target_in_mountinfo()).map_err(|source| TargetError::Io {
            what: "look for mounts at",
            path: target.as_path().to_owned(),
            source,
        })?;
        Ok(match entry {
            None => {
                target.open(&parent)?;
                Found::Nothing
            }
            Some(entry) if entry.is_ours() => Found::Ours(entry.device),
            Some(entry) => Found::Foreign { fs_type: entry.fs_type },
        })
    }

    /// Unmounts our mounts at `target`, and removes its folder. Idempotent. A foreign mount or a folder with content is
    /// an error, and stays.
    pub fn unbind(&self, target: &TargetPath) -> Result<(), TargetError> {
        let Some(parent) = target.open_parent()? else { return Ok(()) };
        loop {
            match self.look(target)? {
                Found::Nothing => break,
                Found::Foreign { fs_type } => {
                    return Err(TargetError::Foreign { path: target.as_path().to_owned(), fs_type });
                }
                Found::Ours(_) => unmount(&parent.path_to(target.name())).map_err(|errno| TargetError::Io {
                    what: "unmount",
                    path: target.as_path().to_owned(),
                    source: errno.into(),
                })?,
            }
        }
        target.remove(&parent)
    }
}

/// Why a mount could not be bound at a target.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The mount cannot be used.
    #[error(transparent)]
    Mount(#[from] MounterError),
}

/// Unmounts without following a link; detaches the mount if files are in use.
fn unmount(path: &Path) -> Result<(), Errno> {
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => {
            warn!(path = %path.display(), "files are still open: the mount is detached, and disappears once the last one is closed");
            rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        }
        outcome => outcome,
    }
}

/// The kernel's id of the mount that a descriptor was opened on. `statx` reports it too, but may send a request to the
/// file system.
fn mount_of(fd: &OwnedFd) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("/proc/self/fdinfo has no mount ID for a descriptor"))
}
