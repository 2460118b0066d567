//! Opening Google Cloud Storage.

mod exchange;

use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};

use crate::bearer::BearerConnector;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::object::ObjectOrigin;
use crate::object::settings::{client_options, single_retry};
use crate::retry::RetryPolicy;
use crate::url::OriginUrl;

/// Opens a bucket of Google Cloud Storage configured by the usual `GOOGLE_*` variables, or with the identity of a pod.
pub(crate) fn open(url: &OriginUrl, config: &OriginConfig, policy: RetryPolicy) -> Result<ObjectOrigin, OriginError> {
    let (mut builder, mut session) = (builder(url, config), None);
    if let Some(token) = config.env.pod_token("GOOGLE_SKIP_SIGNATURE").filter(|_| !config.anonymous) {
        // Never sent: the connector puts a token of the session in its place.
        let none = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        let connector = BearerConnector::new(config, session.insert(exchange::session(config, token)?));
        builder = builder.with_credentials(Arc::new(none)).with_http_connector(connector);
    }
    let store = builder
        .build()
        .map_err(|error| OriginError::Invalid { what: format!("invalid settings for {url}: {error}") })?;
    Ok(ObjectOrigin::new(url, store, policy)?.with_session(session))
}

fn builder(url: &OriginUrl, config: &OriginConfig) -> GoogleCloudStorageBuilder {
    let (mut options, connector) = client_options(config);
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
    // If the flag is not set, the environment decides whether requests are signed.
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    builder
        .with_client_options(options)
        .with_http_connector(connector)
        .with_bucket_name(url.bucket())
        .with_retry(single_retry(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: K18
    #[test]
    fn the_environment_may_have_requests_sent_without_credentials() {
        let skips = |variables: &[(&str, &str)], anonymous| {
            let env = variables.iter().copied().collect();
            let config = OriginConfig { env, anonymous, ..OriginConfig::default() };
            builder(&"gs://b".parse().expect("a URL"), &config).get_config_value(&GoogleConfigKey::SkipSignature)
        };
        assert_eq!(skips(&[("GOOGLE_SKIP_SIGNATURE", "true")], false).as_deref(), Some("true"));
        assert_eq!(skips(&[], true).as_deref(), Some("true"));
        assert_eq!(skips(&[], false).as_deref(), Some("false"));
    }
}
