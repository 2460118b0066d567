//! Builds a client and a store from flags, environment and profile.

use std::sync::Arc;

use larder_dataset::environment::OWNER;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::client::HttpConnector;
use object_store::{Certificate, ClientConfigKey, ClientOptions, StaticCredentialProvider};

use crate::clients::SharedConnector;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key_server::KeyServer;
use crate::keys::Exchange;
use crate::object::settings as shared;
use crate::s3::client::S3Client;
use crate::s3::clock::ServerClock;
use crate::s3::process::CredentialProcess;
use crate::s3::profile::{self, Keys, Profile, Way};
use crate::s3::sigv4::Signer;
use crate::s3::sso::SingleSignOn;
use crate::s3::sts::{AssumedRole, Role, Sts, Token, WebIdentity};
use crate::session::{Identity, Session, SessionProvider};
use crate::url::OriginUrl;

/// Builds the client for reads and listings, and the store for writes.
pub(super) fn connect(url: &OriginUrl, config: &OriginConfig) -> Result<(S3Client, AmazonS3), OriginError> {
    let env = &config.env;
    let mut profile = profile::read(env)?;
    let endpoint = endpoint(config, &profile)?;
    let region = region(config, &profile)?;
    let (mut options, connector) = client_options(config)?;
    if endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")) {
        options = options.with_allow_http(true);
    }
    let mut builder = AmazonS3Builder::new();
    let (mut virtual_hosted, mut writes_plainly) = (None, true);
    let has_keys = env.get("AWS_ACCESS_KEY_ID").is_some();
    for (name, value) in env.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        // Leftover variables of other keys must not be combined with the keys of a profile.
        if !has_keys && matches!(name, "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN") {
            continue;
        }
        match name.to_ascii_lowercase().parse() {
            Ok(AmazonS3ConfigKey::Client(key)) => {
                writes_plainly &= key != ClientConfigKey::DefaultContentType;
                options = options.with_config(key, value);
            }
            Ok(AmazonS3ConfigKey::VirtualHostedStyleRequest) => {
                virtual_hosted = Some(value.eq_ignore_ascii_case("true"))
            }
            Ok(key) => {
                writes_plainly &= !matches!(key, AmazonS3ConfigKey::Encryption(_) | AmazonS3ConfigKey::Checksum);
                builder = builder.with_config(key, value);
            }
            Err(_) => {}
        }
    }
    let mut session = None;
    if let Some(token) = env.pod_token("AWS_SKIP_SIGNATURE") {
        let of_pod = session.insert(pod_session(config, endpoint.as_deref(), &region, token)?);
        builder = builder.with_credentials(Arc::new(SessionProvider(Arc::clone(of_pod))));
    } else if !has_keys && let Some(way) = profile.way.take() {
        // Of the profile `default`, which nobody chose, the keys alone precede the other identities of the machine.
        let is_chosen = env.get("AWS_PROFILE").is_some() || env.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_none();
        if is_chosen || matches!(way, Way::Keys(_)) {
            builder = builder.with_credentials(provider(config, &region, way)?);
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
    let http = connector.connect(&options.clone().with_timeout_disabled()).map_err(invalid)?;
    // Endpoint and style are set explicitly, so the environment cannot change them.
    let store = builder
        .with_client_options(options)
        .with_http_connector(connector)
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
        session,
        http,
        writes_plainly,
        clock: ServerClock::default(),
    };
    Ok((client, store))
}

