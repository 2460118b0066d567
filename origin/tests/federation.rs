//! Tokens of pods that Google and Azure exchange for access tokens. A scripted server is the object store as well:
//! Azurite checks such tokens over HTTPS only, and fake-gcs-server never, though the gateway before it in `servers.rs`
//! does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_dataset::Chain;
use larder_origin::{Env, Origin, OriginConfig, OriginError, RateCaps, Sessions, SharedLimits, open};
use larder_testkit::{FakeSts, StsAnswer, StsRequest};

/// The token of a pod. No message may contain it, or its signature.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwb2QifQ.hunter2-signature";

const PROVIDER: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q";
const ACCOUNT: &str = "reader@p.iam.gserviceaccount.com";
const CLIENT: &str = "01234567-89ab-cdef-0123-456789abcdef";
const TENANT: &str = "fedcba98-7654-3210-fedc-ba9876543210";

#[derive(Clone, Copy, Debug)]
enum Cloud {
    /// The pod's own principal.
    Google,
    /// A service account that the pod's principal impersonates.
    Impersonation,
    Azure,
}

const ALL: [Cloud; 3] = [Cloud::Google, Cloud::Impersonation, Cloud::Azure];

impl Cloud {
    /// The target of the request that exchanges the token of a pod.
    fn exchange(self) -> String {
        match self {
            Self::Google | Self::Impersonation => "/v1/token".to_owned(),
            Self::Azure => format!("/{TENANT}/oauth2/v2.0/token"),
        }
    }

    /// The field of that request that has the token.
    fn token_field(self) -> &'static str {
        match self {
            Self::Google | Self::Impersonation => "subject_token",
            Self::Azure => "client_assertion",
        }
    }

    fn origin(self, config: &OriginConfig) -> Arc<dyn Origin> {
        let url = match self {
            Self::Google | Self::Impersonation => "gs://bucket",
            Self::Azure => "az://bucket",
        };
        open(&url.parse().expect("a URL"), config).expect("an origin")
    }

    /// A pod's identity, whose tokens and objects this server has.
    fn pod(self, server: &FakeSts, token: &str) -> OriginConfig {
        let variables: &[(&str, &str)] = match self {
            Self::Google => &[("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", PROVIDER)],
            Self::Impersonation => {
                &[("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", PROVIDER), ("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT", ACCOUNT)]
            }
            Self::Azure => &[("AZURE_CLIENT_ID", CLIENT), ("AZURE_TENANT_ID", TENANT)],
        };
        let mut env: Env = variables.iter().copied().collect();
        env.set("LARDER_IDENTITY_TOKEN", token);
        let host = if matches!(self, Self::Azure) { "AZURE_AUTHORITY_HOST" } else { "GOOGLE_STS_ENDPOINT" };
        env.set(host, server.endpoint());
        let deadline = Duration::from_secs(20);
        OriginConfig { endpoint: Some(server.endpoint()), deadline, env, ..OriginConfig::default() }
    }
}

fn json(status: u16, body: impl Into<String>) -> StsAnswer {
    StsAnswer::Raw { status, body: body.into() }
}

