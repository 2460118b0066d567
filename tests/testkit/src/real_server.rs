//! Real object stores, and emulators of the clouds' object stores, started by the scripts in `tests/servers`.
//!
//! The invariant: a server leaves nothing behind. Dropping a [`RealServer`] stops it, and the script's guard stops it
//! if the test's process is killed.

use std::fmt::Write as _;
use std::net::{TcpListener, UdpSocket};
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
    /// fake-gcs-server, for Google Cloud Storage.
    Gcs,
    /// Azurite, for Azure Blob Storage.
    Azurite,
}

impl ServerKind {
    fn script(self) -> PathBuf {
        let name = match self {
            Self::Minio => "minio.sh",
            Self::Ceph => "ceph.sh",
            Self::Gcs => "gcs.sh",
            Self::Azurite => "azurite.sh",
        };
        repository().join("tests/servers").join(name)
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::Minio | Self::Ceph => "s3",
            Self::Gcs => "gs",
            Self::Azurite => "az",
        }
    }
}

/// A running server with one empty bucket, [`RealServer::BUCKET`]. Dropping it stops it.
#[derive(Debug)]
pub struct RealServer {
    kind: ServerKind,
    folder: PathBuf,
    endpoint: String,
    /// Keeps other tests from choosing the server's port before it listens there.
    _chosen: UdpSocket,
}

impl RealServer {
    /// The name of the server's only bucket.
    pub const BUCKET: &str = "larder-test";
    /// The access key.
    pub const ACCESS_KEY: &str = "larder";
    /// The secret of the access key, and the token for Google Cloud Storage.
    pub const SECRET_KEY: &str = "larder-secret";
    /// The secret in base64, the form of Azure's account keys.
    const AZURE_KEY: &str = "bGFyZGVyLXNlY3JldA==";

    /// Starts a server. If the server is not installed, this prints `skipped: …` to standard error and returns `None`.
    /// If the variable `CI` is set, it panics instead, so that CI cannot skip a test unnoticed.
    pub fn start(kind: ServerKind) -> Option<Self> {
        Self::start_with(kind, &[])
    }

    /// As [`Self::start`], with these variables in the environment of the server.
    pub fn start_with(kind: ServerKind, variables: &[(&str, String)]) -> Option<Self> {
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
        // Paths of Unix sockets must be short, and a build folder may be deep.
        let folder =
            tempfile::Builder::new().prefix("larder-s3-").tempdir_in("/tmp").expect("a temporary folder").keep();
        let (port, chosen) = free_port();
        let mut server = Self { kind, folder, endpoint: String::new(), _chosen: chosen };
        let mut start = Command::new(&script);
        start.arg("start").arg(&server.folder).arg(port.to_string());
        let started = start.envs(variables.iter().map(|(name, value)| (name, value))).output();
        let started = started.expect("the server's script runs");
        assert!(started.status.success(), "{kind:?} did not start: {}", String::from_utf8_lossy(&started.stderr));
        server.endpoint = String::from_utf8(started.stdout).expect("a URL").trim().into();
        Some(server)
    }

    /// The URL of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of the objects below `prefix`, or of the whole bucket if `prefix` is empty.
    pub fn url(&self, prefix: &str) -> String {
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("{}://{}{slash}{prefix}", self.kind.scheme(), Self::BUCKET)
    }

    /// The environment of a client with valid credentials. It does not include the endpoint.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        match self.kind {
            ServerKind::Minio | ServerKind::Ceph => vec![
                ("AWS_ACCESS_KEY_ID", Self::ACCESS_KEY.into()),
                ("AWS_SECRET_ACCESS_KEY", Self::SECRET_KEY.into()),
                ("AWS_REGION", "us-east-1".into()),
            ],
            ServerKind::Gcs => vec![("GOOGLE_BEARER_TOKEN", Self::SECRET_KEY.into())],
            ServerKind::Azurite => vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", Self::ACCESS_KEY.into()),
                ("AZURE_STORAGE_ACCOUNT_KEY", Self::AZURE_KEY.into()),
            ],
        }
    }

    /// The environment of a client of the Azure emulator with a SAS token for the bucket instead of the account's key.
    pub fn sas_env(&self) -> Vec<(&'static str, String)> {
        let token = std::fs::read_to_string(self.folder.join("sas")).expect("the token of the Azure emulator");
        vec![("AZURE_STORAGE_ACCOUNT_NAME", Self::ACCESS_KEY.into()), ("AZURE_STORAGE_SAS_TOKEN", token.trim().into())]
    }

    /// The environment of a client whose credentials are well formed but wrong.
    pub fn wrong_env(&self) -> Vec<(&'static str, String)> {
        let wrong = |value: String| value.replace(Self::SECRET_KEY, "hunter2").replace(Self::AZURE_KEY, "aHVudGVyMg==");
        self.env().into_iter().map(|(name, value)| (name, wrong(value))).collect()
    }
}

