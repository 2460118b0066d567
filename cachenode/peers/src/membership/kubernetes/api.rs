//! Requests to the Kubernetes API server. The token and the CA are read for each connection, since their files are
//! replaced.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::service::KubernetesService;
use crate::tls;

/// The timeout of a connection and of the head of an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer whose body is still to be read.
pub(super) struct Reply {
    status: StatusCode,
    pub(super) body: Incoming,
    _driver: AbortOnDropHandle<()>,
}

/// Asks for the service's EndpointSlices; `query` is appended to the URL.
pub(super) async fn get(service: &KubernetesService, query: &str) -> Result<Reply, ApiError> {
    tokio::time::timeout(ANSWER_TIMEOUT, get_unbounded(service, query)).await.map_err(|_| ApiError::TimedOut)?
}

async fn get_unbounded(service: &KubernetesService, query: &str) -> Result<Reply, ApiError> {
    let file = |path: &PathBuf| {
        let path = path.clone();
        move |source| ApiError::File { path, source }
    };
    let token = tokio::fs::read_to_string(&service.token_file).await.map_err(file(&service.token_file))?;
    let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| ApiError::unexpected("the token file contains no token"))?;
    bearer.set_sensitive(true);
    let host = service.api.host().unwrap_or_default().trim_matches(['[', ']']);
    let encrypted = service.api.scheme_str() != Some("http");
    let port = service.api.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let io = TcpStream::connect((host, port)).await.map_err(|source| ApiError::Connect { source })?;
    let request = Request::get(format!(
        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{}{query}",
        service.service.namespace, service.service.name
    ))
    .header(HOST, service.api.authority().map_or("", |authority| authority.as_str()))
    .header(ACCEPT, "application/json")
    .header(AUTHORIZATION, bearer)
    .body(Empty::<Bytes>::new())
    .map_err(ApiError::unexpected)?;
    let reply = if encrypted {
        let ca = service.ca_file.clone();
        let connector = tokio::task::spawn_blocking(move || tls::connector_for(&ca)).await;
        let connector = connector.map_err(ApiError::unexpected)?.map_err(|source| ApiError::Tls { source })?;
        let name = ServerName::try_from(host.to_owned()).map_err(ApiError::unexpected)?;
        let io = connector.connect(name, io).await.map_err(|source| ApiError::Connect { source })?;
        send(io, request).await?
    } else {
        send(io, request).await?
    };
    match reply.status {
        StatusCode::OK => Ok(reply),
        StatusCode::GONE => Err(ApiError::Expired),
        status => Err(ApiError::Status { status }),
    }
}

async fn send(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Reply, ApiError> {
    let broken = |source: hyper::Error| ApiError::Broken { source: source.into() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        // Reading the body reports its error as well.
        let _ = connection.await;
    }));
    let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
    Ok(Reply { status: head.status, body, _driver: driver })
}

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
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
    #[error("the API server answers {status}: check that the service account may list and watch endpointslices")]
    Status { status: StatusCode },
    #[error("unexpected answer of the API server: {what}")]
    Unexpected { what: String },
    /// The resource version is too old.
    #[error("the API server no longer has the resource version at which the watch ended")]
    Expired,
}

impl ApiError {
    /// True if the API server is unreachable or overloaded, so that a retry may succeed. All other errors need a
    /// person.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::TimedOut | Self::Broken { .. } => true,
            Self::Status { status } => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            Self::File { .. } | Self::Tls { .. } | Self::Unexpected { .. } | Self::Expired => false,
        }
    }

    pub(super) fn unexpected(what: impl fmt::Display) -> Self {
        Self::Unexpected { what: what.to_string() }
    }
}
