//! Where manifests are stored: a file of this machine, or an object beside the data.
//!
//! The cast: [`write_manifest`] and [`put_manifest`] store one, [`fetch_manifest`] brings one here; [`MANIFEST_KEY`] is
//! where it is looked for.
//!
//! Invariant: whoever opens a stored manifest sees a whole one or the one before it, whatever dies in between; and what
//! [`fetch_manifest`] leaves behind was checked to the last row.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::manifest::Built;
use larder_dataset::{Manifest, ManifestError, SnapshotId};
use larder_origin::{Key, Origin, OriginError, Version};

use crate::import::off_runtime;

/// The key of a dataset's manifest below its origin.
pub const MANIFEST_KEY: &[u8] = b".larder/manifest";

/// The largest manifest that is fetched: far above what the format can number in practice.
const MANIFEST_MAX_BYTES: u64 = 8 << 30;
const PIECE_BYTES: u64 = 8 << 20;
const PIECES_AT_ONCE: usize = 4;

/// Why a manifest could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A local file cannot be read or written.
    #[error("{verb} {}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// The manifest's path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The origin refused or failed.
    #[error("{verb} manifest {}", Key::from(key.as_slice()))]
    Origin {
        /// What was tried.
        verb: &'static str,
        /// The manifest's key.
        key: Vec<u8>,
        /// Why it failed.
        source: OriginError,
    },
    /// What the origin holds under the key is no sound manifest.
    #[error("check manifest {}", Key::from(key.as_slice()))]
    Manifest {
        /// The manifest's key.
        key: Vec<u8>,
        /// What is wrong with it.
        source: ManifestError,
    },
}

/// Stores a manifest as a file, in place of what was there. When it returns, the manifest survives a power cut. Readable
/// by everybody whom the umask allows. Blocking: call it off the runtime. Errors: `File`; what was there is untouched.
pub fn write_manifest(path: &Path, built: &Built) -> Result<(), PublishError> {
    let mut file = temporary_beside(path)?;
    for part in &built.parts {
        file.write_all(part).map_err(|source| failed("write", path, source))?;
    }
    put_in_place(file, path)
}

/// Stores a manifest as an object and returns its version. Cancel-safe: it is there whole or not at all.
pub async fn put_manifest(origin: &dyn Origin, key: &[u8], built: &Built) -> Result<Version, PublishError> {
    let put = if built.len_bytes() <= PIECE_BYTES {
        origin.put(key, built.to_bytes().into()).await
    } else {
        let pieces = built.parts.iter().flat_map(|part| part.chunks(PIECE_BYTES as usize));
        let chunks = futures::stream::iter(pieces.map(|piece| Ok(Bytes::copy_from_slice(piece))));
        origin.put_stream(key, chunks.boxed()).await
    };
    put.map_err(|source| PublishError::Origin { verb: "store", key: key.to_vec(), source })
}

/// A manifest that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Which snapshot it is.
    pub snapshot: SnapshotId,
    /// The version of the object it came from, to see later whether there is a newer one.
    pub version: Version,
    /// Bytes.
    pub size: u64,
}

/// Brings the manifest `key` into the file `to`, all of one version, and checks every row of it before it is shown there.
/// The check holds it in memory once. Cancel-safe: `to` is as it was. Errors: `Origin` (`NotFound` inside if there is
/// none, `TooLarge` above 8 GiB), `Manifest` if it is damaged, `File`.
pub async fn fetch_manifest(origin: &dyn Origin, key: &[u8], to: &Path) -> Result<Fetched, PublishError> {
    let failed_at_origin = |source| PublishError::Origin { verb: "fetch", key: key.to_vec(), source };
    let head = origin.head(key).await.map_err(failed_at_origin)?;
    if head.size > MANIFEST_MAX_BYTES {
        let source = OriginError::TooLarge { key: Key::from(key), size: head.size, limit: MANIFEST_MAX_BYTES };
        return Err(failed_at_origin(source));
    }
    let starts = (0..head.size).step_by(PIECE_BYTES as usize);
    let pieces = starts.map(|start| origin.read(key, start..head.size.min(start + PIECE_BYTES), Some(&head.version)));
    let mut pieces = futures::stream::iter(pieces).buffered(PIECES_AT_ONCE);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.try_next().await.map_err(failed_at_origin)? {
        bytes.extend_from_slice(&piece);
    }
    drop(pieces);
    let (path, key) = (to.to_path_buf(), key.to_vec());
    off_runtime(move || {
        let size = bytes.len() as u64;
        let check = || {
            let manifest = Manifest::open(&bytes)?;
            manifest.verify()?;
            Ok(manifest.snapshot())
        };
        let snapshot = check().map_err(|source| PublishError::Manifest { key, source })?;
        let mut file = temporary_beside(&path)?;
        file.write_all(&bytes).map_err(|source| failed("write", &path, source))?;
        put_in_place(file, &path)?;
        Ok(Fetched { snapshot, version: head.version, size })
    })
    .await
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> PublishError {
    PublishError::File { verb, path: path.to_path_buf(), source }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that removes itself unless it is put in place.
fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile, PublishError> {
    tempfile::Builder::new()
        .prefix(".larder-manifest-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path))
        .map_err(|source| failed("make a file beside", path, source))
}

fn put_in_place(file: tempfile::NamedTempFile, path: &Path) -> Result<(), PublishError> {
    file.as_file().sync_all().map_err(|source| failed("sync", path, source))?;
    file.persist(path).map_err(|error| failed("rename to", path, error.error))?;
    let sync_folder = || File::open(folder_of(path))?.sync_all();
    sync_folder().map_err(|source| failed("sync the folder of", path, source))
}

#[cfg(test)]
mod tests;
