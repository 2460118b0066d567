//! The gRPC client of larderd.

use std::path::PathBuf;
use std::time::Duration;

use larder_daemon_api::socket::connect_channel_to_first;
use larder_daemon_api::v1::daemon_client::DaemonClient;
use larder_daemon_api::v1::prepare_response::Outcome;
use larder_daemon_api::v1::{Dataset, PrepareRequest};
use tonic::Code;
use tonic::transport::Channel;

use crate::mount_id::MountId;

/// Time for the connection itself, on top of the time that larderd may take.
const GRACE: Duration = Duration::from_secs(10);

/// Why larderd did not prepare a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// It is not running, or does not answer.
    #[error("larderd does not answer at {socket}: {what}")]
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// The failure.
        what: String,
    },
    /// It is still listing the origin.
    #[error("the origin is being listed: {files} files so far")]
    Importing {
        /// Files found.
        files: u64,
    },
    /// It refused.
    #[error("{message}")]
    Refused {
        /// Its code.
        code: Code,
        /// Its message.
        message: String,
    },
    /// Its answer is malformed.
    #[error("larderd's answer is malformed: {0}")]
    Malformed(&'static str),
}

/// A dataset that is ready to be mounted.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The name of the mount.
    pub mount: MountId,
    /// The dataset's name, for people.
    pub name: String,
    /// The number of its files.
    pub files: u64,
    /// The sum of their bytes.
    pub bytes: u64,
    /// The snapshot that was found.
    pub snapshot: String,
}

/// larderd, at its socket.
#[derive(Clone, Debug)]
pub struct Daemon {
    client: DaemonClient<Channel>,
    socket: PathBuf,
    /// How long it may work before it reports progress.
    wait: Duration,
}

impl Daemon {
    /// At the first of these sockets at which it listens. Does not connect before the first call.
    pub fn new(sockets: Vec<PathBuf>, wait: Duration) -> Self {
        let socket = sockets.first().cloned().unwrap_or_default();
        Self { client: DaemonClient::new(connect_channel_to_first(sockets)), socket, wait }
    }

    /// Has larderd find and list a dataset. Idempotent.
    pub async fn prepare(&self, dataset: Dataset) -> Result<Prepared, DaemonError> {
        let silent = |what: String| DaemonError::Silent { socket: self.socket.clone(), what };
        let wait_ms = u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX);
        let request = PrepareRequest { dataset: Some(dataset), wait_ms };
        let mut client = self.client.clone();
        let answer = match tokio::time::timeout(self.wait + GRACE, client.prepare(request)).await {
            Err(_) => return Err(silent(format!("no answer within {} s", (self.wait + GRACE).as_secs()))),
            Ok(Err(status)) => {
                // A failure of the connection has a source; a status from larderd has none.
                return Err(match std::error::Error::source(&status) {
                    Some(cause) => silent(deepest(cause).to_string()),
                    None => DaemonError::Refused { code: status.code(), message: status.message().to_owned() },
                });
            }
            Ok(Ok(answer)) => answer.into_inner(),
        };
        match answer.outcome {
            Some(Outcome::Prepared(prepared)) => Ok(Prepared {
                mount: MountId::try_from(prepared.mount).map_err(DaemonError::Malformed)?,
                name: prepared.name,
                files: prepared.files,
                bytes: prepared.bytes,
                snapshot: prepared.snapshot,
            }),
            Some(Outcome::Importing(importing)) => Err(DaemonError::Importing { files: importing.files_listed }),
            None => Err(DaemonError::Malformed("it has no outcome")),
        }
    }
}

fn deepest<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}
