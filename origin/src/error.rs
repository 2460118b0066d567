//! What can go wrong at an origin, one variant for each thing a caller decides differently.
//!
//! `Stale` and `NotFound` end a read for good, `Busy` and `Unavailable` are worth asking again later, `Denied` and
//! `Invalid` want a person. Retries have already happened when one of these comes out of an [`Origin`](crate::Origin).
//! The invariant: no variant ever shows a secret, and keys are shown escaped, so that a hostile key cannot forge a log line.

use std::fmt;
use std::time::Duration;

use crate::Version;

/// The cause kept below an [`OriginError`].
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A key as it is shown to people: whatever is not printable is escaped.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// The raw bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || c == '\\' {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Why an origin did not answer. See the module for what each variant asks of the caller.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// There is no such object or folder.
    #[error("{key}: not found at the origin")]
    NotFound {
        /// What was asked for.
        key: Key,
    },
    /// The object is not the version that was asked for any more.
    #[error("{key}: changed at the origin: wanted {expected}, found {}", Found(.got))]
    Stale {
        /// What was asked for.
        key: Key,
        /// The version that the caller is bound to.
        expected: Version,
        /// The version that is there now, where the origin said so.
        got: Option<Version>,
    },
    /// The credentials are missing, wrong or not allowed to do this.
    #[error("{key}: access denied by the origin")]
    Denied {
        /// What was asked for.
        key: Key,
        /// What the origin or the credential provider said.
        source: Source,
    },
    /// The origin asked us to slow down, and still did at the deadline.
    #[error("the origin is too busy")]
    Busy {
        /// The last refusal.
        source: Source,
    },
    /// Nothing came back in time.
    #[error("{key}: no answer from the origin within {after:?}")]
    TimedOut {
        /// What was asked for.
        key: Key,
        /// How long the last attempt waited without progress.
        after: Duration,
    },
    /// A flag, a variable, a URL or a key is wrong; asking again cannot help.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and which flag or variable to change.
        what: String,
    },
    /// The object is larger than the caller is ready to hold in memory.
    #[error("{key}: {size} bytes are more than the {limit} allowed here")]
    TooLarge {
        /// What was asked for.
        key: Key,
        /// How large it is.
        size: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The origin gave fewer bytes than it holds or than the listing said.
    #[error("{key}: the origin gave {got} of {expected} bytes")]
    Truncated {
        /// What was asked for.
        key: Key,
        /// How many bytes were asked for.
        expected: u64,
        /// How many came.
        got: u64,
    },
    /// The origin cannot be reached or answers nonsense.
    #[error("the origin is unavailable")]
    Unavailable {
        /// The last failure.
        source: Source,
    },
}

impl OriginError {
    /// Whether the same call may succeed later with nothing changed by a person.
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

struct Found<'a>(&'a Option<Version>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, "{version}"),
            None => f.write_str("another one"),
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
}
