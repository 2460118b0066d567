//! The EndpointSlices of a service: what the API server sends, its changes, and the nodes in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::api::ApiError;
use crate::membership::node::{Node, check_name};

/// The known endpoints of a service.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// The resource version from which a watch continues.
    pub(super) version: String,
    slices: BTreeMap<String, Slice>,
}

impl Endpoints {
    /// Decodes a list.
    pub(super) fn from_list(body: &[u8]) -> Result<Self, ApiError> {
        let list: SliceList = serde_json::from_slice(body).map_err(ApiError::unexpected)?;
        let slices = list.items.into_iter().flatten().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        Ok(Self { version: list.metadata.resource_version, slices })
    }

    /// Applies an event of a watch.
    pub(super) fn apply(&mut self, line: &[u8]) -> Result<(), ApiError> {
        let event: Event = serde_json::from_slice(line).map_err(ApiError::unexpected)?;
        if event.kind == "ERROR" {
            let status: ApiStatus = serde_json::from_value(event.object).map_err(ApiError::unexpected)?;
            return Err(match status.code {
                410 => ApiError::Expired,
                code => ApiError::unexpected(format_args!("{code} {}", status.message)),
            });
        }
        let slice: Slice = serde_json::from_value(event.object).map_err(ApiError::unexpected)?;
        self.version.clone_from(&slice.metadata.resource_version);
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                self.slices.insert(slice.metadata.name.clone(), slice);
            }
            "DELETED" => {
                self.slices.remove(&slice.metadata.name);
            }
            // A bookmark, which carries only a version, or an event of a later API.
            _ => {}
        }
        Ok(())
    }

    /// The nodes by name. A terminating endpoint gives way to one that stays, as when the pod of a node is replaced.
    pub(super) fn nodes(&self, port_name: &str) -> Vec<Node> {
        let mut found: BTreeMap<&str, (bool, Node)> = BTreeMap::new();
        for slice in self.slices.values() {
            let port = slice
                .ports
                .iter()
                .flatten()
                .find(|port| port_name.is_empty() || port.name.as_deref().unwrap_or_default() == port_name);
            let Some(port) = port.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()) else {
                continue;
            };
            for endpoint in slice.endpoints.iter().flatten() {
                let conditions = &endpoint.conditions;
                let terminating = conditions.terminating.unwrap_or(false);
                // If a service publishes pods that are not ready, a stumbling pod is ready but does not serve.
                let serving = [conditions.ready, conditions.serving].into_iter().flatten().reduce(|a, b| a || b);
                let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
                let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
                let name = endpoint.node_name.as_deref().or(pod);
                let (true, Some(address), Some(name)) = (serving.unwrap_or(true), address, name) else { continue };
                if check_name("the name of a node", name).is_err() {
                    continue;
                }
                let node = Node {
                    name: name.to_owned(),
                    address: SocketAddr::new(address, port),
                    weight: 1,
                    zone: endpoint.zone.clone().unwrap_or_default(),
                };
                match found.get(name) {
                    Some((known_terminating, _)) if terminating || !known_terminating => {}
                    _ => {
                        found.insert(name, (terminating, node));
                    }
                }
            }
        }
        let mut addresses = BTreeSet::new();
        found.into_values().map(|(_, node)| node).filter(|node| addresses.insert(node.address)).collect()
    }
}

#[derive(Debug, Deserialize)]
struct SliceList {
    metadata: Metadata,
    // Null if there are none.
    items: Option<Vec<Slice>>,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

#[derive(Debug, Deserialize)]
struct ApiStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    resource_version: String,
}

#[derive(Debug, Deserialize)]
struct Slice {
    metadata: Metadata,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    node_name: Option<String>,
    zone: Option<String>,
    target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    name: Option<String>,
}
