//! How nodes know each other: lists, files, certificates.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use larder_e2e::certificates::{Identity, replace};
use larder_e2e::nodes::{Node, Nodes};

pub(crate) const PARTITIONED: [&str; 2] = ["--placement", "partitioned"];

/// `--peers` as a list of these nodes.
pub(crate) fn listed(numbers: RangeInclusive<usize>) -> String {
    let each: Vec<_> = numbers.map(|n| format!("{}={}", Nodes::name(n), Nodes::peer_address(n))).collect();
    each.join(",")
}

/// The text of a membership file with these nodes.
pub(super) fn as_file(numbers: impl IntoIterator<Item = usize>) -> String {
    numbers.into_iter().map(|n| format!("{} {}\n", Nodes::name(n), Nodes::peer_address(n))).collect()
}

/// The flags of a node with these peers.
pub(crate) fn peering(number: usize, peers: &str, secrecy: &[String]) -> Vec<String> {
    let mut flags = vec![
        format!("--node-name={}", Nodes::name(number)),
        format!("--peer-listen={}", Nodes::peer_address(number)),
        format!("--peers={peers}"),
    ];
    flags.extend_from_slice(secrecy);
    flags
}

pub(crate) fn plaintext() -> Vec<String> {
    vec!["--peer-plaintext".to_owned()]
}

/// Starts nodes 1 to `count`, which know each other and use no TLS.
pub(crate) fn start_in_the_clear(nodes: &Nodes, count: usize) -> Vec<Node> {
    (1..=count).map(|n| nodes.start(n, &peering(n, &listed(1..=count), &plaintext()))).collect()
}

/// The files by which a node and its peers authenticate each other.
pub(super) struct Papers {
    pub(super) authorities: PathBuf,
    pub(super) certificate: PathBuf,
    key: PathBuf,
}

impl Papers {
    pub(super) fn new(nodes: &Nodes, number: usize, trusted: &str, identity: &Identity) -> Self {
        let path = |what: &str| nodes.lab.folder().join(format!("{}.{what}", Nodes::name(number)));
        let papers = Self { authorities: path("ca"), certificate: path("certificate"), key: path("key") };
        replace(&papers.authorities, trusted);
        papers.carry(identity);
        papers
    }

    pub(super) fn carry(&self, identity: &Identity) {
        identity.write(&self.certificate, &self.key);
    }

    pub(super) fn flags(&self) -> Vec<String> {
        vec![
            format!("--peer-ca={}", self.authorities.display()),
            format!("--peer-cert={}", self.certificate.display()),
            format!("--peer-key={}", self.key.display()),
        ]
    }
}
