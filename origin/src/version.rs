//! The version of an object, which a read can request.

use std::fmt;

use crate::key::Key;

/// The version of an object. Two reads of the same version return bytes of the same content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// The entity tag as the store sent it, including its quotes. Quotes are added if a store omits them.
    ETag(String),
    /// Used for folders and for stores without entity tags. A change in place that keeps both size and time is not
    /// detected.
    MtimeSize {
        /// The modification time in nanoseconds since 1970.
        mtime_ns: i64,
        /// The object's size in bytes.
        size: u64,
    },
}

impl Version {
    /// The version for an entity tag, or `None` if the tag is empty. Some stores send the quotes in one answer and omit
    /// them in another. Ceph completes a multipart upload with an empty tag.
    pub(crate) fn from_etag(etag: &str) -> Option<Self> {
        match etag.trim() {
            "" | "\"\"" => None,
            tag if tag.starts_with('"') || tag.starts_with("W/") => Some(Self::ETag(tag.to_string())),
            tag => Some(Self::ETag(format!("\"{tag}\""))),
        }
    }

    /// The entity tag, or the time and size if the store sent no tag.
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
