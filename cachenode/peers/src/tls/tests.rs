//! Handshakes over memory. Time stands still between the checks of the files, so the assertions do not depend on the
//! machine's speed.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tokio_rustls::{client, server};

use super::verify::node_name;
use super::*;

type Ca = CertifiedIssuer<'static, KeyPair>;

/// The promise of S7.
const PROMISE: Duration = Duration::from_secs(2);

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// A node with its files.
struct Side {
    folder: TempDir,
    tls: Arc<Tls>,
}

impl Side {
    fn new(ca: &Ca) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), ca);
        let [trusted, cert, key, denied] =
            ["ca.crt", "tls.crt", "tls.key", "denied"].map(|name| folder.path().join(name));
        let tls = Tls::load(TlsFiles { ca: trusted, cert, key, denied: Some(denied) }).unwrap();
        Self { folder, tls }
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.folder.path().join("tls.crt")).unwrap()
    }
}

fn write(folder: &Path, ca: &Ca) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![NODE_DNS_NAME.to_owned()]).unwrap().signed_by(&key, ca).unwrap();
    replace(&folder.join("ca.crt"), &ca.pem());
    replace(&folder.join("tls.crt"), &certificate.pem());
    replace(&folder.join("tls.key"), &key.serialize_pem());
}

type Io = tokio::io::DuplexStream;

async fn handshake(server: &Side, client: &Side) -> io::Result<(server::TlsStream<Io>, client::TlsStream<Io>)> {
    let (there, here) = tokio::io::duplex(1 << 16);
    let accepted = server.tls.acceptor().accept(there);
    let connected = client.tls.connector(AppProtocol::Lane).connect(node_name(), here);
    let (accepted, connected) = tokio::join!(accepted, connected);
    Ok((accepted?, connected?))
}

// SEMANTICS: S7
#[tokio::test(start_paused = true)]
async fn replaced_certificates_are_in_use_within_two_seconds() {
    let stopping = CancellationToken::new();
    let (one, two) = (ca(), ca());
    let (of_one, of_two) = (Side::new(&one), Side::new(&two));
    let node = Side::new(&one);
    let watching = tokio::spawn(Arc::clone(&node.tls).watch(stopping.clone()));
    // The files were replaced at different times since the last check.
    for (turn, (ca, ours, theirs)) in
        [(&two, &of_two, &of_one), (&one, &of_one, &of_two), (&two, &of_two, &of_one)].into_iter().enumerate()
    {
        tokio::time::sleep(Duration::from_millis(333 * turn as u64)).await;
        assert!(handshake(&node, theirs).await.is_ok() && handshake(theirs, &node).await.is_ok(), "{turn}: before");
        write(node.folder.path(), ca);
        tokio::time::sleep(PROMISE).await;
        assert!(handshake(&node, ours).await.is_ok() && handshake(ours, &node).await.is_ok(), "{turn}: the new one");
        assert!(
            handshake(&node, theirs).await.is_err() && handshake(theirs, &node).await.is_err(),
            "{turn}: the old one"
        );
    }
    stopping.cancel();
    watching.await.unwrap();
}

// SEMANTICS: S7
#[tokio::test(start_paused = true)]
async fn a_denied_certificate_loses_its_connections_within_two_seconds() {
    let stopping = CancellationToken::new();
    let ca = ca();
    let (node, lost, good) = (Side::new(&ca), Side::new(&ca), Side::new(&ca));
    let watching = tokio::spawn(Arc::clone(&node.tls).watch(stopping.clone()));
    let mut open = Vec::new();
    for (side, is_lost) in [(&lost, true), (&good, false)] {
        let (as_server, _) = handshake(&node, side).await.unwrap();
        let (_, as_client) = handshake(side, &node).await.unwrap();
        let connections: [&CommonState; 2] = [as_server.get_ref().1, as_client.get_ref().1];
        for connection in connections {
            let cancel = CancellationToken::new();
            open.push((node.tls.accept_peer(connection, &cancel).unwrap(), cancel, is_lost));
        }
    }
    // Unusable certificates do not keep a valid list of denied certificates from taking effect.
    replace(&node.folder.path().join("tls.key"), "no key");
    replace(&node.folder.path().join("denied"), &format!("{:?} # lost\n", Fingerprint::of(&lost.certificate())));
    tokio::time::sleep(PROMISE).await;
    open.iter().for_each(|(_, cancel, is_lost)| assert_eq!(cancel.is_cancelled(), *is_lost));
    let (_, connected) = handshake(&lost, &node).await.unwrap();
    assert!(node.tls.accept_peer(connected.get_ref().1, &CancellationToken::new()).is_err());
    assert!(handshake(&node, &lost).await.is_err());
    assert!(handshake(&node, &good).await.is_ok());

    // If the list cannot be read, the last one stays in force.
    replace(&node.folder.path().join("denied"), "nonsense\n");
    tokio::time::sleep(PROMISE).await;
    assert!(handshake(&node, &lost).await.is_err());
    replace(&node.folder.path().join("denied"), "# none\n");
    tokio::time::sleep(PROMISE).await;
    assert!(handshake(&node, &lost).await.is_ok());
    stopping.cancel();
    watching.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn files_that_do_not_go_together_do_not_replace_those_that_do() {
    let stopping = CancellationToken::new();
    let ca = ca();
    let (node, other) = (Side::new(&ca), Side::new(&ca));
    let watching = tokio::spawn(Arc::clone(&node.tls).watch(stopping.clone()));
    let presents = async |certificate: &CertificateDer<'static>| {
        let (_, connected) = handshake(&node, &other).await.unwrap();
        handshake(&other, &node).await.unwrap();
        connected.get_ref().1.peer_certificates().unwrap()[0] == *certificate
    };
    let first = node.certificate();
    let another_key = KeyPair::generate().unwrap().serialize_pem();
    for broken in [another_key.as_str(), "no key", ""] {
        replace(&node.folder.path().join("tls.key"), broken);
        tokio::time::sleep(PROMISE).await;
        assert!(presents(&first).await, "{broken:?}");
    }
    write(node.folder.path(), &ca);
    tokio::time::sleep(PROMISE).await;
    assert!(presents(&node.certificate()).await && !presents(&first).await);
    stopping.cancel();
    watching.await.unwrap();
}
