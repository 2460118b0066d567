//! Making and ending mounts.

use std::borrow::Cow;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use fuser::{MountOption, SessionACL};
use larder_daemon_api::fuse_mount::{FuseMountError, fuse_mount};
use larder_daemon_api::mountinfo::{larder_mounts, mounted_at, source_of};
use larder_dataset::{Ownership, larder_command};
use tracing::{info, warn};

use crate::filesystem::Filesystem;
use crate::fuse::{BACKGROUND_MOST, Front, Shown};
use crate::handshake::KernelLimits;
use crate::limits;
use crate::passthrough::Passthrough;
use crate::pool::{Pool, Session, default_threads};
use crate::reading::Reader;
use crate::slots::Slots;
use larder_cachenode::dataset::Dataset;

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The folder to mount at.
    pub mountpoint: PathBuf,
    /// Lets other users access the mount. Without root this needs `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// The most threads of the pool that serve it at the same time.
    pub threads: usize,
    /// The number of bytes that the kernel reads ahead in a file.
    pub read_ahead_bytes: u64,
    /// The most background requests that the kernel keeps in flight.
    pub max_background: u16,
    /// The owner and the modes of its files, which belong to this process's user by default.
    pub ownership: Ownership,
    /// Compares cached bytes with their checksums at each read. Otherwise the kernel reads large files that are wholly
    /// cached by itself, if it can.
    pub verify_always: bool,
}

impl MountConfig {
    /// The defaults of `larder mount`.
    pub fn new(mountpoint: PathBuf) -> Self {
        Self {
            mountpoint,
            allow_other: rustix::process::geteuid().is_root(),
            threads: default_threads(),
            read_ahead_bytes: 1 << 20,
            max_background: BACKGROUND_MOST,
            ownership: Ownership::default(),
            verify_always: false,
        }
    }
}

/// Why a mount could not be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not usable.
    #[error("mount point {path}: {what}")]
    Mountpoint {
        path: PathBuf,
        /// The mistake and its correction.
        what: Cow<'static, str>,
    },
    /// The kernel or fusermount3 refused to mount.
    #[error("mount at {path} (`larder doctor` shows what is missing)")]
    Refused { path: PathBuf, source: io::Error },
    /// The mount could not be unmounted.
    #[error("unmount {path}")]
    Unmount { path: PathBuf, source: io::Error },
}

/// A mount being served. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mounted {
    /// Unmounts when it is dropped.
    mount: fuser::Session<KernelLimits>,
    session: Session,
    path: PathBuf,
}

/// Mounts `dataset`, and serves it with the threads of `pool`. The mount is ready when this returns.
pub fn mount(pool: &Arc<Pool>, dataset: Arc<Dataset>, config: &MountConfig) -> Result<Mounted, MountError> {
    let path = prepare(&config.mountpoint)?;
    let name = dataset.stats().dataset.name;
    let mut options = fuser::Config::default();
    options.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
        // The kernel checks the file modes itself and sends no ACCESS requests.
        MountOption::DefaultPermissions,
        MountOption::FSName(source_of(&name)),
        MountOption::Subtype("larder".to_owned()),
    ];
    options.acl = if config.allow_other { SessionACL::All } else { SessionACL::Owner };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // The kernel looks at the user of each request to a mount of one user.
    let kernel = KernelLimits {
        max_background: config.max_background.max(16),
        idmapped: config.allow_other,
        // A mount that answers OPEN costs a request for each open, which is little for a large file.
        passthrough: rustix::process::geteuid().is_root() && !config.verify_always && dataset.is_of_large_files(),
    };
    let shown = Shown::new(config.ownership, owner);
    let reader = Reader::new(Arc::new(Filesystem::new(Arc::clone(&dataset))), None);
    let refused = |source| MountError::Refused { path: path.clone(), source: limits::named(source) };
    let slots = Slots::open(None, pool.most_of_one(config.threads)).map_err(refused)?;
    // If a later step fails, dropping this unmounts.
    let mount = fuser::Session::new(kernel, &path, &options).map_err(refused)?;
    let fuse = Arc::new(mount.as_fd().try_clone_to_owned().map_err(refused)?);
    let passthrough = kernel.passthrough.then(|| Passthrough::new(&fuse)).flatten();
    if passthrough.is_some() {
        dataset.scrub();
    }
    let front = Front::new(reader, shown, passthrough, &fuse);
    let session = pool.serve(fuse, slots, Box::new(front)).map_err(refused)?;
    raise_read_ahead(&path, config.read_ahead_bytes);
    info!(path = %path.display(), "mounted");
    Ok(Mounted { mount, session, path })
}

