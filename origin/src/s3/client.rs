//! Sending signed requests.
//!
//! object_store supplies the HTTP client and the credentials. Its `get` is not used: it strips slashes from keys,
//! rejects a server that ignores `Range`, and hides the status of the last answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, IF_MATCH, RANGE};
use http::{HeaderValue, Method};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpRequestBody, HttpResponse};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::OriginError;
use crate::key::Key;
use crate::object::error::{keys_are_late, without_keys};
use crate::retry::{AttemptError, Retry};
use crate::s3::body;
use crate::s3::clock::{self, ServerClock};
use crate::s3::refusal::{Refused, is_of_keys};
use crate::s3::sigv4::{PAYLOAD_HASH, Signer};
use crate::session::Session;
use crate::url::OriginUrl;
use crate::version::Version;

/// The characters that AWS signature version 4 leaves unencoded in a query and in a path.
const QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: AsciiSet = QUERY.remove(b'/');

/// The most bytes that are read of an error's body.
const ERROR_BODY_LIMIT: u64 = 16 << 10;

/// The target of a request.
pub(super) enum Target<'a> {
    /// An object, by its full key.
    Object(&'a str),
    /// An object to write, if the server finds that its bytes have this MD5.
    Put {
        /// Its full key.
        full: &'a str,
        bytes: &'a Bytes,
        md5: &'a [u8; 16],
    },
    /// An object to write as a copy of another.
    Copy {
        /// The full key of the copy.
        to: &'a str,
        /// The bucket and the full key of the other object, with a `/` between them.
        source: &'a str,
    },
    /// A page of a listing, by the pairs of its query.
    Listing(Vec<(&'static str, String)>),
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, \
     or use --anonymous (volumes: anonymous: \"true\") for a public bucket"
)]
struct NoCredentials(#[source] object_store::Error);

#[derive(Debug, thiserror::Error)]
#[error(
    "RequestTimeTooSkewed: the clock of this machine is {clock} that of {server}, and the server also refuses its own \
     time: set the clock (NTP)"
)]
struct WrongClock {
    clock: String,
    server: String,
}

fn without_credentials(key: &[u8], error: object_store::Error) -> AttemptError {
    without_keys(&error, key).unwrap_or_else(|| {
        AttemptError::Final(OriginError::Denied { key: Key::from(key), source: Box::new(NoCredentials(error)) })
    })
}

/// Sends requests to one bucket.
pub(super) struct S3Client {
    /// The origin's URL, for messages.
    pub(super) url: OriginUrl,
    /// The URL that keys are appended to. It has the bucket in its host or its path, and no trailing `/`.
    pub(super) bucket_endpoint: String,
    /// `None` for anonymous requests.
    pub(super) signer: Option<Signer>,
    pub(super) credentials: AwsCredentialProvider,
    /// The session that the credentials are of, if they are a pod's.
    pub(super) session: Option<Arc<Session>>,
    pub(super) http: HttpClient,
    /// False if the settings ask for headers of written objects that only object_store adds, such as those of
    /// encryption.
    pub(super) writes_plainly: bool,
    pub(super) clock: ServerClock,
}

impl S3Client {
    /// Sends one request. Returns the answer if it is a success.
    pub(super) async fn send(
        &self,
        retry: &Retry,
        method: Method,
        key: &[u8],
        target: &Target<'_>,
        expected: Option<&Version>,
        range: Option<Range<u64>>,
    ) -> Result<HttpResponse, AttemptError> {
        let unsigned = self.request(method, key, target, expected, range.as_ref())?;
        let mut corrected = false;
        loop {
            let signed = self.clock.now();
            let mut request = unsigned.clone();
            let used = self.sign(retry, key, &mut request, signed).await?;
            let answer = self.http.execute(request);
            let response = match target {
                // Its time is that of the bytes, and shows nothing about how busy the origin is.
                Target::Put { .. } => retry.progress(answer).await?,
                Target::Object(_) | Target::Copy { .. } | Target::Listing(_) => retry.answer(answer).await?,
            }
            .map_err(|error| AttemptError::Retryable(OriginError::Unavailable { source: Box::new(error) }))?;
            if response.status().is_success() {
                if let Some((session, keys)) = &used {
                    session.trust(keys);
                }
                return Ok(response);
            }
            let (parts, stream) = response.into_parts();
            let mut text = Vec::new();
            // The text only improves the message, so an incomplete body is sufficient.
            let _ = body::receive(retry, stream, ERROR_BODY_LIMIT, &mut |chunk| text.extend_from_slice(chunk)).await;
            let Self { url, bucket_endpoint, .. } = self;
            if let Some(ahead_ms) = self.clock.refusal(signed, parts.status, &parts.headers, &text) {
                // Another request may have corrected the clock since this one was signed.
                if self.clock.follow(ahead_ms) && ahead_ms != 0 {
                    let clock = clock::shown(ahead_ms);
                    tracing::warn!(
                        origin = %url,
                        "the clock of this machine is {clock} that of {bucket_endpoint}: requests are signed with the \
                         server's time from now on; set the clock (NTP)"
                    );
                }
                if !std::mem::replace(&mut corrected, true) {
                    continue;
                }
                let source = WrongClock { clock: clock::shown(ahead_ms), server: bucket_endpoint.clone() };
                return Err(OriginError::Denied { key: Key::from(key), source: Box::new(source) }.into());
            }
            let refused = Refused { url, bucket_endpoint, key, expected, range: range.as_ref() };
            return Err(match refused.error(parts.status, &parts.headers, &text) {
                AttemptError::Final(error @ OriginError::Denied { .. })
                    if is_of_keys(&text) && used.is_some_and(|(session, keys)| session.distrust(&keys)) =>
                {
                    AttemptError::Retryable(error)
                }
                error => error,
            });
        }
    }

    /// A request without a signature.
    fn request(
        &self,
        method: Method,
        key: &[u8],
        target: &Target<'_>,
        expected: Option<&Version>,
        range: Option<&Range<u64>>,
    ) -> Result<http::Request<HttpRequestBody>, AttemptError> {
        let uri = match target {
            Target::Object(full) | Target::Put { full, .. } | Target::Copy { to: full, .. } => {
                format!("{}/{}", self.bucket_endpoint, utf8_percent_encode(full, &PATH))
            }
            Target::Listing(query) => {
                let pairs: Vec<_> = query
                    .iter()
                    .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, &QUERY)))
                    .collect();
                format!("{}/?{}", self.bucket_endpoint, pairs.join("&"))
            }
        };
        let invalid = |what: String| AttemptError::Final(OriginError::Invalid { what });
        let mut request = http::Request::new(HttpRequestBody::empty());
        *request.uri_mut() =
            uri.parse().map_err(|_| invalid(format!("{}: the key is too long for a request", Key::from(key))))?;
        *request.method_mut() = method;
        if let Some(Version::ETag(tag)) = expected {
            let tag = HeaderValue::from_str(tag)
                .map_err(|_| invalid(format!("{}: {tag:?} is not a valid entity tag", Key::from(key))))?;
            let condition = match target {
                Target::Copy { .. } => HeaderName::from_static("x-amz-copy-source-if-match"),
                Target::Object(_) | Target::Put { .. } | Target::Listing(_) => IF_MATCH,
            };
            request.headers_mut().insert(condition, tag);
        }
        if let Target::Put { bytes, md5, .. } = target {
            *request.body_mut() = HttpRequestBody::from(Bytes::clone(bytes));
            let md5 = HeaderValue::from_str(&STANDARD.encode(md5)).expect("base64 is a valid header value");
            let headers = request.headers_mut();
            headers.insert("content-md5", md5);
            // The signature covers the MD5, and with it the bytes.
            headers.insert(PAYLOAD_HASH, HeaderValue::from_static("UNSIGNED-PAYLOAD"));
        }
        if let Target::Copy { source, .. } = target {
            let source = HeaderValue::from_str(&utf8_percent_encode(source, &PATH).to_string());
            let headers = request.headers_mut();
            headers.insert("x-amz-copy-source", source.expect("an encoded key is a valid header value"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        if let Some(range) = range {
            let value = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end - 1));
            request.headers_mut().insert(RANGE, value.expect("digits are a valid header value"));
        }
        Ok(request)
    }

    /// The keys that sign requests; `None` if requests are anonymous.
    pub(super) async fn keys(
        &self,
        retry: &Retry,
        key: &[u8],
    ) -> Result<Option<(&Signer, Arc<AwsCredential>)>, AttemptError> {
        let Some(signer) = &self.signer else { return Ok(None) };
        let keys = retry.progress(self.credentials.get_credential()).await.map_err(|late| keys_are_late(late, key))?;
        Ok(Some((signer, keys.map_err(|error| without_credentials(key, error))?)))
    }

    /// Signs a request, unless requests are anonymous. Returns the keys if they are those of a session.
    async fn sign(
        &self,
        retry: &Retry,
        key: &[u8],
        request: &mut http::Request<HttpRequestBody>,
        time: SystemTime,
    ) -> Result<Option<(&Session, Arc<AwsCredential>)>, AttemptError> {
        let Some((signer, keys)) = self.keys(retry, key).await? else { return Ok(None) };
        signer.sign(request, &keys, time).map_err(|error| {
            AttemptError::Final(OriginError::Denied { key: Key::from(key), source: Box::new(error) })
        })?;
        Ok(self.session.as_deref().map(|session| (session, keys)))
    }
}
