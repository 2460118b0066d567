//! The endpoints of a Kubernetes Service as nodes.
//!
//! Invariant: an error leaves the nodes as they were.

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

/// A Service whose endpoints are the nodes, written `NAMESPACE/NAME`, as a pod reaches its API server.
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
    /// The current nodes, none while the API server is unreachable, and what follows them.
    pub(super) async fn open(self) -> Result<(Vec<Node>, Endpoints), MembershipError> {
        let shown = self.to_string();
        let mut endpoints = Endpoints::of(self.service, self.connect);
        // A list of many pages takes longer than one answer. This node's own readers wait for no more than this.
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

/// Keeps the nodes current. Never ends.
pub(super) async fn watch(mut endpoints: Endpoints, sender: &watch::Sender<Arc<Vec<Node>>>) {
    let mut logged = false;
    loop {
        match endpoints.next().await {
            Ok(found) => {
                logged = false;
                publish(sender, nodes(found));
            }
            Err(error) if !logged => {
                logged = true;
                let service = format!("{}/{}", endpoints.service().namespace, endpoints.service().name);
                warn!(service, error = %Chain(&error), "cannot watch the endpoints; the last good list stays");
            }
            Err(_) => {}
        }
    }
}

/// The endpoints whose names can be those of nodes.
fn nodes(endpoints: Vec<Endpoint>) -> Vec<Node> {
    let endpoints = endpoints.into_iter().filter(|found| check_name("the name of a node", &found.name).is_ok());
    endpoints.map(|Endpoint { name, address, zone }| Node { name, address, weight: 1, zone }).collect()
}
