//! Opening Azure Blob Storage.

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::object::ObjectOrigin;
use crate::object::settings::{client_options, single_retry};
use crate::retry::RetryPolicy;
use crate::url::OriginUrl;

/// Opens a container of Azure Blob Storage configured by the usual `AZURE_*` variables.
pub(crate) fn open(url: &OriginUrl, config: &OriginConfig, policy: RetryPolicy) -> Result<ObjectOrigin, OriginError> {
    let mut options = client_options(config);
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in config.env.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        match name.to_ascii_lowercase().parse() {
            Ok(AzureConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_endpoint(endpoint.clone());
    }
    let store = builder
        .with_client_options(options)
        .with_container_name(url.bucket())
        .with_retry(single_retry(config))
        .with_skip_signature(config.anonymous)
        .build()
        .map_err(|error| OriginError::Invalid {
            what: format!("invalid settings for {url}: {error} (AZURE_STORAGE_ACCOUNT_NAME sets the account)"),
        })?;
    ObjectOrigin::new(url, store, policy)
}
