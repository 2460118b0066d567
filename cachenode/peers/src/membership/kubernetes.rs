//! The endpoints of a Kubernetes service as nodes: EndpointSlices are listed once, then watched.
//!
//! A watch goes on where the last one ended, by its resource version, and the list is read anew when the API server has
//! forgotten that. The token and the CA are read from their files for each connection, as they are replaced there.
//!
//! Invariant: what cannot be read leaves the nodes as they were; the token is never printed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{MembershipError, NAME_BYTES_MOST, Node, check_name, invalid, publish};
use crate::chain::chain;
use crate::tls;

/// Where a pod finds what the API server wants to see.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// For a connection and for the first line of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A watch ends after so long, and another begins.
const WATCH_SECONDS: u64 = 300;

/// The longest list, and the longest event.
const BODY_BYTES_MOST: usize = 16 << 20;

const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(30);

/// A service, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    namespace: String,
    name: String,
}

impl FromStr for ServiceName {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| invalid(format_args!("{text:?} is no service: write NAMESPACE/NAME")))?;
        check_name("a namespace", namespace)?;
        check_name("a service", name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A service whose endpoints are the nodes, those that it publishes as ready or that serve: each by the name of its
/// Kubernetes node, or of its pod if it has none.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    /// Which.
    pub service: ServiceName,
    /// The name of its port; empty: the only or first one.
    pub port: String,
    /// `https://HOST:PORT` of the API server; `http://` where something else makes it safe.
    pub api: Uri,
    /// The file with the bearer token.
    pub token_file: PathBuf,
    /// The file with the API server's CA.
    pub ca_file: PathBuf,
}

