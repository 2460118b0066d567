//! The result of building a manifest: its bytes, or the reason why it could not be built.

use super::rows::Totals;
use crate::name::Rejection;
use crate::snapshot::SnapshotId;

/// A finished manifest.
#[derive(Debug)]
pub struct Built {
    /// The bytes of the file, in pieces that must be written in this order.
    pub parts: Vec<Vec<u8>>,
    /// The files that are missing because a folder has the same name.
    pub rejected: Vec<RejectedKey>,
    /// The id of the snapshot.
    pub snapshot: SnapshotId,
    /// The counts and sizes of the snapshot.
    pub totals: Totals,
}

impl Built {
    /// The length of the manifest in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Copies the whole manifest into one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.parts.concat()
    }
}

/// A key that was listed but is not in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedKey {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// Why the key is not in the tree.
    pub reason: Rejection,
}

/// Why a manifest could not be built.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// The dataset has more rows of one kind than the format can number.
    #[error("the dataset has more than {limit} {what}: split it into several datasets")]
    TooLarge {
        /// The kind of rows, for the message.
        what: &'static str,
        /// The most rows of that kind.
        limit: u64,
    },
    /// The name or the URL of the origin is too long for the format.
    #[error("{what} is longer than 65,535 bytes")]
    TooLong {
        /// The string that is too long, for the message.
        what: &'static str,
    },
    /// Two different files were listed under one path.
    #[error("{path} changed at the origin while it was being listed: import the dataset again")]
    ChangedWhileListed {
        /// The path, with special characters escaped.
        path: String,
    },
}

/// Converts a count to a row number. Errors: `TooLarge`.
pub(super) fn limit(what: &'static str, count: u64) -> Result<u32, BuildError> {
    u32::try_from(count).map_err(|_| BuildError::TooLarge { what, limit: u64::from(u32::MAX) })
}
