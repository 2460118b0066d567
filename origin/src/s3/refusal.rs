//! Conversion of unsuccessful answers into errors.

use std::ops::Range;

use http::{HeaderMap, StatusCode};

use crate::error::OriginError;
use crate::key::Key;
use crate::retry::AttemptError;
use crate::s3::headers;
use crate::url::OriginUrl;
use crate::version::Version;

/// A request that the server refused.
pub(super) struct Refused<'a> {
    pub(super) url: &'a OriginUrl,
    pub(super) bucket_endpoint: &'a str,
    pub(super) key: &'a [u8],
    /// The version that the request specified.
    pub(super) expected: Option<&'a Version>,
    pub(super) range: Option<&'a Range<u64>>,
}

impl Refused<'_> {
    /// The error that the answer stands for.
    pub(super) fn error(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> AttemptError {
        let answer = ErrorAnswer::new(status, &String::from_utf8_lossy(body));
        let code = answer.code.as_str();
        let key = Key::from(self.key);
        match status {
            StatusCode::NOT_FOUND if code == "NoSuchBucket" => AttemptError::Final(OriginError::Invalid {
                what: format!("{}: there is no such bucket at {}", self.url, self.bucket_endpoint),
            }),
            StatusCode::NOT_FOUND => AttemptError::Final(OriginError::NotFound { key }),
            StatusCode::PRECONDITION_FAILED => AttemptError::Final(match self.expected {
                Some(expected) => OriginError::Stale { key, expected: expected.clone(), got: headers::etag(headers) },
                None => OriginError::Unavailable { source: answer.into() },
            }),
            // The range starts after the end of the object.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let expected = self.range.map_or(0, |range| range.end - range.start);
                AttemptError::Final(OriginError::Truncated { key, expected, got: 0 })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                AttemptError::Final(OriginError::Denied { key, source: answer.into() })
            }
            StatusCode::BAD_REQUEST if matches!(code, "ExpiredToken" | "InvalidToken") => {
                AttemptError::Final(OriginError::Denied { key, source: answer.into() })
            }
            // Amazon answers 400 with this code to a client that sends slowly and to a broken connection.
            StatusCode::BAD_REQUEST if code == "RequestTimeout" => {
                AttemptError::Retryable(OriginError::Unavailable { source: answer.into() })
            }
            StatusCode::BAD_REQUEST if code == "BadDigest" => {
                AttemptError::Final(OriginError::Unavailable { source: Box::new(BadDigest(answer)) })
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                AttemptError::Retryable(OriginError::Busy { source: answer.into() })
            }
            status
                if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
                    || status == StatusCode::REQUEST_TIMEOUT
                    || status == StatusCode::CONFLICT =>
            {
                AttemptError::Retryable(OriginError::Unavailable { source: answer.into() })
            }
            status if status.is_redirection() || code == "AuthorizationHeaderMalformed" => {
                AttemptError::Final(OriginError::Invalid { what: self.elsewhere(headers, &answer) })
            }
            _ => AttemptError::Final(OriginError::Invalid { what: format!("{key}: {answer}") }),
        }
    }

    /// The message for a bucket that belongs to another server or region.
    fn elsewhere(&self, headers: &HeaderMap, answer: &ErrorAnswer) -> String {
        let Self { url, bucket_endpoint, .. } = self;
        match headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok()) {
            Some(region) => format!("{url} is in the region {region}: set --region or AWS_REGION"),
            None => format!("{url} is not at {bucket_endpoint}: check --endpoint and --region: {answer}"),
        }
    }
}

/// The server has compared the bytes of a request, and they have another digest than the request says.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct BadDigest(ErrorAnswer);

/// True if the server refuses the keys themselves, and not what they were used for.
pub(super) fn is_of_keys(body: &[u8]) -> bool {
    let codes = ["ExpiredToken", "InvalidToken", "InvalidTokenId", "InvalidAccessKeyId", "TokenRefreshRequired"];
    let answer = ErrorAnswer::new(StatusCode::FORBIDDEN, &String::from_utf8_lossy(body));
    codes.contains(&&*answer.code)
}

/// The error that the server reported. Only the code and the message are kept, because the rest of S3's error bodies
/// contains key ids and signed texts.
#[derive(Debug, thiserror::Error)]
#[error("the server answered {status} {code}{}{message}", if .message.is_empty() { "" } else { ": " })]
pub(super) struct ErrorAnswer {
    status: StatusCode,
    code: String,
    message: String,
}

impl ErrorAnswer {
    fn new(status: StatusCode, body: &str) -> Self {
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            let (text, _) = rest.split_once(&format!("</{name}>"))?;
            Some(Key::from(text.chars().take(300).collect::<String>().as_bytes()).to_string())
        };
        Self { status, code: element("Code").unwrap_or_default(), message: element("Message").unwrap_or_default() }
    }
}
