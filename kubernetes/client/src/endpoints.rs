//! Follows the endpoints of a Service: its EndpointSlices are listed once, then watched.
//!
//! A watch that breaks resumes from the last resource version. After an error that a retry cannot mend, such as a
//! refused token or an expired version, and after several other errors in a row, the next attempt uses a new client,
//! which reads the token and the CA again, and begins with a list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt};
use tokio::time::{sleep, timeout};

/// The timeout of a connection, and of each step of a list.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of a watch in seconds; then another starts.
const WATCH_SECONDS: u32 = 290;
/// Errors in a row after which a new client is made.
const RETRIES: u32 = 5;
/// The pause after the first error, which doubles with each further one, and its limit.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MOST: Duration = Duration::from_secs(30);

/// A Service, and which of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of its port; empty: the only or first one.
    pub port: String,
}

/// An endpoint that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its node; without one, its pod.
    pub name: String,
    /// Its address and port.
    pub address: SocketAddr,
    /// Its zone; empty if unknown.
    pub zone: String,
}

/// Makes clients of the API server.
#[derive(Clone)]
pub struct Connect(Arc<dyn Fn() -> Result<Config, kube::Error> + Send + Sync>);

impl Connect {
    /// As a pod reaches it: with its service account, at `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub fn in_cluster() -> Self {
        Self(Arc::new(|| Config::incluster_env().map_err(|error| kube::Error::Service(error.into()))))
    }

    /// With this configuration, whose files are read again for each client.
    pub fn with(config: Config) -> Self {
        Self(Arc::new(move || Ok(config.clone())))
    }

    fn client(&self) -> Result<Client, Error> {
        let mut config = (self.0)().map_err(|source| Error::Config { source })?;
        config.connect_timeout = Some(ANSWER_TIMEOUT);
        Client::try_from(config).map_err(|source| Error::Config { source })
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connect")
    }
}

/// Why endpoints are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no usable client.
    #[error("use the service account of the pod")]
    Config {
        /// Why.
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error("the API server does not answer in time")]
    TimedOut,
    /// The API server answers with an error, or the connection broke.
    #[error("list and watch endpointslices: the service account needs these rights")]
    Watch {
        /// Why.
        source: watcher::Error,
    },
}

impl Error {
    /// True if the API server is unreachable or overloaded, so that a retry may succeed. All other errors need a
    /// person.
    pub fn is_temporary(&self) -> bool {
        let source = match self {
            Self::Config { .. } => return false,
            Self::TimedOut => return true,
            Self::Watch { source } => source,
        };
        let code = match source {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => match error {
                kube::Error::Api(status) => status.code,
                kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => return true,
                _ => return false,
            },
            watcher::Error::WatchError(status) => status.code,
            watcher::Error::NoResourceVersion => return false,
        };
        code >= 500 || code == 429
    }
}

/// With jitter: all nodes lose an API server at the same time.
fn pauses() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(PAUSE).with_max_delay(PAUSE_MOST);
    builder.with_jitter().without_max_times().build()
}

type Events = BoxStream<'static, Result<Event<EndpointSlice>, watcher::Error>>;