impl KubernetesService {
    /// As a pod sees it, by its service account and by the values of `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub fn in_cluster(service: ServiceName, host: &str, port: &str) -> Result<Self, MembershipError> {
        let bare = host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
        let authority = if bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let api = Uri::builder().scheme("https").authority(authority.as_str()).path_and_query("/").build();
        let api =
            api.map_err(|error| invalid(format_args!("{authority:?} is no address of an API server: {error}")))?;
        let account = PathBuf::from(ACCOUNT);
        let (token_file, ca_file) = (account.join("token"), account.join("ca.crt"));
        Ok(Self { service, port: String::new(), api, token_file, ca_file })
    }

    /// The nodes there are; `None` while the API server is away.
    pub(super) async fn list(&self) -> Result<Option<(Vec<Node>, Endpoints)>, MembershipError> {
        match self.read_list().await {
            Ok(listed) => Ok(Some((listed.nodes(&self.port), listed))),
            Err(error) if error.may_pass() => {
                let error = chain(&error);
                warn!(service = %self.service, error, "cannot list the endpoints yet; until then there are no other nodes");
                Ok(None)
            }
            Err(error) => {
                Err(MembershipError::Kubernetes { service: self.service.to_string(), source: Box::new(error) })
            }
        }
    }

    async fn read_list(&self) -> Result<Endpoints, ApiError> {
        let reply = self.get("").await?;
        let body = Limited::new(reply.body, BODY_BYTES_MOST).collect();
        let body = tokio::time::timeout(ANSWER_WITHIN, body).await.map_err(|_| ApiError::TimedOut)?;
        let body = body.map_err(|source| ApiError::Broken { source })?.to_bytes();
        let list: SliceList = serde_json::from_slice(&body).map_err(ApiError::odd)?;
        let slices = list.items.into_iter().flatten().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        Ok(Endpoints { version: list.metadata.resource_version, slices })
    }

    /// Keeps the nodes current, from what was listed if it was. Never ends.
    pub(super) async fn watch(&self, mut endpoints: Option<Endpoints>, sender: &watch::Sender<Arc<Vec<Node>>>) {
        let mut pause = PAUSE;
        let mut complained = false;
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
                    complained = false;
                    // A server that ends watches at once is not asked in a busy loop.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                // It is listed anew; in between, the nodes stay as they are.
                Err(ApiError::Forgotten) if endpoints.is_some() => {
                    endpoints = None;
                    continue;
                }
                Err(error) => error,
            };
            if !complained {
                let error = chain(&error);
                warn!(service = %self.service, error, "cannot watch the endpoints; keep the last good list");
                complained = true;
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
        let mut reply = self.get(&query).await?;
        let mut buffer = BytesMut::new();
        let silence = Duration::from_secs(WATCH_SECONDS) + ANSWER_WITHIN;
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                endpoints.apply(&buffer.split_to(end + 1))?;
                publish(sender, endpoints.nodes(&self.port));
                *pause = PAUSE;
            }
            if buffer.len() > BODY_BYTES_MOST {
                return Err(ApiError::odd("an event is too long"));
            }
            let frame = tokio::time::timeout(silence, reply.body.frame()).await.map_err(|_| ApiError::TimedOut)?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|source| ApiError::Broken { source: source.into() })?;
            if let Some(bytes) = frame.data_ref() {
                buffer.extend_from_slice(bytes);
            }
        }
    }

    async fn get(&self, query: &str) -> Result<Reply, ApiError> {
        tokio::time::timeout(ANSWER_WITHIN, self.get_late(query)).await.map_err(|_| ApiError::TimedOut)?
    }

    async fn get_late(&self, query: &str) -> Result<Reply, ApiError> {
        let file = |path: &PathBuf| {
            let path = path.clone();
            move |source| ApiError::File { path, source }
        };
        let token = tokio::fs::read_to_string(&self.token_file).await.map_err(file(&self.token_file))?;
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| ApiError::odd("the token file holds no token"))?;
        bearer.set_sensitive(true);
        let host = self.api.host().unwrap_or_default().trim_matches(['[', ']']);
        let encrypted = self.api.scheme_str() != Some("http");
        let port = self.api.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let io = TcpStream::connect((host, port)).await.map_err(|source| ApiError::Connect { source })?;
        let request = Request::get(format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{}{query}",
            self.service.namespace, self.service.name
        ))
        .header(HOST, self.api.authority().map_or("", |authority| authority.as_str()))
        .header(ACCEPT, "application/json")
        .header(AUTHORIZATION, bearer)
        .body(Empty::<Bytes>::new())
        .map_err(ApiError::odd)?;
        let reply = if encrypted {
            let ca = self.ca_file.clone();
            let connector = tokio::task::spawn_blocking(move || tls::connector_for(&ca)).await;
            let connector = connector.map_err(ApiError::odd)?.map_err(|source| ApiError::Tls { source })?;
            let name = ServerName::try_from(host.to_owned()).map_err(ApiError::odd)?;
            let io = connector.connect(name, io).await.map_err(|source| ApiError::Connect { source })?;
            send(io, request).await?
        } else {
            send(io, request).await?
        };
        match reply.status {
            StatusCode::OK => Ok(reply),
            StatusCode::GONE => Err(ApiError::Forgotten),
            status => Err(ApiError::Status { status }),
        }
    }
}

/// An answer, of which the body is still to come.
struct Reply {
    status: StatusCode,
    body: Incoming,
    _driver: AbortOnDropHandle<()>,
}

async fn send(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Reply, ApiError> {
    let broken = |source: hyper::Error| ApiError::Broken { source: source.into() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        // Its error comes out of the body as well.
        let _ = connection.await;
    }));
    let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
    Ok(Reply { status: head.status, body, _driver: driver })
}

/// Why the API server could not be asked.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("use the CA of the API server")]
    Tls { source: tls::TlsError },
    #[error("connect to the API server")]
    Connect { source: std::io::Error },
    #[error("the API server does not answer in time")]
    TimedOut,
    #[error("the connection to the API server broke")]
    Broken { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the API server answers {status}; may the service account list and watch endpointslices?")]
    Status { status: StatusCode },
    #[error("the API server answers something odd: {what}")]
    Odd { what: String },
    /// The resource version is too old.
    #[error("the API server has forgotten where the watch ended")]
    Forgotten,
}

