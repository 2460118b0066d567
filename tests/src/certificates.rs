//! Certificates by which nodes authenticate each other: an [`Authority`] signs them, an [`Identity`] is one with its
//! key.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// The name in every node's certificate, whatever its address.
const NAME: &str = "cachenode.larder.dev";

/// A CA.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A CA with a new key.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    /// The CA's own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a node, and a new key.
    pub fn issue(&self, node: &str) -> Identity {
        self.sign(node, 4096)
    }

    /// A certificate that expired in 2020.
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
        // A node is both server and client.
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
    /// Writes both files, each atomically, but one after the other: in between, one of them is still the old one.
    pub fn write(&self, certificate: &Path, key: &Path) {
        replace(certificate, &self.certificate);
        replace(key, &self.key);
    }
}

/// Replaces a file atomically.
pub fn replace(path: &Path, text: &str) {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}
