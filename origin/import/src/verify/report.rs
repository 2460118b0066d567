//! The result of a verification: a finding for each file, and totals.

use larder_dataset::{ManifestError, VersionTag};
use larder_origin::OriginError;

use crate::listing::ListError;
use crate::version::version_of;

/// The most names of each kind of problem in a report.
const NAMES_MAX: usize = 100;

/// Why an origin could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The manifest itself is damaged.
    #[error("verify the manifest")]
    Manifest(#[from] ManifestError),
    /// The origin cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Files with one kind of problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// The number of files with this problem.
    pub count: u64,
    /// The first hundred files: the path, and the finding as text.
    pub first: Vec<(Vec<u8>, String)>,
}

impl Problems {
    fn add(&mut self, path: Vec<u8>, found: impl Into<String>) {
        self.count += 1;
        if self.first.len() < NAMES_MAX {
            self.first.push((path, found.into()));
        }
    }
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files that match the manifest, as far as the chosen checks can tell.
    pub files_ok: u64,
    /// The part of `files_ok` that was read completely, but has no checksum to compare, only a size and a version.
    pub without_checksum: u64,
    /// Files that no longer exist at the origin.
    pub missing: Problems,
    /// Files whose version or size has changed.
    pub changed: Problems,
    /// Files whose bytes do not match their checksum.
    pub corrupt: Problems,
    /// Files that could not be checked.
    pub unreadable: Problems,
    /// The number of bytes that were read for the verification.
    pub bytes_read: u64,
}

impl VerifyReport {
    /// True if every file matches the manifest.
    pub fn is_clean(&self) -> bool {
        self.files_checked() == self.files_ok
    }

    pub(super) fn files_checked(&self) -> u64 {
        let problems = [&self.missing, &self.changed, &self.corrupt, &self.unreadable];
        self.files_ok + problems.iter().map(|problems| problems.count).sum::<u64>()
    }

    pub(super) fn add(&mut self, path: Vec<u8>, finding: Finding) {
        match finding {
            Finding::Ok => self.files_ok += 1,
            Finding::OkWithoutChecksum => {
                self.files_ok += 1;
                self.without_checksum += 1;
            }
            Finding::Missing(found) => self.missing.add(path, found),
            Finding::Changed(found) => self.changed.add(path, found),
            Finding::Corrupt(found) => self.corrupt.add(path, found),
            Finding::Unreadable(found) => self.unreadable.add(path, found),
        }
    }
}

/// The result of checking one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Ok,
    OkWithoutChecksum,
    Missing(String),
    Changed(String),
    Corrupt(String),
    Unreadable(String),
}

impl Finding {
    pub(super) fn of_error(error: &OriginError) -> Self {
        match error {
            OriginError::NotFound { .. } => Self::Missing(error.to_string()),
            OriginError::Stale { .. } | OriginError::Truncated { .. } => Self::Changed(error.to_string()),
            OriginError::Denied { .. }
            | OriginError::Busy { .. }
            | OriginError::TimedOut { .. }
            | OriginError::Invalid { .. }
            | OriginError::TooLarge { .. }
            | OriginError::Unavailable { .. } => Self::Unreadable(error.to_string()),
        }
    }

    /// Compares the size and version in a listing or a HEAD answer with those in the manifest.
    pub(super) fn compare(
        wanted_size: u64,
        wanted: Option<&VersionTag<'_>>,
        found_size: u64,
        found: &VersionTag<'_>,
    ) -> Self {
        if found_size != wanted_size {
            Self::Changed(format!("{found_size} bytes instead of {wanted_size}"))
        } else if wanted.is_some_and(|wanted| wanted != found) {
            Self::Changed(format!("another version: {}", version_of(found.clone())))
        } else {
            Self::Ok
        }
    }
}
