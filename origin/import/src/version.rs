//! Converts between an origin's versions and a manifest's.

use std::borrow::Cow;

use larder_dataset::VersionTag;
use larder_origin::Version;

/// Converts an origin's version to the manifest's type.
pub(crate) fn tag_of(version: &Version) -> VersionTag<'_> {
    match version {
        Version::ETag(etag) => VersionTag::ETag(Cow::Borrowed(etag)),
        Version::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns: *mtime_ns, size: *size },
    }
}

/// Like [`tag_of`], without copying the ETag.
pub(crate) fn into_tag(version: Version) -> VersionTag<'static> {
    match version {
        Version::ETag(etag) => VersionTag::ETag(Cow::Owned(etag)),
        Version::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns, size },
    }
}

/// Converts a manifest's version to the origin's type.
pub fn version_of(tag: VersionTag<'_>) -> Version {
    match tag {
        VersionTag::ETag(etag) => Version::ETag(etag.into_owned()),
        VersionTag::MtimeSize { mtime_ns, size } => Version::MtimeSize { mtime_ns, size },
    }
}