impl ApiError {
    /// The API server is away, or too busy: it will answer later. All else somebody must look at.
    fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::TimedOut | Self::Broken { .. } => true,
            Self::Status { status } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            Self::File { .. } | Self::Tls { .. } | Self::Odd { .. } | Self::Forgotten => false,
        }
    }

    fn odd(what: impl fmt::Display) -> Self {
        Self::Odd { what: what.to_string() }
    }
}

/// What is known of a service's endpoints.
#[derive(Debug)]
pub(super) struct Endpoints {
    version: String,
    slices: BTreeMap<String, Slice>,
}

impl Endpoints {
    /// Applies an event of a watch.
    fn apply(&mut self, line: &[u8]) -> Result<(), ApiError> {
        let event: Event = serde_json::from_slice(line).map_err(ApiError::odd)?;
        if event.kind == "ERROR" {
            let status: ApiStatus = serde_json::from_value(event.object).map_err(ApiError::odd)?;
            return Err(match status.code {
                410 => ApiError::Forgotten,
                code => ApiError::odd(format_args!("{code} {}", status.message)),
            });
        }
        let slice: Slice = serde_json::from_value(event.object).map_err(ApiError::odd)?;
        self.version.clone_from(&slice.metadata.resource_version);
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                self.slices.insert(slice.metadata.name.clone(), slice);
            }
            "DELETED" => {
                self.slices.remove(&slice.metadata.name);
            }
            // A bookmark, which has told its version; or of a later API.
            _ => {}
        }
        Ok(())
    }

    /// The nodes by name. An endpoint that is about to end gives way to one that stays, as when a node's pod is replaced.
    fn nodes(&self, port_name: &str) -> Vec<Node> {
        let mut found: BTreeMap<&str, (bool, Node)> = BTreeMap::new();
        for slice in self.slices.values() {
            let port = slice
                .ports
                .iter()
                .flatten()
                .find(|port| port_name.is_empty() || port.name.as_deref().unwrap_or_default() == port_name);
            let Some(port) = port.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()) else {
                continue;
            };
            for endpoint in slice.endpoints.iter().flatten() {
                let conditions = &endpoint.conditions;
                let ending = conditions.terminating.unwrap_or(false);
                // Where a service publishes its pods whether they are ready or not, one that stumbles is ready, but does not
                // serve.
                let serving = [conditions.ready, conditions.serving].into_iter().flatten().reduce(|a, b| a || b);
                let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
                let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
                let name = endpoint.node_name.as_deref().or(pod);
                let (true, Some(address), Some(name)) = (serving.unwrap_or(true), address, name) else { continue };
                if name.len() > NAME_BYTES_MOST || check_name("the name of a node", name).is_err() {
                    continue;
                }
                let node = Node {
                    name: name.to_owned(),
                    address: SocketAddr::new(address, port),
                    weight: 1,
                    zone: endpoint.zone.clone().unwrap_or_default(),
                };
                match found.get(name) {
                    Some((known_ending, _)) if ending || !known_ending => {}
                    _ => {
                        found.insert(name, (ending, node));
                    }
                }
            }
        }
        let mut addresses = BTreeSet::new();
        found.into_values().map(|(_, node)| node).filter(|node| addresses.insert(node.address)).collect()
    }
}

#[derive(Debug, Deserialize)]
struct SliceList {
    metadata: Metadata,
    // Null where there are none.
    items: Option<Vec<Slice>>,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct ApiStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    resource_version: String,
}

#[derive(Debug, Deserialize)]
struct Slice {
    metadata: Metadata,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    node_name: Option<String>,
    zone: Option<String>,
    target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    name: Option<String>,
}

#[cfg(test)]
mod tests;
