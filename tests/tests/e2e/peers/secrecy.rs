//! Certificates and tokens: which nodes are served.

use std::process::Command;

use larder_e2e::certificates::{Authority, Identity, replace};
use larder_e2e::nodes::{Node, Nodes};
use larder_e2e::{Mount, TOKEN};
use serde_json::Value;

use super::dataset::Files;
use super::flags::{PARTITIONED, Papers, listed, peering, plaintext};
use super::readers::{Readers, from_peers, wait_until, wait_until_served};

/// A node that is refused.
struct Stranger {
    number: usize,
    /// The flags of its certificate.
    secrecy: Vec<String>,
    token: Option<&'static str>,
    /// The peers log one of these.
    words: &'static [&'static str],
}

// SEMANTICS: S6
#[test]
fn who_has_no_certificate_another_cas_or_an_expired_one_or_no_token_is_refused() {
    let nodes = Nodes::new(8);
    let files = Files::new([10_000; 120]);
    files.put(&nodes.lab);
    let (ours, another) = (Authority::new("ours"), Authority::new("another"));
    let papers = |n: usize, identity: Identity| Papers::new(&nodes, n, &ours.pem(), &identity).flags();
    let good = |n: usize| papers(n, ours.issue(&Nodes::name(n)));
    let peers: Vec<Node> = (1..=2).map(|n| nodes.start(n, &peering(n, &listed(1..=2), &good(n)))).collect();
    let mounts: Vec<Mount> = peers.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let mounts: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&mounts, 1);
    mounts.iter().for_each(|mount| assert!(from_peers(mount) > 0));

    let refused = [
        Stranger { number: 3, secrecy: plaintext(), token: Some(TOKEN), words: &["tls", "certificate", "handshake"] },
        Stranger {
            number: 4,
            secrecy: papers(4, another.issue("n4")),
            token: Some(TOKEN),
            words: &["certificate", "issuer"],
        },
        Stranger { number: 5, secrecy: papers(5, ours.issue_expired("n5")), token: Some(TOKEN), words: &["expired"] },
        Stranger { number: 6, secrecy: good(6), token: None, words: &["token"] },
        Stranger { number: 7, secrecy: good(7), token: Some("another-token"), words: &["token"] },
    ];
    let all_logs = || peers.iter().map(|node| node.log()).collect::<Vec<String>>();
    for Stranger { number: n, secrecy, token, words } in refused {
        let seen: Vec<usize> = all_logs().iter().map(String::len).collect();
        let said = || {
            let logs = all_logs();
            let new: String = logs.iter().zip(&seen).map(|(log, &seen)| &log[seen..]).collect();
            new.to_lowercase()
        };
        let known = format!("{},{}", listed(1..=2), listed(n..=n));
        let node = nodes.start(n, &peering(n, &known, &secrecy));
        let mount = node.mount_with_token(&nodes.lab.url(), token, &PARTITIONED);
        nodes.lab.server.reset_counters();
        files.read_epoch(&[&mount], 2);
        assert_eq!(nodes.lab.server.counters().get_bytes, files.total_bytes(), "n{n} has it all from the origin");
        assert_eq!((from_peers(&mount), mount.metric("fs_errors_total")), (0, 0), "n{n}");
        // Refusals may be counted for a while before they are logged; the refused node retries.
        wait_until(&format!("the peers say why n{n} is refused: {words:?}"), || {
            files.read_epoch(&[&mount], 3);
            words.iter().any(|word| said().contains(word))
        });
        assert_eq!(from_peers(&mount), 0, "n{n}");
    }
    for log in all_logs() {
        assert!(!log.contains(TOKEN) && !log.contains("another-token"), "a token is in the log: {log}");
    }

    // A node that has all of it is served, although nobody lists it.
    let known = format!("{},{}", listed(1..=2), listed(8..=8));
    let node = nodes.start(8, &peering(8, &known, &good(8)));
    let mount = node.mount(&nodes.lab.url(), &PARTITIONED);
    files.read_epoch(&[&mount], 4);
    assert!(from_peers(&mount) > 0, "{}", node.log());
}

/// All nodes trust two authorities, and the certificates of one are replaced by those of the other. A node that trusts
/// the second authority alone then shows that the daemons, which were running all the time, use the new certificates as
/// clients and as servers.
// SEMANTICS: S7
#[test]
fn certificates_are_rotated_under_load() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 300]);
    files.put(&nodes.lab);
    let (before, after) = (Authority::new("before"), Authority::new("after"));
    let both = before.pem() + &after.pem();
    let papers: Vec<Papers> = (1..=3).map(|n| Papers::new(&nodes, n, &both, &before.issue(&Nodes::name(n)))).collect();
    let mut running: Vec<Node> =
        (1..=3).map(|n| nodes.start(n, &peering(n, &listed(1..=3), &papers[n - 1].flags()))).collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let restarted = mounts.remove(0);
    let others: Vec<&Mount> = mounts.iter().collect();
    files.read_epoch(&others, 1);
    let readers = Readers::start(&files, &others, 4);
    wait_until_served("with the first certificates", &running[0], &others);

    for (n, papers) in (1..).zip(&papers) {
        papers.carry(&after.issue(&Nodes::name(n)));
        readers.go_on_for(200);
    }
    readers.assert_well("while certificates were replaced");
    wait_until_served("after certificates were replaced", &running[0], &others);

    running[0].kill();
    drop(restarted);
    replace(&papers[0].authorities, &after.pem());
    running[0].restart();
    let restarted = running[0].mount(&nodes.lab.url(), &PARTITIONED);
    wait_until_served("by those whom the second authority vouches for", &running[0], &others);
    wait_until("it is served by them", || {
        files.read_epoch(&[&restarted], 2);
        from_peers(&restarted) > 0
    });
    readers.finish();
}