/// The session of a pod's identity. Its STS is the one that is set, or else the S3 server itself, since MinIO and Ceph
/// answer as STS do, or else that of the region of AWS.
fn pod_session(
    config: &OriginConfig,
    endpoint: Option<&str>,
    region: &str,
    token: &str,
) -> Result<Arc<Session>, OriginError> {
    let env = &config.env;
    let arn = env.get("AWS_ROLE_ARN").ok_or_else(|| OriginError::Invalid {
        what: "a pod's identity has no role: set the attribute `roleArn` of the volume".to_owned(),
    })?;
    let own = endpoint.filter(|endpoint| !is_of_aws(endpoint)).map(str::to_owned);
    let sts = match (env.get("AWS_ENDPOINT_URL_STS"), own) {
        (Some(url), _) => sts(config, region, checked_endpoint(url)?)?,
        (None, Some(url)) => sts(config, region, url)?,
        (None, None) => sts(config, region, regional(region))?,
    };
    let role =
        Role { arn: arn.to_owned(), session_name: env.get("AWS_ROLE_SESSION_NAME").unwrap_or("larder").to_owned() };
    let owner = env.get(OWNER).unwrap_or_default().to_owned();
    let identity = Identity { sts: sts.server.url.clone(), role: arn.to_owned(), owner };
    let exchange: Arc<dyn Exchange> = Arc::new(WebIdentity { sts, role, token: Token::Given(token.to_owned()) });
    Ok(config.sessions.of(identity, exchange))
}

/// True for a server of AWS itself, such as a VPC endpoint of S3.
fn is_of_aws(endpoint: &str) -> bool {
    let host = url::Url::parse(endpoint).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|domain| host.ends_with(domain)))
}

/// The STS of a region of AWS.
fn regional(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://sts.{region}.{domain}")
}

fn sts(config: &OriginConfig, region: &str, url: String) -> Result<Sts, OriginError> {
    Ok(Sts { server: KeyServer::new(config, client_options(config)?, &url)?, region: region.to_owned() })
}

/// The keys of a profile.
fn provider(config: &OriginConfig, region: &str, way: Way) -> Result<AwsCredentialProvider, OriginError> {
    // The server's URL from the environment, or Amazon's own.
    let set = |variable: &str, own: String| config.env.get(variable).map_or(Ok(own), checked_endpoint);
    let sts = || sts(config, region, set("AWS_ENDPOINT_URL_STS", regional(region))?);
    let exchange: Arc<dyn Exchange> = match way {
        Way::Keys(Keys { id, secret, token }) => {
            let credential = AwsCredential { key_id: id, secret_key: secret, token };
            return Ok(Arc::new(StaticCredentialProvider::new(credential)));
        }
        Way::WebIdentity { role, session_name, token } => {
            Arc::new(WebIdentity { sts: sts()?, role: Role { arn: role, session_name }, token: Token::File(token) })
        }
        Way::Role { role, session_name, external_id, source } => Arc::new(AssumedRole {
            sts: sts()?,
            role: Role { arn: role, session_name },
            external_id,
            source: provider(config, region, *source)?,
        }),
        Way::Process { profile, words } => Arc::new(CredentialProcess { profile, words: words.0 }),
        Way::SingleSignOn { profile, account, role, region, token } => {
            let portal = set("AWS_ENDPOINT_URL_SSO", format!("https://portal.sso.{region}.amazonaws.com"))?;
            let portal = KeyServer::new(config, client_options(config)?, &portal)?;
            Arc::new(SingleSignOn { portal, profile, account, role, token })
        }
    };
    Ok(Arc::new(SessionProvider(Session::new(exchange))))
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

/// The settings of the HTTP client, which reads and writes share, and how to connect it.
fn client_options(config: &OriginConfig) -> Result<(ClientOptions, SharedConnector), OriginError> {
    let (options, connector) = shared::client_options(config);
    let Some(path) = config.env.get("AWS_CA_BUNDLE") else {
        return Ok((options, connector));
    };
    let invalid =
        |error: &dyn std::fmt::Display| OriginError::Invalid { what: format!("AWS_CA_BUNDLE: read {path}: {error}") };
    let pem = std::fs::read(path).map_err(|error| invalid(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| invalid(&error))?;
    let options = certificates.into_iter().fold(options, ClientOptions::with_root_certificate);
    Ok((options, config.clients.connector(pem)))
}
