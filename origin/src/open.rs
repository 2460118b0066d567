//! Opening the origin of a URL.

use std::sync::Arc;

use crate::azure;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::folder::FolderOrigin;
use crate::gcs;
use crate::origin::Origin;
use crate::retry::RetryPolicy;
use crate::s3::S3Origin;
use crate::url::{OriginUrl, Scheme};
use crate::wrappers::limited::Limited;

/// Opens the origin of `url`. All origins that are open in a process and name the same bucket (or account's container)
/// of a server share the limit of [`OriginConfig::limits`]; a smaller [`OriginConfig::concurrency`] is this one's own.
/// Sends no request yet.
///
/// # Errors
/// `Invalid`, naming the flag or variable to change.
pub fn open(url: &OriginUrl, config: &OriginConfig) -> Result<Arc<dyn Origin>, OriginError> {
    let shared = || {
        let place = format!("{} {}", config.place(&url.to_string()), url.bucket());
        config.limits.of(url.scheme(), place)
    };
    let (origin, limit): (Arc<dyn Origin>, _) = match url.scheme() {
        // Its endpoint may be in a variable or a profile.
        Scheme::S3 => {
            let (origin, limit) = S3Origin::open(url, config)?;
            (Arc::new(origin), limit)
        }
        Scheme::Gcs => {
            let limit = shared();
            (Arc::new(gcs::open(url, config, RetryPolicy::new(config, &limit))?), limit)
        }
        Scheme::Azure => {
            let limit = shared();
            (Arc::new(azure::open(url, config, RetryPolicy::new(config, &limit))?), limit)
        }
        // All folders of a machine are one place.
        Scheme::Folder => (Arc::new(FolderOrigin::open(url, config)?), config.limits.of(Scheme::Folder, String::new())),
    };
    let origin = Arc::new(Limited::with_limit(origin, limit, config.deadline));
    if config.concurrency < config.limits.most() {
        return Ok(Arc::new(Limited::new(origin, config.concurrency, config.deadline)));
    }
    Ok(origin)
}
