//! Classes of a node's errors, by what a caller can do.

use serde::{Deserialize, Serialize};

/// Class of an error, by what a caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The request is wrong: correct it.
    Invalid,
    /// The request names something that does not exist.
    NotFound,
    /// The credentials do not allow it.
    Denied,
    /// The request conflicts with the present state: change one of the two.
    Precondition,
    /// The cache is promised to other datasets.
    NoRoom,
    /// Stored data is damaged.
    DataLoss,
    /// It may succeed later.
    Unavailable,
    /// See the log for details.
    Internal,
}
