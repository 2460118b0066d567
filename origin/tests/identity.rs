//! Keys that a server gives for a token, for other keys, or after single sign-on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_dataset::Chain;
use larder_origin::{Env, Origin, OriginConfig, OriginError, Sessions, open};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{FakeSts, Fault, FaultProxy, RequestHead, StsAnswer, StsRequest};

const ROLE: &str = "arn:aws:iam::111122223333:role/reader";

/// The token of a pod. No message may contain it, or its signature.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJwb2QifQ.hunter2-signature";

async fn server() -> S3Server {
    let config = S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() };
    let server = S3Server::start(config).await.expect("server");
    server.put("bucket", "k", "bytes");
    server
}

/// The server's keys for as long.
fn keys(server: &S3Server, seconds: i64) -> StsAnswer {
    let env: Env = server.env().into_iter().collect();
    let get = |name| env.get(name).expect(name).to_owned();
    let token = "session-hunter2".to_owned();
    StsAnswer::Keys { id: get("AWS_ACCESS_KEY_ID"), secret: get("AWS_SECRET_ACCESS_KEY"), token, seconds }
}

fn endpoint(server: &S3Server) -> String {
    let env: Env = server.env().into_iter().collect();
    env.get("AWS_ENDPOINT_URL").or_else(|| env.get("AWS_ENDPOINT_URL_S3")).expect("an endpoint").to_owned()
}

/// A pod's identity, with the STS at `sts`.
fn pod(endpoint: &str, sts: Option<&str>, token: &str) -> OriginConfig {
    let mut env: Env =
        [("AWS_ROLE_ARN", ROLE), ("AWS_ROLE_SESSION_NAME", "team.train"), ("LARDER_IDENTITY_TOKEN", token)]
            .into_iter()
            .collect();
    sts.into_iter().for_each(|sts| env.set("AWS_ENDPOINT_URL_STS", sts));
    OriginConfig {
        endpoint: Some(endpoint.to_owned()),
        region: Some("eu-west-1".to_owned()),
        deadline: Duration::from_secs(20),
        env,
        ..OriginConfig::default()
    }
}

fn origin(config: &OriginConfig) -> Arc<dyn Origin> {
    open(&"s3://bucket".parse().expect("a URL"), config).expect("an origin")
}

