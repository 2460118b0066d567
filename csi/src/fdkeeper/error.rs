//! Why larderd did not accept or forget a connection.

use std::io;
use std::path::PathBuf;

/// Why larderd did not accept or forget a connection.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// There is no session.
    #[error("larderd is not connected (it listens at {path})")]
    NotConnected {
        /// The handover socket.
        path: PathBuf,
    },
    /// larderd refused.
    #[error("larderd refuses the mount: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The session broke before the answer.
    #[error("larderd went away before it answered: {source}")]
    Broken {
        /// Why.
        source: io::Error,
    },
    /// There was no answer in time.
    #[error("larderd did not answer within {seconds} s; see its log on this node; the kubelet retries")]
    Silent {
        /// The time that it had.
        seconds: u64,
    },
    /// Too many requests wait already.
    #[error("too many requests wait for larderd")]
    Busy,
}
