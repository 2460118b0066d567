//! The nodes of a cluster, and the errors of a list of nodes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::info;

/// The longest name of a node or zone, which equals Kubernetes' limit for node names.
const NAME_BYTES_MOST: usize = 253;

/// A node that caches blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's name, which placement uses.
    pub name: String,
    /// The address of the node's server for peers.
    pub address: SocketAddr,
    /// Its share of blocks relative to other nodes; 1 by default.
    pub weight: u32,
    /// The node's zone; empty if none is configured.
    pub zone: String,
}

/// The members of the cluster: the newest known list.
pub type Membership = watch::Receiver<Arc<Vec<Node>>>;

/// Why a list of nodes is unusable.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The text does not have the expected form.
    #[error("{what}")]
    Invalid {
        /// Why it is invalid, and which values are accepted.
        what: String,
    },
    /// The file of nodes cannot be read.
    #[error("read the nodes from {}", path.display())]
    File {
        /// The file of nodes.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The endpoints cannot be read from the Kubernetes API.
    #[error("find the nodes of the service {service}")]
    Kubernetes {
        /// The service, as `NAMESPACE/NAME`.
        service: String,
        /// The error of the Kubernetes client.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

pub(super) fn invalid(what: impl fmt::Display) -> MembershipError {
    MembershipError::Invalid { what: what.to_string() }
}

/// Checks a name. `kind` describes it in the error, for example "the name of a node".
pub(super) fn check_name(kind: &str, name: &str) -> Result<(), MembershipError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !name.is_empty() && name.len() <= NAME_BYTES_MOST && name.bytes().all(fits) {
        return Ok(());
    }
    Err(invalid(format_args!("{name:?} cannot be {kind}: use 1 to {NAME_BYTES_MOST} characters of a-z A-Z 0-9 - . _")))
}

/// Publishes the list if it differs from the current one.
pub(super) fn publish(sender: &watch::Sender<Arc<Vec<Node>>>, nodes: Vec<Node>) {
    let changed = sender.send_if_modified(|known| {
        let differs = **known != nodes;
        if differs {
            *known = Arc::new(nodes);
        }
        differs
    });
    if changed {
        info!(nodes = sender.borrow().len(), "the list of nodes changed");
    }
}
