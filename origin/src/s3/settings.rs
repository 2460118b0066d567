//! Builds a client and a store from flags, environment and profile.

use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpConnector, ReqwestConnector};
use object_store::{Certificate, ClientOptions};

use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::object::settings as shared;
use crate::s3::client::S3Client;
use crate::s3::clock::ServerClock;
use crate::s3::profile::{self, Profile};
use crate::s3::sigv4::Signer;
use crate::url::OriginUrl;

/// Builds the client for reads and listings, and the store for writes.
pub(super) fn connect(url: &OriginUrl, config: &OriginConfig) -> Result<(S3Client, AmazonS3), OriginError> {
    let env = &config.env;
    let mut profile = profile::read(env)?;
    let endpoint = endpoint(config, &profile)?;
    let region = region(config, &profile)?;
    let mut options = client_options(config)?;
    if endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")) {
        options = options.with_allow_http(true);
    }
    let mut builder = AmazonS3Builder::new();
    let mut virtual_hosted = None;
    let has_keys = env.get("AWS_ACCESS_KEY_ID").is_some();
    for (name, value) in env.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        // Leftover variables of other keys must not be combined with the keys of a profile.
        if !has_keys && matches!(name, "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN") {
            continue;
        }
        match name.to_ascii_lowercase().parse() {
            Ok(AmazonS3ConfigKey::Client(key)) => options = options.with_config(key, value),
            Ok(AmazonS3ConfigKey::VirtualHostedStyleRequest) => {
                virtual_hosted = Some(value.eq_ignore_ascii_case("true"))
            }
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    if !has_keys && let Some(keys) = profile.keys.take() {
        builder = builder.with_access_key_id(keys.id).with_secret_access_key(keys.secret);
        if let Some(token) = keys.token {
            builder = builder.with_token(token);
        }
    }
    let bucket = url.bucket();
    // The certificate for *.s3.amazonaws.com does not cover a bucket with a dot in its name.
    let virtual_hosted = virtual_hosted.unwrap_or(endpoint.is_none() && !bucket.contains('.'));
    let bucket_endpoint = match (endpoint, virtual_hosted) {
        (Some(endpoint), true) => endpoint,
        (Some(endpoint), false) => format!("{endpoint}/{bucket}"),
        (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
    };
    if config.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let is_set = |value: Option<String>| value.is_some_and(|value| value == "true");
    let signed = !is_set(builder.get_config_value(&AmazonS3ConfigKey::SkipSignature));
    let requester_pays = is_set(builder.get_config_value(&AmazonS3ConfigKey::RequestPayer));

    let invalid =
        |error: object_store::Error| OriginError::Invalid { what: format!("invalid settings for {url}: {error}") };
    // Our own timeouts cancel our attempts: they measure progress, not the whole transfer.
    let http = ReqwestConnector {}.connect(&options.clone().with_timeout_disabled()).map_err(invalid)?;
    // Endpoint and style are set explicitly, so the environment cannot change them.
    let store = builder
        .with_client_options(options)
        .with_bucket_name(bucket)
        .with_region(&region)
        .with_config(AmazonS3ConfigKey::S3Endpoint, &bucket_endpoint)
        .with_virtual_hosted_style_request(true)
        .with_retry(shared::retry_config(config))
        .build()
        .map_err(invalid)?;
    tracing::debug!(%url, %bucket_endpoint, %region, signed, "open s3 origin");
    let client = S3Client {
        url: url.clone(),
        bucket_endpoint,
        signer: signed.then(|| Signer::new(&region, requester_pays)),
        credentials: Arc::clone(store.credentials()),
        http,
        clock: ServerClock::default(),
    };
    Ok((client, store))
}

/// The endpoint from the flag, the environment or the profile, in this order; `None` for Amazon's own.
fn endpoint(config: &OriginConfig, profile: &Profile) -> Result<Option<String>, OriginError> {
    let variable = |name: &&str| config.env.get(name);
    config
        .endpoint
        .as_deref()
        .or_else(|| ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(variable))
        .or(profile.endpoint.as_deref())
        .map(checked_endpoint)
        .transpose()
}

/// Validates the endpoint and removes its trailing `/`. Errors do not repeat its text, which may contain secrets.
fn checked_endpoint(text: &str) -> Result<String, OriginError> {
    let invalid = |what: &str| OriginError::Invalid {
        what: format!("{what} (--endpoint, AWS_ENDPOINT_URL or endpoint_url of the profile)"),
    };
    let parsed =
        url::Url::parse(text).map_err(|_| invalid("the endpoint is not a URL such as http://127.0.0.1:9000"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(invalid("the endpoint is not an http:// or https:// URL"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid("credentials do not belong in the endpoint's URL"));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(invalid("the endpoint's URL cannot have a query or a fragment"));
    }
    Ok(parsed.as_str().trim_end_matches('/').to_string())
}

/// The region from the flag, the environment or the profile, in this order.
fn region(config: &OriginConfig, profile: &Profile) -> Result<String, OriginError> {
    let variable = |name: &&str| config.env.get(name);
    let region = config
        .region
        .as_deref()
        .or_else(|| ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(variable))
        .or(profile.region.as_deref())
        .unwrap_or("us-east-1");
    if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
        return Err(OriginError::Invalid {
            what: "the region is not a valid name (--region, AWS_REGION or region of the profile)".into(),
        });
    }
    Ok(region.to_string())
}

/// The settings of the HTTP client, which reads and writes share.
fn client_options(config: &OriginConfig) -> Result<ClientOptions, OriginError> {
    let options = shared::client_options(config);
    let Some(path) = config.env.get("AWS_CA_BUNDLE") else {
        return Ok(options);
    };
    let certificates = std::fs::read(path)
        .map_err(|error| error.to_string())
        .and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string()))
        .map_err(|error| OriginError::Invalid { what: format!("AWS_CA_BUNDLE: read {path}: {error}") })?;
    Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
}
