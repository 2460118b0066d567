//! The meaning of object_store's errors.

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use crate::error::OriginError;
use crate::key::Key;
use crate::retry::{AttemptError, RetryPolicy};
use crate::version::Version;

/// Classifies the error of a request for the version `expected`, or for any version if it is `None`.
pub(crate) fn attempt_error(
    error: Error,
    key: &[u8],
    expected: Option<&Version>,
    policy: &RetryPolicy,
) -> AttemptError {
    let shown = Key::from(key);
    match (error, expected) {
        (Error::NotFound { .. }, _) => AttemptError::Final(OriginError::NotFound { key: shown }),
        (Error::Precondition { .. } | Error::NotModified { .. }, Some(expected)) => {
            AttemptError::Final(OriginError::Stale { key: shown, expected: expected.clone(), got: None })
        }
        (error @ (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }), _) => {
            AttemptError::Final(OriginError::Denied { key: shown, source: Box::new(error) })
        }
        (
            error @ (Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::UnknownConfigurationKey { .. }),
            _,
        ) => AttemptError::Final(OriginError::Invalid { what: format!("{shown}: {error}") }),
        (error, _) if timed_out(&error) => {
            AttemptError::Retryable(OriginError::TimedOut { key: shown, after: policy.attempt_timeout })
        }
        (error, _) => {
            // object_store's type of a refused request is private. For an answer without a variant of its own, such as
            // any refused LIST, only the text shows the status.
            let text = error.to_string();
            let status = text.split_once("status code: ").and_then(|(_, status)| status.get(..3)?.parse::<u16>().ok());
            let source = Box::new(error);
            match status {
                Some(401 | 403) => AttemptError::Final(OriginError::Denied { key: shown, source }),
                Some(404) => AttemptError::Final(OriginError::NotFound { key: shown }),
                Some(429 | 503) => AttemptError::Retryable(OriginError::Busy { source }),
                _ if text.contains("SlowDown") => AttemptError::Retryable(OriginError::Busy { source }),
                _ => AttemptError::Retryable(OriginError::Unavailable { source }),
            }
        }
    }
}

fn timed_out(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.downcast_ref::<HttpError>().is_some_and(|error| error.kind() == HttpErrorKind::Timeout) {
            return true;
        }
        source = error.source();
    }
    false
}
