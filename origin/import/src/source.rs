//! From a file of a manifest to the bytes of an object.
//!
//! The cast: [`object_range`] says which range of which object holds a piece of a file, and the version it is bound to;
//! [`ObjectRange`] is the answer, ready for [`Origin::read`](larder_origin::Origin::read).
//!
//! Invariant: the range lies within the object as the manifest knows it, so that a read of it is exact or fails; it knows
//! no I/O.

use std::borrow::Cow;
use std::ops::Range;

use larder_dataset::{File, Location, Manifest, ManifestError, VersionTag};
use larder_origin::Version;

/// A range of an object, bound to a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// Which bytes of the object.
    pub range: Range<u64>,
    /// What the bytes are bound to. `None`: a pack in a local folder, whose blocks have CRCs instead.
    pub version: Option<Version>,
}

/// Says where the bytes `range` of a file are: in the object of its path in a plain snapshot, in its pack in a packed one.
/// Allocates the key and nothing else of note. Errors: `Corrupt`, also when `range` reaches beyond the file.
pub fn object_range<B: AsRef<[u8]>>(
    manifest: &Manifest<B>,
    file: &File<'_>,
    range: Range<u64>,
) -> Result<ObjectRange, ManifestError> {
    if range.start > range.end || range.end > file.size {
        return Err(ManifestError::Corrupt { what: "range beyond the file" });
    }
    let version = manifest.version(file)?.map(version_of);
    match file.location {
        Location::Object => Ok(ObjectRange { key: manifest.file_path(file)?, range, version }),
        Location::Pack { pack, offset } => {
            let pack = manifest.pack(pack)?;
            // The whole file must lie in the pack; this also rules out overflow below.
            if offset.checked_add(file.size).is_none_or(|end| end > pack.size) {
                return Err(ManifestError::Corrupt { what: "file beyond its pack" });
            }
            Ok(ObjectRange { key: pack.key.to_vec(), range: offset + range.start..offset + range.end, version })
        }
    }
}

/// The manifest's words for an origin's version.
pub(crate) fn tag_of(version: &Version) -> VersionTag<'_> {
    match version {
        Version::ETag(etag) => VersionTag::ETag(Cow::Borrowed(etag)),
        Version::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns: *mtime_ns, size: *size },
    }
}

/// The origin's words for a manifest's version.
pub(crate) fn version_of(tag: VersionTag<'_>) -> Version {
    match tag {
        VersionTag::ETag(etag) => Version::ETag(etag.into_owned()),
        VersionTag::MtimeSize { mtime_ns, size } => Version::MtimeSize { mtime_ns, size },
    }
}
