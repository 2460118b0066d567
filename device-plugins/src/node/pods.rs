//! Asks the kubelet which pods hold devices, by the pod resources API.
//!
//! The kubelet refuses clients that ask too often, so it is asked at most once a second; who asks again sooner gets the same
//! answer. While the kubelet is unreachable, its last answer is used, with the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use larder_kubelet::podresources::pod_resources_lister_client::PodResourcesListerClient;
use larder_kubelet::podresources::{ListPodResourcesRequest, ListPodResourcesResponse};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint, Uri};
use tracing::warn;

use super::holders::Held;
use super::uids::{FILE, Uids};
use crate::resource::Resource;

/// The least time between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// How long the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The largest answer, as the kubelet's own clients have it.
const ANSWER_BYTES: usize = 16 << 20;
/// The largest checkpoint that is read.
const CHECKPOINT_BYTES: u64 = 16 << 20;

/// The pods of this node.
#[derive(Debug)]
pub struct Pods {
    socket: PathBuf,
    checkpoint: PathBuf,
    client: PodResourcesListerClient<Channel>,
    // Held while the kubelet is asked: whoever comes meanwhile wants that answer.
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    listed: Arc<ListPodResourcesResponse>,
    uids: Uids,
    trouble: Option<String>,
}

/// What is known of the pods that hold devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Who holds what.
    pub held: Held,
    /// Why the kubelet did not answer, if it did not; then `held` is what it said before.
    pub trouble: Option<String>,
}

impl Pods {
    /// Asks the kubelet with this folder, such as `/var/lib/kubelet`. Must be called within a tokio runtime.
    pub fn new(kubelet: &Path) -> Self {
        let socket = kubelet.join("pod-resources/kubelet.sock");
        let path = socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
        });
        let channel = Endpoint::from_static("http://kubelet").connect_with_connector_lazy(connect);
        let client = PodResourcesListerClient::new(channel).max_decoding_message_size(ANSWER_BYTES);
        let checkpoint = kubelet.join("device-plugins").join(FILE);
        Self { socket, checkpoint, client, last: Mutex::default() }
    }

    /// Who holds devices of these resources. Cancel-safe.
    pub async fn known(&self, resources: &[Resource]) -> Known {
        let mut last = self.last.lock().await;
        if last.at.is_none_or(|at| at.elapsed() >= EVERY) {
            // A question that is broken off counts, too.
            last.at = Some(Instant::now());
            match timeout(PATIENCE, self.client.clone().list(ListPodResourcesRequest {})).await {
                Ok(Ok(answer)) => {
                    last.listed = Arc::new(answer.into_inner());
                    last.uids = self.uids().await;
                    last.trouble = None;
                }
                Ok(Err(status)) => self.note(&mut last, status.message()),
                Err(_) => self.note(&mut last, "it does not answer"),
            }
        }
        Known { held: Held::of(resources, &last.listed, &last.uids), trouble: last.trouble.clone() }
    }

    /// Remembers why there was no answer, and logs it once.
    fn note(&self, last: &mut Last, why: &str) {
        let trouble = format!("ask the kubelet at {}: {why}", self.socket.display());
        if last.trouble.is_none() {
            warn!(trouble, "cannot list the pods that hold devices");
        }
        last.trouble = Some(trouble);
    }

    async fn uids(&self) -> Uids {
        let read = async {
            let mut bytes = Vec::new();
            let file = tokio::fs::File::open(&self.checkpoint).await.ok()?;
            file.take(CHECKPOINT_BYTES).read_to_end(&mut bytes).await.ok()?;
            Uids::parse(&bytes)
        };
        read.await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
