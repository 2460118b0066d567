//! Maps a manifest file. The kernel's page cache then holds it once for all readers and can evict it under memory pressure.
#![expect(unsafe_code, reason = "the compiler cannot check that a mapped file stays unchanged")]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use larder_dataset::{Manifest, ManifestError};
use memmap2::Mmap;

/// A manifest read in place from a mapped file.
pub type MappedManifest = Manifest<ManifestFile>;

/// The bytes of a manifest file.
#[derive(Debug)]
pub struct ManifestFile(Mmap);

impl AsRef<[u8]> for ManifestFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
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
    let file = File::open(path).map_err(io)?;
    // SAFETY: manifests are never written in place (`larder_import::write_manifest` renames), so the mapped file is immutable.
    // A file that is truncated by hand raises SIGBUS, as any mapped file does.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    // Look-ups are random: read-ahead around each fault would read, and cache, rows that nobody needs.
    let _ = map.advise(memmap2::Advice::Random);
    Manifest::open(ManifestFile(map)).map_err(|source| ManifestFileError::Manifest { path: path.to_owned(), source })
}
