//! Messages for TLS errors: whose certificate is wrong, why, and what to do.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use super::verify::NODE_DNS_NAME;

/// Formats an I/O error. The message of a TLS error states what to do.
pub(crate) fn explain(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), explain_tls)
}

fn explain_tls(error: &Error) -> String {
    use AlertDescription as Alert;
    use CertificateError as Wrong;
    let text = match error {
        Error::NoCertificatesPresented => "the peer presents no certificate: give it one that the CA signed",
        Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
            "the peer's certificate has expired: renew it, or correct the clocks"
        }
        Error::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
            "the peer's certificate is not valid yet: correct the clocks"
        }
        Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => {
            "the peer's certificate is signed by another CA: give all nodes the same CA, or both while one replaces \
             the other"
        }
        Error::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            return format!("the peer's certificate is not that of a node: it lacks the DNS name {NODE_DNS_NAME}");
        }
        Error::InvalidCertificate(Wrong::Revoked) => {
            "the peer's certificate is denied (--peer-deny): give it a new one"
        }
        Error::AlertReceived(Alert::CertificateRevoked) => {
            "the peer denies our certificate (--peer-deny): give this node a new one"
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer reports that our certificate expired: renew it, or correct the clocks"
        }
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the peer trusts another CA than the one that signed our certificate: give all nodes the same CA"
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the peer requires a certificate and this node presented none: give this node one that the CA signed"
        }
        Error::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown | Alert::AccessDenied) => {
            return format!(
                "the peer rejects our certificate: it must be valid, signed by the same CA, and carry the DNS name \
                 {NODE_DNS_NAME}"
            );
        }
        Error::InvalidMessage(_) => "the peer does not speak TLS: configure TLS on all nodes or on none",
        other => return format!("TLS: {other}"),
    };
    text.to_owned()
}
