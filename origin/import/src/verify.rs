//! Verification: compares an origin with a manifest.
//!
//! [`verify_origin`] is either shallow (sizes and versions, by a new listing or a HEAD call for each pack) or deep
//! (every byte is read and its checksum compared). [`VerifyReport`] holds the findings, with the first hundred names of
//! each kind.
//!
//! Invariant: every file of the manifest is counted exactly once, as ok or as one of the problems. Nothing is changed,
//! and a file that cannot be checked does not end the verification.

mod deep;
mod report;
mod shallow;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use larder_dataset::{Manifest, ManifestBytes};
use larder_origin::Origin;
pub use report::{Problems, VerifyError, VerifyReport};

use crate::blocking::off_runtime;
use crate::progress::Progress;

/// Checks the manifest, then `origin` against it: by sizes and versions, or if `deep` by reading every byte (CRC32C in
/// packed snapshots; MD5 where the ETag of a plain object is one). Makes at most `concurrency` calls at once.
/// Cancel-safe. Errors: the manifest is damaged, or a plain origin cannot be listed; problems of single files are in
/// the report.
pub async fn verify_origin<B: ManifestBytes + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    deep: bool,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let checked = Arc::clone(&manifest);
    off_runtime(move || checked.verify()).await?;
    if deep {
        deep::verify_deep(manifest, origin, concurrency.max(1), progress).await
    } else if manifest.is_packed() {
        shallow::verify_packs(manifest, origin, concurrency.max(1), progress).await
    } else {
        shallow::verify_listing(manifest, origin, concurrency.max(1), progress).await
    }
}
