//! The list of nodes: fixed, from a watched file, or from the endpoints of a Kubernetes service.
//!
//! Opening a [`MemberSource`] returns a [`Membership`], which always holds the newest list, and a [`Watcher`], which
//! keeps the list current while it runs. A node is a member whether or not it works: the client finds out which nodes
//! work, and placement must not change each time a node fails briefly. `node` has the shared types, `list` parses text,
//! and `kubernetes` watches endpoints.
//!
//! Invariant: a list contains every name and address at most once. A source that cannot be read never empties the list.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::Chain;
use larder_kube::endpoints::Endpoints;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use list::parse_file;
use node::{invalid, publish};

pub use kubernetes::KubernetesService;
pub use list::NodeList;
pub use node::{Membership, MembershipError, Node};

mod kubernetes;
mod list;
mod node;
#[cfg(test)]
mod tests;

/// How often a file is checked for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Where the list of nodes comes from.
#[derive(Clone, Debug)]
pub enum MemberSource {
    /// A list that never changes.
    Static(NodeList),
    /// A file with one node per line: `NAME ADDRESS:PORT [weight=N] [zone=Z]`, comments after `#`. It is checked once a
    /// second. Replace it by renaming, so that no half-written list is read.
    File(PathBuf),
    /// The endpoints of a Kubernetes service.
    Kubernetes(KubernetesService),
}

impl FromStr for MemberSource {
    type Err = MembershipError;

    /// Accepts nodes in the form of [`NodeList`], `@` and the path of a file, or `kubernetes:NAMESPACE/SERVICE` within
    /// a pod.
    fn from_str(text: &str) -> Result<Self, MembershipError> {
        if let Some(path) = text.strip_prefix('@') {
            return Ok(Self::File(path.into()));
        }
        let Some(service) = text.strip_prefix("kubernetes:") else { return Ok(Self::Static(text.parse()?)) };
        for variable in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            if std::env::var_os(variable).is_none() {
                return Err(invalid(format_args!("{text}: this is not a Kubernetes pod: {variable} is not set")));
            }
        }
        Ok(Self::Kubernetes(service.parse()?))
    }
}

impl MemberSource {
    /// Reads the list and returns it with its watcher. Fails if the list cannot be read now. Only the list of a
    /// Kubernetes service may be empty, while the service has no endpoints or the API server is unreachable: this
    /// node's own readers must not wait for either.
    pub async fn open(self) -> Result<(Membership, Watcher), MembershipError> {
        let (first, kind) = match self {
            Self::Static(NodeList(nodes)) => (nodes, Watched::Nothing),
            Self::File(path) => {
                let text = read(&path).await?;
                let nodes = parse_file(&text)?;
                (nodes, Watched::File { path, text })
            }
            Self::Kubernetes(service) => {
                let (nodes, endpoints) = service.open().await?;
                (nodes, Watched::Kubernetes(Box::new(endpoints)))
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
    Kubernetes(Box<Endpoints>),
}

impl Watcher {
    /// Runs until `stopping` is cancelled. An error is logged once and retried; until a retry succeeds, the last good
    /// list stays.
    pub async fn run(self, stopping: CancellationToken) {
        let sender = self.sender;
        let watching = async {
            match self.kind {
                Watched::Nothing => std::future::pending().await,
                Watched::File { path, text } => watch_file(path, text, &sender).await,
                Watched::Kubernetes(endpoints) => kubernetes::watch(*endpoints, &sender).await,
            }
        };
        stopping.run_until_cancelled(watching).await;
    }
}

async fn watch_file(path: PathBuf, mut text: String, sender: &watch::Sender<Arc<Vec<Node>>>) {
    let mut logged = None;
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let outcome = match read(&path).await {
            Ok(now) if now == text => {
                logged = None;
                continue;
            }
            Ok(now) => parse_file(&now).map(|nodes| (nodes, now)),
            Err(error) => Err(error),
        };
        match outcome {
            Ok((nodes, now)) => {
                publish(sender, nodes);
                (text, logged) = (now, None);
            }
            Err(error) => {
                let error = Chain(&error).to_string();
                if logged.as_ref() != Some(&error) {
                    warn!(file = %path.display(), error, "the list of nodes is unusable; the last good one stays");
                    logged = Some(error);
                }
            }
        }
    }
}
