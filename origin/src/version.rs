//! The version of an object, to which reads are bound.

use std::fmt;

use crate::key::Key;

/// The version of an object: two reads of the same version return bytes of the same object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// The entity tag as the store sent it, including its quotes; quotes are added where a store omits them.
    ETag(String),
    /// For folders and for stores without entity tags. A change in place that keeps both size and time goes undetected.
    MtimeSize {
        /// Modification time in nanoseconds since 1970.
        mtime_ns: i64,
        /// Size in bytes.
        size: u64,
    },
}

impl Version {
    /// The version that an entity tag stands for, or `None` if the tag is empty. Some stores send the quotes in one
    /// place and omit them in another; Ceph completes a multipart upload with an empty tag.
    pub(crate) fn from_etag(etag: &str) -> Option<Self> {
        match etag.trim() {
            "" | "\"\"" => None,
            tag if tag.starts_with('"') || tag.starts_with("W/") => Some(Self::ETag(tag.to_string())),
            tag => Some(Self::ETag(format!("\"{tag}\""))),
        }
    }

    /// The entity tag, or time and size if the store sent no tag.
    pub(crate) fn from_etag_or_mtime(etag: Option<&str>, mtime_ns: i64, size: u64) -> Self {
        etag.and_then(Self::from_etag).unwrap_or(Self::MtimeSize { mtime_ns, size })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ETag(tag) => write!(f, "entity tag {}", Key::from(tag.as_bytes())),
            Self::MtimeSize { mtime_ns, size } => write!(f, "{size} bytes modified at {mtime_ns} ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_without_quotes_get_them() {
        let version = Version::from_etag_or_mtime;
        assert_eq!(version(Some("ab-2"), 0, 0), Version::ETag("\"ab-2\"".into()));
        assert_eq!(version(Some("W/\"x\""), 0, 0), Version::ETag("W/\"x\"".into()));
        assert_eq!(version(Some(""), 7, 9), Version::MtimeSize { mtime_ns: 7, size: 9 });
        assert_eq!(version(None, 7, 9), Version::MtimeSize { mtime_ns: 7, size: 9 });
    }
}
