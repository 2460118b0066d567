//! The endpoints of a Kubernetes service as nodes.
//!
//! Invariant: an error leaves the list of nodes unchanged.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use larder_dataset::Chain;
use larder_kube::endpoints::{ANSWER_TIMEOUT, Connect, Endpoint, Endpoints, Error, Service};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use super::node::{MembershipError, Node, check_name, invalid, publish};

#[cfg(test)]
mod tests;

/// A service whose endpoints are the nodes, written `NAMESPACE/NAME`. The API server is reached as from within a pod.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    pub(super) service: Service,
    pub(super) connect: Connect,
}

impl FromStr for KubernetesService {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| invalid(format_args!("{text:?} is not a service: write NAMESPACE/NAME")))?;
        check_name("a namespace", namespace)?;
        check_name("a service", name)?;
        let service = Service { namespace: namespace.to_owned(), name: name.to_owned(), port: String::new() };
        Ok(Self { service, connect: Connect::in_cluster() })
    }
}

impl fmt::Display for KubernetesService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service.namespace, self.service.name)
    }
}

impl KubernetesService {
    /// Returns the current nodes and the watch that follows them. There are no nodes while the API server is
    /// unreachable.
    pub(super) async fn open(self) -> Result<(Vec<Node>, Endpoints), MembershipError> {
        let shown = self.to_string();
        let mut endpoints = Endpoints::of(self.service, self.connect);
        // A list of many pages takes longer than one answer. This node's own readers wait no longer than this timeout.
        match timeout(ANSWER_TIMEOUT, endpoints.next()).await.unwrap_or(Err(Error::TimedOut)) {
            Ok(found) => Ok((nodes(found), endpoints)),
            Err(error) if error.is_temporary() => {
                warn!(
                    service = shown,
                    error = %Chain(&error),
                    "cannot list the endpoints yet; until then there are no other nodes"
                );
                Ok((Vec::new(), endpoints))
            }
            Err(error) => Err(MembershipError::Kubernetes { service: shown, source: Box::new(error) }),
        }
    }
}

/// Keeps the list of nodes current. Never returns.
pub(super) async fn watch(mut endpoints: Endpoints, sender: &watch::Sender<Arc<Vec<Node>>>) {
    loop {
        match endpoints.next().await {
            Ok(found) => publish(sender, nodes(found)),
            // Of consecutive errors, only the first is logged.
            Err(error) if endpoints.failures() == 1 => {
                let service = format!("{}/{}", endpoints.service().namespace, endpoints.service().name);
                warn!(service, error = %Chain(&error), "cannot watch the endpoints; the last good list stays");
            }
            Err(_) => {}
        }
    }
}

/// Converts the endpoints to nodes. Skips endpoints whose names are invalid for a node. Of the valid endpoints with the
/// same address, the first is a node.
fn nodes(endpoints: Vec<Endpoint>) -> Vec<Node> {
    let mut addresses = HashSet::new();
    let mut is_node =
        |found: &Endpoint| check_name("the name of a node", &found.name).is_ok() && addresses.insert(found.address);
    let endpoints = endpoints.into_iter().filter(|found| is_node(found));
    endpoints.map(|Endpoint { name, address, zone }| Node { name, address, weight: 1, zone }).collect()
}
