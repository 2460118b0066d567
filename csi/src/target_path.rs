//! The path at which a volume is published. It is untrusted, so it is resolved below the kubelet's folder without
//! following symbolic links. It is used by descriptor, so that the folder that was checked is also the mount point.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The path is not one that a kubelet sends.
    #[error("target path: {0}")]
    Invalid(&'static str),
    /// The target or one of its parents is not a folder.
    #[error("target path {path}: {what}")]
    NotAFolder {
        /// The target.
        path: PathBuf,
        /// The kind of file that was found instead.
        what: &'static str,
    },
    /// The folder above the target is missing.
    #[error("target path {path}: its parent directory does not exist")]
    NoParent {
        /// The target.
        path: PathBuf,
    },
    /// A mount that Larder did not create is at the target.
    #[error("target path {path}: Larder did not create the mount of type {fs_type} there; unmount it first")]
    Foreign {
        /// The target.
        path: PathBuf,
        /// The file system type of that mount.
        fs_type: String,
    },
    /// A system call failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// The failed step.
        what: &'static str,
        /// The target.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The folders that may contain targets.
#[derive(Clone, Debug)]
pub struct TargetRoots(Vec<PathBuf>);

impl TargetRoots {
    /// The folders must be absolute paths.
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Parses a target path, without I/O.
    pub fn parse(&self, text: &str) -> Result<TargetPath, TargetError> {
        if text.len() > 4000 || text.contains('\0') {
            return Err(TargetError::Invalid("is too long or contains a NUL byte"));
        }
        let mut path = PathBuf::new();
        for part in Path::new(text).components() {
            match part {
                Component::RootDir | Component::Normal(_) => path.push(part),
                Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(TargetError::Invalid("must not contain `..`"));
                }
            }
        }
        let below = self.0.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?)));
        let (Some((root, below)), Some(name)) = (below, path.file_name()) else {
            return Err(TargetError::Invalid("must be below the kubelet's folder (--kubelet-dir)"));
        };
        let Some(parent) = below.parent() else {
            return Err(TargetError::Invalid("must be below the kubelet's folder, not that folder itself"));
        };
        Ok(TargetPath { root: root.clone(), parent: parent.to_owned(), name: name.to_owned(), path })
    }
}

/// A target path that is below one of the roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPath {
    root: PathBuf,
    /// Relative to the root.
    parent: PathBuf,
    name: OsString,
    path: PathBuf,
}

impl TargetPath {
    /// The path as the kubelet sent it, without `//` and `.`.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Opens the folder above the target; `None` if it does not exist.
    pub fn open_parent(&self) -> Result<Option<Parent>, TargetError> {
        let failed = |errno| self.io("open the folder above", errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match rustix::fs::open(&self.root, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            root => root.map_err(failed)?,
        };
        let parent = if self.parent.as_os_str().is_empty() { Path::new(".") } else { &self.parent };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let mut tries = 0;
        let fd = loop {
            match rustix::fs::openat2(&root, parent, flags, Mode::empty(), resolve) {
                // A folder on the path was renamed during the resolution, so try again.
                Err(Errno::AGAIN) if tries < 100 => tries += 1,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::LOOP) => return Err(self.not_a_folder("a symbolic link is on the path")),
                Err(Errno::NOTDIR) => return Err(self.not_a_folder("a file is on the path")),
                opened => break opened.map_err(failed)?,
            }
        };
        // Mountinfo has resolved paths, and the root may be a symbolic link.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .map_err(|source| TargetError::Io { what: "resolve", path: self.path.clone(), source })?
            .join(&self.name);
        Ok(Some(Parent { fd, real }))
    }

