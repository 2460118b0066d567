//! The rule that both sides apply: a peer's certificate is valid, signed by our CA, and carries [`NODE_DNS_NAME`]. A
//! server rejects denied certificates here already, so that the client receives the reason as a TLS alert.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::denied::Denials;

/// The DNS name that the certificate of every node must carry.
pub const NODE_DNS_NAME: &str = "cachenode.larder.dev";

pub(crate) fn node_name() -> ServerName<'static> {
    ServerName::try_from(NODE_DNS_NAME).expect("a constant that is a DNS name")
}

pub(super) fn has_node_name(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, &node_name())
}

/// Accepts clients whose certificate our CA signed, carries the node's DNS name, and is not denied.
#[derive(Debug)]
pub(super) struct NodesOnly {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) denials: Arc<Denials>,
}

impl ClientCertVerifier for NodesOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, intermediates, now)?;
        has_node_name(certificate)?;
        self.denials.check(certificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
