//! Verification: compares an origin with a manifest.
//!
//! [`verify_origin`] is either shallow (compares sizes and versions, with a new listing or a HEAD call per pack) or
//! deep (reads every byte and compares its checksum). [`VerifyReport`] contains the findings, with the first hundred
//! names of each kind.
//!
//! Invariant: every file of the manifest is counted exactly once, as ok or as one of the problems. Nothing is changed.
//! A file that cannot be checked does not end the verification.

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

/// Checks the manifest, then compares `origin` with it: by sizes and versions, or if `deep` by reading every byte
/// (CRC32C in packed snapshots; MD5 if the ETag of a plain object is one). Makes at most `concurrency` concurrent
/// calls. Cancel-safe. Errors: the manifest is damaged, or a plain origin cannot be listed. Problems of single files
/// are in the report.
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
