//! The gRPC client of larderd.

use std::path::PathBuf;
use std::time::Duration;

use larder_daemon_api::socket::connect_channel_to_first;
use larder_daemon_api::v1::daemon_client::DaemonClient;
use larder_daemon_api::v1::prepare_response::Outcome;
use larder_daemon_api::v1::{Dataset, GetInfoRequest, ListMountsRequest, Pod, PrepareRequest};
use tonic::Code;
use tonic::transport::Channel;

use crate::mount_id::MountId;

/// Time for the connection, in addition to the time that larderd may take.
const GRACE: Duration = Duration::from_secs(10);

/// Why larderd did not prepare a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// larderd is not running, or does not answer.
    #[error("larderd does not answer at {socket}: {what}")]
    Silent { socket: PathBuf, what: String },
    /// larderd is still listing the origin.
    #[error("the origin is being listed: {files} files so far")]
    Importing {
        /// The number of files found so far.
        files: u64,
    },
    /// larderd rejected the request.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// larderd's answer is malformed.
    #[error("larderd's answer is malformed: {0}")]
    Malformed(&'static str),
}

/// A dataset that larderd is ready to serve.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The name of the mount.
    pub mount: MountId,
    /// The dataset's name, shown as the source of the mount.
    pub name: String,
    /// The number of files in the dataset.
    pub files: u64,
    /// The size of the dataset.
    pub bytes: u64,
    /// The snapshot that larderd will serve.
    pub snapshot: String,
}

/// A client of larderd.
#[derive(Clone, Debug)]
pub struct Daemon {
    client: DaemonClient<Channel>,
    socket: PathBuf,
    /// How long larderd may work before it answers with its progress.
    wait: Duration,
}

impl Daemon {
    /// A client for the first of these sockets on which larderd listens. It connects at the first call.
    pub fn new(sockets: Vec<PathBuf>, wait: Duration) -> Self {
        let socket = sockets.first().cloned().unwrap_or_default();
        Self { client: DaemonClient::new(connect_channel_to_first(sockets)), socket, wait }
    }

    /// True if larderd answers.
    pub async fn answers(&self) -> bool {
        let mut client = self.client.clone();
        tokio::time::timeout(GRACE, client.get_info(GetInfoRequest {})).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Why a mount is not read with the identity of its pods any more, if larderd says so.
    pub async fn trouble(&self, mount: &MountId) -> Option<String> {
        let mut client = self.client.clone();
        let listed = tokio::time::timeout(GRACE, client.list_mounts(ListMountsRequest {})).await.ok()?.ok()?;
        let mounts = listed.into_inner().mounts.into_iter();
        mounts.filter(|info| info.mount == mount.as_str()).map(|info| info.trouble).find(|trouble| !trouble.is_empty())
    }

    /// Makes larderd find and list a dataset, if the quota of the pod's namespace allows it. Idempotent.
    pub async fn prepare(&self, dataset: Dataset, pod: Option<Pod>) -> Result<Prepared, DaemonError> {
        let silent = |what: String| DaemonError::Silent { socket: self.socket.clone(), what };
        let wait_ms = u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX);
        let request = PrepareRequest { dataset: Some(dataset), wait_ms, pod };
        let mut client = self.client.clone();
        let answer = match tokio::time::timeout(self.wait + GRACE, client.prepare(request)).await {
            Err(_) => return Err(silent(format!("no answer within {} s", (self.wait + GRACE).as_secs()))),
            Ok(Err(status)) => {
                // A connection error has a source; a status from larderd has none.
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
