//! Certificates by which nodes know each other: an [`Authority`] signs them, an [`Identity`] is one with its key.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// The name that the certificate of every node carries, whatever its address.
const NAME: &str = "cachenode.larder.dev";

/// Who signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// One with a key of its own.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    /// The certificate that those trust who trust this authority.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a node, and a new key.
    pub fn issue(&self, node: &str) -> Identity {
        self.sign(node, 4096)
    }

    /// One that was good until 2020.
    pub fn issue_expired(&self, node: &str) -> Identity {
        self.sign(node, 2020)
    }

    fn sign(&self, node: &str, until_year: i32) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, node);
        params.not_after = date_time_ymd(until_year, 1, 1);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // A node is asked, and asks.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A certificate with its key.
pub struct Identity {
    certificate: String,
    key: String,
}

impl Identity {
    /// Writes both, each file whole or not at all, but one after the other: in between, one is of what was there before.
    pub fn write(&self, certificate: &Path, key: &Path) {
        replace(certificate, &self.certificate);
        replace(key, &self.key);
    }
}

/// Puts a file in another's place, as one step.
pub fn replace(path: &Path, text: &str) {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}
