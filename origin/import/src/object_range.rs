//! From a file of a manifest to the bytes of an object.
//!
//! Invariant: the range lies within the object as the manifest describes it, so a read of it is exact or fails. Does no
//! I/O.

use std::ops::Range;

use larder_dataset::{File, Manifest, ManifestBytes, ManifestError};
use larder_origin::Version;

use crate::version::version_of;

/// A range of an object, bound to a version; the arguments of [`Origin::read`](larder_origin::Origin::read).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// The bytes of the object.
    pub range: Range<u64>,
    /// The version that the bytes are bound to. `None` for a pack in a local folder, whose blocks have CRCs instead.
    pub version: Option<Version>,
}

/// Says where the bytes `range` of a file are: in the object of its path in a plain snapshot, in its pack in a packed
/// one. Allocates the key and the version. Errors: `Corrupt`, also when `range` reaches beyond the file.
pub fn object_range<B: ManifestBytes>(
    manifest: &Manifest<B>,
    file: &File<'_>,
    range: Range<u64>,
) -> Result<ObjectRange, ManifestError> {
    let (key, range) = manifest.locate(file, range)?;
    let version = manifest.version(file)?.map(version_of);
    Ok(ObjectRange { key, range, version })
}