/// A node's view of another, for a mount's dataset: `larder stats --cluster`.
fn told(asking: &Node, mount: &Mount, about: &str) -> Value {
    let dir = mount.dir().to_str().unwrap();
    let output = asking.larder(&["stats", dir, "--cluster", "--json"], Some(TOKEN));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["nodes"].as_array().unwrap().iter().find(|node| node["name"] == about).unwrap().clone()
}

/// Waits until the other node answers, and returns its blocks; `None`: it says nothing of the dataset.
fn blocks_told(asking: &Node, mount: &Mount, about: &str) -> Option<u64> {
    wait_until("the other node answers", || told(asking, mount, about)["error"].is_null());
    told(asking, mount, about)["blocks"].as_u64()
}

// SEMANTICS: S6
#[test]
fn a_dataset_that_is_not_shared_is_served_to_no_peer_and_told_to_none() {
    let nodes = Nodes::new(2);
    let files = Files::new([10_000; 60]);
    files.put(&nodes.lab);
    let ours = Authority::new("ours");
    let mut running: Vec<Node> = (1..=2)
        .map(|n| {
            let papers = Papers::new(&nodes, n, &ours.pem(), &ours.issue(&Nodes::name(n)));
            nodes.start(n, &peering(n, &listed(1..=2), &papers.flags()))
        })
        .collect();
    // Node 2 has the certificate and the token. It asks node 1 for half of the dataset, which has all of it for itself.
    for turn in 0..2 {
        let local = running[0].mount(&nodes.lab.url(), &[]);
        files.read_epoch(&[&local], 1);
        local.settle();
        let shared = running[1].mount(&nodes.lab.url(), &PARTITIONED);
        assert_eq!(blocks_told(&running[1], &shared, "n1"), None, "turn {turn}");
        nodes.lab.server.reset_counters();
        files.read_epoch(&[&shared], 2);
        assert_eq!((from_peers(&shared), local.metric("fs_peer_served_total")), (0, 0), "turn {turn}");
        assert!(nodes.lab.server.counters().gets > 0, "turn {turn}: the origin has what node 1 does not give");
        assert_eq!(blocks_told(&running[0], &local, "n1"), Some(files.count() as u64), "it knows its own");
        assert_eq!(blocks_told(&running[0], &local, "n2"), None, "and asks nobody about it");
        running[0].kill();
        drop(local);
        running[0].restart();
    }
    // The same questions are answered once it is shared.
    let sharing = running[0].mount(&nodes.lab.url(), &PARTITIONED);
    let shared = running[1].mount(&nodes.lab.url(), &PARTITIONED);
    wait_until("node 1 serves its share", || {
        files.read_epoch(&[&shared], 3);
        from_peers(&shared) > 0
    });
    assert!(blocks_told(&running[1], &shared, "n1").is_some_and(|blocks| blocks > 0));
    assert!(blocks_told(&running[0], &sharing, "n2").is_some_and(|blocks| blocks > 0));
}

/// As the documents say.
fn fingerprint(papers: &Papers) -> String {
    let shown = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(&papers.certificate)
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    String::from_utf8(shown.stdout).unwrap()
}

// SEMANTICS: S7
#[test]
fn a_node_whose_certificate_is_denied_is_out_until_it_has_another_and_nobody_else_is() {
    let nodes = Nodes::new(3);
    let files = Files::new([20_000; 300]);
    files.put(&nodes.lab);
    let ours = Authority::new("ours");
    let papers: Vec<Papers> =
        (1..=3).map(|n| Papers::new(&nodes, n, &ours.pem(), &ours.issue(&Nodes::name(n)))).collect();
    // Node 3 is the thief: it denies nobody.
    let denied = nodes.lab.folder().join("denied");
    let flags = |n: usize| {
        let mut flags = peering(n, &listed(1..=3), &papers[n - 1].flags());
        flags.extend((n < 3).then(|| format!("--peer-deny={}", denied.display())));
        flags
    };
    let mut running: Vec<Node> = (1..=3).map(|n| nodes.start(n, &flags(n))).collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&nodes.lab.url(), &PARTITIONED)).collect();
    let thief = mounts.pop().unwrap();
    files.read_epoch(&mounts.iter().chain([&thief]).collect::<Vec<_>>(), 1);
    assert!(from_peers(&thief) > 0);

    let second = mounts.pop().unwrap();
    let readers = Readers::start(&files, &[&second], 4);
    let reloaded = |node: &Node| node.log().matches("reloaded the denied certificates").count();
    replace(&denied, &fingerprint(&papers[2]));
    wait_until("both have seen the list", || running[..2].iter().all(|node| reloaded(node) == 1));
    // Its connections are closed by now.
    let gets_nothing = |when: &str| {
        let before = from_peers(&thief);
        files.read_epoch(&[&thief], 2);
        assert_eq!(from_peers(&thief), before, "{when}");
    };
    gets_nothing("denied");
    assert!(running[2].log().contains("the peer denies our certificate (--peer-deny)"), "{}", running[2].log());
    wait_until_served("in spite of the list", &running[0], &[&second]);

    running[0].kill();
    drop(mounts);
    running[0].restart();
    let first = running[0].mount(&nodes.lab.url(), &PARTITIONED);
    wait_until_served("after a restart", &running[0], &[&second]);
    gets_nothing("after a restart");

    papers[2].carry(&ours.issue("n3"));
    wait_until("it is served with another certificate", || {
        let before = from_peers(&thief);
        files.read_epoch(&[&thief], 3);
        from_peers(&thief) > before
    });
    readers.finish();
    drop(first);
}
