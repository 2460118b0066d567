//! The names of the daemon's unix sockets, and connections to sockets at paths of any length.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tonic::transport::{Channel, Endpoint, Uri};

/// The name of the gRPC socket in the run folder.
pub const GRPC_SOCKET: &str = "larderd.sock";

/// The name of the handover socket in the run folder.
pub const HANDOVER_SOCKET: &str = "handover.sock";

/// The name of the keeper's own socket in the run folder, over which the daemon lends files to the kernel.
pub const LENDER_SOCKET: &str = "lender.sock";

/// The folder of the sockets of `larderd.service`. It is not that of a cluster's larderd, which mounts nothing.
pub const SERVICE_RUN_DIR: &str = "/run/larderd";

/// The open folder of a socket. A socket address holds at most 107 bytes of path; a path through the folder's
/// descriptor is short enough.
#[derive(Debug)]
pub struct SocketDir {
    dir: OwnedFd,
    name: OsString,
}

impl SocketDir {
    /// Opens the folder that contains `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { dir, name })
    }

    /// A path to the socket that fits into an address. Valid while `self` exists.
    pub fn short_path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string()).join(&self.name)
    }
}

/// Creates a gRPC channel to the server at a unix socket. It connects with the first call, and reconnects when the
/// server returns.
pub fn connect_channel(socket: &Path) -> Channel {
    connect_channel_to_first(vec![socket.to_owned()])
}

/// Like [`connect_channel`], to the first of these sockets at which a server listens.
pub fn connect_channel_to_first(sockets: Vec<PathBuf>) -> Channel {
    // The connector ignores this address and uses the sockets' paths.
    Endpoint::from_static("http://larderd").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let sockets = sockets.clone();
        async move {
            let mut failed = None;
            for socket in &sockets {
                match connect(socket).await {
                    Ok(stream) => return Ok(hyper_util::rt::TokioIo::new(stream)),
                    Err(error) => _ = failed.get_or_insert(error),
                }
            }
            Err::<_, io::Error>(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
        }
    }))
}

async fn connect(socket: &Path) -> io::Result<tokio::net::UnixStream> {
    let dir = SocketDir::open(socket)?;
    tokio::net::UnixStream::connect(dir.short_path()).await
}
