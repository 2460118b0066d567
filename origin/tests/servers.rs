//! The S3 origin against real servers: MinIO and Ceph's RADOS gateway.

use larder_origin::{OriginConfig, conformance, open};
use larder_testkit::{RealServer, ServerKind};

async fn conforms(kind: ServerKind, many: usize) {
    let Some(server) = RealServer::start(kind) else { return };
    let config = OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() };
    for (seed, prefix) in [(1, ""), (2, "/some/pre fix+%")] {
        let url = format!("s3://{}{prefix}", RealServer::BUCKET);
        let origin = open(&url.parse().expect("a URL"), &config).expect("an origin");
        conformance(origin, seed, many).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn minio_conforms() {
    conforms(ServerKind::Minio, 1500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ceph_conforms() {
    conforms(ServerKind::Ceph, 1500).await;
}