async fn read(config: &OriginConfig) -> Result<Vec<u8>, OriginError> {
    origin(config).read(b"k", 0..5, None).await.map(|bytes| bytes.to_vec())
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread")]
async fn a_pods_token_reads_with_the_keys_of_its_role() {
    let server = Arc::new(server().await);
    let given = Arc::clone(&server);
    let sts = FakeSts::start(move |_| keys(&given, 3600)).await.expect("an STS");
    let config = pod(&endpoint(&server), Some(&sts.endpoint()), TOKEN);
    assert_eq!(read(&config).await.expect("read"), b"bytes");
    let asked = sts.requests();
    let form = |name: &str| asked[0].form.get(name).map(String::as_str);
    assert_eq!((form("Action"), form("RoleArn")), (Some("AssumeRoleWithWebIdentity"), Some(ROLE)));
    assert_eq!((form("WebIdentityToken"), form("RoleSessionName")), (Some(TOKEN), Some("team.train")));
    assert!(!asked[0].headers.contains_key("authorization") && !asked[0].target.contains("Token"));
    // The session is shared, and a new token does not throw its keys away.
    let before = origin(&config);
    let later =
        OriginConfig { sessions: config.sessions.clone(), ..pod(&endpoint(&server), Some(&sts.endpoint()), "x") };
    before.read(b"k", 0..5, None).await.expect("read");
    let count = sts.requests().len();
    read(&later).await.expect("read");
    assert_eq!(sts.requests().len(), count);
    // Others have sessions of their own.
    read(&OriginConfig { sessions: Sessions::default(), ..later }).await.expect("read");
    assert_eq!(sts.requests().len(), count + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_sts_of_its_own_the_s3_server_is_asked() {
    let sts = FakeSts::start(|_| StsAnswer::Refusal { status: 403, code: "AccessDenied", message: String::new() });
    let sts = sts.await.expect("an STS");
    read(&pod(&sts.endpoint(), None, TOKEN)).await.expect_err("refused");
    assert_eq!(sts.requests()[0].form["Action"], "AssumeRoleWithWebIdentity");
}

// SEMANTICS: K24
#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_sts_answers_is_a_denial_that_says_what_to_do_and_no_secret() {
    let server = Arc::new(server().await);
    let refusal = |status, code| StsAnswer::Refusal {
        status,
        code,
        message: format!("the token {TOKEN} of {}", "x".repeat(999)),
    };
    let raw = |status, body: &str| StsAnswer::Raw { status, body: body.to_owned() };
    let cases = [
        (refusal(403, "AccessDenied"), "trust policy"),
        (refusal(400, "InvalidIdentityToken"), "audience"),
        (refusal(400, "InvalidIdentityTokenException"), "tokenRequests"),
        (refusal(400, "ExpiredTokenException"), "clocks"),
        (refusal(400, "IDPCommunicationError"), "IDPCommunicationError"),
        (refusal(500, "InternalFailure"), "500"),
        (raw(404, "<html>not here</html>"), "404"),
        (raw(200, "junk"), "not an STS"),
        (raw(200, "<AccessKeyId>A</AccessKeyId>"), "not an STS"),
        (raw(200, &format!("<a>{}</a>", "x".repeat(100_000))), "more than 65536 bytes"),
        (keys(&server, -60), "clock"),
        (StsAnswer::Never, "did not answer within"),
    ];
    let endpoint = endpoint(&server);
    // At once, because those that may pass are tried until the deadline.
    let checks = cases.map(async |(answer, words)| {
        let given = answer.clone();
        let sts = FakeSts::start(move |_| given.clone()).await.expect("an STS");
        let said = denied(&endpoint, &sts.endpoint(), words).await;
        assert!(said.contains(words) && said.contains(&sts.endpoint()), "{answer:?}: {said}");
    });
    let nobody = async {
        let said = denied(&endpoint, "http://127.0.0.1:1", "nobody is there").await;
        assert!(said.contains("cannot be reached"), "{said}");
    };
    tokio::join!(futures::future::join_all(checks), nobody);
}

/// The words in which a read is denied. They contain no secret.
async fn denied(endpoint: &str, sts: &str, why: &str) -> String {
    let (attempt_timeout, deadline) = (Duration::from_secs(2), Duration::from_secs(3));
    let error = read(&OriginConfig { attempt_timeout, deadline, ..pod(endpoint, Some(sts), TOKEN) }).await;
    let error = error.expect_err(why);
    assert!(matches!(error, OriginError::Denied { .. }), "{why}: {error:?}");
    let said = Chain(&error).to_string();
    assert!(!said.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{said}");
    said
}

// SEMANTICS: K24
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_the_origin_refuses_before_they_expire_are_replaced_and_not_without_end() {
    let config = S3ServerConfig { other_access_keys: vec!["second".into()], ..S3ServerConfig::default() };
    let config = S3ServerConfig { buckets: vec!["bucket".into()], ..config };
    let server = Arc::new(S3Server::start(config).await.expect("server"));
    server.put("bucket", "k", "bytes");
    let proxy = FaultProxy::start(server.address(), |_| Fault::None).await.expect("proxy");
    let (given, count) = (Arc::clone(&server), AtomicU64::new(0));
    let sts = FakeSts::start(move |_| match keys(&given, 3600) {
        StsAnswer::Keys { secret, token, seconds, .. } if count.fetch_add(1, Ordering::Relaxed) > 0 => {
            StsAnswer::Keys { id: "second".to_owned(), secret, token, seconds }
        }
        first => first,
    });
    let sts = sts.await.expect("an STS");
    let origin = origin(&pod(&proxy.endpoint(), Some(&sts.endpoint()), TOKEN));
    let read = async || origin.read(b"k", 0..5, None).await;
    assert_eq!(&read().await.expect("read")[..], b"bytes");
    let first = server.access_key().to_owned();
    let refuses = move |request: &RequestHead, key: &str| {
        let is_signed = request.header("authorization").is_some_and(|header| header.contains(&format!("={key}/")));
        if is_signed { Fault::Status { status: 403, code: "ExpiredToken" } } else { Fault::None }
    };
    proxy.set_hook(move |request| refuses(request, &first));
    assert_eq!(&read().await.expect("read with other keys")[..], b"bytes");
    assert_eq!(sts.requests().len(), 2);
    // A server that refuses all is not asked with ever more keys.
    proxy.set_hook(|_| Fault::Status { status: 403, code: "ExpiredToken" });
    for _ in 0..3 {
        let error = read().await.expect_err("refused");
        assert!(matches!(error, OriginError::Denied { .. }), "{error:?}");
    }
    assert_eq!(sts.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_changes_nothing() {
    let server = Arc::new(server().await);
    for ahead in [-1_000_000, 1_000_000] {
        let given = Arc::clone(&server);
        let sts = FakeSts::start_ahead(ahead, move |_| keys(&given, 3600)).await.expect("an STS");
        let config = pod(&endpoint(&server), Some(&sts.endpoint()), TOKEN);
        let origin = origin(&config);
        for _ in 0..2 {
            assert_eq!(&origin.read(b"k", 0..5, None).await.expect("read")[..], b"bytes");
        }
        assert_eq!(sts.requests().len(), 1, "the keys are valid, not about to expire");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_necessary_and_the_sts_has_no_password_in_its_url() {
    for (variable, value, words) in
        [("AWS_ROLE_ARN", "", "roleArn"), ("AWS_ENDPOINT_URL_STS", "http://u:hunter2@h", "credentials do not belong")]
    {
        let mut config = pod("http://127.0.0.1:1", None, TOKEN);
        config.env.set(variable, value);
        let error = open(&"s3://bucket".parse().expect("a URL"), &config).expect_err(words).to_string();
        assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
    }
}

/// The settings of a profile in files in `folder`.
fn profile(folder: &Path, server: &S3Server, sts: &FakeSts, config: &str, credentials: &str) -> OriginConfig {
    std::fs::create_dir_all(folder.join(".aws")).expect("a folder");
    std::fs::write(folder.join(".aws/config"), config).expect("written");
    std::fs::write(folder.join(".aws/credentials"), credentials).expect("written");
    let home = folder.to_string_lossy().into_owned();
    let env = [
        ("HOME", home),
        ("AWS_PROFILE", "p".to_owned()),
        ("AWS_ENDPOINT_URL_STS", sts.endpoint()),
        ("AWS_ENDPOINT_URL_SSO", sts.endpoint()),
    ];
    OriginConfig { env: env.into_iter().collect(), ..pod(&endpoint(server), None, "") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_gets_its_keys_by_roles_programs_and_single_sign_on() {
    let server = Arc::new(server().await);
    let given = Arc::clone(&server);
    let sts = FakeSts::start(move |request: &StsRequest| match (keys(&given, 3600), &*request.target) {
        (StsAnswer::Keys { id, secret, .. }, target) if target.starts_with("/federation/credentials?") => {
            let end = i64::MAX / 1_000_000;
            let keys = format!(r#"{{"accessKeyId":"{id}","secretAccessKey":"{secret}","expiration":{end}}}"#);
            StsAnswer::Raw { status: 200, body: format!(r#"{{"roleCredentials":{keys}}}"#) }
        }
        (keys, _) => keys,
    });
    let sts = sts.await.expect("an STS");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |config: &str, credentials: &str| profile(folder.path(), &server, &sts, config, credentials);

    let chain =
        "[profile p]\nrole_arn=far\nsource_profile=q\nexternal_id=e\n[profile q]\nrole_arn=near\nsource_profile=base\n";
    let base = "[base]\naws_access_key_id=A\naws_secret_access_key=hunter2\n";
    assert_eq!(read(&at(chain, base)).await.expect("a chain of roles"), b"bytes");
    let asked = sts.requests();
    let roles: Vec<_> =
        asked.iter().map(|asked| (asked.form["Action"].as_str(), asked.form["RoleArn"].as_str())).collect();
    assert_eq!(roles, [("AssumeRole", "near"), ("AssumeRole", "far")]);
    assert!(asked[0].headers["authorization"].contains("Credential=A/"), "signed with the keys of the source");
    assert!(asked[0].headers["authorization"].contains("/eu-west-1/sts/aws4_request"));
    assert_eq!(asked[1].form.get("ExternalId").map(String::as_str), Some("e"));

    let token = folder.path().join("token");
    std::fs::write(&token, format!("{TOKEN}\n")).expect("written");
    let web = format!("[profile p]\nrole_arn={ROLE}\nweb_identity_token_file={}\n", token.display());
    assert_eq!(read(&at(&web, "")).await.expect("a token in a file"), b"bytes");
    assert_eq!(sts.requests()[2].form["WebIdentityToken"], TOKEN);

    let StsAnswer::Keys { id, secret, .. } = keys(&server, 0) else { panic!("keys") };
    let printed = format!(r#"{{"Version":1,"AccessKeyId":"{id}","SecretAccessKey":"{secret}"}}"#);
    std::fs::write(folder.path().join("printed"), printed).expect("written");
    let program = format!("[profile p]\ncredential_process = cat '{}/printed'\n", folder.path().display());
    assert_eq!(read(&at(&program, "")).await.expect("a program"), b"bytes");

    let sso = "[sso-session s]\nsso_region=eu-west-1\n[profile p]\nsso_session=s\nsso_account_id=1\nsso_role_name=r\n";
    let config = at(sso, "");
    let error = read(&config).await.expect_err("nobody has logged in");
    let said = Chain(&error).to_string();
    assert!(matches!(error, OriginError::Denied { .. }) && said.contains("aws sso login --profile p"), "{said}");
    let cache = folder.path().join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).expect("a folder");
    // SHA-1 of "s".
    let kept = cache.join("a0f1490a20d0211c997b44bc357e1972deab8ae3.json");
    std::fs::write(&kept, r#"{"accessToken": "hunter2", "expiresAt": "2999-01-01T00:00:00Z"}"#).expect("written");
    assert_eq!(read(&config).await.expect("single sign-on"), b"bytes");
    let last = sts.requests().pop().expect("a request");
    assert_eq!(last.target, "/federation/credentials?role_name=r&account_id=1");
    assert_eq!(last.headers["x-amz-sso_bearer_token"], "hunter2");
    let (attempt_timeout, deadline) = (Duration::from_secs(2), Duration::from_secs(3));
    let mut config = OriginConfig { attempt_timeout, deadline, ..config };
    config.env.set("AWS_ENDPOINT_URL_SSO", "http://127.0.0.1:1");
    let said = Chain(&read(&config).await.expect_err("nobody is there")).to_string();
    assert!(said.contains("http://127.0.0.1:1 cannot be reached: ") && !said.contains("hunter2"), "{said}");
}
