//! How nodes know each other: TLS 1.3 on which both sides show a certificate.
//!
//! One rule, for both sides: a certificate counts if the CA of [`TlsFiles::ca`] signed it, it has not expired, and it carries
//! the DNS name [`NODE_DNS_NAME`]. So one secret serves all nodes of a cluster, no address needs to be in a certificate,
//! and what the same CA signed for other purposes does not get in.
//!
//! The files are looked at once a second: each new connection uses the newest that could be read. Connections live on, at
//! most as long as [`ServerConfig::connection_age_most`](crate::ServerConfig::connection_age_most); sessions are not
//! resumed, so that no connection is older than the certificates it was let in with.
//!
//! Invariant: what is in a key file is never printed, and files that do not hold together never replace those that do.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::chain::chain;

/// The DNS name that the certificate of every node carries.
pub const NODE_DNS_NAME: &str = "cachenode.larder.dev";

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is spoken over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// gRPC over HTTP/2.
    Grpc,
    /// Bytes of blocks in frames.
    Lane,
}

impl Spoken {
    const ALL: [Self; 2] = [Self::Grpc, Self::Lane];

    /// Its name in the handshake.
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Grpc => b"h2",
            Self::Lane => b"larder-blocks/1",
        }
    }

    /// HTTP/2 unless something else was agreed on.
    pub(crate) fn of_alpn(agreed: Option<&[u8]>) -> Self {
        if agreed == Some(Self::Lane.alpn()) { Self::Lane } else { Self::Grpc }
    }
}

/// How nodes talk to each other.
#[derive(Clone, Debug)]
pub enum Security {
    /// Encrypted, and both sides show who they are.
    Tls(Arc<Tls>),
    /// Neither. Only where an administrator asked for it by name: whoever reaches the port may try tokens, and whoever
    /// sees the packets reads them.
    Plaintext,
}

/// Where the PEM files are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificates of the CAs that sign those of nodes. Several while one replaces another.
    pub ca: PathBuf,
    /// This node's certificate, and what is between it and the CA.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("read {what} from {}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate.
    #[error("{} holds no certificate", path.display())]
    Empty {
        /// Where.
        path: PathBuf,
    },
    /// The CA, certificate and key do not go together.
    #[error("use the certificate {} with its key and CA", path.display())]
    Unfit {
        /// The certificate.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl TlsFiles {
    fn load(&self) -> Result<Configs, TlsError> {
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

        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unfit(error.into()))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(error.into()))?
            .with_client_cert_verifier(Arc::new(NodesOnly(verifier)))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| unfit(error.into()))?;
        server.alpn_protocols = Spoken::ALL.map(|spoken| spoken.alpn().to_vec()).into();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = client_builder(provider)
            .map_err(|error| unfit(error.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| unfit(error.into()))?;
        client.resumption = Resumption::disabled();
        let clients = Spoken::ALL.map(|spoken| {
            let mut client = client.clone();
            client.alpn_protocols = vec![spoken.alpn().to_vec()];
            Arc::new(client)
        });
        Ok(Configs { server: Arc::new(server), clients })
    }

    /// Tells one state of the files from the next; parts that cannot be looked at are `None`.
    fn look(&self) -> [Option<Looks>; 3] {
        [&self.ca, &self.cert, &self.key].map(|path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
        })
    }
}

type Looks = (u64, u64, i64, i64, u64);

fn client_builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])
}

/// At least one.
fn certificates(path: &PathBuf, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { what, path: path.clone(), source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(file)?.collect();
    let found = found.map_err(file)?;
    if found.is_empty() { Err(TlsError::Empty { path: path.clone() }) } else { Ok(found) }
}

/// For a server that is no node: signed by the CA in this file, for the name it is called by. Blocks.
pub(crate) fn connector_for(ca: &PathBuf) -> Result<tokio_rustls::TlsConnector, TlsError> {
    let unfit = |error: Error| TlsError::Unfit { path: ca.clone(), source: error.into() };
    let mut roots = RootCertStore::empty();
    for root in certificates(ca, "the CA's certificate")? {
        roots.add(root).map_err(unfit)?;
    }
    let builder = client_builder(Arc::new(rustls::crypto::aws_lc_rs::default_provider())).map_err(unfit)?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()).into())
}

