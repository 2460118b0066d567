//! Who the nodes are: a list that is written down, a file that is watched, or the endpoints of a Kubernetes service.
//!
//! A [`Source`] is opened into a [`Membership`], which always holds the newest list, and a [`Watcher`], which keeps it so for as
//! long as it runs. A node is a member whether it works or not: who works is found out by
//! [`Peers`](crate::Peers), and placement must not change each time a node stumbles.
//!
//! Invariant: names and addresses in a list are each there once, and a source that cannot be read never empties the list.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

mod kubernetes;

pub use kubernetes::{KubernetesService, ServiceName};

/// How often a file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The longest name of a node or zone: that of a Kubernetes node.
const NAME_BYTES_MOST: usize = 253;

/// The largest weight.
const WEIGHT_MOST: u32 = 1_000_000;

/// A node that caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, by which placement knows it.
    pub name: String,
    /// Where its server listens.
    pub address: SocketAddr,
    /// Its share of blocks compared to others; 1 unless said otherwise.
    pub weight: u32,
    /// Where it stands; empty: not said.
    pub zone: String,
}

/// The members of the cluster, the newest list that is known.
pub type Membership = watch::Receiver<Arc<Vec<Node>>>;

/// Why a list of nodes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// It is not written as it must be.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// The file cannot be read.
    #[error("read the nodes from {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The Kubernetes API cannot be used.
    #[error("find the nodes of the service {service}")]
    Kubernetes {
        /// Which service.
        service: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn invalid(what: impl fmt::Display) -> MembershipError {
    MembershipError::Invalid { what: what.to_string() }
}

/// Nodes written as text: `a=10.0.0.1:9465,b=10.0.0.2:9465;weight=2;zone=z1`. A comma parts nodes, a semicolon the settings of
/// one: `weight=N` (1 to 1000000) and `zone=Z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeList(pub Vec<Node>);

impl FromStr for NodeList {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let nodes = text.split(',').map(|node| {
            let mut parts = node.trim().split(';');
            let first = parts.next().unwrap_or_default();
            let (name, address) = first.split_once('=').ok_or_else(|| {
                invalid(format_args!("{first:?} is no node: write NAME=ADDRESS:PORT[;weight=N][;zone=Z],..."))
            })?;
            parse_node(name, address, parts)
        });
        Ok(Self(checked(nodes.collect::<Result<_, _>>()?)?))
    }
}

/// Nodes written in a file, one a line: `NAME ADDRESS:PORT [weight=N] [zone=Z]`. Empty lines do not count, nor does what
/// follows a `#`.
fn parse_file(text: &str) -> Result<Vec<Node>, MembershipError> {
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let address = words.next().unwrap_or_default();
        let node = parse_node(name, address, words).map_err(|error| invalid(format_args!("line {number}: {error}")))?;
        nodes.push(node);
    }
    checked(nodes)
}

fn parse_node<'a>(name: &str, address: &str, settings: impl Iterator<Item = &'a str>) -> Result<Node, MembershipError> {
    check_name("the name of a node", name)?;
    let address: SocketAddr = address.parse().map_err(|_| {
        invalid(format_args!("{name}: {address:?} is no address: write 10.0.0.1:9465 or [fd00::1]:9465"))
    })?;
    if address.port() == 0 {
        return Err(invalid(format_args!("{name}: the port is 0")));
    }
    let mut node = Node { name: name.to_owned(), address, weight: 1, zone: String::new() };
    let mut seen = HashSet::new();
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if !seen.insert(key) {
            return Err(invalid(format_args!("{name}: {key} is there twice")));
        }
        match key {
            "weight" => {
                let weight = value.parse().ok().filter(|weight| (1..=WEIGHT_MOST).contains(weight));
                node.weight = weight.ok_or_else(|| {
                    invalid(format_args!("{name}: the weight {value:?} is not a number from 1 to {WEIGHT_MOST}"))
                })?;
            }
            "zone" => {
                check_name("a zone", value)?;
                value.clone_into(&mut node.zone);
            }
            _ => return Err(invalid(format_args!("{name}: there is no setting {setting:?}: weight=N and zone=Z are"))),
        }
    }
    Ok(node)
}

fn check_name(what: &str, name: &str) -> Result<(), MembershipError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !name.is_empty() && name.len() <= NAME_BYTES_MOST && name.bytes().all(fits) {
        return Ok(());
    }
    Err(invalid(format_args!("{name:?} cannot be {what}: 1 to {NAME_BYTES_MOST} of a-z A-Z 0-9 - . _ can")))
}

