//! The unix sockets on which the driver listens.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use larder_daemon_api::SocketDir;
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

/// A bound socket. Dropping it removes the file, unless a later process has replaced it.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    path: PathBuf,
    /// The file. While it is open, no other file has its inode number.
    file: File,
}

/// Listens at `path` for root alone. Replaces a socket that an earlier process left, but nothing other than a socket.
/// Must be called within a runtime.
pub(crate) fn listen(path: &Path) -> io::Result<(BoundSocket, UnixListenerStream)> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something other than a socket is there")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let dir = SocketDir::open(path)?;
    let listener = std::os::unix::net::UnixListener::bind(dir.short_path())?;
    std::fs::set_permissions(dir.short_path(), std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir.short_path(), flags, Mode::empty())?.into();
    let bound = BoundSocket { path: path.to_owned(), file };
    Ok((bound, UnixListenerStream::new(UnixListener::from_std(listener)?)))
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if let (Ok(found), Ok(ours)) = (std::fs::symlink_metadata(&self.path), self.file.metadata())
            && (found.dev(), found.ino()) == (ours.dev(), ours.ino())
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_later_one_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/csi.sock");
        let (first, _) = listen(&path).expect("listen");
        let (second, _) = listen(&path).expect("in place of the first");
        drop(first);
        assert!(path.exists(), "the second one's socket");
        assert_eq!(std::fs::metadata(&path).expect("look").mode() & 0o777, 0o600);
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, b"precious").expect("write");
        listen(&path).expect_err("a file");
        assert!(path.exists());
    }
}
