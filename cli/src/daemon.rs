//! The client of the `larderd` that owns a cache folder.

use std::error::Error;
use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use larder_daemon_api::socket::GRPC_SOCKET;
use larder_daemon_api::v1::daemon_client::DaemonClient;
use larder_daemon_api::{connect_channel, v1};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// A client of a daemon.
pub(crate) struct Client(DaemonClient<Channel>);

/// The daemon whose socket is at `socket`; `None` if no process listens there. Must be called within a runtime.
pub(crate) async fn at(socket: &Path) -> anyhow::Result<Option<Client>> {
    Ok(reach(socket).await?.map(|(client, _)| client))
}

/// The cache folder of the daemon whose socket is at `socket`; `None` if no process listens there.
pub(crate) async fn cache_dir_of(socket: &Path) -> anyhow::Result<Option<PathBuf>> {
    Ok(reach(socket).await?.map(|(_, info)| PathBuf::from(info.cache_dir)))
}

async fn reach(socket: &Path) -> anyhow::Result<Option<(Client, v1::GetInfoResponse)>> {
    let mut client = DaemonClient::new(connect_channel(socket));
    match client.get_info(v1::GetInfoRequest {}).await {
        Ok(info) => Ok(Some((Client(client), info.into_inner()))),
        Err(status) if is_away(&status) => Ok(None),
        Err(status) => bail!("larderd at {}: {}", socket.display(), status.message()),
    }
}

/// The daemon that owns `run_dir`.
pub(crate) async fn of(run_dir: &Path) -> anyhow::Result<Option<Client>> {
    at(&run_dir.join(GRPC_SOCKET)).await
}

impl Client {
    /// Mounts a dataset. `Ok(None)`: the daemon is stopping.
    pub(crate) async fn mount(&mut self, request: v1::MountRequest) -> anyhow::Result<Option<v1::Prepared>> {
        Ok(unless_leaving(self.0.mount(request)).await?.and_then(|mounted| mounted.prepared))
    }

    /// Unmounts; unless `lazy`, waits until the mount's cache space is free. Returns whether the daemon stops with this
    /// mount. `Ok(None)`: the daemon does not know the mount, or is stopping.
    pub(crate) async fn unmount(&mut self, dir: &Path, lazy: bool) -> anyhow::Result<Option<bool>> {
        let dir = dir.display().to_string();
        match self.0.unmount(v1::UnmountRequest { dir, lazy }).await {
            Err(status) if status.code() == Code::NotFound => Ok(None),
            asked => Ok(unless_leaving(std::future::ready(asked)).await?.map(|answer| answer.leaving)),
        }
    }

    /// The datasets that its cache holds or keeps room for.
    pub(crate) async fn caches(&mut self) -> anyhow::Result<Vec<v1::Cache>> {
        let answer = self.0.list_caches(v1::ListCachesRequest {}).await;
        Ok(answer.map_err(in_words)?.into_inner().caches)
    }

    /// Drops what its cache holds of a dataset.
    pub(crate) async fn drop_cache(&mut self, id: &str) -> anyhow::Result<()> {
        let answer = self.0.drop_cache(v1::DropCacheRequest { id: id.to_owned() }).await;
        answer.map(|_| ()).map_err(in_words)
    }

    /// Pins a dataset of its cache, or ends its pin.
    pub(crate) async fn pin_cache(&mut self, id: &str, pinned: bool) -> anyhow::Result<()> {
        let answer = self.0.pin_cache(v1::PinCacheRequest { id: id.to_owned(), pinned }).await;
        answer.map(|_| ()).map_err(in_words)
    }
}

/// The nodes that share their caches with the daemon at `socket`. Must be called within a runtime.
pub(crate) async fn nodes(socket: &Path) -> anyhow::Result<Vec<v1::NodeInfo>> {
    let Some(Client(mut client)) = at(socket).await? else { bail!("no larderd listens at {}", socket.display()) };
    match client.list_nodes(v1::ListNodesRequest {}).await {
        Ok(answer) => Ok(answer.into_inner().nodes),
        Err(status) => bail!("{}", status.message()),
    }
}

fn in_words(status: Status) -> anyhow::Error {
    match status.code() {
        Code::Unimplemented => anyhow!("the larderd of this cache is older than this command: restart it"),
        _ => anyhow!("{}", status.message()),
    }
}

async fn unless_leaving<T>(asked: impl Future<Output = Result<Response<T>, Status>>) -> anyhow::Result<Option<T>> {
    match asked.await {
        Ok(answer) => Ok(Some(answer.into_inner())),
        Err(status) if is_away(&status) => Ok(None),
        Err(status) => bail!("{}", status.message()),
    }
}

/// Whether the daemon is stopping or did not answer. A daemon that is being killed may still accept a connection.
fn is_away(status: &Status) -> bool {
    status.code() == Code::Unavailable || status.source().is_some()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_dies_during_a_request_counts_as_absent() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join(GRPC_SOCKET);
        let listener = UnixListener::bind(&socket).expect("a socket");
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                // The server has read a part of the request.
                let _ = connection.and_then(|mut connection| connection.read(&mut [0; 24]));
            }
        });
        let found = at(&socket).await.expect("no error");
        assert!(found.is_none());
    }
}
