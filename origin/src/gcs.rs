//! Opening Google Cloud Storage.

use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::object::ObjectOrigin;
use crate::object::settings::{client_options, single_retry};
use crate::retry::RetryPolicy;
use crate::url::OriginUrl;

/// Opens a bucket of Google Cloud Storage configured by the usual `GOOGLE_*` variables.
pub(crate) fn open(url: &OriginUrl, config: &OriginConfig, policy: RetryPolicy) -> Result<ObjectOrigin, OriginError> {
    let mut options = client_options(config);
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in config.env.iter().filter(|(name, _)| name.starts_with("GOOGLE_") || *name == "SERVICE_ACCOUNT")
    {
        match name.to_ascii_lowercase().parse() {
            Ok(GoogleConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) if name == "SERVICE_ACCOUNT" => builder = builder.with_service_account_path(value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
    }
    let store = builder
        .with_client_options(options)
        .with_bucket_name(url.bucket())
        .with_retry(single_retry(config))
        .with_skip_signature(config.anonymous)
        .build()
        .map_err(|error| OriginError::Invalid { what: format!("invalid settings for {url}: {error}") })?;
    ObjectOrigin::new(url, store, policy)
}
