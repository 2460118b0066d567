//! Authentication between nodes: TLS 1.3, with a certificate from each side.
//!
//! Both sides apply one rule. They accept a certificate if the CA of [`TlsFiles::ca`] signed it, it has not expired,
//! and it carries the DNS name [`NODE_DNS_NAME`]. One secret therefore serves all nodes of a cluster, no certificate
//! needs to list addresses, and certificates that the same CA signed for other purposes are rejected.
//!
//! A certificate can be denied although the CA signed it: [`TlsFiles::denied`] lists certificates that were lost or
//! stolen.
//!
//! Its parts: [`Tls`] loads the files and reloads them when they change (`watched`); `verify` implements the rule,
//! `denied` its exceptions, `protocol` the choice between gRPC and lanes, and `explain` the error messages for
//! operators.
//!
//! The files are checked once a second, and each new connection uses the newest usable ones. Existing connections stay
//! open for at most the server's `connection_age_most`, unless their peer's certificate is denied. Sessions are not
//! resumed, so that every connection has presented its certificate itself.
//!
//! Invariant: the contents of a key file are never printed. Files that do not match each other never replace files that
//! do.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_dataset::Chain;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, CommonState, Error, RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use denied::{Accepted, Denials, Fingerprint};
use protocol::AppProtocol;
use verify::{NodesOnly, has_node_name};
use watched::{Versions, Watched, versions};

pub use denied::DeniedError;
pub use verify::NODE_DNS_NAME;

pub(crate) mod denied;
pub(crate) mod explain;
pub(crate) mod protocol;
#[cfg(test)]
mod tests;
pub(crate) mod verify;
mod watched;

/// How often the files are checked for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How connections between nodes are secured.
#[derive(Clone, Debug)]
pub enum Security {
    /// Connections are encrypted, and both sides are authenticated.
    Tls(Arc<Tls>),
    /// Connections are neither encrypted nor authenticated. Used only if an administrator explicitly configured it: any
    /// host that reaches the port can try tokens, and any host that sees the packets can read them.
    Plaintext,
}

/// The paths of the PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificates of the CAs that sign the nodes' certificates. There are several while one CA replaces another.
    pub ca: PathBuf,
    /// This node's certificate, and the intermediates between it and the CA.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The list of fingerprints of certificates that are denied although the CA signed them: one SHA-256 in hex digits
    /// per line, comments after `#`. A file that does not exist denies no certificate.
    pub denied: Option<PathBuf>,
}

/// Why certificates are unusable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("read {what} from {}", path.display())]
    File {
        /// The expected contents, for the message.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the PEM reader.
        source: rustls::pki_types::pem::Error,
    },
    /// A file contains no certificate.
    #[error("{} contains no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The CA, certificate and key do not match each other.
    #[error("use the certificate {} with its key and CA", path.display())]
    Unfit {
        /// The file of the certificate.
        path: PathBuf,
        /// The mismatch, as rustls reports it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The list of denied certificates is unusable.
    #[error(transparent)]
    Denied(#[from] DeniedError),
}

impl TlsFiles {
    fn load(&self, denials: &Arc<Denials>) -> Result<Configs, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let unfit =
            |source: Box<dyn std::error::Error + Send + Sync>| TlsError::Unfit { path: self.cert.clone(), source };
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca, "the CA's certificate")? {
            roots.add(root).map_err(|error| unfit(error.into()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&self.cert, "the certificate")?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|source| TlsError::File {
            what: "the private key",
            path: self.key.clone(),
            source,
        })?;
        has_node_name(&chain[0]).map_err(|error| unfit(error.into()))?;
        let own = Fingerprint::of(&chain[0]);

        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unfit(error.into()))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(error.into()))?
            .with_client_cert_verifier(Arc::new(NodesOnly { verifier, denials: Arc::clone(denials) }))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unfit(error.into()))?;
        server.alpn_protocols = AppProtocol::ALL.map(|protocol| protocol.alpn().to_vec()).into();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = client_builder(provider)
            .map_err(|error| unfit(error.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unfit(error.into()))?;
        client.resumption = Resumption::disabled();
        let clients = AppProtocol::ALL.map(|protocol| {
            let mut client = client.clone();
            client.alpn_protocols = vec![protocol.alpn().to_vec()];
            Arc::new(client)
        });
        Ok(Configs { server: Arc::new(server), clients, own })
    }

    fn load_denied(&self) -> Result<HashSet<Fingerprint>, DeniedError> {
        self.denied.as_deref().map_or_else(|| Ok(HashSet::new()), denied::read)
    }

    fn versions(&self) -> Versions {
        versions([&self.ca, &self.cert, &self.key].map(PathBuf::as_path))
    }

    fn denied_versions(&self) -> Versions {
        versions(self.denied.as_deref())
    }
}

