//! Servers that give keys in exchange for a token or for other keys: one bounded request, and the parts of an answer
//! that an error may show.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt;
use http::header::{CONTENT_TYPE, DATE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpRequestBody};
use url::form_urlencoded;

use crate::clients::SharedConnector;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key::Key;
use crate::keys::SessionError;

/// The longest answer that is read. Tokens have a few KiB.
const ANSWER_BYTES: usize = 64 << 10;

/// A server that gives keys.
#[derive(Clone)]
pub(crate) struct KeyServer {
    http: HttpClient,
    /// Its URL, without credentials and without a slash at its end.
    pub(crate) url: String,
    /// How long an answer may take: less than an attempt, which would otherwise end without a reason.
    limit: Duration,
}

impl fmt::Debug for KeyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyServer").field(&self.url).finish()
    }
}

impl KeyServer {
    pub(crate) fn new(
        config: &OriginConfig,
        (options, connector): (ClientOptions, SharedConnector),
        url: &str,
    ) -> Result<Self, OriginError> {
        let options = options.with_allow_http(url.starts_with("http://")).with_timeout_disabled();
        let http = connector
            .connect(&options)
            .map_err(|error| OriginError::Invalid { what: format!("invalid settings for {url}: {error}") })?;
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), limit: config.attempt_timeout * 3 / 4 })
    }

    /// The error of an attempt that may succeed later. `what` continues a sentence that begins with the server's URL.
    pub(crate) fn failed(&self, what: impl fmt::Display) -> SessionError {
        SessionError::failed(format!("{} {what}", self.url))
    }

    /// A request without a body for a path that begins with a slash.
    pub(crate) fn request(&self, path: &str) -> Result<HttpRequest, SessionError> {
        let mut request = Request::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}{path}", self.url).parse().map_err(|_| self.failed("is not a URL"))?;
        Ok(request)
    }

    /// A request that sends the fields of a form.
    pub(crate) fn form(&self, path: &str, fields: &[(&str, &str)]) -> Result<HttpRequest, SessionError> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        self.post(path, "application/x-www-form-urlencoded", body)
    }

    /// A request that sends `body`.
    pub(crate) fn post(&self, path: &str, kind: &'static str, body: String) -> Result<HttpRequest, SessionError> {
        let mut request = self.request(path)?;
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        *request.body_mut() = HttpRequestBody::from(body);
        Ok(request)
    }

    /// The response to a request, with any status.
    pub(crate) async fn ask(&self, request: HttpRequest) -> Result<(Parts, Vec<u8>), SessionError> {
        let answered = tokio::time::timeout(self.limit, async {
            let (parts, body) = self.http.execute(request).await?.into_parts();
            let (mut stream, mut text) = (body.bytes_stream(), Vec::new());
            while let Some(chunk) = stream.next().await {
                text.extend_from_slice(&chunk?);
                if text.len() > ANSWER_BYTES {
                    return Ok(None);
                }
            }
            Ok::<_, HttpError>(Some((parts, text)))
        });
        let answered = answered.await.map_err(|_| self.failed(format!("did not answer within {:?}", self.limit)))?;
        let answer =
            answered.map_err(|error| SessionError::failed_by(format!("{} cannot be reached", self.url), error))?;
        answer.ok_or_else(|| self.failed(format!("answered with more than {ANSWER_BYTES} bytes: it gives no keys")))
    }
}

/// True for a status after which another attempt may succeed.
pub(crate) fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// The error of an answer that is not a success: `said`, the server's own message, and a hint at what to do.
pub(crate) fn refusal(status: StatusCode, said: &str, message: &str, hint: &str) -> SessionError {
    let colon = if message.is_empty() { "" } else { ": " };
    let said = format!("{said}{colon}{message}{hint}");
    if is_busy(status) { SessionError::failed(said) } else { SessionError::Refused(said) }
}

/// Words of a server in an error: a few, in printable characters, and without `secret`, even if the server repeats it.
pub(crate) fn shown(words: &str, secret: &str) -> String {
    let words = words.replace(secret, "[secret]");
    Key::from(words.chars().take(300).collect::<String>().as_bytes()).to_string()
}

/// The time until keys expire. Counted by the server's clock where the answer has its time, so that a wrong clock of
/// this machine does not matter. The error continues a sentence that begins with the server's URL.
pub(crate) fn remaining(expiration: &str, headers: &HeaderMap) -> Result<TimeDelta, String> {
    let end = DateTime::parse_from_rfc3339(expiration).map_err(|_| "answered with an expiration that is not a time")?;
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let now = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok()).map(|now| now.with_timezone(&Utc));
    let now = now.unwrap_or_else(|| std::time::SystemTime::now().into());
    Ok(end.with_timezone(&Utc).signed_duration_since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_keys_is_counted_by_the_servers_clock() {
        let at = |date: &'static str| HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))]);
        let left = remaining("2001-01-01T01:00:00Z", &at("Mon, 01 Jan 2001 00:00:00 GMT"));
        assert_eq!(left, Ok(TimeDelta::hours(1)), "whatever this machine's clock says");
        let left = remaining("2001-01-01T01:00:00Z", &HeaderMap::new());
        assert!(left.is_ok_and(|left| left < TimeDelta::zero()), "the machine's clock");
        assert!(remaining("soon", &HeaderMap::new()).unwrap_err().contains("not a time"));
    }

    #[test]
    fn the_words_of_a_server_are_few_and_repeat_no_secret() {
        let words = shown(&format!("no: hunter2\n{}", "x".repeat(999)), "hunter2");
        assert!(words.starts_with("no: [secret]") && words.len() < 400, "{words}");
        assert!(!words.contains(['\n']), "{words}");
    }
}
