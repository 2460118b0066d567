//! Which peers are accepted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_peers::tls::NODE_DNS_NAME;
use larder_peers::{Cause, Security, Tls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::node::{Fake, GENEROUS, NEVER, Reader, TestNode, content, range, request, until};

/// Longer than anything in a test takes.
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) type Ca = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes the trusted CAs, and a certificate with its key.
fn write(folder: &Path, trusted: &[&Ca], signer: &Ca, change: impl FnOnce(&mut CertificateParams)) {
    let mut params = CertificateParams::new(vec![NODE_DNS_NAME.to_owned()]).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, signer).unwrap();
    std::fs::write(folder.join("ca.crt"), trusted.iter().map(|ca| ca.pem()).collect::<String>()).unwrap();
    std::fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
}

fn files(folder: &Path) -> TlsFiles {
    let [ca, cert, key, denied] = ["ca.crt", "tls.crt", "tls.key", "denied"].map(|name| folder.join(name));
    TlsFiles { ca, cert, key, denied: Some(denied) }
}

pub(crate) struct Side {
    folder: TempDir,
    tls: Arc<Tls>,
}

impl Side {
    fn new(trusted: &[&Ca], signer: &Ca, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), trusted, signer, change);
        let tls = Tls::load(files(folder.path())).unwrap();
        Self { folder, tls }
    }

    pub(crate) fn good(ca: &Ca) -> Self {
        Self::new(&[ca], ca, |_| {})
    }

    pub(crate) fn security(&self) -> Security {
        Security::Tls(Arc::clone(&self.tls))
    }

    /// The SHA-256 of this side's certificate.
    fn fingerprint(&self) -> String {
        let certificate = CertificateDer::from_pem_file(self.folder.path().join("tls.crt")).unwrap();
        Sha256::digest(&certificate).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
    }

    /// Denies these certificates, from the next check of the file on.
    fn deny(&self, fingerprints: &str) {
        let file = self.folder.path().join("denied");
        std::fs::write(file.with_extension("new"), fingerprints).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_one_ca_read_each_other() {
    let ca = ca("one");
    let server = TestNode::start(Fake::open(), Side::good(&ca).security(), |_| {}).await;
    let reader = Reader::new(&[("a", server.address)], Side::good(&ca).security(), |_| {});
    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_without_a_certificate_of_the_ca_is_rejected_with_the_reason() {
    let (ours, theirs) = (ca("one"), ca("two"));
    let server = TestNode::start(Fake::open(), Side::good(&ours).security(), |_| {}).await;
    let stranger = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("db.example.org".try_into().unwrap())];
    };
    // No node loads such a certificate as its own, so only the server's reaction is checked here.
    let refused_name = {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[&ours], &ours, stranger);
        Tls::load(files(folder.path())).map(|_| ()).unwrap_err()
    };
    assert!(std::error::Error::source(&refused_name).is_some(), "{refused_name}");
    for (what, security, says) in [
        ("plaintext", Security::Plaintext, ""),
        ("our certificate is of another CA", Side::new(&[&ours], &theirs, |_| {}).security(), "another CA"),
        ("theirs is of another CA", Side::new(&[&theirs], &theirs, |_| {}).security(), "signed by another CA"),
        ("our certificate has expired", Side::new(&[&ours], &ours, expired).security(), "our certificate expired"),
    ] {
        let before = server.counters.not_let_in.load(Ordering::Relaxed);
        let reader = Reader::new(&[("a", server.address)], security, |config| {
            config.backoff_first = Duration::from_secs(600);
            config.backoff_most = Duration::from_secs(600);
        });
        let error = reader.read("a").await.unwrap_err();
        assert_eq!(error.cause(), Some(Cause::Connect), "{what}: {error}");
        assert!(error.to_string().contains(says), "{what}: {error}");
        until("it is counted", || server.counters.not_let_in.load(Ordering::Relaxed) > before).await;
    }
    assert_eq!(server.counters.served_reads.load(Ordering::Relaxed), 0);
    let reader = Reader::new(&[("a", server.address)], Side::good(&ours).security(), |_| {});
    reader.read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_expired_certificate_is_not_read_from() {
    let ca = ca("one");
    let server = TestNode::start(Fake::open(), Side::new(&[&ca], &ca, expired).security(), |_| {}).await;
    let reader = Reader::new(&[("a", server.address)], Side::good(&ca).security(), |_| {});
    let error = reader.read("a").await.unwrap_err();
    assert!(error.to_string().contains("the peer's certificate has expired"), "{error}");
}

