//! Every origin that needs no network passes the same checks.

use std::sync::Arc;

use larder_origin::{Counting, Limited, Origin, OriginConfig, OriginUrl, conformance, open};
use larder_s3_server::{S3Server, S3ServerConfig};

async fn server() -> S3Server {
    S3Server::start(S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() })
        .await
        .expect("server")
}

fn config(server: &S3Server) -> OriginConfig {
    OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() }
}

// SEMANTICS: I4
#[tokio::test]
async fn folder_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = OriginUrl::folder(folder.path()).expect("a URL");
    let origin = open(&url, &OriginConfig::default()).expect("origin");
    conformance(origin, 1, 1100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_s3_conforms_with_and_without_a_prefix() {
    let server = server().await;
    for (seed, url) in [(1, "s3://bucket"), (2, "s3://bucket/some/pre fix+%")] {
        let origin = open(&url.parse().expect(url), &config(&server)).expect(url);
        conformance(origin, seed, 1500).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrapped_origin_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = OriginUrl::folder(folder.path()).expect("a URL");
    let inner = open(&url, &OriginConfig::default()).expect("origin");
    let counting = Arc::new(Counting::new(inner));
    let limited = Limited::new(Arc::clone(&counting) as Arc<dyn Origin>, 2, OriginConfig::default().deadline);
    conformance(Arc::new(limited), 1, 50).await;
    let counts = counting.counts();
    assert!(counts.puts > 50 && counts.reads > 20 && counts.lists > 5 && counts.heads > 20, "{counts:?}");
    assert!(counts.read_bytes > 35_000_000 && counts.errors > 5, "{counts:?}");
}
