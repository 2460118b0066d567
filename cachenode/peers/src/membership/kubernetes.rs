//! The endpoints of a Kubernetes service as nodes: EndpointSlices are listed once, then watched.
//!
//! A watch continues where the last one ended, by resource version. When the API server no longer has that version, the
//! slices are listed again. `service` says which endpoints, `api` makes the requests, `endpoints` decodes the answers.
//!
//! Invariant: an error leaves the nodes as they were; the token is never printed.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::{BodyExt, Limited};
use larder_dataset::Chain;
use tokio::sync::watch;
use tracing::warn;

use super::node::{MembershipError, Node, publish};
use api::{ANSWER_TIMEOUT, ApiError, get};
use endpoints::Endpoints;

pub use service::{KubernetesService, ServiceName};

mod api;
pub(super) mod endpoints;
mod service;
#[cfg(test)]
mod tests;

/// The length of a watch; then another starts.
const WATCH_SECONDS: u64 = 300;

/// The longest list, and the longest event.
const BODY_BYTES_MOST: usize = 16 << 20;

const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(30);

impl KubernetesService {
    /// The current nodes; `None` while the API server is unreachable.
    pub(super) async fn list(&self) -> Result<Option<(Vec<Node>, Endpoints)>, MembershipError> {
        match self.read_list().await {
            Ok(endpoints) => Ok(Some((endpoints.nodes(&self.port), endpoints))),
            Err(error) if error.is_temporary() => {
                warn!(
                    service = %self.service,
                    error = %Chain(&error),
                    "cannot list the endpoints yet; until then there are no other nodes"
                );
                Ok(None)
            }
            Err(error) => {
                Err(MembershipError::Kubernetes { service: self.service.to_string(), source: Box::new(error) })
            }
        }
    }

    async fn read_list(&self) -> Result<Endpoints, ApiError> {
        let reply = get(self, "").await?;
        let body = Limited::new(reply.body, BODY_BYTES_MOST).collect();
        let body = tokio::time::timeout(ANSWER_TIMEOUT, body).await.map_err(|_| ApiError::TimedOut)?;
        let body = body.map_err(|source| ApiError::Broken { source })?.to_bytes();
        Endpoints::from_list(&body)
    }

    /// Keeps the nodes current, starting from `endpoints` if they were listed. Never ends.
    pub(super) async fn watch(&self, mut endpoints: Option<Endpoints>, sender: &watch::Sender<Arc<Vec<Node>>>) {
        let mut pause = PAUSE;
        let mut logged = false;
        loop {
            let outcome = match &mut endpoints {
                Some(endpoints) => self.watch_once(endpoints, sender, &mut pause).await,
                None => self.read_list().await.map(|listed| {
                    publish(sender, listed.nodes(&self.port));
                    endpoints = Some(listed);
                }),
            };
            let error = match outcome {
                Ok(()) => {
                    logged = false;
                    // Prevents a busy loop with a server that ends watches at once.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                // The endpoints are listed again; meanwhile the nodes stay as they are.
                Err(ApiError::Expired) if endpoints.is_some() => {
                    endpoints = None;
                    continue;
                }
                Err(error) => error,
            };
            if !logged {
                warn!(
                    service = %self.service, error = %Chain(&error),
                    "cannot watch the endpoints; the last good list stays"
                );
                logged = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// Follows one watch to its end.
    async fn watch_once(
        &self,
        endpoints: &mut Endpoints,
        sender: &watch::Sender<Arc<Vec<Node>>>,
        pause: &mut Duration,
    ) -> Result<(), ApiError> {
        let query = format!(
            "&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            endpoints.version
        );
        let mut reply = get(self, &query).await?;
        let mut buffer = BytesMut::new();
        let silence = Duration::from_secs(WATCH_SECONDS) + ANSWER_TIMEOUT;
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                endpoints.apply(&buffer.split_to(end + 1))?;
                publish(sender, endpoints.nodes(&self.port));
                *pause = PAUSE;
            }
            if buffer.len() > BODY_BYTES_MOST {
                return Err(ApiError::unexpected("an event is too long"));
            }
            let frame = tokio::time::timeout(silence, reply.body.frame()).await.map_err(|_| ApiError::TimedOut)?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|source| ApiError::Broken { source: source.into() })?;
            if let Some(bytes) = frame.data_ref() {
                buffer.extend_from_slice(bytes);
            }
        }
    }
}
