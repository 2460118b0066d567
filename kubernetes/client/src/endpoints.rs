//! Watches the endpoints of a Service: its EndpointSlices are listed once, then watched.
//!
//! A watch that ends resumes from the last resource version. When that version has expired, after an error that a retry
//! cannot fix, and after several other consecutive errors, the slices are listed again. Each list and each watch uses a
//! new client, which reads the token and the CA again.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Uri;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

use crate::connect::{in_cluster, with_account};
use crate::kinds::PAGE;

#[cfg(test)]
mod tests;

/// The timeout of a page of a list, and of the beginning of a watch.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of a watch in seconds; after that, the next one starts.
const WATCH_SECONDS: u32 = 290;
/// The longest silence in a watch. The API server ends a watch earlier, so the connection is dead after this time.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 20);
/// A watch that ends after this time has worked, even if nothing changed.
const WORKS: Duration = Duration::from_secs(1);
/// Consecutive errors after which the slices are listed again.
const RETRIES: u32 = 5;
/// The pause after the first error. It doubles with each consecutive error, up to [`PAUSE_MOST`].
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(30);

/// A Service and one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
    /// The name of the port; empty for the only or first port.
    pub port: String,
}

/// A serving endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name of the endpoint's node, or of its pod if the endpoint has no node.
    pub name: String,
    /// The endpoint's IP address and port.
    pub address: SocketAddr,
    /// The endpoint's zone; empty if unknown.
    pub zone: String,
}

/// Creates clients of the API server.
#[derive(Clone)]
pub struct Connect(Arc<dyn Fn() -> anyhow::Result<Client> + Send + Sync>);

impl Connect {
    /// Connects as a pod: with its service account, to `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub fn in_cluster() -> Self {
        Self(Arc::new(in_cluster))
    }

    /// Connects to this API server with the service account whose `token` and `ca.crt` are in `folder`.
    pub fn at(api: Uri, folder: PathBuf) -> Self {
        Self(Arc::new(move || with_account(api.clone(), &folder)))
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connect")
    }
}

/// Why endpoints are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client could be created.
    #[error("use the service account of the pod")]
    Config {
        /// The cause.
        source: anyhow::Error,
    },
    /// The API server did not answer in time.
    #[error("the API server does not answer in time")]
    TimedOut,
    /// The API server ended a watch.
    #[error("the API server ended a watch immediately")]
    Ended,
    /// A list or an event had no resource version.
    #[error("an answer of the API server has no resource version")]
    NoVersion,
    /// The API server rejected the service account.
    #[error("list and watch endpointslices: the service account needs these rights")]
    Denied {
        /// The cause.
        source: kube::Error,
    },
    /// The API server answered with another error, or the connection broke.
    #[error("list and watch endpointslices")]
    Request {
        /// The cause.
        source: kube::Error,
    },
}

impl From<kube::Error> for Error {
    fn from(source: kube::Error) -> Self {
        match &source {
            kube::Error::Api(status) if [401, 403].contains(&status.code) => Self::Denied { source },
            _ => Self::Request { source },
        }
    }
}

impl Error {
    /// True if the API server is unreachable or overloaded, so that a retry may succeed. All other errors need an
    /// administrator.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Config { .. } | Self::NoVersion | Self::Denied { .. } => false,
            Self::TimedOut | Self::Ended => true,
            Self::Request { source } => match source {
                kube::Error::Api(status) => status.code >= 500 || [410, 429].contains(&status.code),
                kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
                _ => false,
            },
        }
    }

    /// True if the API server no longer has the resource version at which a watch would resume.
    fn is_expired(&self) -> bool {
        matches!(self, Self::Request { source: kube::Error::Api(status) } if status.code == 410)
    }
}

/// Waits for the answer to a request, up to [`ANSWER_TIMEOUT`].
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    Ok(timeout(ANSWER_TIMEOUT, request).await.map_err(|_| Error::TimedOut)??)
}

/// The pause after this number of consecutive errors. It has jitter, since all nodes lose an API server at the same
/// time.
fn pause(failures: u32) -> Duration {
    // The jitter is up to the length of the pause.
    let pauses = ExponentialBuilder::new().with_min_delay(PAUSE).with_max_delay(PAUSE_MOST / 2).with_jitter();
    pauses.without_max_times().build().nth(failures.saturating_sub(1) as usize).unwrap_or(PAUSE_MOST)
}

/// A watch that has begun.
struct Watch {
    events: BoxStream<'static, kube::Result<WatchEvent<EndpointSlice>>>,
    began: Instant,
    /// True once the API server has sent a change or a bookmark.
    has_sent: bool,
}

