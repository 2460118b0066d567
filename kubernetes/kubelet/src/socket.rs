//! Unix sockets of plugins, and a check whether a path still leads to the same file.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A file, identified by its inode. It is held open, so that no new file can get the same inode number.
#[derive(Debug)]
pub struct Pinned(File);

impl Pinned {
    /// Pins the file that is at `path` now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?.into()))
    }

    /// True if `path` still leads to this file.
    pub fn is_at(&self, path: &Path) -> bool {
        match (std::fs::symlink_metadata(path), self.0.metadata()) {
            (Ok(found), Ok(known)) => (found.dev(), found.ino()) == (known.dev(), known.ino()),
            _ => false,
        }
    }
}

/// The file of a bound socket. Dropping it removes the file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file: Pinned,
}

impl SocketFile {
    /// Binds a socket at an unused path, accessible to root only.
    fn bind(path: &Path) -> io::Result<(Self, UnixListener)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // A socket address holds at most 107 bytes of path. A path through the folder's descriptor is short enough, and
        // leads to the same folder even if another one replaces it meanwhile.
        let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        let listener = UnixListener::bind(&short)?;
        std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600))?;
        Ok((Self { path: path.to_owned(), file: Pinned::open(&short)? }, listener))
    }

    /// True if the file still exists and was not replaced.
    pub fn is_there(&self) -> bool {
        self.file.is_at(&self.path)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, accessible to root only. Creates the directory if it is missing. Replaces a socket that an
/// earlier process left, but no other kind of file. Must be called within a tokio runtime.
pub fn listen(path: &Path) -> io::Result<(SocketFile, UnixListenerStream)> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let (file, listener) = SocketFile::bind(path)?;
    Ok((file, UnixListenerStream::new(listener)))
}

/// A listening socket that sends its connections to a channel. Accepted connections stay open after it is dropped.
#[derive(Debug)]
pub struct Listening {
    file: SocketFile,
    _accepting: DropGuard,
}

impl Listening {
    /// Listens at an unused path, accessible to root only, and sends the connections to `connections`. While the
    /// channel is full, connections wait in the socket's backlog.
    pub fn begin(path: &Path, connections: mpsc::Sender<io::Result<UnixStream>>) -> io::Result<Self> {
        let (file, listener) = SocketFile::bind(path)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let accepting = async {
                loop {
                    let connection = listener.accept().await.map(|(connection, _)| connection);
                    // For example, the process has no file descriptors left: the connection stays in the backlog, so
                    // retry after a pause.
                    if connection.is_err() {
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    } else if connections.send(connection).await.is_err() {
                        return;
                    }
                }
            };
            stopped.run_until_cancelled(accepting).await;
        });
        Ok(Self { file, _accepting: stop.drop_guard() })
    }

    /// The name of the file.
    pub fn name(&self) -> &str {
        self.file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// True if the file still exists and was not replaced.
    pub fn is_there(&self) -> bool {
        self.file.is_there()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D13
    #[tokio::test]
    async fn a_socket_that_took_our_place_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder-1-1.sock");
        let (feed, _connections) = mpsc::channel(1);
        let ours = Listening::begin(&path, feed.clone()).unwrap();
        // On most filesystems the new file would get the inode number of the old one.
        for _ in 0..100 {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, b"").unwrap();
            assert!(!ours.is_there());
        }
        drop(ours);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
        drop(Listening::begin(&path, feed).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_may_have_a_path_that_no_socket_address_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(75)).join("m".repeat(75)).join("csi.sock");
        let (file, _connections) = listen(&path).unwrap();
        assert!(file.is_there());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_later_one_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/csi.sock");
        let (first, _) = listen(&path).unwrap();
        let (second, _) = listen(&path).unwrap();
        drop(first);
        assert!(path.exists(), "the second one's socket");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, b"precious").unwrap();
        listen(&path).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
