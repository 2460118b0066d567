//! Makes mounts and ends them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, MountOption, Session, SessionACL};
use larder_daemon_api::mountinfo::{larder_mounts, source_of};
use tracing::{info, warn};

use crate::buffers;
use crate::filesystem::Filesystem;
use crate::fuse::{Front, KernelLimits};
use crate::reading::Reader;
use larder_cachenode::dataset::Dataset;

/// How a dataset is mounted.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// Where.
    pub mountpoint: PathBuf,
    /// Lets other users access the mount. Without root this needs `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Bytes that the kernel reads ahead in a file.
    pub read_ahead_bytes: u64,
    /// Background requests that the kernel keeps in flight.
    pub max_background: u16,
}

impl MountConfig {
    /// The defaults of `larder mount`.
    pub fn new(mountpoint: PathBuf) -> Self {
        Self {
            mountpoint,
            allow_other: rustix::process::geteuid().is_root(),
            threads: 16,
            read_ahead_bytes: 1 << 20,
            max_background: 1024,
        }
    }
}

/// Why a mount could not be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mount point {path}: {what}")]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// The mistake, and how to correct it.
        what: &'static str,
    },
    /// The kernel or fusermount3 refused.
    #[error("mount at {path}: {source} (`larder doctor` shows what is missing)")]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The mount could not be unmounted.
    #[error("unmount {path}: {source}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A mount being served. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    path: PathBuf,
}

/// Mounts `dataset`. The mount is ready when this returns.
pub fn mount(dataset: Arc<Dataset>, config: &MountConfig) -> Result<Mounted, MountError> {
    let path = prepare(&config.mountpoint)?;
    let name = dataset.stats().dataset.name;
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
        // The kernel checks the modes itself and sends no ACCESS requests.
        MountOption::DefaultPermissions,
        MountOption::FSName(source_of(&name)),
        MountOption::Subtype("larder".to_owned()),
    ];
    options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
    let threads = config.threads.max(1);
    options.n_threads = Some(threads);
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let limits = KernelLimits { max_background: config.max_background.max(16) };
    let front = Front::new(Reader::new(Arc::new(Filesystem::new(dataset)), None), limits, owner);
    let refused = |source| MountError::Refused { path: path.clone(), source };
    let session = buffers::open(|| Session::new(front, &path, &options));
    let session = session.and_then(|session| buffers::spawn(session, threads, None)).map_err(refused)?;
    raise_read_ahead(&path, config.read_ahead_bytes);
    info!(path = %path.display(), "mounted");
    Ok(Mounted { session, path })
}

impl Mounted {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts and waits until the last request is answered. If files are in use, the mount disappears from the tree
    /// at once and ends when the last of them is closed.
    pub fn unmount(self) -> Result<(), MountError> {
        let Self { session, path } = self;
        session.umount_and_join().map_err(|source| MountError::Unmount { path, source })
    }

    /// Waits until it is unmounted and all its threads have ended.
    pub fn wait(self) -> io::Result<()> {
        self.session.join()
    }
}

/// Checks the mount point, and unmounts a dead mount of Larder that a killed process left there.
fn prepare(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let refuse = |what| MountError::Mountpoint { path: mountpoint.to_owned(), what };
    // The kernel caches the attributes of the root without end, so a dead mount may still have them; statfs always
    // asks.
    let looked = std::fs::metadata(mountpoint).and_then(|found| {
        rustix::fs::statfs(mountpoint)?;
        Ok(found)
    });
    match looked {
        Ok(found) if !found.is_dir() => return Err(refuse("is not a folder; name an empty folder")),
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            if larder_mounts().iter().any(|mount| mount.path == absolute(mountpoint)) {
                warn!(path = %mountpoint.display(), "unmounting the dead mount of a killed process");
                unmount(mountpoint, true)?;
            } else {
                return Err(refuse("holds a dead mount of another program; unmount that first"));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(refuse("does not exist; create the folder first (mkdir -p)"));
        }
        Err(error) => return Err(MountError::Refused { path: mountpoint.to_owned(), source: error }),
    }
    let path = mountpoint.canonicalize().map_err(|_| refuse("cannot be resolved"))?;
    if larder_mounts().iter().any(|mount| mount.path == path) {
        return Err(refuse("has a Larder mount already; `larder umount` it first, or name another folder"));
    }
    Ok(path)
}

fn absolute(path: &Path) -> PathBuf {
    // The last component may be a dead mount, which cannot be resolved; its parent can.
    match (
        path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent }),
        path.file_name(),
    ) {
        (Some(parent), Some(name)) => {
            parent.canonicalize().map_or_else(|_| path.to_owned(), |parent| parent.join(name))
        }
        _ => path.to_owned(),
    }
}

/// Unmounts `path`; `lazy` detaches it from the tree even if files are in use.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    use rustix::mount::UnmountFlags;
    // A link in the place of the mount point must not redirect the unmount.
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    let failed = |source: io::Error| MountError::Unmount { path: path.to_owned(), source };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        // Without root the setuid helper does it.
        Err(rustix::io::Errno::PERM) => {
            let mut helper = std::process::Command::new("fusermount3");
            // `--`: the path may begin with a dash.
            helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
            let output = helper.output().map_err(failed)?;
            if output.status.success() {
                Ok(())
            } else {
                Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
            }
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// The kernel reads 128 KiB ahead by default, and splits reads of a file into pieces of that size. Only root may change
/// it.
fn raise_read_ahead(path: &Path, bytes: u64) {
    let Ok(stat) = rustix::fs::stat(path) else { return };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match std::fs::write(&knob, (bytes / 1024).to_string()) {
        Ok(()) => info!(read_ahead_kib = bytes / 1024, "read-ahead raised"),
        Err(error) => {
            info!(%error, "cannot raise the read-ahead, which only root may do: files are read in smaller pieces")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_mount_point_or_a_file_is_refused_with_a_remedy() {
        let missing = prepare(Path::new("/nonexistent/larder")).unwrap_err().to_string();
        assert!(missing.contains("mkdir -p"), "{missing}");
        let file = prepare(Path::new("/proc/self/status")).unwrap_err().to_string();
        assert!(file.contains("not a folder"), "{file}");
    }
}