/// A handshake of a client that accepts certificates of these CAs and presents one that no node would load as its own.
async fn connect(
    server: &TestNode,
    trusted: &[&Ca],
    shown: Option<(rcgen::Certificate, KeyPair)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    for ca in trusted {
        roots.add(CertificateDer::from(ca.der().to_vec())).unwrap();
    }
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let io = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from(NODE_DNS_NAME).unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, io).await
}

async fn handshake(server: &TestNode, ca: &Ca, shown: Option<(rcgen::Certificate, KeyPair)>) -> std::io::Result<usize> {
    // A server that accepts a client sends its HTTP/2 settings first.
    connect(server, &[ca], shown).await?.read(&mut [0; 9]).await
}

/// Waits until a node presents the certificate in this side's files.
async fn wait_until_presented(node: &TestNode, side: &Side, trusted: &[&Ca]) {
    let started = Instant::now();
    loop {
        let connection = connect(node, trusted, None).await.unwrap();
        let presented = connection.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        if presented == CertificateDer::from_pem_file(side.folder.path().join("tls.crt")).ok() {
            return;
        }
        assert!(started.elapsed() < GENEROUS, "the certificate is not in use");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_without_a_node_certificate_are_rejected() {
    let ca = ca("one");
    let server = TestNode::start(Fake::open(), Side::good(&ca).security(), |_| {}).await;
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &ca).unwrap(), key)
    };
    assert!(handshake(&server, &ca, None).await.is_err());
    assert!(handshake(&server, &ca, Some(signed("db.example.org"))).await.is_err());
    until("both are counted", || server.counters.not_let_in.load(Ordering::Relaxed) == 2).await;
    assert_eq!(handshake(&server, &ca, Some(signed(NODE_DNS_NAME))).await.unwrap(), 9);
}