fn client_builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])
}

/// Reads the certificates of a PEM file. An error if there is none.
fn certificates(path: &PathBuf, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { what, path: path.clone(), source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(file)?.collect();
    let found = found.map_err(file)?;
    if found.is_empty() { Err(TlsError::Empty { path: path.clone() }) } else { Ok(found) }
}

#[derive(Debug)]
struct Configs {
    server: Arc<ServerConfig>,
    /// In the order of [`AppProtocol::ALL`].
    clients: [Arc<ClientConfig>; 2],
    /// The fingerprint of this node's own certificate.
    own: Fingerprint,
}

/// The newest usable certificates of this node, and the certificates that are denied.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    configs: ArcSwap<Configs>,
    denials: Arc<Denials>,
    watched: Mutex<WatchedFiles>,
}

/// The two are watched separately: a list of denied certificates takes effect even if the certificates are unusable,
/// and vice versa.
#[derive(Debug)]
struct WatchedFiles {
    certificates: Watched,
    denied: Watched,
}

impl Tls {
    /// Loads the files. Blocks on the disk.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        // The file versions are read before the files. A file that changes in between is then loaded again.
        let watched = WatchedFiles {
            certificates: Watched::new(files.versions()),
            denied: Watched::new(files.denied_versions()),
        };
        let denials = Denials::new(files.load_denied()?);
        let configs = ArcSwap::from_pointee(files.load(&denials)?);
        let tls = Self { files, configs, denials, watched: Mutex::new(watched) };
        tls.warn_if_denied();
        Ok(Arc::new(tls))
    }

    /// Reloads the files whenever they change, until `stopping` is cancelled. Unusable files are logged once and
    /// retried at each check; until then the old ones stay in use.
    pub async fn watch(self: Arc<Self>, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(CHECK_EVERY)).await.is_some() {
            let tls = Arc::clone(&self);
            // The runtime is shutting down: it drops blocking tasks that have not started.
            let Ok(()) = tokio::task::spawn_blocking(move || tls.look()).await else { return };
        }
    }

    /// Reloads the files that changed. Blocks on the disk.
    fn look(&self) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let denied = watched.denied.look(self.files.denied_versions(), || self.files.load_denied());
        let certificates = watched.certificates.look(self.files.versions(), || self.files.load(&self.denials));
        let reloaded = matches!(denied, Some(Ok(_))) || matches!(certificates, Some(Ok(_)));
        match denied {
            Some(Ok(denied)) => {
                let certificates = denied.len();
                let closed_connections = self.denials.replace(denied);
                info!(certificates, closed_connections, "reloaded the denied certificates");
            }
            Some(Err(error)) => {
                warn!(
                    error = %Chain(&error),
                    "the changed list of denied certificates is unusable; the old one stays in use"
                );
            }
            None => {}
        }
        match certificates {
            Some(Ok(configs)) => {
                self.configs.store(Arc::new(configs));
                info!(cert = %self.files.cert.display(), "reloaded the certificates");
            }
            Some(Err(error)) => {
                warn!(error = %Chain(&error), "the changed certificates are unusable; the old ones stay in use");
            }
            None => {}
        }
        if reloaded {
            self.warn_if_denied();
        }
    }

    fn warn_if_denied(&self) {
        if self.denials.contains(self.configs.load().own) {
            let cert = self.files.cert.display();
            warn!(
                %cert,
                "this node's own certificate is denied (--peer-deny): other nodes refuse it until it has a new one"
            );
        }
    }

    pub(crate) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        Arc::clone(&self.configs.load().server).into()
    }

    pub(crate) fn connector(&self, protocol: AppProtocol) -> tokio_rustls::TlsConnector {
        Arc::clone(&self.configs.load().clients[protocol as usize]).into()
    }

    /// Accepts the peer at the other end of an authenticated connection, unless its certificate is denied. If the
    /// certificate is denied later, before the returned value is dropped, `cancel` is cancelled.
    pub(crate) fn accept_peer(&self, connection: &CommonState, cancel: &CancellationToken) -> io::Result<Accepted> {
        let certificate = connection.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.ok_or_else(|| io::Error::other(Error::NoCertificatesPresented))?;
        self.denials.enter(certificate, cancel).map_err(io::Error::other)
    }
}
