//! Why larderd did not accept or drop a connection.

use std::io;
use std::path::PathBuf;

/// Why larderd did not accept or drop a connection.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// There is no session with larderd.
    #[error("larderd is not connected (it listens at {path})")]
    NotConnected {
        /// The handover socket.
        path: PathBuf,
    },
    /// larderd rejected the request.
    #[error("larderd refuses the mount: {reason}")]
    Refused { reason: String },
    /// The session broke before the answer.
    #[error("larderd disconnected before it answered: {source}")]
    Broken { source: io::Error },
    /// larderd did not answer in time.
    #[error("larderd did not answer within {seconds} s; see its log on this node; the kubelet retries")]
    Silent {
        /// The timeout.
        seconds: u64,
    },
    /// The request queue is full.
    #[error("too many requests wait for larderd")]
    Busy,
}
