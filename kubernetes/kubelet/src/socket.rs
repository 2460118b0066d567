//! Unix sockets of plugins, and whether a file is still the one that it was.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A file, by its inode. While it is open, no other file has its inode number.
#[derive(Debug)]
pub struct Pinned(File);

impl Pinned {
    /// The file that is at `path` now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?.into()))
    }

    /// True if `path` is still this file.
    pub fn is_at(&self, path: &Path) -> bool {
        match (std::fs::symlink_metadata(path), self.0.metadata()) {
            (Ok(found), Ok(known)) => (found.dev(), found.ino()) == (known.dev(), known.ino()),
            _ => false,
        }
    }
}

/// The file of a bound socket. Dropping it removes the file, unless another has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    file: Pinned,
}

impl SocketFile {
    /// Binds a socket at a path where nothing is, for root alone.
    fn bind(path: &Path) -> io::Result<(Self, UnixListener)> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok((Self { path: path.to_owned(), file: Pinned::open(path)? }, listener))
    }

    /// True if the file is still ours.
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

/// Listens at `path` for root alone. Creates its directory, and replaces a socket that an earlier process left, but
/// nothing other than a socket. Must be called within a runtime.
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

/// A socket of ours whose connections go to a channel, and outlive it.
#[derive(Debug)]
pub struct Listening {
    file: SocketFile,
    _accepting: DropGuard,
}

impl Listening {
    /// Listens at a path where nothing is, for root alone, and feeds the connections to `connections`. When that is full, they
    /// wait in the socket's queue.
    pub fn begin(path: &Path, connections: mpsc::Sender<io::Result<UnixStream>>) -> io::Result<Self> {
        let (file, listener) = SocketFile::bind(path)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let accepting = async {
                loop {
                    let connection = listener.accept().await.map(|(connection, _)| connection);
                    // Out of descriptors, say: the connection stays in the queue.
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

    /// True if the file is still ours.
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
