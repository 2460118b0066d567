//! Opening Azure Blob Storage.

mod exchange;

use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::azure::{AzureConfigKey, AzureCredential, MicrosoftAzureBuilder};

use crate::bearer::BearerConnector;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::object::ObjectOrigin;
use crate::object::settings::{client_options, single_retry};
use crate::retry::RetryPolicy;
use crate::url::OriginUrl;

/// Opens a container of Azure Blob Storage configured by the usual `AZURE_*` variables, or with the identity of a pod.
pub(crate) fn open(url: &OriginUrl, config: &OriginConfig, policy: RetryPolicy) -> Result<ObjectOrigin, OriginError> {
    let (mut builder, mut session) = (builder(url, config)?, None);
    if let Some(token) = config.env.pod_token("AZURE_SKIP_SIGNATURE").filter(|_| !config.anonymous) {
        // Never sent: the connector puts a token of the session in its place.
        let none = StaticCredentialProvider::new(AzureCredential::BearerToken(String::new()));
        let connector = BearerConnector::new(config, session.insert(exchange::session(config, token)?));
        builder =
            builder.with_account(account(config)?).with_credentials(Arc::new(none)).with_http_connector(connector);
    }
    let store = builder.build().map_err(|error| OriginError::Invalid {
        what: format!("invalid settings for {url}: {error} (AZURE_STORAGE_ACCOUNT_NAME sets the account)"),
    })?;
    Ok(ObjectOrigin::new(url, store, policy)?.with_session(session))
}

/// The name of the account that a pod reads from. Its requests go to the endpoint, whose host begins with that name,
/// and do not contain it.
fn account(config: &OriginConfig) -> Result<String, OriginError> {
    let host = config.endpoint.as_deref().and_then(|endpoint| url::Url::parse(endpoint).ok());
    let host = host.and_then(|url| url.host_str().map(str::to_owned)).ok_or_else(|| OriginError::Invalid {
        what: "a pod's identity names no storage account: set the attribute `endpoint` of the volume, such as \
               https://ACCOUNT.blob.core.windows.net"
            .to_owned(),
    })?;
    Ok(host.split('.').next().unwrap_or_default().to_owned())
}

fn builder(url: &OriginUrl, config: &OriginConfig) -> Result<MicrosoftAzureBuilder, OriginError> {
    let (mut options, connector) = client_options(config);
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in config.env.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        match name.to_ascii_lowercase().parse() {
            Ok(AzureConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    // The account's name becomes the beginning of the server's name, so it must not contain characters that end a host
    // name.
    let account = builder.get_config_value(&AzureConfigKey::AccountName).unwrap_or_default();
    if !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(OriginError::Invalid {
            what: "AZURE_STORAGE_ACCOUNT_NAME is not the name of a storage account".into(),
        });
    }
    if let Some(endpoint) = &config.endpoint {
        options = options.with_allow_http(endpoint.starts_with("http://"));
        builder = builder.with_endpoint(endpoint.clone());
    }
    // If the flag is not set, the environment decides whether requests are signed.
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    Ok(builder
        .with_client_options(options)
        .with_http_connector(connector)
        .with_container_name(url.bucket())
        .with_retry(single_retry(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(account: &str, more: &[(&str, &str)], anonymous: bool) -> Result<MicrosoftAzureBuilder, OriginError> {
        let env = [("AZURE_STORAGE_ACCOUNT_NAME", account)].iter().chain(more).copied().collect();
        builder(&"az://c/p".parse().expect("a URL"), &OriginConfig { env, anonymous, ..OriginConfig::default() })
    }

    // SEMANTICS: K18
    #[test]
    fn an_accounts_name_does_not_say_which_server_is_asked() {
        for name in ["evil.example/?", "evil.example#", "u@evil", "a.b", "a b", "a/b"] {
            let error = built(name, &[], false).expect_err(name).to_string();
            assert!(error.contains("AZURE_STORAGE_ACCOUNT_NAME") && !error.contains(name), "{error}");
        }
        built("devstoreaccount1", &[], false).expect("a name");
    }

    // SEMANTICS: K18
    #[test]
    fn the_environment_may_have_requests_sent_without_credentials() {
        let skips = |more: &[(&str, &str)], anonymous| {
            let built = built("account", more, anonymous).expect("good");
            built.get_config_value(&AzureConfigKey::SkipSignature)
        };
        assert_eq!(skips(&[("AZURE_SKIP_SIGNATURE", "true")], false).as_deref(), Some("true"));
        assert_eq!(skips(&[], true).as_deref(), Some("true"));
        assert_eq!(skips(&[], false).as_deref(), Some("false"));
    }
}
