//! Locates the bytes of a manifest's file in an object.
//!
//! Invariant: the range lies within the object as the manifest describes it, so a read of it is exact or fails.
//! Performs no I/O.

use std::ops::Range;

use larder_dataset::{File, Manifest, ManifestBytes, ManifestError};
use larder_origin::Version;

use crate::version::version_of;

/// A range of an object, and the object's version: the arguments of [`Origin::read`](larder_origin::Origin::read).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// The range of bytes within the object.
    pub range: Range<u64>,
    /// The version to request. `None` for a pack in a local folder, whose blocks have CRCs instead.
    pub version: Option<Version>,
}

/// Locates the bytes `range` of a file. In a plain snapshot they are in the object of the file's path; in a packed one
/// they are in its pack. Allocates the key and the version. Errors: `Corrupt`, also if `range` exceeds the file.
pub fn object_range<B: ManifestBytes>(
    manifest: &Manifest<B>,
    file: &File<'_>,
    range: Range<u64>,
) -> Result<ObjectRange, ManifestError> {
    let (key, range) = manifest.locate(file, range)?;
    let version = manifest.version(file)?.map(version_of);
    Ok(ObjectRange { key, range, version })
}