/// Mounts at the folder of `config`, with `dataset` as the source, for this process or a later one to serve. Returns
/// the resolved folder, the connection and the kernel's INIT request. Only root can.
pub(crate) fn mount_unserved(config: &MountConfig, dataset: &str) -> Result<(PathBuf, OwnedFd, Vec<u8>), MountError> {
    let path = prepare(&config.mountpoint)?;
    match fuse_mount(&path, dataset, rustix::process::geteuid().as_raw()) {
        Ok((fuse, init)) => Ok((path, fuse, init)),
        Err(FuseMountError::Io { source, .. }) => Err(MountError::Refused { path, source: limits::named(source) }),
        Err(error @ FuseMountError::NoInit(_)) => Err(MountError::Refused { path, source: io::Error::other(error) }),
    }
}

impl Mounted {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts, and waits until the last request is answered. If files are in use, the mount disappears from the tree
    /// immediately and ends when the last file is closed.
    pub fn unmount(self) -> Result<(), MountError> {
        let Self { mount, session, path } = self;
        unmount(&path, true)?;
        let outcome = session.wait();
        drop(mount);
        outcome.map_err(|source| MountError::Unmount { path, source })
    }

    /// Waits until the mount is unmounted and no thread serves it. Blocks; do not call it on the runtime's threads.
    pub fn wait(self) -> io::Result<()> {
        self.session.wait()
    }

    /// Like [`wait`](Self::wait), without blocking.
    pub(crate) async fn ended(self) -> io::Result<()> {
        let Self { mount, session, .. } = self;
        let outcome = session.ended().await;
        // It checks that the mount is gone, for which it may run a command.
        let _ = tokio::task::spawn_blocking(move || drop(mount)).await;
        outcome
    }
}

/// Checks a mount point and changes nothing. A command can thus refuse it before its first request to the origin.
/// With `over`, it may contain files, which the mount hides.
pub fn check_mount_point(mountpoint: &Path, over: bool) -> Result<(), MountError> {
    match examine(mountpoint)? {
        MountPoint::Directory(path)
            if !over && std::fs::read_dir(&path).is_ok_and(|mut files| files.next().is_some()) =>
        {
            Err(MountError::Mountpoint {
                path: mountpoint.to_owned(),
                what: "is not empty; name an empty directory, or use --over to hide its files until the unmount".into(),
            })
        }
        MountPoint::Directory(_) | MountPoint::Dead => Ok(()),
    }
}

/// How long the file system at a mount point may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A mount point that can be used.
enum MountPoint {
    /// A directory, by its resolved path.
    Directory(PathBuf),
    /// A dead Larder mount, which a killed process left.
    Dead,
}

