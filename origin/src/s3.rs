//! S3 and what speaks its protocol.
//!
//! Reads and listings are made here, over object_store's HTTP client and credentials: its own `get` strips
//! slashes off keys, refuses a server that ignores `Range`, and hides which status was the last one. Writes go
//! through object_store, which knows multipart uploads. [`S3Origin::ask`] sends one signed request and sorts its
//! answer into [`Failure`]s; [`gathered`] takes a body in and counts it. The invariant: bytes are given out only when
//! the status, the entity tag, `Content-Range` and the length all agree with what was asked for.

use std::fmt;
use std::ops::Range;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    HttpClient, HttpConnector, HttpRequestBody, HttpResponse, HttpResponseBody, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::config::OriginConfig;
use crate::error::{Key, OriginError};
use crate::object::{self, Writer};
use crate::retry::{Failure, Patience, Retry};
use crate::s3_list;
use crate::sigv4::Signer;
use crate::url::OriginUrl;
use crate::{Depth, Listed, Origin, Page, Sink, Version, aws_profile};

/// What AWS signature 4 leaves as it is, in a query and in a path.
const QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: AsciiSet = QUERY.remove(b'/');

/// Of an error's body no more than this is read.
const REFUSAL_LIMIT: u64 = 16 << 10;

/// A server that ignores `Range` sends the object from its start; up to here the bytes before are worth throwing away.
const IGNORED_RANGE_LIMIT: u64 = 64 << 20;

/// No object is larger, and some servers hold offsets in signed numbers.
const RANGE_LIMIT: u64 = 1 << 60;

/// An origin that speaks S3.
pub(crate) struct S3Origin {
    url: OriginUrl,
    /// What stands before every relative key; UTF-8 since a URL is.
    key_prefix: String,
    /// Where keys are appended to, with the bucket in its host or its path and without a `/` at its end.
    bucket_endpoint: String,
    /// None: requests are anonymous.
    signer: Option<Signer>,
    store: AmazonS3,
    client: HttpClient,
    patience: Patience,
}

impl fmt::Debug for S3Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Origin")
            .field("url", &self.url)
            .field("bucket_endpoint", &self.bucket_endpoint)
            .field("signed", &self.signer.is_some())
            .finish_non_exhaustive()
    }
}

