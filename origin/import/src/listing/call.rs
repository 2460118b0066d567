//! Types that the parts of a listing share: a call to make, and the errors that end a listing.

use larder_dataset::name::NameRules;
use larder_origin::{Depth, Key, OriginError, Scheme};

/// Why a listing cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// A LIST call failed.
    #[error("list {}", shown(prefix))]
    Origin {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// The origin's answer contradicts the request or another answer.
    #[error("list {}: the origin answered {what}", shown(prefix))]
    Odd {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// The contradiction in the answer.
        what: &'static str,
    },
    /// Two pages show different versions of one object.
    #[error(
        "{} changed at the origin while it was being listed: import the dataset when nothing writes to it",
        Key::from(key.as_slice())
    )]
    Changed {
        /// The key of the object.
        key: Vec<u8>,
    },
}

fn shown(prefix: &[u8]) -> String {
    if prefix.is_empty() { "the root of the dataset".into() } else { Key::from(prefix).to_string() }
}

/// The name rules for origins of this kind.
pub(crate) fn rules_of(scheme: Scheme) -> NameRules {
    match scheme {
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => NameRules::OBJECT_STORE,
        Scheme::Folder => NameRules::FOLDER,
    }
}

/// A LIST call to make.
#[derive(Clone, Debug)]
pub(crate) struct ListCall {
    pub(crate) prefix: Vec<u8>,
    pub(crate) depth: Depth,
    pub(crate) after: Option<Vec<u8>>,
}
