//! A dataset's description of itself: its name, its origin, and the totals of its snapshot.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use larder_dataset::{File, ManifestError};
use larder_import::object_range;

use crate::manifest_file::MappedManifest;
use crate::stats::{DatasetSummary, ProcessStats};

/// The part of an open dataset that does not change while it is open.
#[derive(Debug)]
pub(super) struct Description {
    manifest: Arc<MappedManifest>,
    name: String,
    origin_url: String,
    opened: Instant,
    /// The socket of the daemon that serves it.
    socket: OnceLock<PathBuf>,
}

impl Description {
    /// Of a dataset that is opened now.
    pub(super) fn new(manifest: Arc<MappedManifest>) -> Result<Self, ManifestError> {
        let (name, origin_url) = manifest.name_and_origin()?;
        let (name, origin_url) = (name.to_owned(), origin_url.to_owned());
        Ok(Self { manifest, name, origin_url, opened: Instant::now(), socket: OnceLock::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn set_socket(&self, socket: PathBuf) {
        let _ = self.socket.set(socket);
    }

    /// See [`Dataset::origin_of`](super::Dataset::origin_of).
    pub(super) fn origin_of(&self, file: &File<'_>) -> Result<Vec<u8>, ManifestError> {
        let object = object_range(&self.manifest, file, 0..file.size)?;
        let mut url = self.origin_url.trim_end_matches('/').as_bytes().to_vec();
        url.push(b'/');
        url.extend_from_slice(&object.key);
        if self.manifest.is_packed() {
            url.extend_from_slice(format!("#bytes={}-{}", object.range.start, object.range.end).as_bytes());
        }
        Ok(url)
    }

    /// The `dataset` section of `.larder/stats.json`.
    pub(super) fn summary(&self) -> DatasetSummary {
        let totals = self.manifest.totals();
        DatasetSummary {
            name: self.name.clone(),
            origin: self.origin_url.clone(),
            snapshot: self.manifest.snapshot().to_string(),
            files: totals.files,
            dirs: totals.dirs,
            blocks: totals.blocks,
            bytes: totals.bytes,
            packed: self.manifest.is_packed(),
            manifest_bytes: self.manifest.len_bytes(),
        }
    }

    /// `.larder/manifest.json`.
    pub(super) fn manifest_json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self.summary()).unwrap_or_default();
        value["created_unix_seconds"] = (self.manifest.created_ns() / 1_000_000_000).into();
        value["packs"] = self.manifest.totals().packs.into();
        value
    }

    /// The `process` section of `.larder/stats.json`.
    pub(super) fn process(&self) -> ProcessStats {
        ProcessStats::now(self.opened.elapsed().as_secs(), self.socket.get().cloned())
    }
}
