//! Optional TLS: one certificate, which is reloaded when its files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use arc_swap::ArcSwap;
use larder_telemetry::server::Transport;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

/// The interval between two checks of the files.
const LOOK: Duration = Duration::from_secs(30);

/// The files of a certificate, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    fn load(&self) -> anyhow::Result<TlsAcceptor> {
        let what = |path: &Path| format!("read {}", path.display());
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&self.cert).with_context(|| what(&self.cert))?.collect();
        let key = PrivateKeyDer::from_pem_file(&self.key).with_context(|| what(&self.key))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain.with_context(|| what(&self.cert))?, key)
            .with_context(|| {
                format!("the certificate {} does not match the key {}", self.cert.display(), self.key.display())
            })?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    fn changed_at(&self) -> [Option<SystemTime>; 2] {
        [&self.cert, &self.key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
    }
}

/// Accepts TLS connections with the latest certificate.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    acceptor: Arc<ArcSwap<TlsAcceptor>>,
}

impl Tls {
    /// Loads the files.
    pub fn open(files: TlsFiles) -> anyhow::Result<Self> {
        let acceptor = Arc::new(ArcSwap::from_pointee(files.load()?));
        Ok(Self { files, acceptor })
    }

    /// Reloads the files whenever they change. While they do not match each other, the previous certificate stays in
    /// use. Never returns.
    pub async fn follow(&self) {
        let mut changed_at = self.files.changed_at();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.files.changed_at();
            if now == changed_at {
                continue;
            }
            match self.files.load() {
                Ok(acceptor) => {
                    self.acceptor.store(Arc::new(acceptor));
                    changed_at = now;
                    info!(cert = %self.files.cert.display(), "reloaded the certificate");
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot reload the certificate; using the previous one")
                }
            }
        }
    }
}

impl Transport for Tls {
    type Stream = TlsStream<TcpStream>;

    async fn open(&self, connection: TcpStream) -> io::Result<Self::Stream> {
        let acceptor = TlsAcceptor::clone(&self.acceptor.load());
        acceptor.accept(connection).await
    }
}
