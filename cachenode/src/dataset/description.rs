//! A dataset's description of itself: its name, its origin, and the totals of its snapshot.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use larder_dataset::{File, ManifestError};
use larder_import::object_range;

use crate::kept_listing::age_of;
use crate::manifest_file::MappedManifest;
use crate::sharing::Sharing;
use crate::stats::{DatasetSummary, ListingStats, ProcessStats};

/// The part of an open dataset that does not change while it is open.
#[derive(Debug)]
pub(super) struct Description {
    manifest: Arc<MappedManifest>,
    name: String,
    origin_url: String,
    opened: Instant,
    /// The socket of the daemon that serves it.
    socket: OnceLock<PathBuf>,
    /// Why the listing could not be renewed for the newest of its mounts.
    refresh_failed: Mutex<Option<String>>,
    /// Why the reservation is less than what is wanted.
    shortage: Mutex<Option<String>>,
    /// How all nodes get the same listing.
    renewal: Mutex<String>,
}

impl Description {
    /// Of a dataset that is opened now.
    pub(super) fn new(manifest: Arc<MappedManifest>) -> Result<Self, ManifestError> {
        let (name, origin_url) = manifest.name_and_origin()?;
        let (name, origin_url) = (name.to_owned(), origin_url.to_owned());
        Ok(Self {
            manifest,
            name,
            origin_url,
            opened: Instant::now(),
            socket: OnceLock::new(),
            refresh_failed: Mutex::default(),
            shortage: Mutex::default(),
            renewal: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn set_socket(&self, socket: PathBuf) {
        let _ = self.socket.set(socket);
    }

    pub(super) fn set_refresh_failed(&self, why: Option<String>) {
        *self.refresh_failed.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub(super) fn set_shortage(&self, shortage: Option<String>) {
        *self.shortage.lock().unwrap_or_else(PoisonError::into_inner) = shortage;
    }

    pub(super) fn set_renewal(&self, renewal: String) {
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = renewal;
    }

    pub(super) fn shortage(&self) -> Option<String> {
        self.shortage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The `listing` section of `.larder/stats.json`; `stale`: what to do about replaced objects, if there are any;
    /// `sharing`: with whom the dataset is shared.
    pub(super) fn listing(&self, stale: Option<String>, sharing: Option<&Sharing>) -> ListingStats {
        let listed_ns = self.manifest.created_ns();
        let renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        ListingStats {
            unix_seconds: listed_ns / 1_000_000_000,
            age_seconds: age_of(listed_ns).as_secs(),
            refresh_failed: self.refresh_failed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            stale,
            other_snapshots: sharing.and_then(|sharing| sharing.others().advice(&renewal)),
        }
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
            cache: None,
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