    /// Opens the target's folder, and creates it if missing. Nothing may be mounted on it.
    pub fn make(&self, parent: &Parent) -> Result<OwnedFd, TargetError> {
        match rustix::fs::mkdirat(parent, &self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.io("create the folder", errno)),
        }
        self.open(parent)?.ok_or_else(|| self.io("open the folder", Errno::NOENT))
    }

    /// Opens the target's folder; `None` if it is missing. Any other kind of file is an error, and so is a mount on the
    /// folder.
    pub fn open(&self, parent: &Parent) -> Result<Option<OwnedFd>, TargetError> {
        // O_PATH with O_NOFOLLOW opens a link itself, which the check below then rejects. NO_XDEV rejects a mount that
        // was created since the last check.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = match rustix::fs::openat2(parent, &self.name, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| self.io("open the folder", errno))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.io("look at", errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(Some(fd)),
            FileType::Symlink => Err(self.not_a_folder("is a symbolic link")),
            _ => Err(self.not_a_folder("is a file")),
        }
    }

    /// Removes the target's folder, if it exists. A folder with content is an error, and stays.
    pub fn remove(&self, parent: &Parent) -> Result<(), TargetError> {
        match rustix::fs::unlinkat(parent, &self.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTDIR) => Err(self.not_a_folder("is not a folder, so it is not removed")),
            Err(errno) => Err(self.io("remove the folder", errno)),
        }
    }

    fn io(&self, what: &'static str, errno: Errno) -> TargetError {
        TargetError::Io { what, path: self.path.clone(), source: errno.into() }
    }

    fn not_a_folder(&self, what: &'static str) -> TargetError {
        TargetError::NotAFolder { path: self.path.clone(), what }
    }

    /// The last component.
    pub fn name(&self) -> &OsStr {
        &self.name
    }
}

/// The open folder above a target.
#[derive(Debug)]
pub struct Parent {
    fd: OwnedFd,
    real: PathBuf,
}

impl AsFd for Parent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Parent {
    /// The target's path in mountinfo.
    pub fn target_in_mountinfo(&self) -> &Path {
        &self.real
    }

    /// A path to `name` for system calls that take no descriptor. Valid while `self` exists.
    pub fn path_to(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/self/fd").join(self.fd.as_raw_fd().to_string()).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(folder: &Path) -> TargetRoots {
        TargetRoots::new(vec![folder.to_owned()])
    }

    #[test]
    fn only_paths_below_the_kubelets_folder_are_targets() {
        let roots = roots(Path::new("/var/lib/kubelet"));
        let good = roots.parse("/var/lib/kubelet//pods/./u/mount/").expect("a target");
        assert_eq!(good.as_path(), Path::new("/var/lib/kubelet/pods/u/mount"));
        for bad in ["", "relative", "/var/lib/kubelet", "/var/lib/kubelet/", "/etc/x", "/var/lib/kubelet/../x", "/"] {
            assert!(matches!(roots.parse(bad), Err(TargetError::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn a_link_on_the_way_or_at_the_end_is_refused_and_never_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::os::unix::fs::symlink(outside.path(), root.join("way")).expect("link");
        std::os::unix::fs::symlink(outside.path(), root.join("end")).expect("link");
        std::fs::write(root.join("file"), b"").expect("file");
        let target = |path: &str| roots(root).parse(&format!("{}/{path}", root.display())).expect("a target");
        let open = |path: &str| {
            let target = target(path);
            let parent = target.open_parent()?.expect("a parent");
            target.make(&parent).map(drop)
        };
        for (path, words) in [
            ("way/x", "link is on the path"),
            ("end", "symbolic link"),
            ("file", "is a file"),
            ("file/x", "on the path"),
        ] {
            let error = open(path).expect_err(path).to_string();
            assert!(error.contains(words), "{path}: {error}");
        }
        assert!(std::fs::read_dir(outside.path()).expect("list").next().is_none());
        assert!(target("gone/x").open_parent().expect("open").is_none());
        open("fine").expect("a new folder");
        open("fine").expect("and again");
    }

    #[test]
    fn a_folder_with_something_in_it_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = roots(folder.path()).parse(&format!("{}/t", folder.path().display())).expect("a target");
        let parent = target.open_parent().expect("open").expect("a parent");
        target.remove(&parent).expect("nothing to remove");
        target.make(&parent).expect("make");
        std::fs::write(folder.path().join("t/precious"), b"").expect("file");
        target.remove(&parent).expect_err("not empty");
        assert!(folder.path().join("t/precious").exists());
    }
}
