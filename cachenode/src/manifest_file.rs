//! Maps a manifest file, so that the kernel's page cache holds it once for all readers and gives it back under pressure.
#![expect(unsafe_code, reason = "mapping a file is the one thing here that the compiler cannot check")]

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

/// Why a manifest file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestFileError {
    /// It cannot be opened or mapped.
    #[error("open manifest {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a sound manifest.
    #[error("{path}: {source}")]
    Manifest {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: ManifestError,
    },
}

/// Opens the manifest file at `path`. The file must not be changed in place while it is open: Larder replaces manifests by
/// renaming new ones over them. Errors name the file.
pub fn open_manifest(path: &Path) -> Result<MappedManifest, ManifestFileError> {
    let io = |source| ManifestFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: manifests are never written in place (see `larder_import::write_manifest`, which renames), so the mapping is
    // of an immutable file. One that someone truncates by hand raises SIGBUS, like any mapped file.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    // Look-ups jump about: reading ahead around each fault would bring in, and keep, rows that nobody asked for.
    let _ = map.advise(memmap2::Advice::Random);
    Manifest::open(ManifestFile(map)).map_err(|source| ManifestFileError::Manifest { path: path.to_owned(), source })
}
