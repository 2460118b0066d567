//! The report of an import for the program that started it in a pod.

use std::path::{Path, PathBuf};

use larder_dataset::{SnapshotId, Totals};
use larder_origin::OriginError;
use serde::Serialize;

use crate::report::{self, Failure, origin_error};

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) snapshot: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Whether the manifest already existed, so that nothing was listed.
    pub(super) found: bool,
    /// Whether the manifest was stored at every target.
    pub(super) published: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// There are no credentials where some are required.
#[derive(Debug, thiserror::Error)]
#[error("no credentials in {}: their Secret does not exist, or is empty", dir.display())]
pub(super) struct NoCredentials {
    pub(super) dir: PathBuf,
}

impl Report {
    /// Sets the snapshot of the report. It counts as published until storing it at a target fails.
    pub(super) fn of(&mut self, snapshot: SnapshotId, totals: Totals) {
        self.snapshot = snapshot.to_string();
        (self.files, self.bytes) = (u64::from(totals.files), totals.bytes);
        self.published = true;
    }

    /// Adds the error.
    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        let no_credentials = error.is::<NoCredentials>().then_some("no-credentials");
        self.error = Some(Failure::of(error, no_credentials));
    }

    pub(super) fn write(&self, file: &Path) -> anyhow::Result<()> {
        report::write(self, file)
    }
}

/// Whether the credentials do not allow the operation.
pub(super) fn is_denied(error: &anyhow::Error) -> bool {
    matches!(origin_error(error), Some(OriginError::Denied { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_origin_is_found_among_its_causes() {
        let denied = OriginError::Denied { key: b"k"[..].into(), source: "403".into() };
        let error = anyhow::Error::from(denied).context("store the manifest");
        assert!(is_denied(&error));
        let mut report = Report::default();
        report.fail(&error);
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains("\"kind\":\"denied\"") && text.contains("store the manifest"), "{text}");
        assert!(!is_denied(&anyhow::anyhow!("another")));
        report.fail(&NoCredentials { dir: "/keys".into() }.into());
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains("\"kind\":\"no-credentials\"") && text.contains("/keys"), "{text}");
    }
}
