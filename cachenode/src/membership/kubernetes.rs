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

/// A service whose endpoints are the nodes, those that it publishes as ready or that serve: each by the name of its Kubernetes node, or of its pod if it has none.
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
mod tests {
    use std::sync::Mutex;

    use http_body_util::{StreamBody, combinators::BoxBody};
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::membership::Source;
    use crate::membership::tests::changed;

    fn endpoint(address: &str, node: &str, more: Value) -> Value {
        let mut endpoint =
            json!({"addresses": [address], "nodeName": node, "zone": "z1", "conditions": {"ready": true}});
        endpoint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        endpoint
    }

    fn slice(name: &str, version: u32, endpoints: Value) -> Value {
        json!({
            "metadata": {"name": name, "resourceVersion": version.to_string()},
            "endpoints": endpoints,
            "ports": [{"name": "metrics", "port": 9464}, {"name": "peers", "port": 9465}],
        })
    }

    fn endpoints(slices: Value) -> Endpoints {
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": slices});
        let list: SliceList = serde_json::from_value(list).unwrap();
        let slices = list.items.into_iter().flatten().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        Endpoints { version: list.metadata.resource_version, slices }
    }

    fn names(nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| format!("{}={}", node.name, node.address)).collect()
    }

    #[test]
    fn endpoints_that_serve_are_nodes() {
        let all = endpoints(json!([
            slice(
                "s1",
                1,
                json!([
                    endpoint("10.0.0.2", "b", json!({})),
                    endpoint("10.0.0.1", "a", json!({"conditions": {}})),
                    endpoint("10.0.0.3", "c", json!({"conditions": {"ready": false, "serving": false}})),
                    endpoint("10.0.0.4", "e", json!({"conditions": {"ready": true, "serving": false}})),
                    endpoint("not-an-address", "d", json!({})),
                    endpoint("10.0.0.5", "", json!({"nodeName": null, "targetRef": {"name": "pod-5"}})),
                    endpoint("10.0.0.6", "", json!({"nodeName": null})),
                ])
            ),
            // The pod of node b is being replaced: the one that stays counts.
            slice(
                "s0",
                1,
                json!([endpoint(
                    "10.0.0.9",
                    "b",
                    json!({"conditions": {"ready": false, "serving": true, "terminating": true}})
                )])
            ),
            slice("s2", 1, Value::Null),
        ]));
        assert_eq!(
            names(&all.nodes("peers")),
            ["a=10.0.0.1:9465", "b=10.0.0.2:9465", "e=10.0.0.4:9465", "pod-5=10.0.0.5:9465"]
        );
        assert_eq!(names(&all.nodes(""))[0], "a=10.0.0.1:9464");
        assert_eq!(all.nodes("none"), []);
        assert_eq!(all.nodes("peers")[0].zone, "z1");
    }

    #[test]
    fn events_are_applied_and_odd_ones_are_errors() {
        let mut all = endpoints(json!([slice("s1", 1, json!([endpoint("10.0.0.1", "a", json!({}))]))]));
        let mut apply =
            |kind: &str, object: Value| all.apply(json!({"type": kind, "object": object}).to_string().as_bytes());
        apply("ADDED", slice("s2", 2, json!([endpoint("10.0.0.2", "b", json!({}))]))).unwrap();
        apply("MODIFIED", slice("s1", 3, json!([endpoint("10.0.0.3", "c", json!({}))]))).unwrap();
        apply("DELETED", slice("s2", 4, json!([]))).unwrap();
        apply("BOOKMARK", json!({"metadata": {"resourceVersion": "9"}})).unwrap();
        assert!(matches!(apply("ERROR", json!({"code": 410})), Err(ApiError::Forgotten)));
        assert!(matches!(apply("ERROR", json!({"code": 500, "message": "no"})), Err(ApiError::Odd { .. })));
        assert!(matches!(apply("ADDED", json!({"no": 1})), Err(ApiError::Odd { .. })));
        assert!(matches!(all.apply(b"not json\n"), Err(ApiError::Odd { .. })));
        assert_eq!((all.version.as_str(), names(&all.nodes("peers"))), ("9", vec!["c=10.0.0.3:9465".to_owned()]));
    }

    #[test]
    fn services_are_named_with_their_namespace() {
        let service: ServiceName = "larder/peers".parse().unwrap();
        assert_eq!(service.to_string(), "larder/peers");
        for bad in ["peers", "/peers", "larder/", "a/b/c", "a/b?c"] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
        }
        let api = |host: &str| KubernetesService::in_cluster(service.clone(), host, "443").unwrap().api.to_string();
        assert_eq!(api("10.96.0.1"), "https://10.96.0.1:443/");
        assert_eq!(api("fd00::1"), "https://[fd00::1]:443/");
    }

    /// What the scripted server expects, and answers.
    struct Step {
        /// Part of the query.
        expects: &'static str,
        token: &'static str,
        status: u16,
        /// Then the body ends, unless it shall stay open.
        lines: Vec<Value>,
        stays: bool,
    }

    type Script = Arc<Mutex<std::collections::VecDeque<Step>>>;

    /// Answers by the script, and refuses what is not in it.
    async fn scripted(script: Script) -> (Uri, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let surprises = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&surprises);
        tokio::spawn(async move {
            loop {
                let (io, _) = listener.accept().await.unwrap();
                let (script, surprises) = (Arc::clone(&script), Arc::clone(&surprises));
                let serve = service_fn(move |request: Request<Incoming>| {
                    let asked = request.uri().to_string();
                    let token = request.headers()["authorization"].to_str().unwrap().to_owned();
                    let step = script.lock().unwrap().pop_front();
                    let path = "/apis/discovery.k8s.io/v1/namespaces/larder/endpointslices\
                                ?labelSelector=kubernetes.io%2Fservice-name%3Dpeers";
                    let fits = |step: &Step| {
                        let query = asked.strip_prefix(path);
                        let list = step.expects.is_empty() && query == Some("");
                        let watch =
                            !step.expects.is_empty() && query.is_some_and(|query| query.ends_with(step.expects));
                        (list || watch) && token == format!("Bearer {}", step.token)
                    };
                    let (status, lines, stays) = match step {
                        Some(step) if fits(&step) => (step.status, step.lines, step.stays),
                        _ => {
                            surprises.lock().unwrap().push(format!("{asked} {token}"));
                            (500, Vec::new(), false)
                        }
                    };
                    let lines = futures::stream::iter(lines.into_iter().map(|line| format!("{line}\n")));
                    // In small pieces: events do not end where frames do.
                    let frames = futures::StreamExt::flat_map(lines, |line| {
                        let chunks: Vec<_> = line.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
                        futures::stream::iter(chunks.into_iter().map(|chunk| Ok::<_, hyper::Error>(Frame::data(chunk))))
                    });
                    let open = futures::StreamExt::flatten(futures::stream::iter(stays.then(futures::stream::pending)));
                    let body = BoxBody::new(http_body_util::BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(
                        Box::pin(futures::StreamExt::chain(frames, open)),
                    )))));
                    async move { http::Response::builder().status(status).body(body) }
                });
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), serve));
            }
        });
        (api, seen)
    }

    /// A boxed body must be Sync.
    struct SyncStream<S>(Mutex<std::pin::Pin<Box<S>>>);

    impl<S: futures::Stream> futures::Stream for SyncStream<S> {
        type Item = S::Item;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<S::Item>> {
            self.0.lock().unwrap().as_mut().poll_next(context)
        }
    }

    #[tokio::test]
    async fn endpoints_are_listed_watched_resumed_and_listed_again() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "first\n").unwrap();
        let one = |version, address: &str| slice("s", version, json!([endpoint(address, "a", json!({}))]));
        let list = |version: u32, slice: Value| json!({"metadata": {"resourceVersion": version.to_string()}, "items": [slice]});
        let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
        let step = |expects, status, lines| Step { expects, token: "first", status, lines, stays: false };
        let script = Script::new(Mutex::new(std::collections::VecDeque::from([
            step("", 200, vec![list(10, one(3, "10.0.0.1"))]),
            step(
                "&resourceVersion=10",
                200,
                vec![
                    event("MODIFIED", one(11, "10.0.0.2")),
                    event("BOOKMARK", json!({"metadata": {"resourceVersion": "20"}})),
                ],
            ),
            // It goes on where the bookmark was, through an outage.
            step("&resourceVersion=20", 503, vec![]),
            step("&resourceVersion=20", 200, vec![event("ERROR", json!({"code": 410}))]),
            step("", 200, vec![list(30, one(29, "10.0.0.3"))]),
            step("&resourceVersion=30", 410, vec![]),
            step("", 200, vec![list(40, one(39, "10.0.0.4"))]),
            Step {
                expects: "&resourceVersion=40",
                token: "second",
                status: 200,
                lines: vec![event("MODIFIED", one(41, "10.0.0.5"))],
                stays: true,
            },
        ])));
        let (api, surprises) = scripted(Arc::clone(&script)).await;
        let service = KubernetesService {
            service: "larder/peers".parse().unwrap(),
            port: "peers".to_owned(),
            api,
            token_file: token_file.clone(),
            ca_file: folder.path().join("none"),
        };
        let (mut membership, watcher) = Source::Kubernetes(service).open().await.unwrap();
        assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9465"]);
        let stopping = CancellationToken::new();
        let watching = tokio::spawn(watcher.run(stopping.clone()));
        for expected in ["a=10.0.0.2:9465", "a=10.0.0.3:9465", "a=10.0.0.4:9465", "a=10.0.0.5:9465"] {
            changed(&mut membership).await;
            assert_eq!(names(&membership.borrow_and_update()), [expected]);
            if expected.contains("10.0.0.4") {
                std::fs::write(&token_file, "second\n").unwrap();
            }
        }
        stopping.cancel();
        watching.await.unwrap();
        assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
        assert!(script.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_node_starts_while_the_api_server_is_away_and_finds_the_others_later() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "first").unwrap();
        let listed = json!({
            "metadata": {"resourceVersion": "10"},
            "items": [slice("s", 3, json!([endpoint("10.0.0.1", "a", json!({}))]))],
        });
        let step = |expects, status, lines, stays| Step { expects, token: "first", status, lines, stays };
        let script = [
            step("", 503, vec![], false),
            step("", 503, vec![], false),
            step("", 200, vec![listed], false),
            step("&resourceVersion=10", 200, vec![], true),
        ];
        let (api, surprises) = scripted(Script::new(Mutex::new(script.into()))).await;
        let (service, ca_file) = ("larder/peers".parse().unwrap(), folder.path().join("none"));
        let service = KubernetesService { service, port: "peers".to_owned(), api, token_file, ca_file };
        let (mut membership, watcher) = Source::Kubernetes(service).open().await.unwrap();
        assert_eq!(*membership.borrow_and_update(), Arc::default());
        let watching = tokio::spawn(watcher.run(CancellationToken::new()));
        changed(&mut membership).await;
        assert_eq!(names(&membership.borrow_and_update()), ["a=10.0.0.1:9465"]);
        watching.abort();
        assert_eq!(*surprises.lock().unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_service_that_cannot_be_listed_is_an_error_that_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "first").unwrap();
        let step = Step { expects: "", token: "first", status: 403, lines: vec![], stays: false };
        let (api, _) = scripted(Script::new(Mutex::new([step].into()))).await;
        let ca_file = folder.path().join("none");
        let service = "larder/peers".parse().unwrap();
        let service = KubernetesService { service, port: String::new(), api, token_file, ca_file };
        let error = Source::Kubernetes(service).open().await.map(|_| ()).unwrap_err();
        let words = chain(&error);
        assert!(words.contains("larder/peers") && words.contains("403"), "{words}");
        assert!(!words.contains("first"));
    }
}