/// The endpoints of a Service as they change.
pub struct Endpoints {
    service: Service,
    connect: Connect,
    /// The serving endpoints of each slice.
    slices: BTreeMap<String, Vec<Serving>>,
    /// The resource version of `slices`; `None` if they must be listed.
    version: Option<String>,
    /// True if a watch has worked since the slices were listed.
    is_followed: bool,
    watch: Option<Watch>,
    /// Consecutive errors since a watch last worked.
    failures: u32,
    /// The pause before the next request, after an error.
    pause: Option<Duration>,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Endpoints {
    /// The endpoints of a Service. No request is sent before the first [`Self::next`].
    pub fn of(service: Service, connect: Connect) -> Self {
        let slices = BTreeMap::new();
        Self { service, connect, slices, version: None, is_followed: false, watch: None, failures: 0, pause: None }
    }

    /// The Service that is watched.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The number of consecutive errors since a watch last worked.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the next list, sorted by name: the first one once it is complete, each later one after a change.
    ///
    /// # Errors
    /// Any error of the watch. The next call retries after a pause, which grows with each consecutive error.
    pub async fn next(&mut self) -> Result<Vec<Endpoint>, Error> {
        if let Some(pause) = self.pause.take() {
            sleep(pause).await;
        }
        loop {
            let Err(error) = self.follow().await else { return Ok(merged(self.slices.values().flatten())) };
            let watch = self.watch.take();
            let lived = watch.as_ref().map_or(Duration::ZERO, |watch| watch.began.elapsed());
            let worked = lived >= WORKS || watch.is_some_and(|watch| watch.has_sent);
            if worked {
                (self.is_followed, self.failures) = (true, 0);
            }
            match error {
                // The usual end of a watch: the next one resumes. A server that ends each one after its first event
                // must not be asked in a tight loop.
                Error::Ended if worked => sleep(WORKS.saturating_sub(lived)).await,
                // The usual fate of a version at which nothing changed for long. A version that expires as soon as it
                // was listed is an error.
                error if error.is_expired() && self.is_followed => self.forget_version(),
                error => {
                    self.failures += 1;
                    self.pause = Some(pause(self.failures));
                    if !error.is_temporary() || error.is_expired() || self.failures.is_multiple_of(RETRIES) {
                        self.forget_version();
                    }
                    return Err(error);
                }
            }
        }
    }

    fn forget_version(&mut self) {
        (self.version, self.is_followed) = (None, false);
    }

    /// Waits until the slices have changed.
    async fn follow(&mut self) -> Result<(), Error> {
        loop {
            let Some(version) = &self.version else { return self.list().await };
            let Some(watch) = &mut self.watch else {
                self.watch = Some(begin(self.api()?, &self.selector(), version).await?);
                continue;
            };
            let event = timeout(SILENCE, watch.events.next()).await.map_err(|_| Error::TimedOut)?;
            let (version, has_changed) = match event.ok_or(Error::Ended)?? {
                WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                    self.slices.insert(slice.name_any(), serving(&slice, &self.service.port));
                    (slice.metadata.resource_version, true)
                }
                WatchEvent::Deleted(slice) => {
                    self.slices.remove(&slice.name_any());
                    (slice.metadata.resource_version, true)
                }
                WatchEvent::Bookmark(bookmark) => (Some(bookmark.metadata.resource_version), false),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            };
            self.version = Some(resumable(version)?);
            (watch.has_sent, self.failures) = (true, 0);
            if has_changed {
                return Ok(());
            }
        }
    }

    /// Lists the slices.
    async fn list(&mut self) -> Result<(), Error> {
        let api = self.api()?;
        let mut params = ListParams::default().labels(&self.selector()).limit(PAGE);
        let mut slices = BTreeMap::new();
        loop {
            let page = answer(api.list(&params)).await?;
            slices.extend(page.items.iter().map(|slice| (slice.name_any(), serving(slice, &self.service.port))));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                self.version = Some(resumable(page.metadata.resource_version)?);
                self.slices = slices;
                return Ok(());
            }
        }
    }

    fn api(&self) -> Result<Api<EndpointSlice>, Error> {
        let client = (self.connect.0)().map_err(|source| Error::Config { source })?;
        Ok(Api::namespaced(client, &self.service.namespace))
    }

    fn selector(&self) -> String {
        format!("kubernetes.io/service-name={}", self.service.name)
    }
}

/// Begins a watch after this resource version.
async fn begin(api: Api<EndpointSlice>, selector: &str, version: &str) -> Result<Watch, Error> {
    let params = WatchParams::default().labels(selector).timeout(WATCH_SECONDS);
    let events = answer(api.watch(&params, version)).await?.boxed();
    Ok(Watch { events, began: Instant::now(), has_sent: false })
}

/// A resource version at which a watch can begin.
fn resumable(version: Option<String>) -> Result<String, Error> {
    version.filter(|version| !version.is_empty()).ok_or(Error::NoVersion)
}

/// A serving endpoint of a slice.
struct Serving {
    endpoint: Endpoint,
    is_terminating: bool,
}

/// The serving endpoints of a slice, at the port `port_name`.
fn serving(slice: &EndpointSlice, port_name: &str) -> Vec<Serving> {
    let mut ports = slice.ports.iter().flatten();
    let port = ports.find(|port| port_name.is_empty() || port.name.as_deref().unwrap_or_default() == port_name);
    let Some(port) = port.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()) else {
        return Vec::new();
    };
    let endpoints = slice.endpoints.iter().flatten().filter_map(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        let is_terminating = conditions.and_then(|known| known.terminating).unwrap_or(false);
        // If a Service publishes pods that are not ready, an unready pod is `ready` but does not serve.
        let known = [conditions.and_then(|known| known.ready), conditions.and_then(|known| known.serving)];
        if !known.into_iter().flatten().reduce(|a, b| a || b).unwrap_or(true) {
            return None;
        }
        let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref());
        let name = endpoint.node_name.as_ref().or(pod)?.clone();
        let zone = endpoint.zone.clone().unwrap_or_default();
        Some(Serving { endpoint: Endpoint { name, address: SocketAddr::new(address, port), zone }, is_terminating })
    });
    endpoints.collect()
}

/// The endpoints, sorted by name. If a name has both a terminating and a permanent endpoint, as when the pod of a node
/// is replaced, the permanent one is returned.
fn merged<'a>(all: impl IntoIterator<Item = &'a Serving>) -> Vec<Endpoint> {
    let mut found: BTreeMap<&str, &Serving> = BTreeMap::new();
    for serving in all {
        match found.get(&*serving.endpoint.name) {
            Some(known) if serving.is_terminating || !known.is_terminating => {}
            _ => _ = found.insert(&serving.endpoint.name, serving),
        }
    }
    found.into_values().map(|serving| serving.endpoint.clone()).collect()
}
