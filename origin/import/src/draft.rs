//! A manifest that an import has built and that is not stored yet.
//!
//! Invariant: a draft is a file that no other import uses. Dropping the draft deletes it. [`DraftManifest::write`] and
//! [`DraftManifest::put`] store a complete manifest or none, even if a process dies in between.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use larder_dataset::manifest::Sealed;
use larder_dataset::{SnapshotId, Totals};
use larder_origin::{Origin, OriginError, Version};

use crate::blocking::off_runtime;
use crate::journal::{JOURNAL_SUFFIX, is_in_use};
use crate::publish::{PIECE_BYTES, PublishError, failed, put_in_place, sync_folder_of, temporary_beside};

/// The suffix of a draft's name; the rest is the name of its journal.
pub(crate) const DRAFT_SUFFIX: &str = "draft";

/// Removes drafts of killed imports from the folder of the journals; no later run would use them. A draft that cannot
/// be removed stays until the next call. Blocking.
pub fn remove_orphaned_drafts(journal_dir: &Path) {
    for entry in std::fs::read_dir(journal_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_draft = path.extension().is_some_and(|extension| extension == DRAFT_SUFFIX);
        if is_draft && !is_in_use(&path.with_extension(JOURNAL_SUFFIX)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The manifest of an import, stored in a temporary file.
#[derive(Debug)]
pub struct DraftManifest {
    file: Arc<File>,
    path: PathBuf,
    snapshot: SnapshotId,
    totals: Totals,
    len: u64,
}

impl DraftManifest {
    /// Creates the file `path` and calls `fill` to write the manifest. The caller must be the only user of the path.
    pub(crate) fn create<E: From<io::Error>>(
        path: &Path,
        fill: impl FnOnce(&File) -> Result<Sealed, E>,
    ) -> Result<Self, E> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o666).open(path)?;
        let mut draft = Self {
            file: Arc::new(file),
            path: path.to_path_buf(),
            snapshot: SnapshotId([0; 32]),
            totals: Totals { dirs: 0, files: 0, blocks: 0, packs: 0, links: 0, bytes: 0 },
            len: 0,
        };
        // From here on, an error drops the draft, which removes the file.
        let sealed = fill(&draft.file)?;
        (draft.snapshot, draft.totals) = (sealed.snapshot, sealed.totals);
        draft.len = draft.file.metadata()?.len();
        Ok(draft)
    }

    /// Wraps a manifest that was fetched into the file `path`, to be stored elsewhere. The caller must be the only user
    /// of the path.
    pub fn of_fetched(path: &Path, snapshot: SnapshotId, totals: Totals) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), path: path.to_path_buf(), snapshot, totals, len })
    }

    /// The id of the snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// The counts and sizes of the snapshot.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The length of the manifest in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// The path of the draft's file. The file exists while this draft does and was not written elsewhere.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole manifest into memory; suitable for small ones.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Stores the manifest as a file and replaces any file at `to`. Once this returns, the manifest survives a power
    /// loss. The umask determines who may read it. Blocking: call it off the runtime. Errors: `File`; the previous file
    /// is unchanged.
    pub fn write(self, to: &Path) -> Result<(), PublishError> {
        self.file.sync_all().map_err(|source| failed("sync", to, source))?;
        match std::fs::rename(&self.path, to) {
            Ok(()) => sync_folder_of(to),
            // The destination is on another disk, so the file must be copied.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                let mut beside = temporary_beside(to)?;
                let mut from = &*self.file;
                let copied = from.rewind().and_then(|()| io::copy(&mut from, &mut beside));
                copied.map_err(|source| failed("write", to, source))?;
                put_in_place(beside, to)
            }
            Err(source) => Err(failed("rename to", to, source)),
        }
    }

    /// Stores the manifest as an object and returns its version. Cancel-safe: the manifest is stored completely or not
    /// at all.
    pub async fn put(&self, origin: &dyn Origin, key: &[u8]) -> Result<Version, PublishError> {
        let put = if self.len <= PIECE_BYTES {
            match self.piece(0).await {
                Ok(bytes) => origin.put(key, bytes).await,
                Err(error) => Err(error),
            }
        } else {
            let starts = futures::stream::iter((0..self.len).step_by(PIECE_BYTES as usize));
            origin.put_stream(key, starts.then(|start| self.piece(start)).boxed()).await
        };
        put.map_err(|source| PublishError::Origin { verb: "store", key: key.to_vec(), source })
    }

    async fn piece(&self, start: u64) -> Result<Bytes, OriginError> {
        let (file, len) = (Arc::clone(&self.file), (self.len - start).min(PIECE_BYTES) as usize);
        off_runtime(move || {
            let mut bytes = vec![0; len];
            let read = file.read_exact_at(&mut bytes, start);
            read.map(|()| bytes.into()).map_err(|error| OriginError::Unavailable { source: error.into() })
        })
        .await
    }
}

impl Drop for DraftManifest {
    fn drop(&mut self) {
        // The file no longer exists if it was renamed, so an error is harmless.
        let _ = std::fs::remove_file(&self.path);
    }
}
