//! Maps a manifest file. The kernel's page cache then holds it once for all readers and can evict it under memory pressure.
//! Rows that the disk fails to read again are errors for their readers, until the disk gives them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use larder_dataset::{Manifest, ManifestBytes, ManifestError};
use larder_store::Mapping;

/// A manifest read in place from a mapped file.
pub type MappedManifest = Manifest<ManifestFile>;

/// The bytes of a manifest file.
#[derive(Debug)]
pub struct ManifestFile(Mapping);

impl AsRef<[u8]> for ManifestFile {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl ManifestBytes for ManifestFile {
    fn losses(&self) -> u32 {
        self.0.losses()
    }

    fn read_again(&self, ranges: &[Range<usize>]) -> bool {
        self.0.read_again(ranges)
    }

    fn will_read(&self, range: Range<usize>) {
        self.0.will_read(range);
    }
}

/// The reason that a manifest file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestFileError {
    /// It cannot be opened or mapped.
    #[error("open manifest {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not a valid manifest.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The flaw.
        source: ManifestError,
    },
}

/// Opens the manifest file at `path`. Nobody may change the file in place while it is open: Larder replaces a manifest by
/// renaming a new one over it. Errors name the file.
pub fn open_manifest(path: &Path) -> Result<MappedManifest, ManifestFileError> {
    let io = |source| ManifestFileError::Io { path: path.to_owned(), source };
    let manifest = |source| ManifestFileError::Manifest { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let len = usize::try_from(file.metadata().map_err(io)?.len()).map_err(|error| io(io::Error::other(error)))?;
    if len == 0 {
        return Err(manifest(ManifestError::NotAManifest));
    }
    let map = Mapping::new(file, len).map_err(io)?;
    Manifest::open(ManifestFile(map)).map_err(manifest)
}
