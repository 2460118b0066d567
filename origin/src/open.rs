//! Opening the origin of a URL.

use std::sync::Arc;

use crate::azure;
use crate::concurrency::ConcurrencyLimit;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::folder::FolderOrigin;
use crate::gcs;
use crate::origin::Origin;
use crate::retry::RetryPolicy;
use crate::s3::S3Origin;
use crate::url::{OriginUrl, Scheme};
use crate::wrappers::limited::Limited;

/// Opens the origin of `url`. Object stores get as many concurrent requests as they can handle, up to the configured
/// limit. Sends no request yet.
///
/// # Errors
/// `Invalid`, naming the flag or variable to change.
pub fn open(url: &OriginUrl, config: &OriginConfig) -> Result<Arc<dyn Origin>, OriginError> {
    let limit = ConcurrencyLimit::adaptive(config.concurrency);
    let policy = RetryPolicy::new(config, &limit);
    let origin: Arc<dyn Origin> = match url.scheme() {
        Scheme::S3 => Arc::new(S3Origin::open(url, config, policy)?),
        Scheme::Gcs => Arc::new(gcs::open(url, config, policy)?),
        Scheme::Azure => Arc::new(azure::open(url, config, policy)?),
        Scheme::Folder => {
            // A disk queues its requests itself, so the limit is fixed.
            let folder = FolderOrigin::open(url, config)?;
            return Ok(Arc::new(Limited::new(Arc::new(folder), config.concurrency, config.deadline)));
        }
    };
    Ok(Arc::new(Limited::with_limit(origin, limit, config.deadline)))
}