/// Gives `access` for as many seconds; the object goes to all that `admits`.
fn answer(request: &StsRequest, access: &str, seconds: i64, admits: impl Fn(&str) -> bool) -> StsAnswer {
    let target = &*request.target;
    if target == "/v1/token" || target.ends_with("/oauth2/v2.0/token") {
        let given = format!(r#"{{"access_token": "{access}", "expires_in": {seconds}, "token_type": "Bearer"}}"#);
        return json(200, given);
    }
    if target.ends_with(":generateAccessToken") {
        return json(200, format!(r#"{{"accessToken": "{access}-of-account", "expireTime": "2999-01-01T00:00:00Z"}}"#));
    }
    let authorization = request.headers.get("authorization").map(String::as_str).unwrap_or_default();
    match authorization.strip_prefix("Bearer ").is_some_and(admits) {
        true => StsAnswer::Object { bytes: "bytes" },
        false => json(401, "<Error><Code>InvalidAuthenticationInfo</Code></Error>"),
    }
}

async fn read(origin: &Arc<dyn Origin>) -> Result<Vec<u8>, OriginError> {
    origin.read(b"k", 0..5, None).await.map(|bytes| bytes.to_vec())
}

fn fields(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The fields of Google's exchange.
fn google_fields(scope: &str) -> BTreeMap<String, String> {
    fields(&[
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("audience", PROVIDER),
        ("scope", scope),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"),
        ("subject_token", TOKEN),
    ])
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread")]
async fn each_clouds_exchange_is_asked_in_its_own_words_and_the_store_gets_the_access_token() {
    let read_only = "https://www.googleapis.com/auth/devstorage.read_only";
    for cloud in ALL {
        let server =
            FakeSts::start(|request| answer(request, "hunter2-access", 3600, |_| true)).await.expect("a server");
        assert_eq!(read(&cloud.origin(&cloud.pod(&server, TOKEN))).await.expect("read"), b"bytes", "{cloud:?}");
        let asked = server.requests();
        let first = &asked[0];
        assert_eq!(first.target, cloud.exchange());
        assert!(!first.headers.contains_key("authorization"), "{cloud:?}");
        assert_eq!(first.headers["content-type"], "application/x-www-form-urlencoded");
        let last = asked.last().expect("a request");
        let bearer = last.headers["authorization"].as_str();
        match cloud {
            Cloud::Google => {
                assert_eq!(first.form, google_fields(read_only));
                assert_eq!((bearer, asked.len()), ("Bearer hunter2-access", 2));
            }
            Cloud::Impersonation => {
                assert_eq!(first.form, google_fields("https://www.googleapis.com/auth/cloud-platform"));
                let account = &asked[1];
                let target = format!("/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken");
                assert_eq!((&account.target, &*account.headers["content-type"]), (&target, "application/json"));
                assert_eq!(account.body, format!(r#"{{"scope":["{read_only}"]}}"#));
                assert_eq!(account.headers["authorization"], "Bearer hunter2-access");
                assert_eq!((bearer, asked.len()), ("Bearer hunter2-access-of-account", 3));
            }
            Cloud::Azure => {
                let expected = fields(&[
                    ("client_id", CLIENT),
                    ("scope", "https://storage.azure.com/.default"),
                    ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
                    ("client_assertion", TOKEN),
                    ("grant_type", "client_credentials"),
                ]);
                assert_eq!(first.form, expected);
                assert_eq!((bearer, asked.len()), ("Bearer hunter2-access", 2));
                assert!(last.headers.contains_key("x-ms-version"));
            }
        }
        assert_eq!(last.headers["range"], "bytes=0-4");
    }
}

// SEMANTICS: K23, K24
#[tokio::test(flavor = "multi_thread")]
async fn the_access_token_outlives_the_pods_and_others_have_their_own() {
    for cloud in ALL {
        let server = FakeSts::start(move |request| {
            let sent = request.headers.get("authorization").and_then(|sent| sent.strip_prefix("Bearer "));
            let access = request.form.get(cloud.token_field()).map(|token| format!("for-{token}"));
            answer(request, &access.or(sent.map(str::to_owned)).unwrap_or_default(), 3600, |_| true)
        });
        let server = server.await.expect("a server");
        let exchanges = || server.requests().iter().filter(|asked| asked.target == cloud.exchange()).count();
        let config = cloud.pod(&server, "first");
        let before = cloud.origin(&config);
        read(&before).await.expect("read");
        // A new token of the same identity, and then another owner and another process.
        let later = OriginConfig { sessions: config.sessions.clone(), ..cloud.pod(&server, "second") };
        read(&cloud.origin(&later)).await.expect("read");
        assert_eq!(exchanges(), 1, "{cloud:?}");
        let mut another = later.clone();
        another.env.set("LARDER_OWNER", "another");
        read(&cloud.origin(&another)).await.expect("read");
        assert_eq!(exchanges(), 2, "{cloud:?}");
        let last = server.requests().pop().expect("a request");
        assert!(last.headers["authorization"].starts_with("Bearer for-second"), "{cloud:?}");
        read(&cloud.origin(&OriginConfig { sessions: Sessions::default(), ..later })).await.expect("read");
        assert_eq!(exchanges(), 3, "{cloud:?}");
    }
}

// SEMANTICS: O7
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_token_is_not_exchanged_takes_no_place_of_its_bucket() {
    const HANG: Duration = Duration::from_secs(30);
    for cloud in ALL {
        let server = FakeSts::start(move |request| {
            match request.form.get(cloud.token_field()).is_some_and(|token| token == TOKEN) {
                true => StsAnswer::Never,
                false => answer(request, "access", 3600, |_| true),
            }
        });
        let server = server.await.expect("a server");
        let limits = SharedLimits::new(1, RateCaps::default());
        let pod = |token| {
            let limits = limits.clone();
            cloud.origin(&OriginConfig { limits, deadline: HANG * 4, ..cloud.pod(&server, token) })
        };
        let waiting = pod(TOKEN);
        let mut reads = tokio::task::JoinSet::new();
        reads.spawn(async move { read(&waiting).await });
        let asked = async {
            while server.requests().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(HANG, asked).await.expect("the exchange is asked");
        let other = tokio::time::timeout(HANG, read(&pod("another"))).await.expect("it has a place");
        assert_eq!(other.expect("a read"), b"bytes", "{cloud:?}");
    }
}

// SEMANTICS: K24
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_the_store_refuses_before_it_ends_is_replaced_and_not_without_end() {
    for cloud in ALL {
        let (count, refused) = (AtomicU64::new(0), Arc::new(Mutex::new(String::from("none"))));
        let refuses = Arc::clone(&refused);
        let server = FakeSts::start(move |request| {
            let number = match request.target == cloud.exchange() {
                true => count.fetch_add(1, Ordering::Relaxed) + 1,
                false => count.load(Ordering::Relaxed),
            };
            let refused = refuses.lock().expect("the lock").clone();
            answer(request, &format!("number-{number}"), 3600, |token| !token.starts_with(&refused))
        });
        let server = server.await.expect("a server");
        let exchanges = || server.requests().iter().filter(|asked| asked.target == cloud.exchange()).count();
        let origin = cloud.origin(&cloud.pod(&server, TOKEN));
        read(&origin).await.expect("read");
        *refused.lock().expect("the lock") = "number-1".to_owned();
        assert_eq!(read(&origin).await.expect("read with another token"), b"bytes", "{cloud:?}");
        assert_eq!(exchanges(), 2, "{cloud:?}");
        // A store that refuses all is not asked with ever more tokens.
        *refused.lock().expect("the lock") = "number-".to_owned();
        for _ in 0..3 {
            let error = read(&origin).await.expect_err("refused");
            assert!(matches!(error, OriginError::Denied { .. }), "{cloud:?}: {error:?}");
        }
        assert_eq!(exchanges(), 3, "{cloud:?}");
    }
}

// SEMANTICS: K24
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_it_ends_and_once_it_has_ended_a_refusal_denies() {
    for cloud in [Cloud::Google, Cloud::Azure] {
        let works = Arc::new(Mutex::new(true));
        let (admits, count) = (Arc::clone(&works), AtomicU64::new(0));
        let server = FakeSts::start(move |request| {
            let is_exchange = request.target == cloud.exchange();
            if is_exchange && !*admits.lock().expect("the lock") {
                return json(400, r#"{"error": "invalid_grant", "error_description": "the token has expired"}"#);
            }
            let number = match is_exchange {
                true => count.fetch_add(1, Ordering::Relaxed) + 1,
                false => count.load(Ordering::Relaxed),
            };
            answer(request, &format!("number-{number}"), 2, |_| true)
        });
        let server = server.await.expect("a server");
        let config = cloud.pod(&server, TOKEN);
        let origin = cloud.origin(&config);
        let mut seen = 0;
        while seen < 3 {
            read(&origin).await.expect("a read never waits for the next token, and never lacks one");
            let last = server.requests().pop().expect("a request");
            // The last may have been an exchange.
            let number = last.headers.get("authorization").and_then(|sent| sent.rsplit('-').next()?.parse().ok());
            seen = number.unwrap_or(seen);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *works.lock().expect("the lock") = false;
        let error = loop {
            match read(&origin).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, OriginError::Denied { .. }), "{cloud:?}: {error:?}");
        assert!(Chain(&error).to_string().contains("the token has expired"), "{cloud:?}: {error:?}");
        let trouble = config.sessions.trouble("").expect("no keys");
        assert!(trouble.contains("the token has expired") && !trouble.contains("hunter2"), "{cloud:?}: {trouble}");
    }
}

/// The words in which a read is denied. They contain no secret.
async fn denied(cloud: Cloud, answers: impl Fn(&StsRequest) -> StsAnswer + Send + 'static) -> String {
    let server = FakeSts::start(answers).await.expect("a server");
    let (attempt_timeout, deadline) = (Duration::from_secs(2), Duration::from_secs(3));
    let config = OriginConfig { attempt_timeout, deadline, ..cloud.pod(&server, TOKEN) };
    let origin = cloud.origin(&config);
    let mut all = String::new();
    for error in [
        read(&origin).await.expect_err("a read is denied"),
        origin.list(b"", None, larder_origin::Depth::All).await.expect_err("a listing is denied"),
    ] {
        assert!(matches!(error, OriginError::Denied { .. }), "{cloud:?}: {error:?}");
        let said = Chain(&error).to_string();
        assert!(said.contains(&server.endpoint()), "{cloud:?}: {said}");
        assert!(!said.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{cloud:?}: {error:?}");
        all = said;
    }
    let objects = |asked: &StsRequest| asked.target.contains("bucket");
    assert!(!server.requests().iter().any(objects), "{cloud:?}: the store is not asked without a token");
    all
}

// SEMANTICS: K24
#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_exchange_answers_is_a_denial_that_says_what_to_do_and_no_secret() {
    let oauth = |code: &str, message: &str| {
        json(400, format!(r#"{{"error": "{code}", "error_description": "{message} of {TOKEN} {}"}}"#, "x".repeat(999)))
    };
    let cases = [
        (Cloud::Google, oauth("invalid_grant", "The audience in ID Token does not match"), "tokenRequests"),
        (Cloud::Google, oauth("invalid_target", "The target service is invalid"), "`workloadIdentityProvider`"),
        (Cloud::Google, oauth("unauthorized_client", "rejected by the attribute condition"), "ServiceAccount"),
        (Cloud::Azure, oauth("invalid_client", "AADSTS700213: No matching federated identity record"), "subject"),
        (Cloud::Azure, oauth("unauthorized_client", "AADSTS700016: not found in the directory"), "`clientID`"),
        (Cloud::Azure, oauth("invalid_request", "AADSTS90002: Tenant not found"), "`tenantID`"),
        (Cloud::Google, json(500, "oops"), "500"),
        (Cloud::Azure, json(429, "{}"), "429"),
        (Cloud::Google, json(404, "<html>not here</html>"), "404"),
        (Cloud::Azure, json(200, "junk"), "it is not Microsoft Entra"),
        (Cloud::Google, json(200, r#"{"access_token": "hunter2"}"#), "it is not Google's"),
        (Cloud::Azure, json(200, r#"{"access_token": "hunter2\n", "expires_in": 60}"#), "it is not Microsoft Entra"),
        (Cloud::Azure, json(200, r#"{"access_token": "hunter2", "expires_in": 0}"#), "expire within"),
        (Cloud::Google, json(200, "x".repeat(100_000)), "more than 65536 bytes"),
        (Cloud::Google, StsAnswer::Never, "did not answer within"),
        (Cloud::Azure, StsAnswer::Never, "did not answer within"),
    ];
    // At once, because those that may pass are tried until the deadline.
    let checks = cases.map(async |(cloud, answer, words)| {
        let given = answer.clone();
        let said = denied(cloud, move |_| given.clone()).await;
        assert!(said.contains(words), "{answer:?}: {said}");
    });
    let impersonations = [
        (
            r#"{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "not hunter2-access"}}"#,
            403,
            "roles/iam.workloadIdentityUser",
        ),
        (r#"{"error": {"code": 404, "status": "NOT_FOUND", "message": "Gaia id not found"}}"#, 404, "`serviceAccount`"),
        ("{}", 200, "it is not Google's IAM"),
        (r#"{"accessToken": "hunter2", "expireTime": "soon"}"#, 200, "not a time"),
    ];
    let impersonations = impersonations.map(async |(body, status, words)| {
        let said =
            denied(Cloud::Impersonation, move |request| match request.target.ends_with(":generateAccessToken") {
                true => json(status, body),
                false => answer(request, "hunter2-access", 3600, |_| false),
            });
        let said = said.await;
        assert!(said.contains(words), "{body}: {said}");
    });
    tokio::join!(futures::future::join_all(checks), futures::future::join_all(impersonations));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_of_one_cloud_is_none_at_another_and_lacks_nothing_at_its_own() {
    let server = FakeSts::start(|request| match request.headers.contains_key("authorization") {
        true => json(400, ""),
        false => StsAnswer::Object { bytes: "bytes" },
    });
    let server = server.await.expect("a server");
    // As the driver does for stores that a manifest may name.
    let mut config = Cloud::Google.pod(&server, TOKEN);
    config.env.set("GOOGLE_SKIP_SIGNATURE", "true");
    assert_eq!(read(&Cloud::Google.origin(&config)).await.expect("read without credentials"), b"bytes");
    assert!(server.requests().iter().all(|asked| asked.target.contains("bucket")));
    let text = |variable: &str, cloud: Cloud, url: &str| {
        let mut config = cloud.pod(&server, TOKEN);
        config.env.set(variable, "");
        open(&url.parse().expect("a URL"), &config).expect_err(variable).to_string()
    };
    let provider = text("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", Cloud::Google, "gs://bucket");
    assert!(provider.contains("`workloadIdentityProvider`"), "{provider}");
    let tenant = text("AZURE_TENANT_ID", Cloud::Azure, "az://bucket");
    assert!(tenant.contains("`clientID` and `tenantID`"), "{tenant}");
    let config = OriginConfig { endpoint: None, ..Cloud::Azure.pod(&server, TOKEN) };
    let error = open(&"az://bucket".parse().expect("a URL"), &config).expect_err("no account").to_string();
    assert!(error.contains("`endpoint`") && error.contains("blob.core.windows.net"), "{error}");
}
