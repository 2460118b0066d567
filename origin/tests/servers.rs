//! The origins against real servers: S3 against MinIO and Ceph's RADOS gateway, Google Cloud Storage and Azure against
//! their emulators.

use std::sync::Arc;

use bytes::Bytes;
use larder_origin::{Depth, Origin, OriginConfig, OriginError, conformance, open};
use larder_testkit::{RealServer, ServerKind};

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