/// The endpoints of a Service as they change.
pub struct Endpoints {
    service: Service,
    connect: Connect,
    slices: BTreeMap<String, EndpointSlice>,
    /// The slices of a list that is not complete.
    listed: Option<BTreeMap<String, EndpointSlice>>,
    /// `None` until the next client is made.
    events: Option<Events>,
    /// Errors in a row.
    failures: u32,
    pauses: ExponentialBackoff,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Endpoints {
    /// The endpoints of this Service. Nothing is asked before the first [`Self::next`].
    pub fn of(service: Service, connect: Connect) -> Self {
        Self { service, connect, slices: BTreeMap::new(), listed: None, events: None, failures: 0, pauses: pauses() }
    }

    /// The Service.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The next list: the first as soon as it is complete, each later one after a change.
    ///
    /// # Errors
    /// The next call tries again, after a pause that grows with each error in a row.
    pub async fn next(&mut self) -> Result<Vec<Endpoint>, Error> {
        if self.failures > 0 {
            sleep(self.pauses.next().unwrap_or(PAUSE_MOST)).await;
        }
        match self.follow().await {
            Ok(()) => {
                (self.failures, self.pauses) = (0, pauses());
                Ok(endpoints(self.slices.values(), &self.service.port))
            }
            Err(error) => {
                self.failures += 1;
                let is_stuck = self.failures % RETRIES == 0;
                // A list in progress is begun again in any case, and cannot be waited for by its version.
                if is_stuck || matches!(error, Error::TimedOut) || !error.is_temporary() {
                    self.events = None;
                }
                Err(error)
            }
        }
    }

    /// Waits until the slices have changed.
    async fn follow(&mut self) -> Result<(), Error> {
        loop {
            if self.events.is_none() {
                self.listed = Some(BTreeMap::new());
                self.events = Some(self.begin()?);
            }
            let bound = match self.listed {
                Some(_) => ANSWER_TIMEOUT,
                None => Duration::from_secs(WATCH_SECONDS.into()) + ANSWER_TIMEOUT * 2,
            };
            let Some(events) = &mut self.events else { continue };
            let event = timeout(bound, events.next()).await.map_err(|_| Error::TimedOut)?;
            let Some(event) = event else {
                self.events = None;
                continue;
            };
            match event.map_err(|source| Error::Watch { source })? {
                Event::Init => self.listed = Some(BTreeMap::new()),
                Event::InitApply(slice) => {
                    self.listed.get_or_insert_default().insert(slice.name_any(), slice);
                }
                Event::InitDone => {
                    self.slices = self.listed.take().unwrap_or_default();
                    return Ok(());
                }
                Event::Apply(slice) => {
                    self.slices.insert(slice.name_any(), slice);
                    return Ok(());
                }
                Event::Delete(slice) => {
                    self.slices.remove(&slice.name_any());
                    return Ok(());
                }
            }
        }
    }

    fn begin(&self) -> Result<Events, Error> {
        let api: Api<EndpointSlice> = Api::namespaced(self.connect.client()?, &self.service.namespace);
        let labels = format!("kubernetes.io/service-name={}", self.service.name);
        Ok(watcher(api, watcher::Config::default().labels(&labels).timeout(WATCH_SECONDS)).boxed())
    }
}

/// The endpoints that serve, by name, at the port of this name. A terminating endpoint gives way to one that stays, as
/// when the pod of a node is replaced. Each address is in the list once.
pub fn endpoints<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>, port_name: &str) -> Vec<Endpoint> {
    let mut found: BTreeMap<String, (bool, Endpoint)> = BTreeMap::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port_name.is_empty() || port.name.as_deref().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            let terminating = conditions.and_then(|known| known.terminating).unwrap_or(false);
            // If a Service publishes pods that are not ready, an unready pod is `ready` but does not serve.
            let known = [conditions.and_then(|known| known.ready), conditions.and_then(|known| known.serving)];
            let serving = known.into_iter().flatten().reduce(|a, b| a || b).unwrap_or(true);
            let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref());
            let name = endpoint.node_name.as_ref().or(pod);
            let (true, Some(address), Some(name)) = (serving, address, name) else { continue };
            let made = Endpoint {
                name: name.clone(),
                address: SocketAddr::new(address, port),
                zone: endpoint.zone.clone().unwrap_or_default(),
            };
            match found.get(name) {
                Some((known_terminating, _)) if terminating || !known_terminating => {}
                _ => _ = found.insert(name.clone(), (terminating, made)),
            }
        }
    }
    let mut addresses = BTreeSet::new();
    found.into_values().map(|(_, made)| made).filter(|made| addresses.insert(made.address)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(address: &str, node: &str, more: Value) -> Value {
        let mut endpoint =
            json!({"addresses": [address], "nodeName": node, "zone": "z1", "conditions": {"ready": true}});
        endpoint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        endpoint
    }

    fn slice(name: &str, endpoints: Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "metrics", "port": 9464}, {"name": "peers", "port": 9466}],
        }))
        .unwrap()
    }

    #[test]
    fn endpoints_that_serve_are_listed_and_a_terminating_one_gives_way() {
        let slices = [
            // The pod of node b is being replaced: the endpoint that stays counts.
            slice(
                "s0",
                json!([endpoint(
                    "10.0.0.9",
                    "b",
                    json!({"conditions": {"ready": false, "serving": true, "terminating": true}})
                )]),
            ),
            slice(
                "s1",
                json!([
                    endpoint("10.0.0.2", "b", json!({})),
                    endpoint("10.0.0.1", "a", json!({"conditions": {}})),
                    endpoint("10.0.0.3", "c", json!({"conditions": {"ready": false, "serving": false}})),
                    endpoint("10.0.0.4", "e", json!({"conditions": {"ready": true, "serving": false}})),
                    endpoint("not-an-address", "d", json!({})),
                    endpoint("10.0.0.5", "", json!({"nodeName": null, "targetRef": {"name": "pod-5"}})),
                    endpoint("10.0.0.6", "", json!({"nodeName": null})),
                    endpoint("10.0.0.1", "twice", json!({})),
                ]),
            ),
            slice("s2", Value::Null),
        ];
        let shown = |port: &str| -> Vec<String> {
            endpoints(&slices, port).iter().map(|found| format!("{}={}", found.name, found.address)).collect()
        };
        let expected = ["a=10.0.0.1:9466", "b=10.0.0.2:9466", "e=10.0.0.4:9466", "pod-5=10.0.0.5:9466"];
        assert_eq!(shown("peers"), expected);
        assert_eq!(shown("")[0], "a=10.0.0.1:9464");
        assert_eq!(shown("none"), [""; 0]);
        assert_eq!(endpoints(&slices, "peers")[0].zone, "z1");
    }
}
