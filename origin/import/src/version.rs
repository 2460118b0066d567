//! Converts between an origin's versions and a manifest's.

use std::borrow::Cow;

use larder_dataset::VersionTag;
use larder_origin::Version;

/// The manifest's form of an origin's version.
pub(crate) fn tag_of(version: &Version) -> VersionTag<'_> {
    match version {
        Version::ETag(etag) => VersionTag::ETag(Cow::Borrowed(etag)),
        Version::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns: *mtime_ns, size: *size },
    }
}

/// The same as [`tag_of`], without a copy of the ETag.
pub(crate) fn into_tag(version: Version) -> VersionTag<'static> {
    match version {
        Version::ETag(etag) => VersionTag::ETag(Cow::Owned(etag)),
        Version::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns, size },
    }
}

/// The origin's form of a manifest's version.
pub(crate) fn version_of(tag: VersionTag<'_>) -> Version {
    match tag {
        VersionTag::ETag(etag) => Version::ETag(etag.into_owned()),
        VersionTag::MtimeSize { mtime_ns, size } => Version::MtimeSize { mtime_ns, size },
    }
}