impl RealServer {
    /// Makes a user of a tenant of Ceph, whose buckets are others than those of the same names of other tenants.
    /// Returns its access key; the secret is [`RealServer::SECRET_KEY`].
    pub fn make_user(&self, tenant: &str, name: &str) -> String {
        assert_eq!(self.kind, ServerKind::Ceph, "a server with tenants");
        let made = Command::new(self.kind.script()).arg("user").arg(&self.folder).args([tenant, name]).output();
        let made = made.expect("the server's script runs");
        assert!(made.status.success(), "no user: {}", String::from_utf8_lossy(&made.stderr));
        format!("{tenant}-{name}")
    }

    /// Sends a PUT request with curl rather than Larder's client: `path` is a bucket, an object in it, or a bucket with
    /// a query.
    pub fn put_as(&self, access_key: &str, path: &str, body: &[u8]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("body");
        std::fs::write(&file, body).expect("a file");
        let put = Command::new("curl")
            .args(["-sS", "--fail-with-body", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3"])
            // On a busy machine, a gateway may not know a new user or bucket at once.
            .args(["--retry", "20", "--retry-delay", "1", "--retry-all-errors"])
            .args(["--user", &format!("{access_key}:{}", Self::SECRET_KEY)])
            .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--data-binary"])
            .arg(format!("@{}", file.display()))
            .arg(format!("{}/{path}", self.endpoint))
            .output()
            .expect("curl runs");
        assert!(put.status.success(), "PUT {path}: {}", String::from_utf8_lossy(&put.stdout));
    }

    /// Puts objects into the bucket of an emulator, with curl rather than Larder's client. A key may end with `/`.
    pub fn fill<'a>(&self, objects: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (header, query) = match self.kind {
            ServerKind::Gcs => (format!("Authorization: Bearer {}", Self::SECRET_KEY), String::new()),
            ServerKind::Azurite => {
                ("x-ms-blob-type: BlockBlob".into(), format!("?{}", self.sas_env().pop().expect("the token").1))
            }
            ServerKind::Minio | ServerKind::Ceph => panic!("only emulators are filled by plain requests"),
        };
        let mut config = format!("header = {header:?}\nsilent\nshow-error\nfail\noutput = /dev/null\n");
        for (number, (key, bytes)) in objects.into_iter().enumerate() {
            let file = folder.path().join(number.to_string());
            std::fs::write(&file, bytes).expect("a temporary file");
            let url = format!("{}/{}/{}{query}", self.endpoint, Self::BUCKET, percent_encoded(key));
            writeln!(config, "url = {url:?}\nupload-file = {file:?}").expect("a string");
        }
        let path = folder.path().join("config");
        std::fs::write(&path, config).expect("a temporary file");
        let filled = Command::new("curl").arg("--parallel").arg("--config").arg(path).output().expect("curl runs");
        assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    }
}

fn percent_encoded(key: &str) -> String {
    key.bytes().fold(String::new(), |mut text, byte| {
        write!(text, "%{byte:02X}").expect("a string");
        text
    })
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let stopped = Command::new(self.kind.script()).arg("stop").arg(&self.folder).status();
        if !stopped.is_ok_and(|status| status.success()) {
            eprintln!("{:?} in {} was not stopped", self.kind, self.folder.display());
        }
    }
}

/// A free port below the range of ephemeral ports, followed by free ports for the cluster's other servers, and the
/// socket by which other tests know that it is taken: servers listen for TCP alone.
fn free_port() -> (u16, UdpSocket) {
    let start = 10_000 + (std::process::id() % 200) as u16 * 50;
    (0..400)
        .map(|step| 10_000 + (start - 10_000 + step * 50) % 20_000)
        .find_map(|port| {
            let chosen = UdpSocket::bind(("127.0.0.1", port)).ok()?;
            let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
            (is_free(port) && is_free(port + 1)).then_some((port, chosen))
        })
        .expect("some port is free")
}
