//! Real object stores, started by the scripts in `tests/servers`.
//!
//! The invariant: nothing is left behind. Dropping a [`RealServer`] stops it, and the scripts' own guards stop it when the
//! test's process is killed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::repository::repository;

/// The stores that have a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// MinIO.
    Minio,
    /// Ceph with its RADOS gateway.
    Ceph,
}

impl ServerKind {
    fn script(self) -> PathBuf {
        let name = match self {
            Self::Minio => "minio.sh",
            Self::Ceph => "ceph.sh",
        };
        repository().join("tests/servers").join(name)
    }
}

/// A running server with one empty bucket, [`RealServer::BUCKET`]. Dropping it stops it.
#[derive(Debug)]
pub struct RealServer {
    kind: ServerKind,
    folder: PathBuf,
    endpoint: String,
}

impl RealServer {
    /// The bucket.
    pub const BUCKET: &str = "larder-test";
    /// The access key.
    pub const ACCESS_KEY: &str = "larder";
    /// Its secret.
    pub const SECRET_KEY: &str = "larder-secret";

    /// Starts a server. Where it is not installed, this prints `skipped: …` on stderr and returns `None`. Where the
    /// variable `CI` is set it panics instead, because nobody would see that a test is always skipped.
    ///
    /// # Panics
    /// When the server is installed and does not start.
    pub fn start(kind: ServerKind) -> Option<Self> {
        let script = kind.script();
        let installed = Command::new(&script).arg("check").stderr(Stdio::inherit()).status();
        if !installed.expect("the server's script runs").success() {
            let message = format!(
                "{kind:?} is not installed, so nothing was tested against it: run {} install",
                script.display()
            );
            assert!(std::env::var_os("CI").is_none(), "{message}");
            eprintln!("\nskipped: {message}\n");
            return None;
        }
        // Unix sockets want short paths, and a build folder may be deep.
        let folder =
            tempfile::Builder::new().prefix("larder-s3-").tempdir_in("/tmp").expect("a temporary folder").keep();
        // Free now. Of two tests that choose the same port, the second fails loudly.
        let port = free_port();
        let server = Self { kind, folder, endpoint: format!("http://127.0.0.1:{port}") };
        let started = Command::new(&script).arg("start").arg(&server.folder).arg(port.to_string()).output();
        let started = started.expect("the server's script runs");
        assert!(started.status.success(), "{kind:?} did not start: {}", String::from_utf8_lossy(&started.stderr));
        Some(server)
    }

    /// Its URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The environment of an S3 client that uses this server.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", Self::ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET_KEY.into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let stopped = Command::new(self.kind.script()).arg("stop").arg(&self.folder).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("{:?} in {} was not stopped", self.kind, self.folder.display());
        }
    }
}

/// A free port below the range from which the kernel chooses, followed by ports for the cluster's other servers.
fn free_port() -> u16 {
    let start = 10_000 + (std::process::id() % 200) as u16 * 50;
    (0..400)
        .map(|step| 10_000 + (start - 10_000 + step * 50) % 20_000)
        .find(|port| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok() && TcpListener::bind(("127.0.0.1", port + 1)).is_ok()
        })
        .expect("some port is free")
}
