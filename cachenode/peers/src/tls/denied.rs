//! The certificates that are denied although the CA signed them, and the connections that close when their certificate
//! is denied.
//!
//! Invariant: no connection stays open whose certificate is denied. One lock covers both the list and the connections.
//! A connection that starts while the list changes therefore either is found by the change or sees the new list.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

/// The SHA-256 of a certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// Parses 64 hex digits, with or without colons, optionally after `sha256 Fingerprint=`, as openssl prints it.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.rsplit('=').next()?.replace(':', "");
        let digits = digits.trim().as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from((digit(0)? << 4) | digit(1)?).ok()?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a list of denied certificates is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DeniedError {
    /// The file cannot be read.
    #[error("read the denied certificates from {}", path.display())]
    File {
        /// The file of denied certificates.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is not a fingerprint.
    #[error(
        "{} line {line}: {text:?} is not a SHA-256 fingerprint: write one per line, as `openssl x509 -noout \
         -fingerprint -sha256 -in tls.crt` prints it",
        path.display()
    )]
    Line {
        /// The file of denied certificates.
        path: PathBuf,
        /// The number of the invalid line, from 1.
        line: usize,
        /// The invalid line.
        text: String,
    },
}

/// Reads the fingerprints in a file: one per line, comments after `#`. A file that does not exist denies no
/// certificate.
pub(super) fn read(path: &Path) -> Result<HashSet<Fingerprint>, DeniedError> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.map_err(|source| DeniedError::File { path: path.to_owned(), source })?,
    };
    let mut denied = HashSet::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let wrong = || DeniedError::Line { path: path.to_owned(), line, text: text.chars().take(100).collect() };
        denied.insert(Fingerprint::parse(text).ok_or_else(wrong)?);
    }
    Ok(denied)
}

/// The denied certificates, and the open connections.
#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    denied: HashSet<Fingerprint>,
    /// The peer's certificate of each open connection, and the token that closes the connection.
    open: HashMap<u64, (Fingerprint, CancellationToken)>,
    next: u64,
}

impl Denials {
    pub(super) fn new(denied: HashSet<Fingerprint>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { denied, ..State::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, certificate: Fingerprint) -> bool {
        self.lock().denied.contains(&certificate)
    }

    /// Replaces the list of denied certificates. Closes the open connections whose certificate is now denied, and
    /// returns their number.
    pub(super) fn replace(&self, denied: HashSet<Fingerprint>) -> usize {
        let mut state = self.lock();
        state.denied = denied;
        let closed = state.open.values().filter(|(certificate, _)| state.denied.contains(certificate));
        closed.inspect(|(_, cancel)| cancel.cancel()).count()
    }

    /// Accepts a certificate, unless it is denied.
    pub(super) fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if self.contains(Fingerprint::of(certificate)) { Err(revoked()) } else { Ok(()) }
    }

    /// Accepts a connection unless its certificate is denied. If the certificate is denied before the returned value is
    /// dropped, `cancel` is cancelled.
    pub(super) fn enter(
        self: &Arc<Self>,
        certificate: &CertificateDer<'_>,
        cancel: &CancellationToken,
    ) -> Result<Accepted, Error> {
        let certificate = Fingerprint::of(certificate);
        let mut state = self.lock();
        if state.denied.contains(&certificate) {
            return Err(revoked());
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, (certificate, cancel.clone()));
        Ok(Accepted { denials: Arc::clone(self), number })
    }
}

fn revoked() -> Error {
    Error::InvalidCertificate(CertificateError::Revoked)
}

/// Registers an open connection, so that it closes if its certificate is denied. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct Accepted {
    denials: Arc<Denials>,
    number: u64,
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.denials.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<HashSet<Fingerprint>, DeniedError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn fingerprints_are_read_as_openssl_prints_them_and_errors_name_the_line() {
        let certificate = CertificateDer::from(b"certificate".to_vec());
        let plain = format!("{:?}", Fingerprint::of(&certificate));
        let pairs: Vec<_> =
            plain.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).to_uppercase()).collect();
        for text in [
            plain.clone(),
            format!("\n# lost with n3\n  {plain} # n3\n{plain}\n"),
            format!("sha256 Fingerprint={}\n", pairs.join(":")),
        ] {
            assert_eq!(read_text(&text).unwrap(), HashSet::from([Fingerprint::of(&certificate)]), "{text}");
        }
        assert!(read_text("# none\n").unwrap().is_empty());
        assert!(read(Path::new("/nonexistent/denied")).unwrap().is_empty());
        for text in ["12:34", &plain[1..], &format!("{plain}0"), &plain.replace(['0', '1', '2', '3'], "g"), "ä"] {
            let error = read_text(&format!("#\n{text}")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("openssl"), "{error}");
        }
    }

    #[test]
    fn a_connection_ends_when_its_certificate_is_denied_and_is_forgotten_when_it_ends() {
        let [one, two] = [b"one", b"two"].map(|der| CertificateDer::from(der.to_vec()));
        let denials = Denials::new(HashSet::new());
        let [first, second, third] = [(); 3].map(|()| CancellationToken::new());
        let held = [(&one, &first), (&one, &second), (&two, &third)]
            .map(|(certificate, cancel)| denials.enter(certificate, cancel).unwrap());
        assert_eq!(denials.replace(HashSet::from([Fingerprint::of(&one)])), 2);
        assert!(first.is_cancelled() && second.is_cancelled() && !third.is_cancelled());
        assert!(denials.enter(&one, &first).is_err() && denials.check(&one).is_err());
        assert!(denials.enter(&two, &third).is_ok() && denials.check(&two).is_ok());
        drop(held);
        assert_eq!(denials.replace(HashSet::from([Fingerprint::of(&two)])), 0, "no connection is left");
        assert!(denials.check(&one).is_ok(), "it is not on the list any more");
    }
}
