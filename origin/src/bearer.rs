//! Requests of object_store's clients, sent with the bearer token of a session.
//!
//! Invariant: a request leaves with a token of its session, or not at all.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderValue, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use crate::clients::SharedConnector;
use crate::config::OriginConfig;
use crate::session::Session;

/// Tokens as the header that sends them.
pub(crate) type BearerSession = Session<HeaderValue>;

/// The header that sends a token. `None` if it is empty, or if a header cannot have its characters.
pub(crate) fn header(token: &str) -> Option<HeaderValue> {
    let token = Some(token).filter(|token| !token.is_empty())?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Connects a client of object_store. Its own credentials are replaced.
#[derive(Debug)]
pub(crate) struct BearerConnector {
    connector: SharedConnector,
    session: Arc<BearerSession>,
}

impl BearerConnector {
    pub(crate) fn new(config: &OriginConfig, session: &Arc<BearerSession>) -> Self {
        Self { connector: config.clients.connector(Vec::new()), session: Arc::clone(session) }
    }
}

impl HttpConnector for BearerConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let http = self.connector.connect(options)?;
        Ok(HttpClient::new(Bearer { http, session: Arc::clone(&self.session) }))
    }
}

#[derive(Debug)]
struct Bearer {
    http: HttpClient,
    session: Arc<BearerSession>,
}

impl Bearer {
    async fn send(&self, mut request: HttpRequest) -> Result<(HttpResponse, Arc<HeaderValue>), HttpError> {
        let token = self.session.credential().await;
        let token = token.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::clone(&token));
        let response = self.http.execute(request).await?;
        if response.status().is_success() {
            self.session.trust(&token);
        }
        Ok((response, token))
    }
}

#[async_trait]
impl HttpService for Bearer {
    /// Sends a request once more if the store refuses the token itself, and there is another.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (response, token) = self.send(request.clone()).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.session.distrust(&token) {
            return self.send(request).await.map(|(response, _)| response);
        }
        Ok(response)
    }
}