impl S3Origin {
    pub(crate) fn open(url: &OriginUrl, config: &OriginConfig, patience: Patience) -> Result<Self, OriginError> {
        let env = &config.env;
        let key_prefix = String::from_utf8(url.key_prefix())
            .map_err(|_| OriginError::Invalid { what: "the prefix of an s3:// URL is not UTF-8".into() })?;
        let profile = aws_profile::read(env)?;

        let endpoint = config
            .endpoint
            .as_deref()
            .or_else(|| {
                ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(|name| env.get(name))
            })
            .or(profile.endpoint.as_deref())
            .map(checked_endpoint)
            .transpose()?;
        let region = config
            .region
            .as_deref()
            .or_else(|| ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| env.get(name)))
            .or(profile.region.as_deref())
            .unwrap_or("us-east-1")
            .to_string();
        if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            return Err(OriginError::Invalid {
                what: "the region (--region, AWS_REGION or the profile's) is no region's name".into(),
            });
        }

        let mut options = client_options(config)?;
        if endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")) {
            options = options.with_allow_http(true);
        }
        let mut builder = AmazonS3Builder::new();
        let mut virtual_hosted = None;
        let has_keys = env.get("AWS_ACCESS_KEY_ID").is_some();
        for (name, value) in env.iter().filter(|(name, _)| name.starts_with("AWS_")) {
            // What is left over of other keys must not be mixed with those of a profile.
            if !has_keys && matches!(name, "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN") {
                continue;
            }
            match name.to_ascii_lowercase().parse() {
                Ok(AmazonS3ConfigKey::Client(key)) => options = options.with_config(key, value),
                Ok(AmazonS3ConfigKey::VirtualHostedStyleRequest) => {
                    virtual_hosted = Some(value.eq_ignore_ascii_case("true"))
                }
                Ok(key) => builder = builder.with_config(key, value),
                Err(_) => {}
            }
        }
        if !has_keys && let Some(keys) = profile.keys {
            builder = builder.with_access_key_id(keys.id).with_secret_access_key(keys.secret);
            if let Some(token) = keys.token {
                builder = builder.with_token(token);
            }
        }
        let bucket = url.bucket();
        // A certificate for *.s3.amazonaws.com does not cover a bucket with a dot.
        let virtual_hosted = virtual_hosted.unwrap_or(endpoint.is_none() && !bucket.contains('.'));
        let bucket_endpoint = match (&endpoint, virtual_hosted) {
            (Some(endpoint), true) => endpoint.clone(),
            (Some(endpoint), false) => format!("{endpoint}/{bucket}"),
            (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
            (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
        };
        if config.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let is_set = |value: Option<String>| value.is_some_and(|value| value == "true");
        let signed = !is_set(builder.get_config_value(&AmazonS3ConfigKey::SkipSignature));
        let requester_pays = is_set(builder.get_config_value(&AmazonS3ConfigKey::RequestPayer));

        let invalid = |error: object_store::Error| OriginError::Invalid { what: format!("settings of {url}: {error}") };
        // Our own attempts are cut by our own clock, which looks at progress and not at the whole transfer.
        let client = ReqwestConnector {}.connect(&options.clone().with_timeout_disabled()).map_err(invalid)?;
        // Both names are set, and so the same as above whatever the environment says.
        let store = builder
            .with_client_options(options)
            .with_bucket_name(bucket)
            .with_region(&region)
            .with_config(AmazonS3ConfigKey::S3Endpoint, &bucket_endpoint)
            .with_virtual_hosted_style_request(true)
            .with_retry(object::retry_config(config))
            .build()
            .map_err(invalid)?;
        tracing::debug!(%url, %bucket_endpoint, %region, signed, "open s3 origin");
        Ok(Self {
            url: url.clone(),
            key_prefix,
            bucket_endpoint,
            signer: signed.then(|| Signer::new(&region, requester_pays)),
            store,
            client,
            patience,
        })
    }

    fn full_key(&self, key: &[u8]) -> Result<String, OriginError> {
        let unusable = |why: &str| OriginError::Invalid { what: format!("{}: {why}", Key::from(key)) };
        let key = std::str::from_utf8(key).map_err(|_| unusable("keys of an object store are UTF-8"))?;
        let full = format!("{}{key}", self.key_prefix);
        // URL parsers take these away even where they are percent-encoded, and would ask for another object.
        if full.split('/').any(|part| part == "." || part == "..") {
            return Err(unusable("an object with a part '.' or '..' in its key cannot be asked for over HTTP"));
        }
        if full.is_empty() {
            return Err(unusable("the empty key names the bucket and not an object"));
        }
        Ok(full)
    }

    fn retry(&self, key: &[u8]) -> Retry {
        Retry::new(&self.patience, key)
    }

    fn writer(&self) -> Writer<'_> {
        Writer { store: &self.store, patience: &self.patience }
    }

    /// Sends one request and gives its answer if that is a success.
    async fn ask(
        &self,
        retry: &Retry,
        method: Method,
        key: &[u8],
        target: &Target<'_>,
        expected: Option<&Version>,
        range: Option<Range<u64>>,
    ) -> Result<HttpResponse, Failure> {
        let uri = match target {
            Target::Object(full) => format!("{}/{}", self.bucket_endpoint, utf8_percent_encode(full, &PATH)),
            Target::Listing(query) => {
                let pairs: Vec<_> = query
                    .iter()
                    .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, &QUERY)))
                    .collect();
                format!("{}/?{}", self.bucket_endpoint, pairs.join("&"))
            }
        };
        let invalid = |what: String| Failure::Final(OriginError::Invalid { what });
        let mut request = http::Request::new(HttpRequestBody::empty());
        *request.uri_mut() =
            uri.parse().map_err(|_| invalid(format!("{}: too long to be asked for", Key::from(key))))?;
        *request.method_mut() = method;
        if let Some(Version::ETag(tag)) = expected {
            let tag = HeaderValue::from_str(tag)
                .map_err(|_| invalid(format!("{}: not an entity tag: {tag:?}", Key::from(key))))?;
            request.headers_mut().insert(IF_MATCH, tag);
        }
        if let Some(range) = &range {
            let value = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end - 1));
            request.headers_mut().insert(RANGE, value.expect("digits are a header value"));
        }
        if let Some(signer) = &self.signer {
            let credentials = retry
                .progress(self.store.credentials().get_credential())
                .await?
                .map_err(|error| OriginError::Denied { key: Key::from(key), source: Box::new(NoCredentials(error)) })?;
            signer.sign(&mut request, &credentials, SystemTime::now()).map_err(|error| {
                Failure::Final(OriginError::Denied { key: Key::from(key), source: Box::new(error) })
            })?;
        }
        let response = retry
            .answer(self.client.execute(request))
            .await?
            .map_err(|error| Failure::Again(OriginError::Unavailable { source: Box::new(error) }))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(retry, key, response, expected, range).await)
    }

    /// What an answer that is no success means.
    async fn refusal(
        &self,
        retry: &Retry,
        key: &[u8],
        response: HttpResponse,
        expected: Option<&Version>,
        range: Option<Range<u64>>,
    ) -> Failure {
        let (parts, body) = response.into_parts();
        let status = parts.status;
        let mut text = Vec::new();
        // The text only makes the message better, so a body that breaks off is as good as none.
        let _ = gathered(retry, body, REFUSAL_LIMIT, &mut |chunk| text.extend_from_slice(chunk)).await;
        let said = Refusal::new(status, &String::from_utf8_lossy(&text));
        let code = said.code.as_str();
        let key = Key::from(key);
        let region = parts.headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
        match status {
            StatusCode::NOT_FOUND if code == "NoSuchBucket" => Failure::Final(OriginError::Invalid {
                what: format!("{}: there is no such bucket at {}", self.url, self.bucket_endpoint),
            }),
            StatusCode::NOT_FOUND => Failure::Final(OriginError::NotFound { key }),
            StatusCode::PRECONDITION_FAILED => Failure::Final(match expected {
                Some(expected) => OriginError::Stale { key, expected: expected.clone(), got: etag(&parts.headers) },
                None => OriginError::Unavailable { source: said.into() },
            }),
            // The object ends before the range begins.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let expected = range.map_or(0, |range| range.end - range.start);
                Failure::Final(OriginError::Truncated { key, expected, got: 0 })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::Final(OriginError::Denied { key, source: said.into() })
            }
            StatusCode::BAD_REQUEST if matches!(code, "ExpiredToken" | "InvalidToken") => {
                Failure::Final(OriginError::Denied { key, source: said.into() })
            }
            // A client that was slow to send, or a connection that broke, is told 400 by Amazon.
            StatusCode::BAD_REQUEST if code == "RequestTimeout" => {
                Failure::Again(OriginError::Unavailable { source: said.into() })
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Failure::Again(OriginError::Busy { source: said.into() })
            }
            status
                if status.is_server_error()
                    || status == StatusCode::REQUEST_TIMEOUT
                    || status == StatusCode::CONFLICT =>
            {
                Failure::Again(OriginError::Unavailable { source: said.into() })
            }
            status if status.is_redirection() || code == "AuthorizationHeaderMalformed" => {
                Failure::Final(OriginError::Invalid {
                    what: match region {
                        Some(region) => format!("{} is in the region {region}: set --region or AWS_REGION", self.url),
                        None => format!(
                            "{} is not at {}: check --endpoint and --region: {said}",
                            self.url, self.bucket_endpoint
                        ),
                    },
                })
            }
            _ => Failure::Final(OriginError::Invalid { what: format!("{key}: {said}") }),
        }
    }

    /// Makes one attempt at the bytes of `range` that `got` still lacks.
    async fn read_on(
        &self,
        retry: &Retry,
        key: &[u8],
        full: &str,
        range: &Range<u64>,
        got: &mut Gathering<'_>,
    ) -> Result<(), Failure> {
        let asked = range.start + got.bytes..range.end;
        let wanted = asked.end - asked.start;
        let version = got.version.clone();
        let response =
            self.ask(retry, Method::GET, key, &Target::Object(full), version.as_ref(), Some(asked.clone())).await?;
        let (parts, stream) = response.into_parts();
        let truncated = |more: u64| OriginError::Truncated {
            key: Key::from(key),
            expected: range.end - range.start,
            got: asked.start - range.start + more,
        };
        let length = content_length(&parts.headers);
        // Where the body starts in the object, and how large that is.
        let (start, total) = match parts.status {
            StatusCode::PARTIAL_CONTENT => {
                let Some(sent) = ContentRange::of(&parts.headers) else {
                    return Err(nonsense("a partial answer without a Content-Range"));
                };
                if sent.start != asked.start || sent.end > asked.end {
                    return Err(nonsense("a Content-Range that was not asked for"));
                }
                if length.is_some_and(|length| length != sent.end - sent.start) {
                    return Err(nonsense("a Content-Length that contradicts the Content-Range"));
                }
                if sent.end < asked.end {
                    // The object itself ends here: asking again cannot help.
                    let error = truncated(sent.end - sent.start);
                    return Err(if sent.total == Some(sent.end) {
                        Failure::Final(error)
                    } else {
                        Failure::Again(error)
                    });
                }
                (sent.start, sent.total)
            }
            StatusCode::OK => {
                if asked.start > IGNORED_RANGE_LIMIT {
                    let source = "the server ignores Range, so this far into an object nothing can be read".into();
                    return Err(Failure::Final(OriginError::Unavailable { source }));
                }
                if let Some(length) = length.filter(|length| *length < asked.end) {
                    return Err(Failure::Final(truncated(length.saturating_sub(asked.start))));
                }
                (0, length)
            }
            _ => return Err(nonsense("neither 200 nor 206 to a GET")),
        };
        got.bind(key, &parts.headers, total)?;

        let mut skip = asked.start - start;
        let mut left = wanted;
        let end = gathered(retry, stream, skip + wanted, &mut |chunk| {
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            left -= chunk.len() as u64 - skipped;
            got.take(&chunk[skipped as usize..]);
        })
        .await;
        match end {
            Ok(_) if left == 0 => Ok(()),
            Ok(_) | Err(Failure::Again(OriginError::Unavailable { .. })) => {
                Err(Failure::Again(truncated(wanted - left)))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Makes one attempt at a whole object of at most `limit` bytes.
    ///
    /// It is asked for as a range, since a partial answer tells the object's size twice; an object without any bytes
    /// has no range, and is asked for once more without.
    async fn read_whole(&self, retry: &Retry, key: &[u8], full: &str, limit: u64) -> Result<(Bytes, Version), Failure> {
        let target = Target::Object(full);
        let range = 0..limit.clamp(1, RANGE_LIMIT);
        let response = match self.ask(retry, Method::GET, key, &target, None, Some(range)).await {
            Err(Failure::Final(OriginError::Truncated { .. })) => {
                self.ask(retry, Method::GET, key, &target, None, None).await?
            }
            response => response?,
        };
        let (parts, stream) = response.into_parts();
        let length = content_length(&parts.headers).ok_or_else(|| nonsense("no Content-Length"))?;
        let size = match (parts.status, ContentRange::of(&parts.headers)) {
            (StatusCode::OK, _) => length,
            (StatusCode::PARTIAL_CONTENT, Some(ContentRange { start: 0, end, total: Some(total) }))
                if end == length =>
            {
                total
            }
            _ => return Err(nonsense("no size of the object that fits its length")),
        };
        if size > limit {
            return Err(OriginError::TooLarge { key: Key::from(key), size, limit }.into());
        }
        let version =
            version_of(&parts.headers, Some(size)).ok_or_else(|| nonsense("neither ETag nor Last-Modified"))?;
        let mut bytes = room(size);
        let end = gathered(retry, stream, size, &mut |chunk| bytes.extend_from_slice(chunk)).await;
        let truncated = || OriginError::Truncated { key: Key::from(key), expected: size, got: bytes.len() as u64 };
        match end {
            Ok(_) if bytes.len() as u64 == size => Ok((bytes.freeze(), version)),
            Ok(_) | Err(Failure::Again(OriginError::Unavailable { .. })) => Err(Failure::Again(truncated())),
            Err(failure) => Err(failure),
        }
    }

    async fn list_page(
        &self,
        retry: &Retry,
        prefix: &str,
        after: Option<&str>,
        token: Option<&str>,
        depth: Depth,
    ) -> Result<s3_list::Parsed, Failure> {
        let target = Target::Listing(s3_list::query(prefix, after, token, depth));
        let shown = prefix.as_bytes();
        let (parts, stream) = self.ask(retry, Method::GET, shown, &target, None, None).await?.into_parts();
        if parts.status != StatusCode::OK {
            return Err(nonsense("a status that no listing has"));
        }
        let mut xml = Vec::new();
        let got = gathered(retry, stream, s3_list::ANSWER_LIMIT, &mut |chunk| xml.extend_from_slice(chunk)).await?;
        if content_length(&parts.headers).is_some_and(|length| length != got) {
            return Err(nonsense("a listing of another length than stated"));
        }
        s3_list::parse(&xml, self.key_prefix.len(), shown, after.map(str::as_bytes)).map_err(|error| {
            let cut = matches!(error, s3_list::Malformed::Cut);
            let error = OriginError::Unavailable { source: Box::new(error) };
            // What is no listing at all will be none the next time; a page may only have been cut on its way.
            if cut { Failure::Again(error) } else { Failure::Final(error) }
        })
    }
}

#[async_trait]
impl Origin for S3Origin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let full = |key: &[u8]| match std::str::from_utf8(key) {
            Ok(key) => Ok(format!("{}{key}", self.key_prefix)),
            Err(_) => {
                Err(OriginError::Invalid { what: format!("{}: keys of an object store are UTF-8", Key::from(key)) })
            }
        };
        let shown = prefix;
        let (prefix, after) = (full(prefix)?, after.map(full).transpose()?);
        let mut retry = self.retry(shown);
        let mut token: Option<String> = None;
        loop {
            match self.list_page(&retry, &prefix, after.as_deref(), token.as_deref(), depth).await {
                Ok(parsed) => match parsed.go_on {
                    // A store that has many deleted keys gives pages with nothing in them; each has its own deadline.
                    Some(next) if token.as_ref() != Some(&next) => {
                        token = Some(next);
                        retry = self.retry(shown);
                    }
                    Some(_) => return Err(OriginError::Unavailable { source: Box::new(s3_list::Malformed::Stuck) }),
                    None => return Ok(parsed.page),
                },
                Err(failure) => retry.pause(failure).await?,
            }
        }
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let mut bytes = room(range.end.saturating_sub(range.start));
        self.read_to(key, range, version, &mut |chunk| bytes.extend_from_slice(chunk)).await?;
        Ok(bytes.freeze())
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let full = self.full_key(key)?;
        if range.is_empty() {
            return Ok(());
        }
        let mut retry = self.retry(key);
        let mut got = Gathering { bytes: 0, version: version.cloned(), sink };
        loop {
            match self.read_on(&retry, key, &full, &range, &mut got).await {
                Ok(()) => return Ok(()),
                Err(failure) => retry.pause(failure).await?,
            }
        }
    }

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
        let full = self.full_key(key)?;
        let mut retry = self.retry(key);
        loop {
            let failure = match self.ask(&retry, Method::HEAD, key, &Target::Object(&full), None, None).await {
                Ok(response) => {
                    let headers = response.headers();
                    let size = content_length(headers);
                    match (size, last_modified(headers), version_of(headers, size)) {
                        (Some(size), Some(mtime_ns), Some(version)) => {
                            return Ok(Listed { key: key.to_vec(), size, mtime_ns, version });
                        }
                        _ => nonsense("neither size nor time of the object"),
                    }
                }
                Err(failure) => failure,
            };
            retry.pause(failure).await?;
        }
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let full = self.full_key(key)?;
        let mut retry = self.retry(key);
        loop {
            match self.read_whole(&retry, key, &full, limit).await {
                Ok(whole) => return Ok(whole),
                Err(failure) => retry.pause(failure).await?,
            }
        }
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        let full = self.full_key(key)?;
        match self.writer().put(key, &full, bytes).await? {
            Some(version) => Ok(version),
            None => Ok(self.head(key).await?.version),
        }
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let full = self.full_key(key)?;
        match self.writer().put_stream(key, &full, chunks).await? {
            Some(version) => Ok(version),
            None => Ok(self.head(key).await?.version),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, \
     or AWS_SKIP_SIGNATURE=true for a public bucket"
)]
struct NoCredentials(#[source] object_store::Error);

/// What a request is for.
enum Target<'a> {
    Object(&'a str),
    Listing(Vec<(&'static str, String)>),
}

/// How many bytes the attempts of a read have got so far, where they go, and the version that all of them are of.
struct Gathering<'a> {
    bytes: u64,
    version: Option<Version>,
    sink: &'a mut Sink<'a>,
}

impl Gathering<'_> {
    fn take(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        (self.sink)(chunk);
    }

    /// Holds the answer against the version so far; the first answer of a read without one sets it, so that bytes of
    /// two versions are never put together.
    fn bind(&mut self, key: &[u8], headers: &HeaderMap, total: Option<u64>) -> Result<(), Failure> {
        let Some(got) = version_of(headers, total) else {
            return Err(nonsense("neither ETag nor Last-Modified"));
        };
        let same = match (&self.version, &got) {
            (None, _) => {
                self.version = Some(got);
                return Ok(());
            }
            (Some(Version::ETag(expected)), Version::ETag(got)) => expected == got,
            (Some(Version::MtimeSize { mtime_ns, size }), _) => {
                // A listing has milliseconds where the header has whole seconds.
                let seconds = |ns: i64| ns.div_euclid(1_000_000_000);
                last_modified(headers).is_some_and(|got| seconds(got) == seconds(*mtime_ns))
                    && total.is_none_or(|total| total == *size)
            }
            (Some(Version::ETag(_)), Version::MtimeSize { .. }) => {
                return Err(nonsense("no ETag to hold the bytes against"));
            }
        };
        match (same, self.version.clone()) {
            (false, Some(expected)) => {
                Err(Failure::Final(OriginError::Stale { key: Key::from(key), expected, got: Some(got) }))
            }
            _ => Ok(()),
        }
    }
}

/// Takes a body in, each chunk as it comes, and gives its length. More than `limit` bytes are an error and not taken.
async fn gathered(
    retry: &Retry,
    body: HttpResponseBody,
    limit: u64,
    take: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<u64, Failure> {
    let mut stream = body.bytes_stream();
    let mut got = 0;
    while let Some(chunk) = retry.progress(stream.next()).await? {
        let chunk = chunk.map_err(|error| Failure::Again(OriginError::Unavailable { source: Box::new(error) }))?;
        let fits = (limit - got).min(chunk.len() as u64);
        take(&chunk[..fits as usize]);
        got += fits;
        if fits < chunk.len() as u64 {
            // Only a server that ignores `Range` may send more: the rest of its object.
            return Ok(got);
        }
    }
    Ok(got)
}

/// A buffer for so many bytes; more than a part of an upload is not taken on the word of a server.
fn room(bytes: u64) -> BytesMut {
    BytesMut::with_capacity(bytes.min(16 << 20) as usize)
}

fn nonsense(what: &'static str) -> Failure {
    Failure::Again(OriginError::Unavailable { source: format!("the server's answer has {what}").into() })
}

fn etag(headers: &HeaderMap) -> Option<Version> {
    s3_list::tagged(headers.get(ETAG)?.to_str().ok()?)
}

fn version_of(headers: &HeaderMap, total: Option<u64>) -> Option<Version> {
    etag(headers).or_else(|| Some(Version::MtimeSize { mtime_ns: last_modified(headers)?, size: total? }))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn last_modified(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get(LAST_MODIFIED)?.to_str().ok()?;
    chrono::DateTime::parse_from_rfc2822(text).ok()?.timestamp_nanos_opt()
}

/// `bytes START-END/TOTAL`, with the end turned into the first byte that is not in it.
struct ContentRange {
    start: u64,
    end: u64,
    total: Option<u64>,
}

impl ContentRange {
    fn of(headers: &HeaderMap) -> Option<Self> {
        let (range, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
        let (start, last) = range.split_once('-')?;
        let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
        let total = if total == "*" { None } else { Some(total.parse().ok()?) };
        (start <= last && last < u64::MAX).then_some(Self { start, end: last + 1, total })
    }
}

/// What the server said with a refusal. Only the code and the message are kept: the rest of S3's error bodies holds
/// key ids and the texts that were signed.
#[derive(Debug, thiserror::Error)]
#[error("the server answered {status} {code}{}{message}", if .message.is_empty() { "" } else { ": " })]
struct Refusal {
    status: StatusCode,
    code: String,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, body: &str) -> Self {
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            let (text, _) = rest.split_once(&format!("</{name}>"))?;
            Some(Key::from(text.chars().take(300).collect::<String>().as_bytes()).to_string())
        };
        Self { status, code: element("Code").unwrap_or_default(), message: element("Message").unwrap_or_default() }
    }
}

/// The HTTP client's settings that S3 reads and writes share.
fn client_options(config: &OriginConfig) -> Result<ClientOptions, OriginError> {
    let options = object::client_options(config);
    let Some(path) = config.env.get("AWS_CA_BUNDLE") else {
        return Ok(options);
    };
    let certificates = std::fs::read(path)
        .map_err(|error| error.to_string())
        .and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string()))
        .map_err(|error| OriginError::Invalid { what: format!("AWS_CA_BUNDLE: read {path}: {error}") })?;
    Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
}

/// The endpoint without the `/` at its end, if it is one. Its text is not repeated: it may hold what it should not.
fn checked_endpoint(text: &str) -> Result<String, OriginError> {
    let invalid = |what: &str| OriginError::Invalid {
        what: format!("{what} (--endpoint, AWS_ENDPOINT_URL or the profile's endpoint_url)"),
    };
    let parsed = url::Url::parse(text).map_err(|_| invalid("the endpoint is no URL such as http://127.0.0.1:9000"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(invalid("the endpoint is no http:// or https:// URL"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid("credentials do not belong in the endpoint's URL"));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(invalid("the endpoint's URL cannot have a query"));
    }
    Ok(parsed.as_str().trim_end_matches('/').to_string())
}
