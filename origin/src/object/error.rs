//! The meaning of object_store's errors.

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use crate::error::OriginError;
use crate::key::Key;
use crate::keys::SessionError;
use crate::retry::{AttemptError, RetryPolicy};
use crate::version::Version;

/// Classifies the error of a request for the version `expected`, or for any version if it is `None`.
pub(crate) fn attempt_error(
    error: Error,
    key: &[u8],
    expected: Option<&Version>,
    policy: &RetryPolicy,
) -> AttemptError {
    if let Some(denied) = without_keys(&error, key) {
        return denied;
    }
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

/// The denial of a request that was not sent because its session has no keys. They may come with a later attempt,
/// unless they were refused.
pub(crate) fn without_keys(error: &Error, key: &[u8]) -> Option<AttemptError> {
    Some(denied(causes(error).find_map(|cause| cause.downcast_ref::<SessionError>())?, key))
}

/// The same, for the error of the session itself.
pub(crate) fn denied(error: &SessionError, key: &[u8]) -> AttemptError {
    let denied = OriginError::Denied { key: Key::from(key), source: Box::new(error.clone()) };
    match error {
        SessionError::Failed(..) => AttemptError::Retryable(denied),
        SessionError::Refused(_) => AttemptError::Final(denied),
    }
}

/// The denial of a request whose keys did not come within an attempt, which says nothing about the origin.
pub(crate) fn keys_are_late(late: AttemptError, key: &[u8]) -> AttemptError {
    match late {
        AttemptError::Retryable(late) => {
            AttemptError::Retryable(OriginError::Denied { key: Key::from(key), source: Box::new(late) })
        }
        AttemptError::Final(error) => AttemptError::Final(error),
    }
}

fn timed_out(error: &Error) -> bool {
    let timeout = |error: &HttpError| error.kind() == HttpErrorKind::Timeout;
    causes(error).any(|cause| cause.downcast_ref::<HttpError>().is_some_and(timeout))
}

/// The causes of an error, from the nearest on.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(error), |cause| (**cause).source())
}
