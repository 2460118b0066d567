//! Stores manifests: in a local file, or as an object beside the data.
//!
//! [`write_manifest`] and [`put_manifest`] store a manifest that is in memory, and [`fetch_manifest`] fetches one.
//! [`MANIFEST_KEY`] is its default key. [`DraftManifest`](crate::DraftManifest) stores the manifests of imports.
//!
//! Invariant: a reader of a stored manifest sees a complete one, the new or the previous, even if a process dies in
//! between. Every row of a manifest that [`fetch_manifest`] stores was checked.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::manifest::{Built, check_header};
use larder_dataset::size::{exact_bytes, show_bytes};
use larder_dataset::{Manifest, ManifestBytes, ManifestError, SnapshotId};
use larder_origin::{Key, Origin, OriginError, Version};

use crate::blocking::off_runtime;
use crate::disk::DiskLimit;

/// The key of a dataset's manifest below its origin.
pub const MANIFEST_KEY: &[u8] = b".larder/manifest";

/// The prefix of the keys under which a mirror keeps the manifests of its source.
pub(crate) const SOURCE_MANIFESTS: &[u8] = b".larder/source-";

/// The key under which a mirror keeps the manifest of the snapshot that it mirrors. The next copy compares it with a
/// later snapshot, and nodes serve the dataset by it while the source is down.
pub fn source_manifest_key(snapshot: SnapshotId) -> Vec<u8> {
    [SOURCE_MANIFESTS, snapshot.to_string().as_bytes(), b".manifest"].concat()
}

/// The largest manifest that is fetched, in bytes, where there is no lower limit. Far larger than any in practice.
const MANIFEST_MAX_BYTES: u64 = 64 << 30;
pub(crate) const PIECE_BYTES: u64 = 8 << 20;
const PIECES_AT_ONCE: usize = 4;

/// Why a manifest could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A local file could not be read or written.
    #[error("{verb} {}", path.display())]
    File {
        /// The operation that failed, as a verb.
        verb: &'static str,
        /// The manifest's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A request to the origin failed.
    #[error("{verb} manifest {}", Key::from(key.as_slice()))]
    Origin {
        /// The operation that failed, as a verb.
        verb: &'static str,
        /// The manifest's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// The object under the key is not a valid manifest.
    #[error("check manifest {}", Key::from(key.as_slice()))]
    Manifest {
        /// The manifest's key.
        key: Vec<u8>,
        /// The fault in the manifest.
        source: ManifestError,
    },
    /// The manifest is larger than this program accepts.
    #[error(
        "manifest {} has {}, more than {}: for a mount, raise --listing-size of larderd if it is meant to be so large",
        Key::from(key.as_slice()), show_bytes(*.size), exact_bytes(*.limit)
    )]
    TooLarge {
        /// The manifest's key.
        key: Vec<u8>,
        /// Its size in bytes.
        size: u64,
        /// The largest size that is accepted, in bytes.
        limit: u64,
    },
}

/// Stores a manifest as a file and replaces any file at `path`. Once this returns, the manifest survives a power loss.
/// The umask determines who may read it. Blocking: call it off the runtime. Errors: `File`; the previous file is
/// unchanged.
pub fn write_manifest(path: &Path, built: &Built) -> Result<(), PublishError> {
    let mut file = temporary_beside(path)?;
    for part in &built.parts {
        file.write_all(part).map_err(|source| failed("write", path, source))?;
    }
    put_in_place(file, path)
}

/// Stores a manifest as an object and returns its version. Cancel-safe: the manifest is stored completely or not at
/// all.
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

/// Stores the manifest of a mirror as an object, after that of the snapshot that it mirrors.
pub(crate) async fn publish_mirror<B: ManifestBytes>(
    mirror: &dyn Origin,
    source: &Manifest<B>,
    built: &Built,
) -> Result<(), PublishError> {
    let (key, bytes) = (source_manifest_key(source.snapshot()), source.holder().as_ref());
    let put = if bytes.len() as u64 <= PIECE_BYTES {
        mirror.put(&key, Bytes::copy_from_slice(bytes)).await
    } else {
        let pieces = bytes.chunks(PIECE_BYTES as usize).map(|piece| Ok(Bytes::copy_from_slice(piece)));
        mirror.put_stream(&key, futures::stream::iter(pieces).boxed()).await
    };
    put.map_err(|source| PublishError::Origin { verb: "store", key, source })?;
    put_manifest(mirror, MANIFEST_KEY, built).await.map(drop)
}

