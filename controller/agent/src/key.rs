//! The job's key, and the two TLS 1.3 identities that are derived from it.
//!
//! Two Ed25519 key pairs are derived from the key: one for all agents of the job, one for its launchers. Only a process
//! that has the key can derive them. Both ends present a raw public key (RFC 7250) and prove that they have the private
//! key by signing the random values that both have just generated. The key itself is therefore never sent, handshakes
//! cannot be replayed, and all further data is encrypted and authenticated with session keys. The session keys are
//! discarded with the connection: a later leak of the job's key does not reveal earlier traffic.

use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};

/// Why a key is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("it is too short: {0} bytes, and at least {KEY_BYTES_LEAST} are needed")]
    Short(usize),
    #[error("make the keys of its two ends: {0}")]
    Tls(#[from] Error),
}

const KEY_BYTES_LEAST: usize = 16;

/// The TLS identities that are derived from a job's key.
pub(crate) struct Key {
    agent: Arc<CertifiedKey>,
    launcher: Arc<CertifiedKey>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    pub(crate) fn new(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < KEY_BYTES_LEAST {
            return Err(KeyError::Short(secret.len()));
        }
        Ok(Self {
            agent: key_pair(secret, b"larder-agent version 1 agent")?,
            launcher: key_pair(secret, b"larder-agent version 1 launcher")?,
        })
    }

    /// The agent's side of a TLS connection.
    pub(crate) fn agent_end(&self) -> Result<ServerConnection, Error> {
        agent_end(&self.agent, &self.launcher)
    }

    /// The launcher's side of a TLS connection.
    pub(crate) fn launcher_end(&self) -> Result<ClientConnection, Error> {
        launcher_end(&self.launcher, &self.agent)
    }
}

/// Derives the key pair of one of the two ends from the job's key.
fn key_pair(secret: &[u8], purpose: &[u8]) -> Result<Arc<CertifiedKey>, Error> {
    // The PKCS #8 encoding of an Ed25519 private key, without its last 32 bytes, which are the key (RFC 8410).
    let mut pkcs8 =
        *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20................................";
    let (_, seed) = pkcs8.split_at_mut(16);
    seed.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose).as_ref());
    let pair = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(&pkcs8[..]))?;
    let public = pair.public_key().ok_or_else(|| Error::General("the key pair has no public key".to_owned()))?;
    let shown = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![shown], pair)))
}

fn agent_end(own: &Arc<CertifiedKey>, launcher: &CertifiedKey) -> Result<ServerConnection, Error> {
    let provider = Arc::new(provider::default_provider());
    let expected = Arc::new(Expected::new(launcher, &provider)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(expected)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(own))));
    config.send_tls13_tickets = 0;
    ServerConnection::new(Arc::new(config))
}

fn launcher_end(own: &Arc<CertifiedKey>, agent: &CertifiedKey) -> Result<ClientConnection, Error> {
    let provider = Arc::new(provider::default_provider());
    let expected = Arc::new(Expected::new(agent, &provider)?);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(expected)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(own))));
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    // rustls requires a server name. It is not sent and not verified: the key pair identifies the agents of the job.
    let name = ServerName::try_from("agent").map_err(|_| Error::General("no name".to_owned()))?;
    ClientConnection::new(Arc::new(config), name)
}

/// A verifier that accepts exactly one public key.
#[derive(Debug)]
struct Expected {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn new(key: &CertifiedKey, provider: &CryptoProvider) -> Result<Self, Error> {
        let public = key.end_entity_cert()?.clone().into_owned();
        Ok(Self { public, algorithms: provider.signature_verification_algorithms })
    }

    fn verify(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if *shown == self.public {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &public, signature, &self.algorithms)
    }
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(not_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Unreachable in practice: neither end offers TLS 1.2.
fn not_tls13() -> Error {
    Error::General("a signature of TLS 1.2".to_owned())
}

#[cfg(test)]
mod tests;
