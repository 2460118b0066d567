//! A Kubernetes service whose endpoints are the nodes, and how to reach the API server.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

use crate::membership::node::{MembershipError, check_name, invalid};

/// Where a pod finds its credentials for the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A service, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FromStr for ServiceName {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| invalid(format_args!("{text:?} is not a service: write NAMESPACE/NAME")))?;
        check_name("a namespace", namespace)?;
        check_name("a service", name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A service whose endpoints are the nodes: those that it publishes as ready or that serve. Each has the name of its
/// Kubernetes node, or of its pod if it has none.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    /// Which service.
    pub service: ServiceName,
    /// The name of its port; empty: the only or first one.
    pub port: String,
    /// `https://HOST:PORT` of the API server; `http://` if something else secures the connection.
    pub api: Uri,
    /// The file with the bearer token.
    pub token_file: PathBuf,
    /// The file with the API server's CA.
    pub ca_file: PathBuf,
}

impl KubernetesService {
    /// As a pod reaches it: with its service account, and the values of `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`.
    pub fn in_cluster(service: ServiceName, host: &str, port: &str) -> Result<Self, MembershipError> {
        let bare = host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
        let authority = if bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let api = Uri::builder().scheme("https").authority(authority.as_str()).path_and_query("/").build();
        let api =
            api.map_err(|error| invalid(format_args!("{authority:?} is not the address of an API server: {error}")))?;
        let account = PathBuf::from(ACCOUNT);
        let (token_file, ca_file) = (account.join("token"), account.join("ca.crt"));
        Ok(Self { service, port: String::new(), api, token_file, ca_file })
    }
}
