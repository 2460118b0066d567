//! The result of building a manifest: the finished bytes, or the reason why there are none.

use super::rows::Totals;
use crate::name::Rejection;
use crate::snapshot::SnapshotId;

/// A finished manifest.
#[derive(Debug)]
pub struct Built {
    /// The bytes of the file, in pieces to be written one after the other.
    pub parts: Vec<Vec<u8>>,
    /// Files that a folder of the same name shadows.
    pub rejected: Vec<RejectedKey>,
    /// The id of the snapshot.
    pub snapshot: SnapshotId,
    /// Counts and sizes.
    pub totals: Totals,
}

impl Built {
    /// Length of the manifest in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// The whole manifest in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.parts.concat()
    }
}

/// A key that was listed but is not in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedKey {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// The reason.
    pub reason: Rejection,
}

/// Why no manifest could be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// There are more rows than row numbers.
    #[error("the dataset has more than {limit} {what}: split it into several datasets")]
    TooLarge {
        /// The kind of row.
        what: &'static str,
        /// The most that fit.
        limit: u64,
    },
    /// The name or the origin is too long for the format.
    #[error("{what} is longer than 65,535 bytes")]
    TooLong {
        /// Which string.
        what: &'static str,
    },
    /// Two different files were listed under one name.
    #[error("{path} changed at the origin while it was being listed: import the dataset again")]
    ChangedWhileListed {
        /// The path, escaped.
        path: String,
    },
}

/// The count as a row number. Errors: `TooLarge`.
pub(super) fn limit(what: &'static str, count: u64) -> Result<u32, BuildError> {
    u32::try_from(count).map_err(|_| BuildError::TooLarge { what, limit: u64::from(u32::MAX) })
}