/// A manifest that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedManifest {
    /// The id of the snapshot.
    pub snapshot: SnapshotId,
    /// The version of the manifest's object; a different one later means that there is a newer manifest.
    pub version: Version,
    /// The size of the manifest in bytes.
    pub size: u64,
}

/// Fetches the manifest `key` into the file `to`, all of one version, in constant memory. Calls `check` with the path
/// of the complete file before that file replaces `to`. `check` must validate every row, in a mapped file or in any
/// other way that the caller reads manifests, and returns the snapshot. Nothing is written before the manifest's header
/// was found to match the length of the object, and no more than `limit` and 64 GiB allow. Cancel-safe: `to` is then
/// unchanged. Errors: `Origin` (with `NotFound` inside if there is no manifest), `TooLarge`, `Manifest` if it is
/// damaged, `File`, also if the disk has too little room.
pub async fn fetch_manifest(
    origin: &dyn Origin,
    key: &[u8],
    to: &Path,
    limit: &DiskLimit,
    check: impl FnOnce(&Path) -> io::Result<Result<SnapshotId, ManifestError>> + Send + 'static,
) -> Result<FetchedManifest, PublishError> {
    let failed_at_origin = |source| PublishError::Origin { verb: "fetch", key: key.to_vec(), source };
    let head = origin.head(key).await.map_err(failed_at_origin)?;
    let bytes_most = limit.bytes_most.min(MANIFEST_MAX_BYTES);
    if head.size > bytes_most {
        return Err(PublishError::TooLarge { key: key.to_vec(), size: head.size, limit: bytes_most });
    }
    let read = |start| origin.read(key, start..head.size.min(start + PIECE_BYTES), Some(&head.version));
    let first = if head.size > 0 { read(0).await.map_err(failed_at_origin)? } else { Bytes::new() };
    check_header(&first, head.size).map_err(|source| PublishError::Manifest { key: key.to_vec(), source })?;
    let rest = futures::stream::iter((PIECE_BYTES..head.size).step_by(PIECE_BYTES as usize).map(read));
    let mut pieces = futures::stream::iter([Ok(first)]).chain(rest.buffered(PIECES_AT_ONCE));
    let path = to.to_path_buf();
    let mut file = off_runtime(move || temporary_beside(&path)).await?;
    while let Some(piece) = pieces.try_next().await.map_err(failed_at_origin)? {
        let (path, limit) = (to.to_path_buf(), limit.clone());
        file = off_runtime(move || {
            let written = limit.take_room(piece.len() as u64, head.size).and_then(|()| file.write_all(&piece));
            written.map(|()| file).map_err(|source| failed("write", &path, source))
        })
        .await?;
    }
    drop(pieces);
    let (path, key) = (to.to_path_buf(), key.to_vec());
    off_runtime(move || {
        let checked = check(file.path()).map_err(|source| failed("check what was fetched for", &path, source))?;
        let snapshot = checked.map_err(|source| PublishError::Manifest { key, source })?;
        put_in_place(file, &path)?;
        Ok(FetchedManifest { snapshot, version: head.version, size: head.size })
    })
    .await
}

pub(crate) fn failed(verb: &'static str, path: &Path, source: io::Error) -> PublishError {
    PublishError::File { verb, path: path.to_path_buf(), source }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file beside `path`. It is deleted on drop unless it is moved into place.
pub(crate) fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile, PublishError> {
    tempfile::Builder::new()
        .prefix(".larder-manifest-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path))
        .map_err(|source| failed("create a file beside", path, source))
}

pub(crate) fn put_in_place(file: tempfile::NamedTempFile, path: &Path) -> Result<(), PublishError> {
    file.as_file().sync_all().map_err(|source| failed("sync", path, source))?;
    file.persist(path).map_err(|error| failed("rename to", path, error.error))?;
    sync_folder_of(path)
}

pub(crate) fn sync_folder_of(path: &Path) -> Result<(), PublishError> {
    let sync_folder = || File::open(folder_of(path))?.sync_all();
    sync_folder().map_err(|source| failed("sync the folder of", path, source))
}

#[cfg(test)]
mod tests;