fn examine(mountpoint: &Path) -> Result<MountPoint, MountError> {
    let refuse = |what: &'static str| MountError::Mountpoint { path: mountpoint.to_owned(), what: what.into() };
    match look(mountpoint)? {
        Ok(found) if !found.is_dir() => Err(refuse("is not a directory; name an empty directory")),
        Ok(_) => {
            let path = mountpoint.canonicalize().map_err(|_| refuse("cannot be resolved"))?;
            if larder_mounts().iter().any(|mount| mount.path == path) {
                let what =
                    format!("already has a Larder mount; run `{}` first, or name another directory", umount(&path));
                return Err(MountError::Mountpoint { path: mountpoint.to_owned(), what: what.into() });
            }
            Ok(MountPoint::Directory(path))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            if larder_mounts().iter().any(|mount| mount.path == absolute(mountpoint)) {
                Ok(MountPoint::Dead)
            } else {
                Err(refuse("holds a dead mount of another program; unmount that first"))
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(refuse("does not exist; create the directory first (mkdir -p)"))
        }
        Err(error) => Err(MountError::Refused { path: mountpoint.to_owned(), source: error }),
    }
}

/// The attributes of a mount point whose file system answers. Errors: it does not; those of the file system itself are in
/// the result.
fn look(mountpoint: &Path) -> Result<io::Result<Metadata>, MountError> {
    let (answer, answers) = sync_channel(1);
    let path = mountpoint.to_owned();
    // A mount that is kept while no process serves it never answers. The thread ends with the answer, or with the process.
    let thread = std::thread::Builder::new().spawn(move || {
        // The kernel caches the attributes of the root without end, so `metadata` may succeed on a dead mount. `statfs`
        // always queries the file system's process.
        let looked = std::fs::metadata(&path).and_then(|found| {
            rustix::fs::statfs(&path)?;
            Ok(found)
        });
        let _ = answer.send(looked);
    });
    thread.map_err(|source| MountError::Refused { path: mountpoint.to_owned(), source })?;
    answers.recv_timeout(ANSWER).map_err(|_| MountError::Mountpoint {
        path: mountpoint.to_owned(),
        what: format!(
            "does not answer: a mount is there whose process does not run. Start that process, run `{}`, or name another \
             directory",
            umount(mountpoint)
        )
        .into(),
    })
}

/// Makes the mount point ready: unmounts a dead Larder mount there. Returns its resolved path.
fn prepare(mountpoint: &Path) -> Result<PathBuf, MountError> {
    match examine(mountpoint)? {
        MountPoint::Directory(path) => Ok(path),
        MountPoint::Dead => {
            warn!(path = %mountpoint.display(), "unmounting the dead mount of a killed process");
            unmount(mountpoint, true)?;
            match examine(mountpoint)? {
                MountPoint::Directory(path) => Ok(path),
                MountPoint::Dead => Err(MountError::Mountpoint {
                    path: mountpoint.to_owned(),
                    what: format!(
                        "has several dead mounts on top of each other; repeat `{}` until none is left",
                        umount(mountpoint)
                    )
                    .into(),
                }),
            }
        }
    }
}

/// The command that unmounts `path`.
fn umount(path: &Path) -> String {
    larder_command(&["umount", &path.to_string_lossy()])
}

fn absolute(path: &Path) -> PathBuf {
    // The last component may be a dead mount, which cannot be resolved, so its parent is resolved instead.
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

/// How long those that watch mounts, such as `larder top`, may keep a file open without failing an unmount.
const GLANCE: Duration = Duration::from_secs(1);

/// Unmounts `path`. With `lazy`, detaches it from the tree even if files are in use. Otherwise fails if files stay in
/// use for a second.
pub fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let begun = Instant::now();
    let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
    loop {
        match unmount_now(path, lazy) {
            Err(error) if is_in_use(&error) && begun.elapsed() < GLANCE => std::thread::sleep(GLANCE / 50),
            ended => return ended.map_err(|source| MountError::Unmount { path: path.to_owned(), source }),
        }
    }
}

fn unmount_now(path: &Path, lazy: bool) -> io::Result<()> {
    use rustix::mount::UnmountFlags;
    // A symbolic link in place of the mount point must not redirect the unmount.
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        // Without root, the setuid helper fusermount3 unmounts.
        Err(rustix::io::Errno::PERM) => {
            let mut helper = std::process::Command::new("fusermount3");
            // `--` because the path may begin with a dash.
            helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
            let output = helper.output()?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let is_in_use = said.ends_with("Device or resource busy");
            let kind = if is_in_use { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
            Err(io::Error::new(kind, said))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// True if a Larder mount is at the resolved `path`, and no other file system above it. Sends no request to either.
pub(crate) fn is_mounted(path: &Path) -> io::Result<bool> {
    Ok(mounted_at(path)?.is_some_and(|mount| mount.is_ours()))
}

/// Detaches the Larder mount at the resolved `path` from the tree: its readers can finish with their open files. If it
/// was unmounted already, whatever is there now stays.
pub(crate) fn detach(path: &Path) {
    let ended = match is_mounted(path) {
        Ok(false) => return,
        Ok(true) | Err(_) => unmount(path, true),
    };
    if let Err(error) = ended {
        warn!(%error, "cannot unmount");
    }
}

/// Raises the read-ahead of a mount. The kernel's default is 128 KiB, and it splits reads of a file into pieces of that
/// size. Only root may change it.
pub(crate) fn raise_read_ahead(path: &Path, bytes: u64) {
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
    use larder_dataset::Chain;

    use super::*;

    #[test]
    fn a_missing_mount_point_or_a_file_is_refused_with_a_remedy() {
        let missing = prepare(Path::new("/nonexistent/larder")).unwrap_err().to_string();
        assert!(missing.contains("mkdir -p"), "{missing}");
        let file = prepare(Path::new("/proc/self/status")).unwrap_err().to_string();
        assert!(file.contains("not a directory"), "{file}");
    }

    #[test]
    fn the_cause_of_a_refused_mount_or_unmount_is_given_once() {
        let (path, denied) = (PathBuf::from("/data"), || io::Error::from_raw_os_error(libc::EACCES));
        let refused = MountError::Refused { path: path.clone(), source: denied() };
        let helper = || io::Error::other("fusermount3: mount failed: Operation not permitted");
        for (error, cause) in [
            (refused, "Permission denied"),
            (MountError::Refused { path: path.clone(), source: helper() }, "fusermount3"),
            (MountError::Unmount { path: path.clone(), source: denied() }, "Permission denied"),
            (MountError::Unmount { path, source: helper() }, "fusermount3"),
        ] {
            let said = Chain(&error).to_string();
            assert_eq!(said.matches(cause).count(), 1, "{said}");
            assert!(said.contains("mount at /data (`larder doctor`") || said.starts_with("unmount /data: "), "{said}");
        }
    }
}