// SEMANTICS: S7
#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_their_ca_are_replaced_under_load_and_no_read_is_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let (a, b) = (Side::good(&old), Side::good(&old));
    let stopping = CancellationToken::new();
    for side in [&a, &b] {
        tokio::spawn(Arc::clone(&side.tls).watch(stopping.clone()));
    }
    // Connections are short-lived, so that every stage sees many handshakes.
    let server = TestNode::start(Fake::open(), a.security(), |config| {
        config.connection_age_most = Duration::from_millis(100);
    })
    .await;
    let reader = Arc::new(Reader::new(&[("a", server.address)], b.security(), |_| {}));
    let enough = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (reader, enough) = (Arc::clone(&reader), Arc::clone(&enough));
            tokio::spawn(async move {
                let mut reads = 0;
                while !enough.load(Ordering::Relaxed) {
                    assert_eq!(reader.read("a").await.unwrap(), content(5, 100, 3000));
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    // The certificate that the second side presents as a client is visible where it serves too.
    let mirror = TestNode::start(Fake::open(), b.security(), |_| {}).await;
    // As in a cluster: both sides trust both CAs before either changes its certificate, and the old CA is removed last.
    for (trusted, signer) in [(&[&old, &new][..], &old), (&[&old, &new], &new), (&[&new], &new)] {
        for side in [&a, &b] {
            write(side.folder.path(), trusted, signer, |_| {});
        }
        for (node, side) in [(&server, &a), (&mirror, &b)] {
            wait_until_presented(node, side, &[&old, &new]).await;
        }
        let made = || reader.counters.connections.load(Ordering::Relaxed);
        let before = made();
        until("more connections are made", || made() > before + 6).await;
    }
    enough.store(true, Ordering::Relaxed);
    let mut reads = 0;
    for task in load {
        reads += task.await.unwrap();
    }
    let connections = reader.counters.connections.load(Ordering::Relaxed);
    assert!(connections > 10 && reads > 100, "{reads} reads over {connections} connections");
    assert_eq!(reader.counters.went_down.load(Ordering::Relaxed), 0);
    // A node that still has the old certificate is rejected.
    let late = Reader::new(&[("a", server.address)], Side::good(&old).security(), |_| {});
    assert_eq!(late.read("a").await.unwrap_err().cause(), Some(Cause::Connect));
    stopping.cancel();
}

// SEMANTICS: S7
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_denied_is_out_at_once_and_after_a_restart_and_the_others_stay() {
    let ca = ca("one");
    let (serving, good, lost) = (Side::good(&ca), Side::good(&ca), Side::good(&ca));
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(Arc::clone(&serving.tls).watch(stopping.clone()));
    let blocks = Fake::open();
    let server = TestNode::start(Arc::clone(&blocks), serving.security(), |config| config.deadline_most = HOUR).await;
    let reader = |side: &Side| {
        Reader::new(&[("a", server.address)], side.security(), |config| (config.lanes, config.slack) = (1, HOUR))
    };
    let (others, thiefs) = (reader(&good), reader(&lost));
    others.read("a").await.unwrap();
    thiefs.read("a").await.unwrap();
    let under_way = {
        let peers = Arc::clone(&thiefs.peers);
        tokio::spawn(async move { peers.read("a", &request(range(NEVER, 0, 1))).await })
    };
    until("its read is under way", || blocks.reading.load(Ordering::SeqCst) == 1).await;
    serving.deny(&format!("sha256 Fingerprint={}\n", lost.fingerprint()));
    under_way.await.unwrap().unwrap_err();
    until("its read has ended at the node too", || blocks.reading.load(Ordering::SeqCst) == 0).await;
    let error = reader(&lost).read("a").await.unwrap_err();
    assert!(error.to_string().contains("the peer denies our certificate (--peer-deny)"), "{error}");
    until("it is counted", || server.counters.not_let_in.load(Ordering::Relaxed) > 0).await;
    others.read("a").await.unwrap();
    assert_eq!(others.counters.connections.load(Ordering::Relaxed), 1, "it has its lane still");
    reader(&good).read("a").await.unwrap();

    stopping.cancel();
    watching.await.unwrap();
    server.stop().await;
    let again = Tls::load(files(serving.folder.path())).unwrap();
    let server = TestNode::start(Fake::open(), Security::Tls(again), |_| {}).await;
    let reader = |side: &Side| Reader::new(&[("a", server.address)], side.security(), |_| {});
    assert_eq!(reader(&lost).read("a").await.unwrap_err().cause(), Some(Cause::Connect));
    reader(&good).read("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_reading_from_a_peer_whose_certificate_is_denied() {
    let ca = ca("one");
    let (serving, reading) = (Side::good(&ca), Side::good(&ca));
    let server = TestNode::start(Fake::open(), serving.security(), |config| config.deadline_most = HOUR).await;
    let reader = Reader::new(&[("a", server.address)], reading.security(), |config| config.slack = HOUR);
    reader.read("a").await.unwrap();
    let stopping = CancellationToken::new();
    let watching = tokio::spawn(Arc::clone(&reading.tls).watch(stopping.clone()));
    let stalled = reader.read_some("a", range(NEVER, 0, 1));
    let (outcome, ()) = tokio::join!(stalled, async { reading.deny(&serving.fingerprint()) });
    outcome.unwrap_err();
    let another = Reader::new(&[("a", server.address)], reading.security(), |_| {});
    let error = another.read("a").await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Connect));
    assert!(error.to_string().contains("the peer's certificate is denied (--peer-deny)"), "{error}");
    stopping.cancel();
    watching.await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_refused_without_showing_the_key() {
    let ca = ca("one");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[&ca], &ca, |_| {});
    let key = std::fs::read_to_string(folder.path().join("tls.key")).unwrap();
    let tls = Tls::load(files(folder.path())).unwrap();
    let secret = key.lines().nth(1).unwrap();
    assert!(!format!("{tls:?}").contains(secret));
    for (file, text) in
        [("ca.crt", ""), ("ca.crt", "x"), ("tls.crt", ""), ("tls.key", "x"), ("tls.crt", ca.pem().as_str())]
    {
        let before = std::fs::read(folder.path().join(file)).unwrap();
        std::fs::write(folder.path().join(file), text).unwrap();
        let error = Tls::load(files(folder.path())).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
        assert!(!format!("{error:?}").contains(secret), "{error:?}");
        std::fs::write(folder.path().join(file), before).unwrap();
    }
}