pub(crate) fn node_name() -> ServerName<'static> {
    ServerName::try_from(NODE_DNS_NAME).expect("a constant that is a DNS name")
}

fn has_node_name(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, &node_name())
}

#[derive(Debug)]
struct Configs {
    server: Arc<ServerConfig>,
    /// In the order of [`Spoken::ALL`].
    clients: [Arc<ClientConfig>; 2],
}

/// The certificates of this node, the newest that could be read.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    configs: ArcSwap<Configs>,
    /// How the files looked before they were loaded.
    looked: [Option<Looks>; 3],
}

impl Tls {
    /// Loads the files. Blocks for as long as that takes.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        // First looked at, then loaded: what changes in between is loaded again.
        let looked = files.look();
        let configs = ArcSwap::from_pointee(files.load()?);
        Ok(Arc::new(Self { files, configs, looked }))
    }

    /// Loads the files again whenever they change, until told to stop. Those that cannot be used are logged once, tried again
    /// at each look, and meanwhile the old ones stay.
    pub async fn watch(self: Arc<Self>, stopping: CancellationToken) {
        let mut loaded = self.looked;
        let mut complained = None;
        while stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let tls = Arc::clone(&self);
            let looks = move || {
                let now = tls.files.look();
                (now, (now != loaded).then(|| tls.files.load()))
            };
            // A runtime that shuts down drops what it has not begun.
            let Ok((now, outcome)) = tokio::task::spawn_blocking(looks).await else { return };
            match outcome {
                None => complained = None,
                Some(Ok(configs)) => {
                    self.configs.store(Arc::new(configs));
                    loaded = now;
                    complained = None;
                    info!(cert = %self.files.cert.display(), "load changed certificates");
                }
                Some(Err(error)) if complained != Some(now) => {
                    complained = Some(now);
                    warn!(error = chain(&error), "certificates changed and cannot be used; keep the old ones");
                }
                Some(Err(_)) => {}
            }
        }
    }

    pub(crate) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        Arc::clone(&self.configs.load().server).into()
    }

    pub(crate) fn connector(&self, spoken: Spoken) -> tokio_rustls::TlsConnector {
        Arc::clone(&self.configs.load().clients[spoken as usize]).into()
    }
}

/// Lets in whom the CA vouches for, if their certificate is that of a node.
#[derive(Debug)]
struct NodesOnly(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for NodesOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(certificate, intermediates, now)?;
        has_node_name(certificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// An I/O error in words: what is wrong with whose certificate, and what to do, if that is what it is about.
pub(crate) fn words(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), words_of)
}

fn words_of(error: &Error) -> String {
    use AlertDescription as Alert;
    use CertificateError as Wrong;
    let words = match error {
        Error::NoCertificatesPresented => "the peer shows no certificate: give it one that the CA signed",
        Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "the peer's certificate has expired: renew it, or set the clocks"
        }
        Error::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
            "the peer's certificate is not valid yet: set the clocks"
        }
        Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => {
            "the peer's certificate is signed by another CA: give all nodes the same CA, or both while one replaces the other"
        }
        Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            return format!("the peer's certificate is not that of a node: it lacks the DNS name {NODE_DNS_NAME}");
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer finds our certificate expired: renew it, or set the clocks"
        }
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the peer trusts another CA than the one that signed our certificate: give all nodes the same CA"
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the peer wants a certificate and we showed none: give this node one that the CA signed"
        }
        Error::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown | Alert::AccessDenied) => {
            return format!(
                "the peer refuses our certificate: it must be valid, signed by the same CA, and carry the DNS name \
                 {NODE_DNS_NAME}"
            );
        }
        Error::InvalidMessage(_) => "the peer does not speak TLS: set all nodes up alike",
        other => return format!("TLS: {other}"),
    };
    words.to_owned()
}
