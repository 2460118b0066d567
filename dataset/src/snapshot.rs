//! The id of a snapshot.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Identifies a snapshot: the SHA-256 of its contents and its origin's URL. Two snapshots with the same listing have
/// the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(pub [u8; 32]);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a snapshot id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a snapshot id: give its 64 hex digits, as `larder stats` shows them")]
pub struct InvalidSnapshotId {
    /// The invalid text.
    pub given: String,
}

impl FromStr for SnapshotId {
    type Err = InvalidSnapshotId;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotId> {
        let invalid = || InvalidSnapshotId { given: text.to_owned() };
        let mut id = [0; 32];
        if text.len() != 2 * id.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| invalid())?;
        }
        Ok(Self(id))
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = InvalidSnapshotId;

    fn try_from(text: String) -> Result<Self, InvalidSnapshotId> {
        text.parse()
    }
}

impl From<SnapshotId> for String {
    fn from(id: SnapshotId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written_and_nothing_else_is() {
        let id = SnapshotId(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "ab", &"g".repeat(64), &"+1".repeat(32), &"é".repeat(32), &"a".repeat(66)] {
            assert!(text.parse::<SnapshotId>().is_err(), "{text}");
        }
    }
}
