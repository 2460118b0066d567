//! The errors of an origin: one variant for each decision that a caller makes.
//!
//! `Stale` and `NotFound` end a read permanently. `Busy` and `Unavailable` are worth a retry later. `Denied` and
//! `Invalid` require a person to change something. A call that ends with one of these has already been retried. The
//! invariant: no variant ever shows a secret, and keys are shown escaped, so that a hostile key cannot forge a log
//! line.

use std::fmt;
use std::time::Duration;

use crate::key::Key;
use crate::version::Version;

/// The error that caused an [`OriginError`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a call failed. The module's documentation describes how a caller handles each variant.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The object or folder does not exist.
    #[error("{}not found at the origin", About(.key))]
    NotFound {
        /// The key in the request.
        key: Key,
    },
    /// The object has changed: it no longer has the requested version.
    #[error("{key}: changed at the origin: wanted {expected}, found {}", Found(.got))]
    Stale {
        /// The key in the request.
        key: Key,
        /// The version that the caller requested.
        expected: Version,
        /// The current version, if the origin reported it.
        got: Option<Version>,
    },
    /// The credentials are missing, wrong or lack the required permission.
    #[error("{}access denied by the origin", About(.key))]
    Denied {
        /// The key in the request.
        key: Key,
        /// The answer of the origin or of the credential provider.
        source: BoxError,
    },
    /// The origin refused the request for lack of capacity until the call's deadline.
    #[error("the origin is too busy")]
    Busy {
        /// The last refusal.
        source: BoxError,
    },
    /// No answer came in time.
    #[error("{}no answer from the origin within {}", About(.key), Rounded(.after))]
    TimedOut {
        /// The key in the request.
        key: Key,
        /// How long the last attempt waited without progress.
        after: Duration,
    },
    /// A flag, a variable, a URL or a key is wrong; a retry cannot help.
    #[error("{what}")]
    Invalid {
        /// The mistake, and the flag or variable to change.
        what: String,
    },
    /// The object is larger than the caller is willing to hold in memory.
    #[error("{key}: {size} bytes are more than the {limit} bytes allowed here")]
    TooLarge {
        /// The key in the request.
        key: Key,
        /// The object's size in bytes.
        size: u64,
        /// The largest size allowed, in bytes.
        limit: u64,
    },
    /// The origin returned fewer bytes than the object or the listing promised.
    #[error("{key}: the origin returned {got} of {expected} bytes")]
    Truncated {
        /// The key in the request.
        key: Key,
        /// The number of bytes that were requested.
        expected: u64,
        /// The number of bytes that arrived.
        got: u64,
    },
    /// The origin cannot be reached, or its answers are invalid.
    #[error("the origin is unavailable")]
    Unavailable {
        /// The last failure.
        source: BoxError,
    },
}

impl OriginError {
    /// True if the same call may succeed later without a change by a person.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TimedOut { .. } | Self::Truncated { .. } | Self::Unavailable { .. } => true,
            Self::NotFound { .. }
            | Self::Stale { .. }
            | Self::Denied { .. }
            | Self::Invalid { .. }
            | Self::TooLarge { .. } => false,
        }
    }
}

/// Formats the key and a colon. Formats nothing for the empty key, which is the origin itself.
struct About<'a>(&'a Key);

impl fmt::Display for About<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_string().as_str() {
            "" => Ok(()),
            key => write!(f, "{key}: "),
        }
    }
}

struct Rounded<'a>(&'a Duration);

impl fmt::Display for Rounded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_millis(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)))
    }
}

struct Found<'a>(&'a Option<Version>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, "{version}"),
            None => f.write_str("another version"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_key_is_shown_on_one_line() {
        let error = OriginError::NotFound { key: Key::from(b"a\nERROR \x1b[2J\xff \xc3\xa9\\".as_slice()) };
        assert_eq!(error.to_string(), "a\\nERROR \\u{1b}[2J\\xff é\\\\: not found at the origin");
    }

    #[test]
    fn an_error_about_the_origin_itself_names_no_key() {
        let after = Duration::from_micros(1_868_260);
        let error = |key: &[u8]| OriginError::TimedOut { key: Key::from(key), after }.to_string();
        assert_eq!(error(b""), "no answer from the origin within 1.868s");
        assert_eq!(error(b"a"), "a: no answer from the origin within 1.868s");
    }
}
