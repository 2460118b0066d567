//! TLS between server and reader.

use std::path::Path;

use anyhow::Context;
use larder_peers::{Security, Tls, TlsFiles};

use super::kind::ServerKind;

/// Writes a CA and one certificate for both sides.
pub(super) fn write_certificates(folder: &Path) -> anyhow::Result<()> {
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

/// TLS with those certificates, for the kinds that use it.
pub(super) fn security(kind: ServerKind, folder: &Path) -> anyhow::Result<Security> {
    if !matches!(kind, ServerKind::PeerTls | ServerKind::PeerStoreTls) {
        return Ok(Security::Plaintext);
    }
    let [ca, cert, key] = ["ca.pem", "node.pem", "key.pem"].map(|name| folder.join(name));
    Ok(Security::Tls(Tls::load(TlsFiles { ca, cert, key, denied: None })?))
}
