//! TLS between server and reader.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use larder_peers::{Security, Tls, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::kind::ServerKind;

/// Writes a CA and one certificate for both sides.
pub(crate) fn write_certificates(folder: &Path) -> anyhow::Result<()> {
    let ca_key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key)?;
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate()?;
    let names = vec![larder_peers::tls::NODE_DNS_NAME.to_owned()];
    let node = rcgen::CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    for (name, text) in [("ca.pem", ca.pem()), ("node.pem", node.pem()), ("key.pem", key.serialize_pem())] {
        std::fs::write(folder.join(name), text).context("write a certificate")?;
    }
    Ok(())
}

/// Both sides of raw TLS, with those certificates and with the version and the ciphers of peers.
pub(super) fn raw_tls(folder: &Path) -> anyhow::Result<(Arc<ServerConfig>, Arc<ClientConfig>)> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = [&rustls::version::TLS13];
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem"))?)?;
    let roots = Arc::new(roots);
    let chain = vec![CertificateDer::from_pem_file(folder.join("node.pem"))?];
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem"))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build()?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok((Arc::new(server), Arc::new(client)))
}

/// The security of peers, with those certificates for the kinds that are encrypted.
pub(super) fn security(kind: ServerKind, folder: &Path) -> anyhow::Result<Security> {
    if !kind.is_encrypted() {
        return Ok(Security::Plaintext);
    }
    let [ca, cert, key] = ["ca.pem", "node.pem", "key.pem"].map(|name| folder.join(name));
    Ok(Security::Tls(Tls::load(TlsFiles { ca, cert, key, denied: None })?))
}