/// The nodes by name, if there are any and none is there twice.
fn checked(mut nodes: Vec<Node>) -> Result<Vec<Node>, MembershipError> {
    if nodes.is_empty() {
        return Err(invalid("there is no node"));
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(invalid(format_args!("the node {} is there twice", pair[0].name)));
    }
    let mut addresses = HashSet::new();
    if let Some(node) = nodes.iter().find(|node| !addresses.insert(node.address)) {
        return Err(invalid(format_args!("two nodes have the address {}", node.address)));
    }
    Ok(nodes)
}

/// Where the list of nodes comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// It is this one, for good.
    Static(NodeList),
    /// A file, one node a line: `NAME ADDRESS:PORT [weight=N] [zone=Z]`, comments after `#`. Looked at once a second; best
    /// replaced by renaming.
    File(PathBuf),
    /// The endpoints of a service.
    Kubernetes(KubernetesService),
}

impl FromStr for Source {
    type Err = MembershipError;

    /// Nodes as [`NodeList`] has them, `@` and a file's path, or `kubernetes:NAMESPACE/SERVICE` in a pod.
    fn from_str(text: &str) -> Result<Self, MembershipError> {
        if let Some(path) = text.strip_prefix('@') {
            return Ok(Self::File(path.into()));
        }
        let Some(service) = text.strip_prefix("kubernetes:") else { return Ok(Self::Static(text.parse()?)) };
        let variable = |name: &str| {
            std::env::var(name)
                .map_err(|_| invalid(format_args!("{text}: this is no pod of Kubernetes: {name} is not set")))
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        Ok(Self::Kubernetes(KubernetesService::in_cluster(service.parse()?, &host, &port)?))
    }
}

impl Source {
    /// Reads the list, and makes what keeps it current. Errors: it cannot be read now. Only that of a Kubernetes service may
    /// be empty: it has no endpoints yet, or the API server is away, for which nobody who reads from this node shall wait.
    pub async fn open(self) -> Result<(Membership, Watcher), MembershipError> {
        let (first, kind) = match self {
            Self::Static(NodeList(nodes)) => (nodes, Watched::Nothing),
            Self::File(path) => {
                let text = read(&path).await?;
                let nodes = parse_file(&text)?;
                (nodes, Watched::File { path, text })
            }
            Self::Kubernetes(service) => {
                let (nodes, endpoints) = service.list().await?.unzip();
                (nodes.unwrap_or_default(), Watched::Kubernetes(Box::new((service, endpoints))))
            }
        };
        let (sender, membership) = watch::channel(Arc::new(first));
        Ok((membership, Watcher { sender, kind }))
    }
}

async fn read(path: &PathBuf) -> Result<String, MembershipError> {
    tokio::fs::read_to_string(path).await.map_err(|source| MembershipError::File { path: path.clone(), source })
}

/// Keeps a [`Membership`] current.
#[derive(Debug)]
pub struct Watcher {
    sender: watch::Sender<Arc<Vec<Node>>>,
    kind: Watched,
}

#[derive(Debug)]
enum Watched {
    Nothing,
    File { path: PathBuf, text: String },
    Kubernetes(Box<(KubernetesService, Option<kubernetes::Endpoints>)>),
}

impl Watcher {
    /// Runs until told to stop. What cannot be read is logged once and tried again; meanwhile the last good list stays.
    pub async fn run(self, stopping: CancellationToken) {
        let sender = self.sender;
        let watching = async {
            match self.kind {
                Watched::Nothing => std::future::pending().await,
                Watched::File { path, text } => watch_file(path, text, &sender).await,
                Watched::Kubernetes(watched) => {
                    let (service, endpoints) = *watched;
                    service.watch(endpoints, &sender).await;
                }
            }
        };
        stopping.run_until_cancelled(watching).await;
    }
}

/// Makes the list known, if it is another.
fn publish(sender: &watch::Sender<Arc<Vec<Node>>>, nodes: Vec<Node>) {
    let changed = sender.send_if_modified(|known| {
        let other = **known != nodes;
        if other {
            *known = Arc::new(nodes);
        }
        other
    });
    if changed {
        info!(nodes = sender.borrow().len(), "the list of nodes changed");
    }
}

async fn watch_file(path: PathBuf, mut text: String, sender: &watch::Sender<Arc<Vec<Node>>>) {
    let mut complained = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let outcome = match read(&path).await {
            Ok(now) if now == text => {
                complained = None;
                continue;
            }
            Ok(now) => parse_file(&now).map(|nodes| (nodes, now)),
            Err(error) => Err(error),
        };
        match outcome {
            Ok((nodes, now)) => {
                publish(sender, nodes);
                (text, complained) = (now, None);
            }
            Err(error) => {
                let words = crate::chain::chain(&error);
                if complained.as_ref() != Some(&words) {
                    warn!(file = %path.display(), error = words, "cannot use the list of nodes; keep the last good one");
                    complained = Some(words);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for another list; generously, but not for ever.
    pub(super) async fn changed(membership: &mut Membership) {
        tokio::time::timeout(Duration::from_secs(60), membership.changed()).await.unwrap().unwrap();
    }

    fn node(name: &str, address: &str, weight: u32, zone: &str) -> Node {
        Node { name: name.to_owned(), address: address.parse().unwrap(), weight, zone: zone.to_owned() }
    }

    #[test]
    fn a_list_is_read_and_sorted() {
        let list: NodeList = "b=10.0.0.2:9465;weight=2;zone=z1, a=[fd00::1]:1".parse().unwrap();
        assert_eq!(list.0, [node("a", "[fd00::1]:1", 1, ""), node("b", "10.0.0.2:9465", 2, "z1")]);
    }

    #[test]
    fn a_list_that_is_wrong_says_what_is() {
        for (text, says) in [
            ("", "NAME=ADDRESS"),
            ("a", "NAME=ADDRESS"),
            ("=1.1.1.1:1", "name of a node"),
            ("ä=1.1.1.1:1", "name of a node"),
            ("a=host:1", "no address"),
            ("a=1.1.1.1", "no address"),
            ("a=1.1.1.1:0", "port is 0"),
            ("a=1.1.1.1:1;weight=0", "weight"),
            ("a=1.1.1.1:1;weight=x", "weight"),
            ("a=1.1.1.1:1;weight=1;weight=2", "twice"),
            ("a=1.1.1.1:1;zone=", "zone"),
            ("a=1.1.1.1:1;color=red", "color=red"),
            ("a=1.1.1.1:1,", "NAME=ADDRESS"),
            ("a=1.1.1.1:1,a=1.1.1.2:1", "twice"),
            ("a=1.1.1.1:1,b=1.1.1.1:1", "two nodes"),
        ] {
            let error = text.parse::<NodeList>().expect_err(text).to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_is_read_and_its_errors_name_the_line() {
        let nodes = parse_file("# nodes\n\n b 10.0.0.2:2 zone=z weight=3 # the big one\na 10.0.0.1:1\n").unwrap();
        assert_eq!(nodes, [node("a", "10.0.0.1:1", 1, ""), node("b", "10.0.0.2:2", 3, "z")]);
        let error = parse_file("a 10.0.0.1:1\nb nowhere\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2: b:"), "{error}");
        assert!(parse_file("# none\n").is_err());
    }

    #[tokio::test]
    async fn a_file_is_watched_and_a_broken_one_keeps_the_last_good_list() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        std::fs::write(&path, "a 10.0.0.1:1\n").unwrap();
        let (mut membership, watcher) = Source::File(path.clone()).open().await.unwrap();
        assert_eq!(membership.borrow_and_update().len(), 1);
        let stopping = CancellationToken::new();
        let watching = tokio::spawn(watcher.run(stopping.clone()));

        std::fs::write(&path, "a 10.0.0.1:1\nb 10.0.0.2:1\n").unwrap();
        changed(&mut membership).await;
        assert_eq!(membership.borrow_and_update().len(), 2);

        for broken in ["a nowhere\n", ""] {
            std::fs::write(&path, broken).unwrap();
            tokio::time::sleep(LOOK_EVERY * 2).await;
            assert!(!membership.has_changed().unwrap(), "{broken:?}");
        }
        std::fs::remove_file(&path).unwrap();
        tokio::time::sleep(LOOK_EVERY * 2).await;
        assert!(!membership.has_changed().unwrap());

        std::fs::write(&path, "c 10.0.0.3:1\n").unwrap();
        changed(&mut membership).await;
        assert_eq!(membership.borrow_and_update()[0].name, "c");
        stopping.cancel();
        watching.await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_is_broken_from_the_start_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = Source::File(folder.path().join("none")).open().await.map(|_| ()).unwrap_err();
        assert!(matches!(error, MembershipError::File { .. }), "{error}");
    }
}
