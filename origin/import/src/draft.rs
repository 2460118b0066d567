//! A manifest that an import has made and that is not stored yet.
//!
//! Invariant: it is a file that no other import uses, and that goes with it. [`DraftManifest::write`] and
//! [`DraftManifest::put`] store a complete manifest or none, whichever process dies in between.

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

/// How the name of a draft ends; the rest is that of its journal.
pub(crate) const DRAFT_SUFFIX: &str = "draft";

/// Removes the drafts of imports that were killed from the folder of the journals, which nothing would use any more. A
/// draft that cannot be removed stays for the next call. Blocking.
pub fn remove_orphaned_drafts(journal_dir: &Path) {
    for entry in std::fs::read_dir(journal_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_draft = path.extension().is_some_and(|extension| extension == DRAFT_SUFFIX);
        if is_draft && !is_in_use(&path.with_extension(JOURNAL_SUFFIX)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The manifest of an import, in a file.
#[derive(Debug)]
pub struct DraftManifest {
    file: Arc<File>,
    path: PathBuf,
    snapshot: SnapshotId,
    totals: Totals,
    len: u64,
}

impl DraftManifest {
    /// Makes the file `path`, of which the caller has the sole use, and has it filled.
    pub(crate) fn create<E: From<io::Error>>(
        path: &Path,
        fill: impl FnOnce(&File) -> Result<Sealed, E>,
    ) -> Result<Self, E> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o666).open(path)?;
        let mut draft = Self {
            file: Arc::new(file),
            path: path.to_path_buf(),
            snapshot: SnapshotId([0; 32]),
            totals: Totals { dirs: 0, files: 0, blocks: 0, packs: 0, bytes: 0 },
            len: 0,
        };
        // From here on an error removes the file.
        let sealed = fill(&draft.file)?;
        (draft.snapshot, draft.totals) = (sealed.snapshot, sealed.totals);
        draft.len = draft.file.metadata()?.len();
        Ok(draft)
    }

    /// A manifest that was fetched into the file `path`, of which the caller has the sole use, to be stored elsewhere.
    pub fn of_fetched(path: &Path, snapshot: SnapshotId, totals: Totals) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), path: path.to_path_buf(), snapshot, totals, len })
    }

    /// The id of the snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Counts and sizes.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Length of the manifest in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// The draft's file, as long as this lives and was not written elsewhere.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole manifest, for small ones.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Stores the manifest as a file, replacing any file at `to`. Once it returns, the manifest survives a power cut.
    /// The umask decides who may read it. Blocking: call it off the runtime. Errors: `File`; the previous file is
    /// untouched.
    pub fn write(self, to: &Path) -> Result<(), PublishError> {
        self.file.sync_all().map_err(|source| failed("sync", to, source))?;
        match std::fs::rename(&self.path, to) {
            Ok(()) => sync_folder_of(to),
            // Another disk.
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

    /// Stores the manifest as an object and returns its version. Cancel-safe: it is stored completely or not at all.
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
        // It is not there if it was renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}
