//! The origins against real servers: S3 against MinIO and Ceph's RADOS gateway, Google Cloud Storage and Azure against
//! their emulators.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use larder_dataset::Chain;
use larder_origin::{Depth, Md5Answer, Origin, OriginConfig, OriginError, conformance, open};
use larder_testkit::{FakeSts, RealServer, ServerKind, StsAnswer};
use serde_json::{Value, json};

/// The MD5 of "hello".
const MD5_OF_HELLO: [u8; 16] =
    [0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9, 0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92];

fn origin(server: &RealServer, url: &str, env: Vec<(&'static str, String)>) -> Arc<dyn Origin> {
    let endpoint = Some(server.endpoint().to_owned());
    let config = OriginConfig { endpoint, env: env.into_iter().collect(), ..OriginConfig::default() };
    open(&url.parse().expect("a URL"), &config).expect("an origin")
}

async fn conforms(kind: ServerKind, many: usize) {
    let Some(server) = RealServer::start(kind) else { return };
    for (seed, prefix) in [(1, ""), (2, "some/pre fix+%")] {
        conformance(origin(&server, &server.url(prefix), server.env()), seed, many).await;
    }
    wrong_credentials_are_denied(&server).await;
    let md5s = origin(&server, &server.url("md5s"), server.env());
    let compares = matches!(kind, ServerKind::Minio | ServerKind::Ceph);
    let wrong = md5s.put_with_md5(b"k", "hellO".into(), &MD5_OF_HELLO).await.expect("an answer");
    assert_eq!(wrong, if compares { Md5Answer::Differs } else { Md5Answer::Refused }, "only S3 compares them");
    let right = md5s.put_with_md5(b"k", "hello".into(), &MD5_OF_HELLO).await.expect("an answer");
    assert_eq!(matches!(right, Md5Answer::Stored(_)), compares, "{right:?}");
    let elsewhere = origin(&server, &server.url("").replace(RealServer::BUCKET, "larder-none"), server.env());
    for depth in [Depth::One, Depth::All] {
        let missing = elsewhere.list(b"", None, depth).await.expect_err("no bucket");
        assert!(matches!(missing, OriginError::Invalid { .. }), "{missing:?}");
        assert!(missing.to_string().contains("larder-none: there is no such "), "{missing}");
    }
}

async fn wrong_credentials_are_denied(server: &RealServer) {
    let denied = origin(server, &server.url("conformance-0000000000000001"), server.wrong_env());
    let errors = [
        denied.list(b"", None, Depth::One).await.map(drop),
        denied.list(b"", None, Depth::All).await.map(drop),
        denied.head(b"ranges").await.map(drop),
        denied.read(b"ranges", 0..1, None).await.map(drop),
        denied.read_all(b"ranges", 1).await.map(drop),
        denied.put(b"x", Bytes::new()).await.map(drop),
    ];
    for error in errors {
        let error = error.expect_err("wrong credentials");
        assert!(matches!(error, OriginError::Denied { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

// SEMANTICS: I4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minio_conforms() {
    conforms(ServerKind::Minio, 1500).await;
}

// SEMANTICS: I4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ceph_conforms() {
    conforms(ServerKind::Ceph, 1500).await;
}

// SEMANTICS: I4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gcs_conforms() {
    conforms(ServerKind::Gcs, 1100).await;
}

// SEMANTICS: I4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azurite_conforms() {
    conforms(ServerKind::Azurite, 1100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azurite_conforms_with_a_token_in_place_of_the_key() {
    let Some(server) = RealServer::start(ServerKind::Azurite) else { return };
    conformance(origin(&server, &server.url("token"), server.sas_env()), 1, 50).await;
    let mut other = server.sas_env();
    other[1].1 = other[1].1.replace("sig=", "sig=AAAA");
    let denied = origin(&server, &server.url(""), other).list(b"", None, Depth::One).await.expect_err("a wrong token");
    assert!(matches!(denied, OriginError::Denied { .. }), "{denied:?}");
    assert!(!format!("{denied:?}").contains("sig="), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gcs_folders_made_by_others_are_no_obstacle() {
    let Some(server) = RealServer::start(ServerKind::Gcs) else { return };
    server.fill([("data/", b"".as_slice()), ("data/sub/", b""), ("data/sub/x", b"x")]);
    let origin = origin(&server, &server.url("data"), server.env());
    let keys = async |prefix: &[u8], depth| -> Vec<Vec<u8>> {
        let page = origin.list(prefix, None, depth).await.expect("a page");
        page.files.into_iter().map(|file| file.key).chain(page.prefixes).collect()
    };
    assert_eq!(keys(b"", Depth::One).await, [b"".as_slice(), b"sub/"]);
    assert_eq!(keys(b"sub/", Depth::One).await, [b"sub/".as_slice(), b"sub/x"]);
}

// SEMANTICS: I4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_object_store_cannot_hold_fails_the_listing_by_name() {
    for kind in [ServerKind::Gcs, ServerKind::Azurite] {
        let Some(server) = RealServer::start(kind) else { return };
        server.fill([("data/good", b"x".as_slice()), ("data/empty//part", b"x")]);
        let origin = origin(&server, &server.url("data"), server.env());
        let listed = origin.list(b"", None, Depth::All).await.expect_err("an odd key");
        assert!(matches!(listed, OriginError::Invalid { .. }), "{kind:?}: {listed:?}");
        assert!(listed.to_string().contains("data/empty//part"), "{kind:?}: {listed}");
    }
}

/// A cluster that issues tokens to its pods, as MinIO sees it: an OpenID provider with one key.
struct Issuer {
    server: FakeSts,
    key: EcdsaKeyPair,
}

impl Issuer {
    /// The client of MinIO's configuration, which is the audience of tokens.
    const CLIENT: &str = "minio";
    /// The role that MinIO makes of the configuration: it has a hash of the client.
    const ROLE: &str = "arn:minio:iam:::role/MHR2BeH2-q1dHO2yx5U9Mf-tP9Q";

    fn key() -> EcdsaKeyPair {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key")
    }

    async fn start() -> Self {
        let server = FakeSts::start(|_| StsAnswer::Never).await.expect("a server");
        let (key, url) = (Self::key(), server.endpoint());
        // An uncompressed point: a byte, x and y.
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let keys =
            json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k", "x": x, "y": y}]});
        let provider = json!({
            "issuer": url,
            "jwks_uri": format!("{url}/keys"),
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        });
        server.set_hook(move |request| {
            let body = if request.target == "/keys" { &keys } else { &provider };
            StsAnswer::Raw { status: 200, body: body.to_string() }
        });
        Self { server, key }
    }

    /// The variables with which MinIO knows it.
    fn minio(&self) -> [(&'static str, String); 3] {
        let configuration = format!("{}/.well-known/openid-configuration", self.server.endpoint());
        [
            ("MINIO_IDENTITY_OPENID_CONFIG_URL", configuration),
            ("MINIO_IDENTITY_OPENID_CLIENT_ID", Self::CLIENT.to_owned()),
            ("MINIO_IDENTITY_OPENID_ROLE_POLICY", "readonly".to_owned()),
        ]
    }

    /// A token that was signed with a key and expires in `seconds`.
    fn token(&self, key: &EcdsaKeyPair, audience: &str, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        let part = |part: Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let head = part(json!({"alg": "ES256", "kid": "k", "typ": "JWT"}));
        let claims = part(json!({
            "iss": self.server.endpoint(),
            "sub": "system:serviceaccount:team-a:train",
            "aud": [audience],
            "iat": now,
            "exp": now + seconds,
        }));
        let signed = format!("{head}.{claims}");
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minio_exchanges_the_token_of_a_pod_for_keys_of_a_role() {
    let issuer = Issuer::start().await;
    let Some(server) = RealServer::start_with(ServerKind::Minio, &issuer.minio()) else { return };
    let put = origin(&server, &server.url(""), server.env()).put(b"k", Bytes::from_static(b"bytes")).await;
    put.expect("written with the administrator's keys");
    // No STS is set: MinIO exchanges tokens itself.
    let pod = |token: String| {
        let env = [("AWS_ROLE_ARN", Issuer::ROLE.to_owned()), ("LARDER_IDENTITY_TOKEN", token)];
        origin(&server, &server.url(""), env.to_vec())
    };
    let good = pod(issuer.token(&issuer.key, Issuer::CLIENT, 3600));
    assert_eq!(&good.read(b"k", 0..5, None).await.expect("read")[..], b"bytes");
    let denied = good.put(b"x", Bytes::new()).await.expect_err("the role may only read");
    assert!(matches!(denied, OriginError::Denied { .. }), "{denied:?}");
    for (token, words) in [
        (issuer.token(&issuer.key, "vault", 3600), "Client ID"),
        (issuer.token(&issuer.key, Issuer::CLIENT, -3600), "expired"),
        (issuer.token(&Issuer::key(), Issuer::CLIENT, 3600), "did not give the keys"),
    ] {
        let signature = token.rsplit('.').next().expect("a signature").to_owned();
        let error = pod(token).read(b"k", 0..5, None).await.expect_err(words);
        let said = Chain(&error).to_string();
        assert!(matches!(error, OriginError::Denied { .. }) && said.contains(words), "{said}");
        assert!(!said.contains(&signature), "{said}");
    }
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_google_is_read_with_the_access_token_of_a_pod() {
    let Some(server) = RealServer::start(ServerKind::Gcs) else { return };
    server.fill([("k", b"bytes".as_slice())]);
    let sts = FakeSts::start(|request| {
        let access = if request.form["subject_token"] == "good" { RealServer::SECRET_KEY } else { "hunter2" };
        StsAnswer::Raw { status: 200, body: json!({"access_token": access, "expires_in": 3600}).to_string() }
    });
    let sts = sts.await.expect("a server");
    let pod = |token: &str| {
        let env = [
            ("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", "//iam.googleapis.com/p".to_owned()),
            ("GOOGLE_STS_ENDPOINT", sts.endpoint()),
            ("LARDER_IDENTITY_TOKEN", token.to_owned()),
        ];
        origin(&server, &server.url(""), env.to_vec())
    };
    let good = pod("good");
    assert_eq!(&good.read(b"k", 0..5, None).await.expect("read")[..], b"bytes");
    let page = good.list(b"", None, Depth::All).await.expect("listed");
    assert_eq!(page.files.iter().map(|file| file.key.as_slice()).collect::<Vec<_>>(), [b"k".as_slice()]);
    let other = pod("other");
    let errors = [
        other.list(b"", None, Depth::All).await.map(drop),
        other.head(b"k").await.map(drop),
        other.read(b"k", 0..5, None).await.map(drop),
    ];
    for error in errors {
        let error = error.expect_err("another's token");
        assert!(matches!(error, OriginError::Denied { .. }) && !format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}
